#!/usr/bin/env python3
"""Comes to a running job in wrong ways, many times, and exits 0 when it does no harm, 1 otherwise.

    scripts/hostile.py garbage [--count 1000000]    connections that prove nothing: noise, silence, half a handshake
    scripts/hostile.py joins [--count 10000]        wrong key, wrong job, a replayed handshake, a rank that is there
    scripts/hostile.py beside [--count 1000000]     the garbage by turns with quiet, beside a training, whose steps may take
                                                    2 % longer at most

Connections go to the launcher's store and to the listeners of ranks, which are open while the last rank has not come
yet; it comes when the last connection has been made. The job must end well, nobody may have got in, none of its
processes may have grown by more than 16 MiB, no connection may be held for longer than a handshake may take, and
refusals are told in a line for each reason and listener. In a job that is on its way only the store listens; the training
has the first half of the cores, whoever connects and whoever is connected to the other one. The programs are those of
the build folder (--build).
"""

import argparse
import hashlib
import hmac
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from local_job import wire_protocol

RANKS = 3
GROWTH_MIB = 16
SLOWER = 1.02       # a step beside garbage against a step without
WINDOW_S = 5        # of garbage, and of quiet
HELD_S = 4          # two seconds for a handshake, and some for a busy machine
AT_ONCE = 200
RANK_PROGRAMS = {"transport_fault", "train_gpt"}  # of names the first fifteen letters
MAGIC, PROTOCOL = b"tshard\r\n", wire_protocol()
STORE, STREAM = 1, 2
WELCOME, OTHER_EPOCH, OTHER_JOB, DUPLICATE, UNEXPECTED = range(1, 6)


class Job:
    """A job whose last rank waits for the file `go`, so that the others listen until then."""

    def __init__(self, build, folder):
        self.path, self.go = folder / "output", folder / "go"
        program = build / "tests/fault/transport/transport_fault_rank"
        wait = f'if [ "$TS_RANK" = {RANKS - 1} ]; then while [ ! -e {self.go} ]; do sleep 0.05; done; fi; exec "$0" "$@"'
        command = [build / "cli/tinyshard", "run", "--no-prefix", "-n", RANKS, "--timeout", 3000, "--", "sh", "-c", wait, program,
                   "done", 3000]
        self.begin(command, lambda: len(self.listeners) == RANKS)  # the store, and all ranks but the last
        self.key = bytes.fromhex(self.environment["TS_JOB_KEY"])

    def begin(self, command, begun):
        with open(self.path, "w") as output:
            self.process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=output, cwd=self.path.parent,
                                            start_new_session=True)
        self.listeners, self.environment, self.ranks = {}, {}, {}
        end = time.monotonic() + 60
        while not begun():
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit(f"the job did not begin\n{self.path.read_text()}")
            time.sleep(0.05)
            self.look()
        self.size = {pid: memory_of(pid) for pid in self.pids()}

    def pids(self):
        return [self.process.pid, *self.ranks.values()]

    def look(self):
        ports = {}
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                ports[f"socket:[{words[9]}]"] = int(words[1].split(":")[1], 16)
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                environment = dict(v.split("=", 1) for v in (entry / "environ").read_text().split("\0") if "=" in v)
                mine = environment.get("PWD") and os.getpgid(int(entry.name)) and (entry / "cwd").resolve() == self.path.parent
                if not mine:
                    continue
                is_rank = (entry / "comm").read_text().strip() in RANK_PROGRAMS
                if is_rank:
                    self.ranks[int(environment["TS_RANK"])], self.environment = int(entry.name), environment
                for fd in (entry / "fd").iterdir():
                    port = ports.get(os.readlink(fd))
                    if port is None:
                        continue
                    if is_rank:
                        self.listeners[int(environment["TS_RANK"])] = port
                    elif int(entry.name) == self.process.pid:
                        self.listeners["store"] = port
            except (OSError, ValueError):
                pass

    def finish(self):
        self.go.touch()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return None


class Training(Job):
    """A training of RANKS ranks on the given cores, on its way for as long as it is wanted."""

    def __init__(self, build, folder, cores):
        self.path, self.log = folder / "output", folder / "log"
        corpus = folder / "corpus"
        corpus.write_text("To train beside noise is to be read by nobody who listens. " * 2000)
        wait = f'exec taskset -c {",".join(map(str, cores))} "$0" "$@"'
        command = [build / "cli/tinyshard", "run", "--no-prefix", "-n", RANKS, "--cores", "all", "--", "sh", "-c", wait,
                   build / "examples/train_gpt", "--corpus", corpus, "--steps", 10**7, "--batch", 2 * RANKS, "--eval-batches", 0,
                   "--checkpoint-every", 0, "--log", self.log, "--quiet"]
        self.begin(command, lambda: len(self.steps()) > 20)

    def steps(self):
        """The milliseconds of each step so far."""
        lines = self.log.read_text().split("\n")[:-1] if self.log.exists() else []
        return [json.loads(line)["ms"] for line in lines]

    def finish(self):
        """Nobody waits for its last step: 0 where it is still on its way."""
        status = self.process.poll()
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(60)
        return 0 if status is None else status


def memory_of(pid):
    found = re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024


def sign(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def read(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


def hello(nonce, protocol=PROTOCOL):
    return MAGIC + struct.pack("<I16si", protocol, hello.library, -1) + nonce


def claim(purpose, epoch=0, sender=-1, to=-1, ranks=0, meeting=0):
    return struct.pack("<IIiiIIQ", purpose, epoch, sender, to, 0, ranks, meeting) + bytes(32)


def join(port, key, what):
    """The verdict of a proper handshake, and its bytes; ConnectionError where the key is another one."""
    with socket.create_connection(("127.0.0.1", port), timeout=HELD_S) as connection:
        nonce = random.randbytes(32)
        connection.sendall(hello(nonce))
        theirs = read(connection, 64)[:32]
        answer = what + sign(key, b"tinyshard connector", theirs, nonce, what)
        connection.sendall(answer)
        return struct.unpack("<I", read(connection, 4))[0], hello(nonce), answer


def twice(port, key, epoch):
    """What the store says to a second rank 0, which holds the key and has another address."""
    name, value = b"address/0/0", b"elsewhere"
    with socket.create_connection(("127.0.0.1", port), timeout=HELD_S) as connection:
        nonce, what = random.randbytes(32), claim(STORE, epoch, sender=0)
        connection.sendall(hello(nonce))
        theirs = read(connection, 64)[:32]
        connection.sendall(what + sign(key, b"tinyshard connector", theirs, nonce, what))
        read(connection, 4)
        connection.sendall(struct.pack("<III", 1, len(name), len(value)) + name + value)
        return struct.unpack("<IiI", read(connection, 12))[0]


def replay(port, recorded):
    with socket.create_connection(("127.0.0.1", port), timeout=HELD_S) as connection:
        connection.sendall(recorded[0])
        read(connection, 64)
        connection.sendall(recorded[1])
        return struct.unpack("<I", read(connection, 4))[0]


def garbage(job, count, draw):
    """Problems. Keeps AT_ONCE connections open and measures for how long the other side does."""
    made, longest, problems = send_garbage(job, count, draw, float("inf"))
    print(f"the longest connection was held for {longest:.2f} s")
    return problems


def send_garbage(job, count, draw, end):
    """Connections made until the time `end`, how long the longest was held, and problems."""
    ports, held, longest, left = list(job.listeners.values()), {}, 0, count
    waits = select.epoll()
    while left or held:
        while left and len(held) < AT_ONCE:
            if time.monotonic() > end:
                count, left = count - left, 0
                break
            left -= 1
            try:
                connection = socket.create_connection(("127.0.0.1", draw.choice(ports)), timeout=HELD_S)
            except OSError as error:
                return count - left, longest, [f"the listener is gone: {error}"]
            kind = draw.randrange(5)
            data = [draw.randbytes(draw.randrange(1, 400)), b"", hello(draw.randbytes(32)), hello(draw.randbytes(32), PROTOCOL + 1),
                    hello(draw.randbytes(32)) + draw.randbytes(96)][kind]
            try:
                connection.sendall(data)
                if draw.random() < 0.5 and kind != 1:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()
                    continue
            except OSError:
                connection.close()
                continue
            connection.setblocking(False)
            held[connection.fileno()] = (connection, time.monotonic())
            waits.register(connection, select.EPOLLIN)
        for fd, _ in waits.poll(0.01):
            connection, since = held[fd]
            try:
                if connection.recv(4096):
                    continue
            except OSError:
                pass
            longest = max(longest, time.monotonic() - since)
            del held[fd]
            connection.close()
        late = [c for c, since in held.values() if time.monotonic() - since > HELD_S]
        if late:
            return count - left, longest, [f"{len(late)} connections are held for more than {HELD_S} s"]
    return count, longest, []


def beside(job, count, draw):
    quiet, noisy, problems = [], [], []
    while count > 0 and not problems:
        for steps in (quiet, noisy):
            first, begun = len(job.steps()) + 1, time.monotonic()
            if steps is quiet:
                time.sleep(WINDOW_S)
            else:
                made, _, problems = send_garbage(job, count, draw, begun + WINDOW_S)
                count -= made
            steps += job.steps()[first:-1]
    ratio = statistics.median(noisy) / statistics.median(quiet)
    print(f"a step takes {statistics.median(quiet):.3f} ms, beside garbage {statistics.median(noisy):.3f} ms ({ratio:.4f}); "
          f"medians of {len(quiet)} and {len(noisy)} steps")
    if ratio > SLOWER:
        problems.append(f"steps take {ratio:.3f} of their time")
    return problems


def joins(job, count, draw):
    epoch = int(job.environment["TS_EPOCH"])
    problems, got = [], {}
    good = claim(STORE, epoch, sender=0)
    verdict, *recorded = join(job.listeners["store"], job.key, good)
    if verdict != WELCOME:
        return [f"a proper handshake is refused: {verdict}"]
    kinds = {
        "wrong key": lambda who, port: join(port, draw.randbytes(32), good)[0],
        "wrong epoch": lambda who, port: join(port, job.key, claim(STORE if who == "store" else STREAM, epoch + 1, 1,
                                                                   -1 if who == "store" else who, RANKS))[0],
        "wrong job": lambda who, port: join(port, job.key, claim(STREAM, epoch, 1, 0 if who == "store" else who,
                                                                 RANKS + 1))[0],
        "replay": lambda who, port: replay(port, recorded),
        "duplicate rank": lambda who, port: twice(port, job.key, epoch) if who == "store" else join(
            port, job.key, claim(STREAM, epoch, who, who, RANKS))[0],
    }
    for number in range(count):
        kind = list(kinds)[number % len(kinds)]
        who = draw.choice(list(job.listeners))
        try:
            verdict = kinds[kind](who, job.listeners[who])
        except OSError:
            verdict = 0  # closed without a word
        got[kind, verdict] = got.get((kind, verdict), 0) + 1
        if verdict == WELCOME:
            problems.append(f"{kind} got in at {who}")
    print(", ".join(f"{kind}: {n} with verdict {verdict}" for (kind, verdict), n in sorted(got.items())))
    return problems[:5]


ATTACKS = {"garbage": garbage, "joins": joins, "beside": beside}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tinyshard-hostile.")).resolve()
    begun = time.monotonic()
    hello.library = subprocess.run([options.build / "cli/tinyshard", "--version"], check=True, capture_output=True).stdout.split()[-1]
    if options.attack == "beside":
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise SystemExit("the training and the noise need a core each")
        os.sched_setaffinity(0, cores[len(cores) // 2:])
        job = Training(options.build.resolve(), folder, cores[:len(cores) // 2])
    else:
        job = Job(options.build.resolve(), folder)
    try:
        problems = ATTACKS[options.attack](job, options.count, random.Random(options.seed))
        growth = {pid: memory_of(pid) - before for pid, before in job.size.items()}
        if max(growth.values()) > GROWTH_MIB:
            problems.append(f"memory grew by {max(growth.values()):.1f} MiB")
    finally:
        status = job.finish()
    text = job.path.read_text(errors="replace")
    if status != 0:
        problems.append(f"the job ends with {status}")
    refused = re.findall(r"^.* refuse[sd] .*$", text, re.M)
    seconds = time.monotonic() - begun
    most = (12 + 8 * seconds / 60) * len(job.listeners)
    if not refused or len(refused) > most:
        problems.append(f"{len(refused)} lines of refusals, 1 to {most:.0f} are expected")
    for problem in problems:
        print(problem)
    if problems:
        print(f"seed {options.seed}\n{text}")
    print(f"{options.attack}: {options.count} connections, {len(problems)} problems, {seconds:.0f} s; memory grew by "
          f"{max(growth.values()):.1f} MiB at most, {len(refused)} lines of refusals")
    shutil.rmtree(folder)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
