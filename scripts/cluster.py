#!/usr/bin/env python3
"""Runs jobs on hosts that are network namespaces of this machine, does to them what happens to real ones, and exits 0
when each ended as docs/launch.md says, 1 otherwise, 77 with a reason where this machine permits no namespaces.

    scripts/cluster.py            all cases
    scripts/cluster.py kill cut   some
    scripts/cluster.py partition --trials 300

    train   4 hosts x 2 ranks run a number of collectives and end well
    rate    the same over links of 50 Mbit/s
    kill    a rank is killed: survivors on all hosts name it and its host, within a second
    stop    a rank is stopped: named with its host at the deadline
    cut     a host's link goes down for good: ranks on both sides fail, the others name a rank of that host
    flap    the link is down for a second, shorter than the deadline: the job goes on
    delay   each packet takes 15 ms: the job ends well; a rank is killed: survivors on all hosts name it within a second
    loss    one packet of 50 is lost: the job ends well
    key     a rank of one host holds another key: the job does not begin, and says whose rank did not come
    version a rank of one host is another version: it is told both versions and hosts, and the job names its rank
    partition  a training that goes on, a rank on each host: at a random moment some hosts lose the others for a while or
            for good. One side goes on, no step is committed in two worlds, whoever ends well has the same weights
    disk    the disk of one host is full: no rank believes that a checkpoint was saved, all say whose disk it is, and
            the training goes on from the checkpoint before

Each host has a link to one bridge, an own address, an own name, and an own boot id, so that ranks of different hosts
share no memory. Delay and loss are those of a relay in this program between each host and the bridge, as not every
kernel can make them (netem). The stand-in for ssh enters the namespaces of the host that it is given. All of it lives in a
namespace of processes that ends with this script. The programs are those of the build folder (--build).
"""

import argparse
import contextlib
import fcntl
import heapq
import os
import pathlib
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from local_job import wire_protocol

HOSTS, PER_HOST = 4, 2
RANKS = HOSTS * PER_HOST
CAP_S = 60  # whatever happens, a job is over by then
INSIDE = "TINYSHARD_CLUSTER_INSIDE"
SKIPPED = 77


def name_of(host):
    return f"node{host}"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Relay:
    """Carries frames between pairs of interfaces, each after a delay, and loses some."""

    def __init__(self, delay_s, loss):
        self.delay_s, self.loss, self.random = delay_s, loss, random.Random(1)
        self.far, self.ends, self.lost, self.carried = {}, select.epoll(), 0, 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    @staticmethod
    def tap(name):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        make_interface, tap_without_header = 0x400454CA, 0x1002
        fcntl.ioctl(fd, make_interface, struct.pack("16sH22x", name.encode(), tap_without_header))
        return fd

    def join(self, a, b):
        """Makes both interfaces; they end with the relay."""
        ends = self.tap(a), self.tap(b)
        for one, other in (ends, ends[::-1]):
            self.far[one] = other
            self.ends.register(one, select.EPOLLIN)

    def run(self):
        waiting, number = [], 0
        while not self.stop.is_set():
            pause = max(0, waiting[0][0] - time.monotonic()) if waiting else 0.1
            for fd, _ in self.ends.poll(min(pause, 0.1)):
                try:
                    frame = os.read(fd, 65536)
                except OSError:  # the interface is down
                    continue
                if self.random.random() < self.loss:
                    self.lost += 1
                    continue
                number += 1
                heapq.heappush(waiting, (time.monotonic() + self.delay_s, number, self.far[fd], frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, fd, frame = heapq.heappop(waiting)
                try:
                    os.write(fd, frame)
                    self.carried += 1
                except OSError:
                    pass

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        for fd in self.far:
            os.close(fd)


class Cluster:
    """The hosts: a process each that holds the namespaces open."""

    def __init__(self, folder):
        self.folder = folder
        names = folder / "hosts"
        names.write_text("127.0.0.1 localhost\n" + "".join(f"10.77.0.{h + 1} {name_of(h)}\n" for h in range(HOSTS)))
        ip("link", "set", "lo", "up")
        ip("link", "add", "wire", "type", "bridge")
        ip("link", "set", "wire", "up")
        self.holders = []
        for host in range(HOSTS):
            boot = folder / f"boot-{host}"
            boot.write_text(f"00000000-0000-0000-0000-00000000000{host}\n")
            setup = (f"mount --make-rprivate / && mount --bind {names} /etc/hosts && "
                     f"mount --bind {boot} /proc/sys/kernel/random/boot_id && hostname {name_of(host)} && "
                     f"ip link set lo up && echo ready && exec sleep infinity")
            holder = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "sh", "-c", setup], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
            if holder.stdout.readline() != "ready\n":
                raise OSError(f"{name_of(host)}: {holder.stderr.read().strip()}")
            self.holders.append(holder)
            self.plug(host)
        pids = " ".join(f"{name_of(h)}) pid={holder.pid};;" for h, holder in enumerate(self.holders))
        self.shell = folder / "rsh"
        self.shell.write_text(f'#!/bin/sh\nname=$1; shift\ncase $name in {pids} *) echo "no host $name" >&2; exit 255;; esac\n'
                              'exec nsenter -t $pid -n -m -u sh -c "$*"\n')
        self.shell.chmod(0o700)

    def plug(self, host):
        ip("link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", str(self.holders[host].pid))
        self.set_up(host)

    def set_up(self, host):
        ip("link", "set", f"port{host}", "master", "wire", "up")
        self.on(host, "ip", "address", "add", f"10.77.0.{host + 1}/24", "dev", "eth0")
        self.on(host, "ip", "link", "set", "eth0", "up")

    @contextlib.contextmanager
    def relayed(self, delay_s, loss):
        """All hosts reach the bridge by way of a relay."""
        with Relay(delay_s, loss) as relay:
            for host in range(HOSTS):
                ip("link", "del", f"port{host}")
                relay.join(f"port{host}", f"host{host}")
                ip("link", "set", f"host{host}", "netns", str(self.holders[host].pid), "name", "eth0")
                self.set_up(host)
            yield relay
        for host in range(HOSTS):
            self.plug(host)

    def enter(self, host):
        return ["nsenter", "-t", str(self.holders[host].pid), "-n", "-m", "-u"]

    def on(self, host, *words):
        subprocess.run([*self.enter(host), *words], check=True, capture_output=True, text=True)

    def link(self, host, state):
        ip("link", "set", f"port{host}", state)

    def rate(self, words):
        for host in range(HOSTS):
            subprocess.run(["tc", "qdisc", "replace" if words else "del", "dev", f"port{host}", "root", *words],
                           check=True, capture_output=True, text=True)


class Job:
    """tinyshard run of the program that plays a rank, from the first host."""

    def __init__(self, cluster, build, scenario, timeout_s, wrap=""):
        program = build / "tests/fault/transport/transport_fault_rank"
        words = ["sh", "-c", f'{wrap} exec "$0" "$@"', program] if wrap else [program]
        self.start(cluster, build, PER_HOST, timeout_s, [*words, scenario, str(timeout_s)])

    def start(self, cluster, build, per_host, timeout_s, words, flags=()):
        self.path = cluster.folder / "output"
        self.command = build / "cli/tinyshard"
        hosts = ",".join(f"{name_of(h)}:{per_host}" for h in range(HOSTS))
        command = [*cluster.enter(0), self.command, "run", "--no-prefix", "--hosts", hosts, "--rsh", cluster.shell,
                   "--timeout", str(timeout_s), *flags, "--", *words]
        with open(self.path, "w") as output:
            self.process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=output, cwd=cluster.folder,
                                            start_new_session=True)
        self.end = time.monotonic() + CAP_S

    def text(self):
        return self.path.read_text(errors="replace")

    def pids(self):
        return {int(rank): int(pid) for rank, pid in re.findall(r"^(\d+) ready (\d+)$", self.text(), re.M)}

    def reports(self):
        found = re.findall(r"^(\d+) report (-?\d+) (\d+) \S+ \S+ (.*)$", self.text(), re.M)
        return {int(rank): (int(peer), int(at) * 1e-9, text) for rank, peer, at, text in found}

    def until(self, condition, seconds=CAP_S):
        end = min(self.end, time.monotonic() + seconds)
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.01)
        return False

    def begun(self):
        return self.until(lambda: len(self.pids()) == RANKS)

    def finish(self):
        self.until(lambda: self.process.poll() is not None)
        return self.process.poll()

    def sweep(self):
        for pid in [*self.pids().values(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()


class Training(Job):
    """The GPT example, one rank on each host."""

    def __init__(self, cluster, build, steps, *words):
        corpus = cluster.folder / "text.txt"
        corpus.write_text("".join(f"{n} squared is {n * n}. " for n in range(1000)))
        small = "--layers 1 --width 16 --heads 2 --context 16 --batch 8 --eval-batches 1 --sample 0 --dtype f64".split()
        self.start(cluster, build, 1, 20, [build / "examples/train_gpt", *small, "--corpus", corpus, "--steps", steps,
                                           "--checkpoint-every", 2, "--checkpoint", cluster.folder / "checkpoints", *words])


class Elastic(Job):
    """A training that goes on with the ranks that are left, one on each host; each commit is told at once."""

    def __init__(self, cluster, build, deadline, steps, *words):
        program = build / "tests/fault/transport/transport_elastic_rank"
        self.start(cluster, build, 1, deadline, [program, "tells", *words, f"steps={steps}"], ["--elastic", "1"])

    def commits(self):
        found = re.findall(r"^(\d+) commit (\d+) in (\d+) of (\d+)$", self.text(), re.M)
        return [tuple(map(int, words)) for words in found]


def trains(cluster, job_of, scenario="done"):
    job = job_of(scenario, 20)
    status = job.finish()
    return None if status == 0 and len(job.pids()) == RANKS else f"status {status}"


def rated(cluster, job_of):
    cluster.rate(["tbf", "rate", "50mbit", "burst", "64kbit", "latency", "100ms"])
    try:
        return trains(cluster, job_of)
    finally:
        cluster.rate([])


def delayed(cluster, job_of):
    with cluster.relayed(0.015, 0) as relay:
        problem = trains(cluster, job_of, "done_small") or killed(cluster, job_of, "work_small")
        return problem or (None if relay.carried > 1000 else f"the relay carried {relay.carried} frames")


def lossy(cluster, job_of):
    with cluster.relayed(0, 0.02) as relay:
        return trains(cluster, job_of, "done_small") or (None if relay.lost > 10 else f"the relay lost {relay.lost} frames")


def named(job, victim, since, within):
    """A sentence where a survivor does not name the victim with its process and host in time."""
    who = f"process {job.pids()[victim]} on {name_of(victim // PER_HOST)}"
    reports = job.reports()
    for rank in set(range(RANKS)) - {victim}:
        if rank not in reports:
            return f"rank {rank} said nothing"
        peer, at, text = reports[rank]
        if peer != victim or who not in text:
            return f"rank {rank} does not name rank {victim}, {who}: {text}"
        if at - since > within:
            return f"rank {rank} said so after {at - since:.1f} s"
    return None


def killed(cluster, job_of, scenario="work"):
    job = job_of(scenario, 20)
    if not job.begun():
        return "the job did not begin"
    victim = random.randrange(RANKS)
    time.sleep(0.3)
    since = time.monotonic()
    os.kill(job.pids()[victim], signal.SIGKILL)
    if job.finish() in (None, 0):
        return "it does not end with an error"
    summary = f"rank {victim} (process {job.pids()[victim]} on {name_of(victim // PER_HOST)}) has ended"
    return named(job, victim, since, 1) or (None if summary in job.text() else f"the summary lacks: {summary}")


def stopped(cluster, job_of):
    deadline = 3
    job = job_of("work", deadline)
    if not job.begun():
        return "the job did not begin"
    victim = random.randrange(RANKS)
    pid = job.pids()[victim]
    since = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    job.until(lambda: len(set(job.reports()) - {victim}) == RANKS - 1, 3 * deadline)
    problem = named(job, victim, since, deadline + 2)
    os.kill(pid, signal.SIGCONT)
    return problem or (None if job.finish() not in (None, 0) else "it does not end with an error")


def cut(cluster, job_of):
    deadline, host = 3, random.randrange(1, HOSTS)
    far = set(range(host * PER_HOST, (host + 1) * PER_HOST))
    job = job_of("work", deadline)
    if not job.begun():
        return "the job did not begin"
    cluster.link(host, "down")
    try:
        since = time.monotonic()
        if job.finish() in (None, 0):
            return "it does not end with an error"
        reports = job.reports()
        for rank in range(RANKS):
            if rank not in reports:
                return f"rank {rank} said nothing"
            peer, at, text = reports[rank]
            if (rank in far) == (peer in far):
                return f"rank {rank} blames rank {peer} of its own side: {text}"
            if f" on {name_of(peer // PER_HOST)}" not in text:
                return f"rank {rank} does not name {name_of(peer // PER_HOST)}: {text}"
            if at - since > deadline + 2:
                return f"rank {rank} said so after {at - since:.1f} s"
    finally:
        cluster.link(host, "up")
    return None


def flaps(cluster, job_of):
    job = job_of("work", 15)
    if not job.begun():
        return "the job did not begin"
    cluster.link(HOSTS - 1, "down")
    time.sleep(1)
    cluster.link(HOSTS - 1, "up")
    time.sleep(3)
    return f"a pause is a failure: {job.reports()}" if job.reports() or job.process.poll() is not None else None


def other_key(cluster, job_of):
    victim = RANKS - 1
    job = job_of("done", 5, f'[ "$TS_RANK" != {victim} ] || export TS_JOB_KEY={"ab" * 32};')
    status = job.finish()
    if status in (None, 0):
        return f"status {status}"
    if "does not hold this job's key" not in job.text():
        return "nobody tells of the key"
    summary = f"on {name_of(victim // PER_HOST)}) has ended"
    return None if summary in job.text() else f"the summary does not name {name_of(victim // PER_HOST)}"


def partitioned(cluster, job_of):
    """A side is cut off behind the bridge: its hosts see neither the others nor each other."""
    far = random.sample(range(1, HOSTS), random.randrange(1, HOSTS))
    heals_after = random.choice([None, random.uniform(0, 1), random.uniform(1, 8)])
    about = f"(hosts {sorted(far)} cut off, {'for good' if heals_after is None else f'for {heals_after:.1f} s'})"
    job = job_of(2, 3000, *random.choice([[], ["divided"]]), of=Elastic)
    if not job.until(lambda: len({rank for rank, *_ in job.commits()}) == HOSTS):
        return "the job did not begin"
    time.sleep(random.uniform(0, 0.3))
    for host in far:
        cluster.link(host, "down")
    try:
        if heals_after is not None:
            job.until(lambda: job.process.poll() is not None, heals_after)
            for host in far:
                cluster.link(host, "up")
        status = job.finish()
    finally:
        for host in far:
            cluster.link(host, "up")
    if status is None:
        return f"it hangs {about}"
    worlds = {}
    for rank, step, world, ranks in job.commits():
        if worlds.setdefault(step, (world, ranks)) != (world, ranks):
            return f"step {step} is committed in world {worlds[step][0]} and, by rank {rank}, in world {world} {about}"
    done = {int(rank): rest for rank, rest in re.findall(r"^(\d+) done (.*)$", job.text(), re.M)}
    if len(set(done.values())) > 1:
        return f"ranks end differently: {done} {about}"
    lost = "are both gone" in job.text()  # two neighbours in a ring of divided state
    if not lost and (status != 0 or 0 not in done):
        return f"it does not go on: status {status}, done {sorted(done)} {about}"
    return None


# A rank of another version: it begins as one, and prints what it is told.
OTHER_VERSION = """
import os, socket, struct
host, port = os.environ["TS_STORE"].rsplit(":", 1)
with socket.create_connection((host, int(port)), timeout=5) as connection:
    connection.sendall(b"tshard\\r\\n" + struct.pack("<I16si", 77, b"8.1", int(os.environ["TS_RANK"])) + bytes(32))
    told = b""
    while len(told) < 64 and (more := connection.recv(64)):
        told += more
magic, protocol, library, rank, where = struct.unpack("<8sI16si32s", told)
text = lambda words: words.split(bytes(1))[0].decode()
print(f"told of {text(library)}, protocol {protocol}, by rank {rank} on {text(where)}", flush=True)
raise SystemExit(4)
"""


def other_version(cluster, job_of):
    victim, host = RANKS - 1, name_of(HOSTS - 1)
    program = cluster.folder / "other_version.py"
    program.write_text(OTHER_VERSION)
    job = job_of("done", 5, f'[ "$TS_RANK" != {victim} ] || exec {sys.executable} {program};')
    if job.finish() in (None, 0):
        return "it does not end with an error"
    own = subprocess.run([job.command, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    protocol = wire_protocol()
    for what in (f"told of {own}, protocol {protocol}, by rank -1 on {name_of(0)}",
                 rf"refuses rank {victim} at 10\.77\.0\.{HOSTS}:\d+, tinyshard 8\.1 \(protocol 77\): it is another version than "
                 rf"a store on {name_of(0)}, tinyshard {re.escape(own)} \(protocol {protocol}\)",
                 rf"rank {victim} \(process \d+ on {host}\) .*4"):
        if not re.search(what, job.text()):
            return f"nobody says: {what}"
    return None


def full_disk(cluster, job_of):
    """The folder of checkpoints is shared, but what one host writes there goes to a disk of 16 KiB of its own."""
    host = HOSTS - 1
    folder, disk = cluster.folder / "checkpoints", cluster.folder / "disk"

    def train(steps, *words):
        job = job_of(steps, *words, of=Training)
        return job.finish(), job.text()

    status, text = train(2)
    if status != 0:
        return f"the first training ends with {status}"
    disk.mkdir()
    cluster.on(host, "sh", "-c", f"mount -t tmpfs -o size=16k none {disk} && mkdir {disk}/upper {disk}/work && mount -t overlay "
               f"-o lowerdir={folder},upperdir={disk}/upper,workdir={disk}/work none {folder}")
    status, text = train(4, "--resume")
    cluster.on(host, "umount", folder)
    left = sorted(path.name for path in folder.iterdir())
    if status in (None, 0) or left != [".tinyshard-lock", "step-00000002"]:
        return f"with a full disk it ends with {status} and leaves {left}"
    for who in (r"^train_gpt: .*", r"^tinyshard run: rank \d .*"):
        if not re.search(who + rf"rank {host} on {name_of(host)}: .*No space left on device", text, re.M):
            return f"nobody says whose disk is full after {who}"
    status, text = train(4, "--resume")
    if status != 0 or "resumed     after step 2" not in text or not (folder / "step-00000004").exists():
        return f"it does not go on: status {status}"
    return None


CASES = {"train": trains, "rate": rated, "kill": killed, "stop": stopped, "cut": cut, "flap": flaps, "delay": delayed,
         "loss": lossy, "partition": partitioned, "key": other_key, "version": other_version, "disk": full_disk}


def run(options):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tinyshard-cluster."))
    bad = 0
    try:
        try:
            cluster = Cluster(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"skipped: no hosts can be made here: {getattr(error, 'stderr', '') or error}")
            return SKIPPED
        for case in [case for case in options.cases or CASES for _ in range(options.trials)]:
            jobs = []

            def job_of(*words, of=Job):
                jobs.append(of(cluster, options.build.resolve(), *words))
                return jobs[-1]

            begun = time.monotonic()
            try:
                problem = CASES[case](cluster, job_of)
            except subprocess.CalledProcessError as error:
                problem = f"{error}: {error.stderr}"
            for job in jobs:
                job.sweep()
            bad += problem is not None
            print(f"{case}: {problem or 'good'}, {time.monotonic() - begun:.1f} s", flush=True)
            if problem:
                print("".join(job.text() for job in jobs), flush=True)
    finally:
        shutil.rmtree(folder)
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--trials", type=int, default=1, help="of each case")
    options = parser.parse_args()
    for case in options.cases:
        if case not in CASES:
            parser.error(f"no case is named {case}; there are {', '.join(CASES)}")
    if INSIDE in os.environ:
        return run(options)
    for tool in ("ip", "tc", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is not here (scripts/setup.sh installs it)")
            return SKIPPED
    spaces = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--net", "--mount", "--uts", "--pid",
              "--fork", "--kill-child", "--mount-proc"]
    tried = subprocess.run([*spaces, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        print(f"skipped: this machine permits no namespaces: {tried.stderr.strip()}")
        return SKIPPED
    return subprocess.run([*spaces, sys.executable, *sys.argv], env=dict(os.environ, **{INSIDE: "1"})).returncode


if __name__ == "__main__":
    sys.exit(main())
