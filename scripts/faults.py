#!/usr/bin/env python3
"""Does something to ranks of small jobs, many times, at random moments, and exits 0 when every trial ended as
docs/launch.md says, 1 otherwise.

    scripts/faults.py kill [--trials 1000]      one rank is killed: each survivor names it, 99 % within a second
    scripts/faults.py stop                      one is stopped: named at the deadline, and not for a pause that is shorter
    scripts/faults.py diverge                   one makes another call: tinyshard blame names it
    scripts/faults.py diverge --axes 2,3        the same on meshes of two and three axes, where ranks then wait for each other in
                                                different groups: all are told within two seconds, and none of a rank that computes
    scripts/faults.py kill --mpirun "mpirun --oversubscribe --enable-recovery"     the same over MPI
    scripts/faults.py launcher                  the launcher is killed: no process, socket, shared memory or file stays

Each trial prints its seed only where it fails; --seed N runs that one first. The programs are those of the build folder
(--build, by default build/release): tinyshard and transport_fault_rank. Of training that goes on: scripts/elastic.py.
"""

import argparse
import functools
import os
import pathlib
import signal
import subprocess
import sys
import time

from local_job import RANKS, add_options, run_trials, send


def check_named(job, victim, since, delays):
    """A sentence when a survivor did not name the victim; else its delays are appended."""
    reports = job.reports()
    for rank in range(RANKS):
        if rank == victim:
            continue
        if rank not in reports:
            return f"rank {rank} said nothing"
        peer, at, text = reports[rank]
        if peer != victim:
            return f"rank {rank} blames rank {peer}: {text}"
        delays.append(at - since)
    return None


def kill(job_of, draw, delays):
    job = job_of("work", 20)
    try:
        if not job.ready():
            return "the job did not begin", job
        time.sleep(draw.uniform(0, 0.3))
        victim = draw.randrange(RANKS)
        since = time.monotonic()
        send(job.pids()[victim], signal.SIGKILL)
        if job.finish() is None:
            return "it hangs", job
        return check_named(job, victim, since, delays), job
    finally:
        job.sweep()


def stop(job_of, draw, delays):
    deadline = 2
    job = job_of("work", deadline)
    try:
        if not job.ready():
            return "the job did not begin", job
        time.sleep(draw.uniform(0, 0.2))
        victim = draw.randrange(RANKS)
        pid = job.pids()[victim]
        since = time.monotonic()
        send(pid, signal.SIGSTOP)
        time.sleep(draw.uniform(0.05, 0.3) * deadline)
        send(pid, signal.SIGCONT)
        time.sleep(0.2)
        if job.reports():
            return f"a pause is a failure: {job.reports()}", job
        since = time.monotonic()
        send(pid, signal.SIGSTOP)
        if not job.until(lambda: len(set(job.reports()) - {victim}) == RANKS - 1):
            return "not all survivors said something", job
        problem = check_named(job, victim, since, delays)
        send(pid, signal.SIGCONT)
        if job.finish() is None:
            return "it hangs", job
        return problem, job
    finally:
        job.sweep()


def diverge(job_of, draw, _):
    victim, how = draw.randrange(RANKS), draw.choice(["extra", "missing", "op", "type", "count"])
    call = 2 * draw.randrange(1, 20) + draw.randrange(2)
    job = job_of(f"diverge:{victim}:{call}:{how}:{draw.choice([0, 300])}", 5, ["--log-dir", "rings"])
    try:
        status = job.finish()
        if status is None:
            return "it hangs", job
        said = subprocess.run([job.tool, "blame", job.folder / "rings"], capture_output=True, text=True).stdout
        expected = f"rank {victim} (process "
        if not said.startswith(expected) or " diverged: it runs " not in said:
            return f"rank {victim} made a call {how}, blame says: {said}", job
        return None, job
    finally:
        job.sweep()


MESHES = {2: ["2,2", "2,3", "3,2"], 3: ["2,2,2"]}


def cross(job_of, draw, delays, axes):
    """As diverge, on a mesh of so many axes. One trial of ten is of a rank that merely comes late."""
    sizes = draw.choice(MESHES[draw.choice(axes)])
    ranks = 1
    for size in sizes.split(","):
        ranks *= int(size)
    victim, step = draw.randrange(ranks), draw.randrange(39)
    how = "late:3000" if draw.random() < 0.1 else draw.choice(["extra", "missing", "program", "order"])
    job = job_of(None, 0, program="transport_cross_rank", words=[sizes, victim, step, how], ranks=ranks)
    try:
        status = job.finish()
        what = f"mesh {sizes}, rank {victim} at step {step}: {how}"
        if status is None:
            return f"{what}: it hangs", job
        reports = job.reports()
        if how.startswith("late"):
            return (f"{what}: {reports}" if reports or status else None), job
        elapsed = job.elapsed()
        if len(reports) < ranks:
            return f"{what}: ranks {sorted(set(range(ranks)) - set(reports))} were told nothing", job
        delays.extend(elapsed.values())
        if max(elapsed.values()) > 2:
            return f"{what}: told after {max(elapsed.values()):.1f} s", job
        return None, job
    finally:
        job.sweep()


def traces():
    """What a job could leave: its shared memory. Processes, sockets and files are looked for by the trial."""
    others = ("vader_segment", "tinyshard-simulator")  # Open MPI's, of other jobs, and folders of simulated ones
    return {name for name in os.listdir("/dev/shm") if not name.startswith(others)}


def launcher(job_of, draw, _):
    before = traces()
    job = job_of("work", 20)
    try:
        if draw.random() < 0.7 and not job.ready():
            return "the job did not begin", job
        time.sleep(draw.uniform(0, 0.3))
        mark = f"TMPDIR={job.folder}"
        send(job.process.pid, signal.SIGKILL)
        job.process.wait()

        def alive():
            found = []
            for entry in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if mark in (entry / "environ").read_text(errors="replace").split("\0"):
                        found.append(entry.name)
                except OSError:
                    pass
            return found

        # A socket lives as long as a process that holds it, so none of those is enough.
        if not job.until(lambda: not alive()):
            return f"processes stay: {alive()}", job
        left = [entry.name for entry in job.folder.iterdir() if entry.name != "output"]
        if left or traces() - before:
            return f"files stay: {left}, shared memory: {traces() - before}", job
        return None, job
    finally:
        job.sweep()


FAULTS = {"kill": kill, "stop": stop, "diverge": diverge, "launcher": launcher}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault", choices=FAULTS)
    add_options(parser, trials=5)
    parser.add_argument("--axes", type=lambda text: [int(n) for n in text.split(",")], help="diverge: on meshes of so many axes, such as 2,3")
    parser.add_argument("--mpirun", metavar="COMMAND", help="start ranks so, over MPI, and not by tinyshard run over TCP: kill, stop, diverge --axes")
    options = parser.parse_args()
    if options.axes and options.fault != "diverge":
        parser.error(f"--axes: of diverge, and not of {options.fault}")
    if options.mpirun and options.fault not in ("kill", "stop") and not options.axes:
        parser.error(f"--mpirun: {options.fault} is of jobs that tinyshard run starts")
    delays, begun = [], time.monotonic()
    fault = functools.partial(cross, axes=options.axes) if options.axes else FAULTS[options.fault]
    bad = run_trials(options, lambda job_of, draw: fault(functools.partial(job_of, mpirun=options.mpirun), draw, delays))
    delays.sort()
    line = f"{options.fault}: {options.trials} trials, {bad} bad, {time.monotonic() - begun:.0f} s"
    late = False
    if delays:
        at = lambda share: delays[min(len(delays) - 1, int(share * len(delays)))]
        line += f"; reports after {at(0.5) * 1e3:.0f} ms in the median, {at(0.99) * 1e3:.0f} ms in 99 of 100, " \
                f"{delays[-1] * 1e3:.0f} ms at most"
        late = options.fault == "kill" and at(0.99) > 1
    print(line)
    return 1 if bad or late else 0


if __name__ == "__main__":
    sys.exit(main())
