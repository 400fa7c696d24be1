#!/usr/bin/env python3
"""Starts a Slurm of its own with two nodes on this machine, trains in it by plain srun, and exits 0 when that went as
docs/launch.md says, 1 otherwise, 77 with a reason where slurmctld, slurmd or srun is missing or namespaces are not permitted.

    scripts/slurm.py            all cases
    scripts/slurm.py kill       some

    train   srun -n 4 of the GPT example: 2 nodes x 2 tasks, which meet at the first node and talk by TCP; the losses
            are those of one process with four devices
    kill    a rank is killed: a survivor names it, and the step ends with an error
    sbatch  the script that "tinyshard sbatch" writes is queued, runs and ends well

Nodes are called node0 and node1, both at this machine's loopback address. All of it lives in a folder and a namespace
of processes that end with this script. The programs are those of the build folder (--build).
"""

import argparse
import getpass
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

RANKS, NODES = 4, 2
CAP_S = 240  # for one case on a busy machine
INSIDE = "TINYSHARD_SLURM_INSIDE"
SKIPPED = 77
DAEMONS = ("slurmctld", "slurmd", "srun", "sinfo", "sbatch")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # where the daemons are
SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--batch", "8", "--eval-batches", "1",
         "--sample", "0", "--dtype", "f64"]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Slurm:
    def __init__(self, folder):
        self.folder = folder
        names = folder / "hosts"
        names.write_text("127.0.0.1 localhost " + " ".join(f"node{n}" for n in range(NODES)) + "\n")
        subprocess.run(["mount", "--bind", names, "/etc/hosts"], check=True, capture_output=True, text=True)
        control, *ports = free_ports(1 + NODES)
        user = getpass.getuser()
        nodes = "".join(f"NodeName=node{n} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={ports[n]} "
                        f"CPUs={RANKS // NODES} State=UNKNOWN\n" for n in range(NODES))
        # Nothing of control groups, accounting or munge: any user may run this, in a container, too.
        (folder / "slurm.conf").write_text(f"""
ClusterName=tinyshard
SlurmctldHost=localhost
SlurmctldPort={control}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
SelectType=select/cons_tres
SlurmdParameters=config_overrides
{nodes}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
        (folder / "state").mkdir()
        home = folder / "home"  # the job's key is made there
        home.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TS_", "SLURM_", "OMPI_", "PMIX_"))}
        self.environment = dict(kept, PATH=PATH, SLURM_CONF=str(folder / "slurm.conf"), HOME=str(home))
        with open(folder / "daemons.log", "w") as log:
            for words in (["slurmctld", "-D"], *(["slurmd", "-D", "-N", f"node{n}"] for n in range(NODES))):
                subprocess.Popen(words, stdout=log, stderr=log, env=self.environment)

    def ready(self):
        """Whether all nodes are there, within half a minute."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            told = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%t"], capture_output=True, text=True,
                                  env=self.environment)
            if told.stdout.split() == ["idle"] * NODES:
                return True
            time.sleep(0.2)
        return False

    def start(self, *words):
        return subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=self.environment, cwd=self.folder)

    def logs(self):
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.folder.glob("*.log")))


def losses(path):
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]


def gpt(slurm, build, name, steps, *words):
    corpus = slurm.folder / "text.txt"
    if not corpus.exists():
        corpus.write_text("".join(f"{n} squared is {n * n}. " for n in range(1000)))
    return [build / "examples/train_gpt", *SMALL, "--steps", steps, "--corpus", corpus, "--checkpoint", slurm.folder / f"{name}.checkpoints",
            "--log", slurm.folder / f"{name}.losses", *words]


def trains(slurm, build):
    """A sentence where the example does not train in Slurm as it does alone."""
    steps = 5
    task = 'echo "task $SLURM_PROCID of $SLURM_STEP_NODELIST on $SLURMD_NODENAME"; exec "$0" "$@"'
    job = slurm.start("srun", "-n", RANKS, "sh", "-c", task, *gpt(slurm, build, "srun", steps))
    text, _ = job.communicate(timeout=CAP_S)
    if job.returncode != 0:
        return f"srun ends with {job.returncode}: {text}"
    places = set(re.findall(r"^task (\d+) of node\[0-1\] on (node\d)$", text, re.M))
    if places != {(str(rank), f"node{rank * NODES // RANKS}") for rank in range(RANKS)}:
        return f"the tasks are not where they should be: {text}"
    alone = slurm.start(*gpt(slurm, build, "alone", steps, "--devices", ",".join(f"CPU:{d}" for d in range(RANKS))))
    text, _ = alone.communicate(timeout=CAP_S)
    if alone.returncode != 0:
        return f"one process ends with {alone.returncode}: {text}"
    ours, theirs = losses(slurm.folder / "srun.losses"), losses(slurm.folder / "alone.losses")
    if len(ours) != steps or any(abs(a - b) > 1e-12 for a, b in zip(ours, theirs)) or ours[-1] >= ours[0]:
        return f"losses {ours} and {theirs} of one process"
    return None


def killed(slurm, build):
    victim = RANKS - 1
    task = f'[ $SLURM_PROCID != {victim} ] || echo $$ > victim; exec "$0" "$@"'
    log = slurm.folder / "killed.losses"
    job = slurm.start("srun", "-n", RANKS, "--kill-on-bad-exit=0", "sh", "-c", task, *gpt(slurm, build, "killed", 1000000))
    end = time.monotonic() + CAP_S
    while not (log.exists() and log.read_text().count("\n") > 2):
        if time.monotonic() > end or job.poll() is not None:
            job.kill()
            return f"it does not train: {job.communicate()[0]}"
        time.sleep(0.05)
    pid = int((slurm.folder / "victim").read_text())
    os.kill(pid, signal.SIGKILL)
    text, _ = job.communicate(timeout=CAP_S)
    if job.returncode == 0:
        return f"srun ends with 0: {text}"
    named = len(re.findall(rf"rank {victim} did not answer.*process {pid} on ", text))
    return None if named >= RANKS - 1 else f"{named} survivors name rank {victim}, process {pid}: {text}"


def queued(slurm, build):
    words = gpt(slurm, build, "queued", 3)
    script = subprocess.run([build / "cli/tinyshard", "sbatch", "--nodes", str(NODES), "-n", str(RANKS), "--", *map(str, words)],
                            capture_output=True, text=True, env=slurm.environment)
    if script.returncode != 0:
        return f"tinyshard sbatch ends with {script.returncode}: {script.stderr}"
    (slurm.folder / "job.sbatch").write_text(script.stdout)
    job = slurm.start("sbatch", "--wait", "--output", slurm.folder / "queued.out", slurm.folder / "job.sbatch")
    text, _ = job.communicate(timeout=CAP_S)
    if job.returncode != 0:
        output = slurm.folder / "queued.out"
        return f"sbatch ends with {job.returncode}: {text}\n{script.stdout}\n{output.read_text() if output.exists() else ''}"
    ours = losses(slurm.folder / "queued.losses")
    return None if len(ours) == 3 else f"losses {ours}"


CASES = {"train": trains, "kill": killed, "sbatch": queued}


def run(options):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tinyshard-slurm.")).resolve()
    bad = 0
    try:
        try:
            slurm = Slurm(folder)
        except subprocess.CalledProcessError as error:
            print(f"skipped: no names for nodes can be made here: {error.stderr.strip()}")
            return SKIPPED
        if not slurm.ready():
            print(f"the nodes do not come up\n{slurm.logs()}")
            return 1
        for case in options.cases or CASES:
            begun = time.monotonic()
            try:
                problem = CASES[case](slurm, options.build.resolve())
            except subprocess.TimeoutExpired as error:
                problem = f"{error}: {error.output}"
            bad += problem is not None
            print(f"{case}: {problem or 'good'}, {time.monotonic() - begun:.1f} s", flush=True)
        if bad:
            print(slurm.logs())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    options = parser.parse_args()
    for case in options.cases:
        if case not in CASES:
            parser.error(f"no case is named {case}; there are {', '.join(CASES)}")
    if INSIDE in os.environ:
        return run(options)
    for tool in (*DAEMONS, "unshare"):
        if shutil.which(tool, path=PATH) is None:
            print(f"skipped: {tool} is not here (scripts/setup.sh --slurm installs Slurm)")
            return SKIPPED
    spaces = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount", "--pid", "--fork", "--kill-child",
              "--mount-proc"]
    tried = subprocess.run([*spaces, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        print(f"skipped: this machine permits no namespaces: {tried.stderr.strip()}")
        return SKIPPED
    return subprocess.run([*spaces, sys.executable, *sys.argv], env=dict(os.environ, **{INSIDE: "1"})).returncode


if __name__ == "__main__":
    sys.exit(main())
