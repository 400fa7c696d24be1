"""How gpu_table.py runs programs: ours and the peers', each of which prints a JSON object a line."""
import importlib.util
import json
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys

PEERS = pathlib.Path(__file__).parent / "peers"
LIMIT_S = 300  # of one program


class Missing(Exception):
    """A figure that cannot be had, and why, in a line."""


class TooFew(Missing):
    """A part that needs more devices than there are: no failure."""


def reason(text):
    """The line of an error output that says most: that of a Python exception, or the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or ["it said nothing"])[-1]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Runs:
    """The programs of one build on `gpus` devices of a kind; `folder` is for caches and is empty at first."""

    def __init__(self, build, device, gpus, mpirun, peers, quick, folder):
        self.build, self.device, self.gpus, self.quick, self.folder = build, device, gpus, quick, folder
        self.mpirun = shlex.split(mpirun) if mpirun else None
        self.peers, self.kept = peers, {}

    def text(self, command, env=None):
        command = [str(part) for part in command]
        name = pathlib.Path(next(c for c in command if c.startswith((str(self.build), str(PEERS))))).name
        try:
            done = subprocess.run(command, env={**os.environ, **self.caches("ours"), **(env or {})}, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Missing(f"{name} took more than {LIMIT_S} s") from None
        except OSError as error:
            raise Missing(f"{command[0]}: {error.strerror}") from None
        if done.returncode != 0:
            raise Missing(f"{name} failed ({done.returncode}): {reason(done.stderr)}")
        return done.stdout

    def caches(self, name):
        """Where compiled kernels are kept, ours, the driver's and the peers'; a new name is an empty place."""
        at = self.folder / name
        return {"TS_CACHE_DIR": str(at / "ts"), "CUDA_CACHE_PATH": str(at / "cuda"),
                "TORCHINDUCTOR_CACHE_DIR": str(at / "inductor"), "TRITON_CACHE_DIR": str(at / "triton")}

    def ranks(self, program):
        """Command lines of our program on all GPUs, by what tells them apart."""
        path = self.build / program
        ways = {"": [path, "--devices", self.device, "--devices-per-rank", self.gpus]}
        if self.mpirun:
            ways[", a rank each"] = [*self.mpirun, "-n", self.gpus, path, "--devices", self.device, "--devices-per-rank", 1]
        return ways

    def cases(self, command, env=None):
        rows = map(json.loads, filter(None, self.text(command, env).splitlines()))
        return {row["case"]: row for row in rows}

    def ours(self, program, *arguments, env=None):
        return self.cases([self.build / program, *arguments], env)

    def peer_command(self, script, ranks=1):
        package = script.partition("_")[0]
        if package not in self.peers:
            raise Missing("not asked for")
        if importlib.util.find_spec(package) is None:
            raise Missing("not installed")
        launcher = ["-m", "torch.distributed.run", "--master_addr", "127.0.0.1", "--master_port", free_port(),
                    "--nproc_per_node", ranks]
        return [sys.executable, *(launcher if ranks > 1 else []), PEERS / script,
                *([] if self.device == "CUDA" else ["--cpu"])]

    def peer(self, script, *arguments):
        """The peer's cases, or the reason why there are none."""
        try:
            return self.cases([*self.peer_command(script), *arguments], self.caches("peers"))
        except Missing as missing:
            return missing

    def gpt2(self, command, batch, steps, env=None, size=()):
        """What `gpt2 --json` measured. `size`: flags of another model than 124M."""
        result = self.folder / "gpt2.json"
        self.text([*command, *self.gpt2_size(size), "--tokens", "random", "--eval-batches", 0, "--checkpoint-every", 0,
                   "--batch", batch, "--steps", steps, "--json", result, "--quiet"], {**self.caches("gpt2"), **(env or {})})
        return json.loads(result.read_text())

    def peer_gpt2(self, script, batch, steps, *arguments, ranks=1, size=()):
        """The same of a peer, or the reason why there is none."""
        try:
            command = [*self.peer_command(script, ranks), *self.gpt2_size(size), "--batch", batch, "--steps", steps, *arguments]
            env = {"NCCL_SOCKET_IFNAME": "lo", **os.environ, **self.caches("peers")}  # all ranks are here
            return json.loads(next(line for line in self.text(command, env).splitlines() if line.startswith("{")))
        except Missing as missing:
            return missing

    def gpt2_size(self, size):
        return ["--layers", 2, "--width", 128, "--heads", 2, "--context", 32] if self.quick else size

    def found(self):
        """What `tinyshard devices` says, as lines."""
        return self.text([self.build / "cli/tinyshard", "devices"]).splitlines()

    def count(self):
        """How many devices of the kind there are, and how many of them to take unless told. Missing, with the reason, when
        there is none. Hardware is listed, and all of it taken. Of what a program makes as it likes, such as CPU:0 to
        CPU:1023, two are enough: with them each part of the table can be tried.
        """
        lines = self.found()
        line = next((line for line in lines if line.split()[:1] == [self.device]), None)
        if line is None:
            raise Missing(f"no device of kind {self.device}")
        if line.split()[1] != "found":
            raise Missing(f"no {self.device} device: " + line.split("missing", 1)[1].strip())
        if made := re.search(rf"{self.device}:0 to {self.device}:(\d+)$", line):
            there = int(made[1]) + 1
            return there, min(there, 2)
        listed = sum(bool(re.match(rf"\s+{self.device}:\d+ ", line)) for line in lines)
        return listed, listed
