#!/usr/bin/env python3
"""Changes files of a job at random places and has the page read them: no script of theirs runs, no element is made that could,
nothing is requested, no exception escapes and none is met in a sheet, none takes seconds. Most trials are done within one page
(hostile.js), with its own reader and sheets; some go the whole way, from a changed file through `tinyshard view` to a page.

    hostile_test.py --tinyshard build/release/cli/tinyshard --folder /tmp/hostile [--places 10000] [--seed 1]
    nice -n 19 setpriv --bounding-set -sys_nice hostile_test.py ... --places 10000 --pieces 10 >> hostile.log &

The second line is for the background: ten seeds with a browser each, which goes on after a piece that fails. A browser that runs as root
gives itself a higher priority than it was given, unless it may not.
"""

import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys

import chromium

KEPT = pathlib.Path(__file__).resolve().parent / "kept"
AT_ONCE = 40  # trials of one call, so that none takes longer than the browser is waited for


def check(holds, *what):
    if not holds:
        raise AssertionError(" ".join(map(str, what)))


def within_a_page(browser, options, seed, inputs):
    page = browser.open((options.folder / "kept.html").as_uri())
    page.wait("document.documentElement.dataset.ready === 'yes'", browser.timeout)
    page.run((pathlib.Path(__file__).parent / "hostile.js").read_text() + "\n0")
    files = [{"name": f.name, "lines": f.read_text().splitlines()} for f in inputs]
    page.run("(window.files = %s, 0)" % json.dumps(files))
    done, call, slowest = 0, 0, 0
    while done < options.places:
        places = options.of_a_trial
        trials = min(AT_ONCE, -(-(options.places - done) // places))
        result = page.run(f"hostile({{files, trials: {trials}, places: {places}, seed: {seed * 100003 + call}}})")
        check(not result["problems"], "seed", seed * 100003 + call, result["problems"])
        check(not result["told"], "seed", seed * 100003 + call, "a sheet cannot be drawn:", result["told"])
        done, call, slowest = done + result["done"], call + 1, max(slowest, result["slowest"])
    check(page.problems == [], page.problems[:5])
    check([r for r in page.requests if not r.startswith("file:")] == [], page.requests)
    print(f"seed {seed}: {done} places in one page, the slowest trial took {slowest:.0f} ms", flush=True)


def through_the_program(browser, options, seed, inputs):
    random.seed(seed)
    text = inputs[0].read_bytes()
    hostile = (b"</script><script>pwned=1</script>", b"<img src=x onerror=pwned=1>", b"\xff\xfe", b"\\u003cscript>", b"{\"k\":\"head\"}", b"\n")
    places = 0
    for trial in range(max(3, options.places // 5000)):
        damaged = bytearray(text)
        for _ in range(20):
            at = random.randrange(len(damaged))
            if random.random() < .3:
                damaged[at:at] = random.choice(hostile)
            else:
                damaged[at] = random.choice(b"<>\"'&{}[],:0123456789e-\\\x00\xff")
            places += 1
        (options.folder / "damaged.tsview").write_bytes(damaged)
        subprocess.run([options.tinyshard, "view", options.folder / "damaged.tsview"], check=True, stdout=subprocess.DEVNULL)
        page = browser.open((options.folder / "damaged.html").as_uri())
        page.wait("document.documentElement.dataset.ready === 'yes' || document.querySelector('[role=alert]') !== null", browser.timeout)
        check(page.run("window.pwned") is None, "a script of the data ran in trial", trial)
        check(page.problems == [], trial, page.problems[:3])
        check([r for r in page.requests if not r.startswith("file:")] == [], page.requests)
        page.close()
    print(f"seed {seed}: {places} places through tinyshard view", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tinyshard", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--places", type=int, default=480)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pieces", type=int, default=1)
    parser.add_argument("--of-a-trial", type=int, default=8, help="places that are changed before the sheets are drawn")
    options = parser.parse_args()
    if not chromium.find():
        print("skipped: there is no Chromium")
        return 0
    options.folder = options.folder.resolve()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    inputs = sorted(KEPT.glob("run.rank*.tsview"))
    subprocess.run([options.tinyshard, "view", "-o", options.folder / "kept.html", *inputs], check=True, stdout=subprocess.DEVNULL)
    failed = 0
    for seed in range(options.seed, options.seed + options.pieces):
        try:
            with chromium.Chromium(timeout=300) as browser:
                within_a_page(browser, options, seed, inputs)
                through_the_program(browser, options, seed, inputs)
        except Exception as error:
            if options.pieces == 1:
                raise
            failed += 1
            print(f"seed {seed}: {error}", flush=True)
    print(f"{failed} pieces failed" if failed else "passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
