#!/usr/bin/env python3
"""Holds one of three ranks of `tinyshard doctor` up, most of the time, and exits 0 where the doctor names that one for what it
measures of each alone:

    slow_neighbour.py TINYSHARD
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

SLOW = 1
RUNS_S, STOPS_S, AT_MOST_S = 0.01, 0.15, 25  # the sums, for which all wait, come last


def ranks_of(launcher):
    """Processes of ranks that the launcher has started, by rank."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)
        except OSError:
            continue
        if b"doctor-rank" in words and environment.get(b"SLOW_NEIGHBOUR") == str(launcher).encode():
            found[int(environment.get(b"TS_RANK", b"-1"))] = int(pid)
    return found


def hold_up(token, ended):
    while not ended.is_set() and SLOW not in ranks_of(token):
        time.sleep(0.02)
    pid = ranks_of(token).get(SLOW)
    until = time.monotonic() + AT_MOST_S
    while not ended.is_set() and pid and time.monotonic() < until:
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPS_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(RUNS_S)
        except ProcessLookupError:
            return


def main():
    ended = threading.Event()
    token = os.getpid()
    thread = threading.Thread(target=hold_up, args=(token, ended))
    thread.start()
    try:
        result = subprocess.run([sys.argv[1], "doctor", "-n", "3", "--json", "--folder", ""], capture_output=True, text=True, timeout=200,
                                env={**os.environ, "SLOW_NEIGHBOUR": str(token)})
    finally:
        ended.set()
        thread.join()
    print(result.stdout, result.stderr)
    found = json.loads(result.stdout)
    named = [line for line in found["warnings"] if f"rank {SLOW} on " in line and (": memory " in line or ": product " in line)]
    return 0 if result.returncode == 0 and named else 1


if __name__ == "__main__":
    sys.exit(main())
