#!/usr/bin/env python3
"""Does something to ranks of small jobs, many times, at random moments, and exits 0 when every trial ended as
docs/launch.md says, 1 otherwise.

    scripts/faults.py kill [--trials 1000]      one rank is killed: each survivor names it, 99 % within a second
    scripts/faults.py stop                      one is stopped: named at the deadline, and not for a pause that is shorter
    scripts/faults.py diverge                   one makes another call: tinyshard blame names it
    scripts/faults.py diverge --axes 2,3        the same on meshes of two and three axes, where ranks then wait for each other in
                                                different groups: all are told within two seconds, and none of a rank that computes
    scripts/faults.py drift                     one of two to six ranks of a training departs from the others in one thing (a batch, a
                                                seed, a rate, a copy, a call ...): told within two seconds; of nothing where nobody does
    scripts/faults.py kill --mpirun "mpirun --oversubscribe --enable-recovery"     the same over MPI
    scripts/faults.py launcher                  the launcher is killed: no process, socket, shared memory or file stays
    scripts/faults.py end [--trials 500]        the launcher, an agent or a rank is told to end, or killed with its agent: over
                                                within a second (three and a half where it asks for time), with the status of the
                                                signal; nothing stays

Each trial prints its seed only where it fails; --seed N runs that one first. The programs are those of the build folder
(--build, by default build/release): tinyshard, transport_fault_rank and launch_ending_rank. Of training that goes on: scripts/elastic.py.
"""

import argparse
import collections
import functools
import os
import pathlib
import re
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


DEPARTURES = ["skip", "repeat", "sample", "draw", "seed", "rate", "part", "mode", "extra", "assign", "read"]
HARMLESS = {"draw", "mode", "read", "sample"}  # some programs draw nothing more, have no dropout, or compute the same
told = collections.Counter()


def drift(job_of, draw, delays):
    """Half of the programs have nobody who departs. A departure without a word is harmless where all ranks end with the same weights,
    as when nothing is drawn after a draw."""
    ranks, program = draw.randint(2, 6), draw.randrange(1 << 20)
    departure = draw.choice(DEPARTURES) if draw.random() < 0.5 else "none"
    who = draw.randrange(ranks) if departure != "none" else -1
    flags = ["--devices-per-rank", "2"] if draw.random() < 0.25 else []
    job = job_of("", 20, flags, program="transport_drift_rank", words=[program, departure, who], ranks=ranks)
    what = f"program {program}, {departure} by rank {who} of {ranks} {' '.join(flags)}"
    try:
        status = job.finish()
        if status is None:
            return f"it hangs: {what}", job
        said = {int(rank): (int(at) * 1e-9, text) for rank, at, text in re.findall(r"^(\d+) told (\d+) (.*)$", job.text(), re.M)}
        weights = re.findall(r"^\d+ weights (\d+)$", job.text(), re.M)
        departs = re.search(r"^\d+ departs (\d+)$", job.text(), re.M)
        if departure == "none" or not departs:
            told["innocent"] += 1
            return None if not said and len(set(weights)) == 1 and len(weights) == ranks else f"it was told something: {what}", job
        if not said and "the ranks diverged" in job.text():  # as they exited
            told["at exit"] += 1
            return None if status else f"it ends well: {what}", job
        if not said:
            silent = departure not in HARMLESS or len(set(weights)) != 1
            told["harmless"] += 1
            return f"nobody was told: {what}" if silent else None, job
        told[departure] += 1
        delays.append(min(at for at, _ in said.values()) - int(departs[1]) * 1e-9)
        return None if delays[-1] < 2 else f"told after {delays[-1]:.1f} s: {what}", job
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
    # Open MPI's, of other jobs; folders of simulated ones and of tests that run beside this.
    others = ("vader_segment", "tinyshard-simulator", "tinyshard-test")
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

        # A socket lives as long as a process that holds it, so none of those is enough.
        if not job.until(lambda: not processes_with(mark)):
            return f"processes stay: {processes_with(mark)}", job
        left = [entry.name for entry in job.folder.iterdir() if entry.name != "output"]
        if left or traces() - before:
            return f"files stay: {left}, shared memory: {traces() - before}", job
        return None, job
    finally:
        job.sweep()


# What ranks do when they are told to end, and how long that may take. A shell above the program is another case of each.
ACTIONS = {"step": 1, "sleep": 1, "wait": 1, "meet": 1, "compile": 1, "print": 1, "fork": 1, "group": 1, "session": 1, "daemon": 1,
           "ignore": 1, "save": 3.5, "dawdle": 3.5}
SHELLS = {"": [], "sh": ["sh", "-c", '"$@"; true', "sh"], "timeout": ["timeout", "97"]}


def processes_with(mark):
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_text(errors="replace").split("\0"):
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def children_of(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def abstract_sockets():
    lines = pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]
    return {words[7] for words in map(str.split, lines) if len(words) > 7 and "tinyshard" in words[7]}


def end(job_of, draw, delays):
    before, sockets = traces(), abstract_sockets()
    action, shell = draw.choice(list(ACTIONS)), draw.choice(["", "", "sh", "timeout"])
    folder = "saved"
    job = job_of(None, 20, program="launch_ending_rank", under=SHELLS[shell],
                 words=[action, folder] if action == "save" else [action])
    try:
        early = draw.random() < 0.2
        if not early and not job.until(lambda: job.text().count("ready ") >= RANKS):
            return f"{action} under {shell!r} did not begin", job
        time.sleep(draw.uniform(0, 0.5))
        mark, target = f"TMPDIR={job.folder}", draw.choice(["launcher", "launcher", "agent", "rank", "killed"])
        number = draw.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        agents = [pid for pid in children_of(job.process.pid) if name_of(pid) == "tinyshard"]
        # Behind the ranks there may be orphans that the agent has adopted.
        ranks = [pid for agent in agents for pid in children_of(agent) if name_of(pid) != "ts-guardian"][:RANKS]
        # One that ignores signals is not told by them, and a start of some milliseconds has no ranks yet.
        if target == "rank" and (action == "ignore" or not ranks) or target != "launcher" and not agents:
            target = "launcher"
        if target == "rank" and shell == "sh":
            number = signal.SIGTERM  # a shell leaves SIGINT to the program that it waits for
        what = f"{action} under {shell!r}, {target}, signal {int(number)}{', early' if early else ''}"
        since = time.monotonic()
        if target == "killed":
            for pid in [job.process.pid, *agents]:
                send(pid, signal.SIGKILL)
        else:
            send({"launcher": job.process.pid, "agent": (agents or [0])[0], "rank": draw.choice(ranks or [0])}[target], number)
        status = job.finish()
        if not job.until(lambda: not processes_with(mark)):
            return f"{what}: processes stay: {[(pid, name_of(pid)) for pid in processes_with(mark)]}", job
        took = time.monotonic() - since
        delays.append(took)
        if took > ACTIONS[action]:
            return f"{what}: {took:.2f} s", job
        expected = 128 + number if target != "killed" else -signal.SIGKILL
        # The launcher may not have come as far as its handlers.
        if status != expected and not (early and status == -number):
            return f"{what}: status {status}, expected {expected}", job
        if action == "save" and not early and target != "killed" and "saved step " not in job.text():
            return f"{what}: nothing was saved", job
        left = [entry.name for entry in job.folder.iterdir() if entry.name not in ("output", folder)]
        if left or traces() - before or abstract_sockets() - sockets:
            return f"{what}: files stay: {left}, {traces() - before}, sockets: {abstract_sockets() - sockets}", job
        return None, job
    finally:
        job.sweep()


FAULTS = {"kill": kill, "stop": stop, "diverge": diverge, "drift": drift, "launcher": launcher, "end": end}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault", choices=FAULTS)
    add_options(parser, trials=5)
    parser.add_argument("--axes", type=lambda text: [int(n) for n in text.split(",")], help="diverge: on meshes of so many axes, such as 2,3")
    parser.add_argument("--mpirun", metavar="COMMAND", help="start ranks so, over MPI, and not by tinyshard run over TCP: kill, stop, drift, diverge --axes")
    options = parser.parse_args()
    if options.axes and options.fault != "diverge":
        parser.error(f"--axes: of diverge, and not of {options.fault}")
    if options.mpirun and options.fault not in ("kill", "stop", "drift") and not options.axes:
        parser.error(f"--mpirun: {options.fault} is of jobs that tinyshard run starts")
    delays, begun = [], time.monotonic()
    fault = functools.partial(cross, axes=options.axes) if options.axes else FAULTS[options.fault]
    bad = run_trials(options, lambda job_of, draw: fault(functools.partial(job_of, mpirun=options.mpirun), draw, delays))
    delays.sort()
    line = f"{options.fault}: {options.trials} trials, {bad} bad, {time.monotonic() - begun:.0f} s"
    late = False
    if delays:
        at = lambda share: delays[min(len(delays) - 1, int(share * len(delays)))]
        what = "over" if options.fault == "end" else "reports"
        line += f"; {what} after {at(0.5) * 1e3:.0f} ms in the median, {at(0.99) * 1e3:.0f} ms in 99 of 100, " \
                f"{delays[-1] * 1e3:.0f} ms at most"
        late = options.fault == "kill" and at(0.99) > 1
    if told:
        line += "; told: " + ", ".join(f"{kind} {count}" for kind, count in sorted(told.items()))
    print(line)
    return 1 if bad or late else 0


if __name__ == "__main__":
    sys.exit(main())
