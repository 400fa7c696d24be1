#!/usr/bin/env python3
"""Runs jobs as a container would have them, and exits 0 when each ends well or as it was told to and leaves nothing, 1 otherwise,
77 with a reason where this machine permits no namespaces.

    scripts/container.py [--build build/release] [-- program ...]

    plain    namespaces of processes and mounts, /tmp empty, one core
    noproc   the same with an empty /proc
    old      the same as noproc, and the kernel knows no pidfd_open, clone3, close_range, openat2 and faccessat2 (ENOSYS), as
             under an old seccomp profile
    refused  as old, but pidfd_open and close_range are refused (EPERM)
    apart    each rank in a namespace of processes of its own, where all have the number 1

The root is that of this machine. In each case a job of two ranks meets, adds and ends, and another one, which sleeps, is told to
end by SIGTERM. Afterwards the namespace has no process but this script's, and /tmp and /dev/shm hold no file of the job. The
programs are those of the build folder, or the one that is named: it gets its own words, and has to end by itself.
"""

import argparse
import ctypes
import os
import pathlib
import signal
import struct
import subprocess
import sys
import time

INSIDE = "TINYSHARD_CONTAINER_INSIDE"
SKIPPED = 77
CASES = ["plain", "noproc", "old", "refused", "apart"]
ENOSYS, EPERM = 38, 1
# Numbers of x86-64 and of all architectures since: pidfd_open 434, clone3 435, close_range 436, openat2 437, faccessat2 439.
UNKNOWN = {434: ENOSYS, 435: ENOSYS, 436: ENOSYS, 437: ENOSYS, 439: ENOSYS}
END_S = 60  # a busy machine with one core


def filter_calls(errors):
    """A seccomp filter of this process and of all that it starts."""
    load, equal, give = 0x20, 0x15, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000
    program = [(load, 0, 0, 0)]
    for number, error in errors.items():
        program += [(equal, 0, 1, number), (give, 0, 0, refuse | error)]
    program.append((give, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, by_filter = 38, 22, 2
    libc.prctl(no_new_privileges, 1, 0, 0, 0)
    filled = Program(len(program), ctypes.addressof(code))
    if libc.prctl(set_seccomp, by_filter, ctypes.byref(filled), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def others_live():
    """Processes of this namespace beside this one, which is its first: the kernel knows, without /proc."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    try:
        os.kill(-1, 0)
        return True
    except ProcessLookupError:
        return False


def inside(case, build, program):
    """In the namespaces: the first process of them."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for folder in ("/tmp", "/dev/shm"):
        subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    subprocess.run(["mount", "-t", "proc" if case in ("plain", "apart") else "tmpfs", "none", "/proc"], check=True)
    if case in ("old", "refused"):
        filter_calls(UNKNOWN if case == "old" else {**UNKNOWN, 434: EPERM, 436: EPERM})
    environment = dict(os.environ, HOME="/tmp", XDG_CACHE_HOME="/tmp/cache")
    apart = ["unshare", "--pid", "--fork", "--kill-child"] if case == "apart" else []
    run = [build / "cli/tinyshard", "run", "-n", "2", "--", *apart]
    resting = build / "tests/launch/launch_ending_rank"

    def ends(words, told, expected):
        begun = time.monotonic()
        job = subprocess.Popen(list(map(str, words)), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
        said = []
        while told and sum("ready" in line for line in said) < 2 and (line := job.stdout.readline()):
            said.append(line)
        if told:
            job.send_signal(signal.SIGTERM)
        try:
            said.append(job.communicate(timeout=END_S)[0])
        except subprocess.TimeoutExpired:
            print(f"{case}: {' '.join(map(str, words))} hangs\n{''.join(said)}")
            return False
        end = time.monotonic() + 2  # a parent of its own namespace sees the end of its children a moment later
        while others_live() and time.monotonic() < end:
            time.sleep(0.01)
        left = [str(path) for folder in ("/tmp", "/dev/shm") for path in pathlib.Path(folder).iterdir() if path.name != "cache"]
        good = job.returncode == expected and not left and not others_live()
        print(f"{case}: {'told to end' if told else 'to its end'}, status {job.returncode}, {time.monotonic() - begun:.1f} s, "
              f"{'processes stay' if others_live() else 'no process stays'}, files: {left or 'none'}", flush=True)
        if not good:
            print("".join(said))
        return good

    return ends([*run, *program], False, 0) & ends([*run, resting, "sleep"], True, 128 + signal.SIGTERM)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("program", nargs="*")
    options = parser.parse_args()
    build = options.build.resolve()
    program = options.program or [build / "tests/launch/launch_ending_rank", "meet_only"]
    if os.environ.get(INSIDE):
        return 0 if inside(os.environ[INSIDE], build, program) else 1
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        namespaces += ["--user", "--map-root-user"]
    probe = subprocess.run([*namespaces, "mount", "-t", "tmpfs", "none", "/proc"], capture_output=True, text=True)
    if probe.returncode != 0:
        print(f"this machine permits no namespaces of processes and mounts: {probe.stderr.strip()}")
        return SKIPPED
    bad = 0
    for case in options.case or CASES:
        words = [*namespaces, sys.executable, __file__, "--build", build, *(["--", *program] if options.program else [])]
        bad += subprocess.run(list(map(str, words)), env=dict(os.environ, **{INSIDE: case})).returncode != 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
