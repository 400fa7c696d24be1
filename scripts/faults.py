#!/usr/bin/env python3
"""Does something to ranks of small jobs over TCP, many times, at random moments, and exits 0 when every trial ended as
docs/launch.md says, 1 otherwise.

    scripts/faults.py kill [--trials 1000]      one rank is killed: each survivor names it, 99 % within a second
    scripts/faults.py stop                      one is stopped: named at the deadline, and not for a pause that is shorter
    scripts/faults.py diverge                   one makes another call: tinyshard blame names it
    scripts/faults.py launcher                  the launcher is killed: no process, socket, shared memory or file stays
    scripts/faults.py elastic                   up to three ranks of a training are killed, one after the other: the others go on, take each
                                                sample once, and end with the bits of a run through the same worlds in which nobody dies

Each trial prints its seed only where it fails; --seed N runs that one first. The programs are those of the build folder
(--build, by default build/release): tinyshard, transport_fault_rank and transport_elastic_rank.
"""

import argparse
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 4
CAP_S = 30  # whatever happens, a job is over by then


class Job:
    """tinyshard run of the program that plays a rank; its lines are read from a file, so that nothing blocks."""

    def __init__(self, build, folder, scenario, timeout_s, flags=(), program="transport_fault_rank", words=None):
        self.folder = folder
        self.path = folder / "output"
        self.tool = build / "cli/tinyshard"
        self.program = build / "tests/fault/transport" / program
        words = [self.program, *([scenario, timeout_s] if words is None else words)]
        command = [self.tool, "run", "--no-prefix", "-n", str(RANKS), *flags, "--", *words]
        environment = dict(os.environ, TMPDIR=str(folder))
        with open(self.path, "w") as output:
            self.process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=output, cwd=folder,
                                            env=environment, start_new_session=True)
        self.end = time.monotonic() + CAP_S

    def text(self):
        return self.path.read_text(errors="replace")

    def pids(self):
        return {int(rank): int(pid) for rank, pid in re.findall(r"^(\d+) ready (\d+)$", self.text(), re.M)}

    def reports(self):
        """By rank: whom it blames, and when, in seconds of the steady clock."""
        found = re.findall(r"^(\d+) report (-?\d+) (\d+) \S+ \S+ (.*)$", self.text(), re.M)
        return {int(rank): (int(peer), int(at) * 1e-9, text) for rank, peer, at, text in found}

    def until(self, condition):
        while time.monotonic() < self.end:
            if condition():
                return True
            time.sleep(0.005)
        return False

    def ready(self):
        return self.until(lambda: len(self.pids()) == RANKS)

    def finish(self):
        """The launcher's status; None where it hangs."""
        self.until(lambda: self.process.poll() is not None)
        return self.process.poll()

    def sweep(self):
        for pid in [*self.pids().values(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


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
    job = job_of(f"diverge:{victim}:{call}:{how}", 5, ["--log-dir", "rings"])
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


def traces():
    """What a job could leave: its shared memory. Processes, sockets and files are looked for by the trial."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("vader_segment")}  # Open MPI's, of other jobs


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


def elastic(job_of, draw, delays):
    victims = draw.sample(range(RANKS), draw.randrange(1, RANKS))
    # From before the first commit to after the last one: who has ended by then is not lost.
    kills = [f"{victim}:{1 + int(draw.choice([-3e4, -2e5, 5e3, 5e4]) * draw.random())}" for victim in victims]
    job = job_of("", 20, ["--elastic", "1", "--cores", "all", "--timeout", "20"], "transport_elastic_rank", kills)
    try:
        if job.finish() is None:
            return f"it hangs (kills {kills})", job
        done = {int(rank): rest for rank, rest in re.findall(r"^(\d+) done (.*)$", job.text(), re.M)}
        lost = set(map(int, re.findall(r"rank (\d+) \(process \d+ on \S+\) has ended, killed", job.text())))
        if set(done) | lost != set(range(RANKS)) or not lost <= set(victims) or not done or len(set(done.values())) != 1:
            return f"ranks ended otherwise (kills {kills})", job
        for rank in done:
            took = [tuple(map(int, t)) for t in re.findall(rf"^{rank} took (\d+) (\d+) (\d+)$", job.text(), re.M)]
            if [t[0] for t in took] != list(range(len(took))) or took[0][1] != 0 or \
                    any(a[2] != b[1] for a, b in zip(took, took[1:])):
                return f"rank {rank} lost or repeated samples (kills {kills})", job
        worlds = next(iter(done.values())).split()[1:]
        undisturbed = subprocess.run([job.program, "schedule", *worlds], capture_output=True, text=True, timeout=CAP_S)
        if f"0 done {next(iter(done.values()))}\n" not in undisturbed.stdout:
            return f"undisturbed it is {undisturbed.stdout.splitlines()[-1:]}{undisturbed.stderr} (kills {kills})", job
        delays += [float(ms) * 1e-3 for size, ms in re.findall(r"world (\d+) from \d+ after (\S+)", job.text())
                   if int(size) < RANKS]
        return None, job
    finally:
        job.sweep()


FAULTS = {"elastic": elastic, "kill": kill, "stop": stop, "diverge": diverge, "launcher": launcher}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    options = parser.parse_args()
    build = options.build.resolve()
    delays, bad, begun = [], 0, time.monotonic()
    for seed in range(options.seed, options.seed + options.trials):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="tinyshard-faults."))
        problem, job = FAULTS[options.fault](
            lambda *arguments: Job(build, folder, *arguments), random.Random(seed), delays)
        if problem:
            bad += 1
            print(f"seed {seed}: {problem}\n{job.text()}", flush=True)
        shutil.rmtree(folder)
    delays.sort()
    line = f"{options.fault}: {options.trials} trials, {bad} bad, {time.monotonic() - begun:.0f} s"
    late = False
    if delays:
        at = lambda share: delays[min(len(delays) - 1, int(share * len(delays)))]
        line += f"; {'new worlds' if options.fault == 'elastic' else 'reports'} after {at(0.5) * 1e3:.0f} ms in the median, {at(0.99) * 1e3:.0f} ms in 99 of 100, " \
                f"{delays[-1] * 1e3:.0f} ms at most"
        late = options.fault == "kill" and at(0.99) > 1 or options.fault == "elastic" and (at(0.5) > 1 or delays[-1] > 3)
    print(line)
    return 1 if bad or late else 0


if __name__ == "__main__":
    sys.exit(main())
