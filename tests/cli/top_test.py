#!/usr/bin/env python3
"""Watches jobs with `tinyshard top`: four ranks of which one is slow, as a table, as JSON and on a terminal, where `q`
ends it; then no job at all.

    top_test.py TINYSHARD PROGRAM FOLDER
"""

import json
import os
import pathlib
import pty
import select
import shutil
import subprocess
import sys
import time

SLOW = 1


def check(holds, *what):
    if not holds:
        raise AssertionError(" ".join(map(str, what)))


def top(tinyshard, *words):
    return subprocess.run([tinyshard, "top", *map(str, words)], text=True, capture_output=True, timeout=60,
                          stdin=subprocess.DEVNULL)


def wait_for_runs(tinyshard, folder):
    """The job as JSON once all ranks have made ten runs."""
    until = time.monotonic() + 90
    while time.monotonic() < until:
        result = top(tinyshard, folder, "--json")
        jobs = json.loads(result.stdout)["jobs"] if result.returncode == 0 else []
        if jobs and len(jobs[0]["ranks"]) == 4 and all(r["run"] > 30 for r in jobs[0]["ranks"]):
            return jobs[0]
        time.sleep(0.2)
    raise AssertionError("the job did not begin: " + result.stdout + result.stderr)


def on_a_terminal(tinyshard, folder):
    """Renews itself and ends by the key q; the terminal is as before."""
    main, other = pty.openpty()
    process = subprocess.Popen([tinyshard, "top", folder, "--every", "0.2"], stdin=other, stdout=other, stderr=other)
    os.close(other)
    shown, until = b"", time.monotonic() + 30
    while shown.count(b"q quits") < 3 and time.monotonic() < until:
        if select.select([main], [], [], 1)[0]:
            shown += os.read(main, 65536)
    check(process.poll() is None, "it ended by itself")
    os.write(main, b"xq")
    while select.select([main], [], [], 5)[0]:
        try:
            piece = os.read(main, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    check(process.wait(30) == 0, process.returncode)
    os.close(main)
    text = shown.decode(errors="replace")
    check(text.count("q quits") >= 3 and "holds the others up" in text and "\x1b[?1049l" in text, text[-2000:])


def main():
    tinyshard, program, folder = sys.argv[1:]
    folder = pathlib.Path(folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    nothing = top(tinyshard, folder)
    check(nothing.returncode != 0 and "has no ring" in nothing.stderr, nothing)
    job = subprocess.Popen([tinyshard, "run", "-n", "4", "--log-dir", folder, "--", program, "100000", str(SLOW)],
                           env=dict(os.environ, TS_JOB="watched\x1b[31m"), stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    try:
        figures = wait_for_runs(tinyshard, folder)
        print(json.dumps(figures)[:1500])
        ranks = figures["ranks"]
        check([r["rank"] for r in ranks] == [0, 1, 2, 3], ranks)
        check(all(r["state"] == "runs" and r["memory_bytes"] > 1 << 20 and r["runs_per_s"] > 0 for r in ranks), ranks)
        check(figures["slowest"] == SLOW, figures["slowest"])
        check(ranks[SLOW]["late_per_run_s"] > 0.005, ranks[SLOW])
        check(ranks[0]["in_calls"] > ranks[SLOW]["in_calls"], ranks)
        table = top(tinyshard, folder, "--once")
        print(table.stdout)
        check(table.returncode == 0 and "rank 1 holds the others up" in table.stdout, table)
        check("\x1b" not in table.stdout, "a name reaches the terminal as it is")
        # All of this user's jobs, without a folder.
        check(str(folder) in top(tinyshard).stdout, "the job is not found")
        on_a_terminal(tinyshard, folder)
    finally:
        job.terminate()
        job.wait(60)
    ended = top(tinyshard, folder)
    check(ended.returncode != 0 and "no job runs in" in ended.stderr, ended)
    print("passed")


if __name__ == "__main__":
    sys.exit(main())
