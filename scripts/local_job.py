"""A small job on this host, over TCP unless mpirun starts it, for the scripts that do something to its ranks (faults.py, elastic.py)."""

import functools
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

RANKS = 4
CAP_S = 30  # whatever happens, a job is over by then
# A shell that runs this in the background has it, and so jobs, ignore them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
SOURCES = pathlib.Path(__file__).resolve().parent.parent


def wire_protocol():
    """The version of the protocol that the library speaks, from the line that sets it."""
    handshake = (SOURCES / "transport/tcp/handshake.cpp").read_text()
    return int(re.search(r"kProtocol = (\d+);", handshake).group(1))


class Job:
    """tinyshard run (or mpirun, with its options) of the program that plays a rank, below the words of another one if need be;
    its lines are read from a file, so that nothing blocks."""

    def __init__(self, build, folder, scenario, timeout_s, flags=(), program="transport_fault_rank", words=None, mpirun=None, ranks=RANKS,
                 under=()):
        self.folder, self.ranks = folder, ranks
        self.path = folder / "output"
        self.tool = build / "cli/tinyshard"
        tests = build / "tests"
        self.program = next(path for path in (tests / "fault/transport" / program, tests / "launch" / program) if path.exists())
        words = [*under, self.program, *([scenario, timeout_s] if words is None else words)]
        if mpirun:
            command = [*shlex.split(mpirun), "-n", str(ranks), *flags, *words]
        else:
            command = [self.tool, "run", "--no-prefix", "-n", str(ranks), *flags, "--", *words]
        environment = dict(os.environ, TMPDIR=str(folder))
        with open(self.path, "w") as output:
            self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder,
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

    def elapsed(self):
        """By rank: how many seconds the call took that was told to have failed."""
        found = re.findall(r"^(\d+) report -?\d+ \d+ (\S+) ", self.text(), re.M)
        return {int(rank): float(ms) * 1e-3 for rank, ms in found}

    def until(self, condition):
        while time.monotonic() < self.end:
            if condition():
                return True
            time.sleep(0.005)
        return False

    def ready(self):
        return self.until(lambda: len(self.pids()) == self.ranks)

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


def run_trials(options, trial):
    """Calls trial(job_of, draw) with a folder and a seed of its own for each; job_of makes a Job there. What it returns
    is a sentence, None where all is well, and the job. The number of bad trials. Ctrl-C ends them; options.trials then says
    how many there were."""
    global CAP_S
    CAP_S = options.cap
    build, bad = options.build.resolve(), 0
    for seed in range(options.seed, options.seed + options.trials):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="tinyshard-faults."))
        try:
            problem, job = trial(functools.partial(Job, build, folder), random.Random(seed))
            if problem:
                bad += 1
                print(f"seed {seed}: {problem}\n{job.text()}", flush=True)
        except KeyboardInterrupt:
            options.trials = seed - options.seed
            break
        finally:
            shutil.rmtree(folder)
    return bad


def add_options(parser, trials):
    parser.add_argument("--trials", type=int, default=trials)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--cap", type=float, default=CAP_S, help="seconds after which a job counts as hanging: more on a busy machine")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
