#!/usr/bin/env python3
"""Kills ranks of a small training of four at random moments, from outside, one after the other or several at once, and exits 0
when every trial ended as docs/launch.md says, 1 otherwise:

    scripts/elastic.py [--trials 500]

- The ranks that are left go on, take each sample once, and end with the bits of a run through the same worlds in which
  nobody dies.
- Of state that is divided, a rank and the one behind it may die together: then every rank that is left names both and ends.
- Nothing hangs; the first step after a kill is committed within a second in the median and three at most.

In a quarter of the trials each rank has forked a helper in each world, which holds what the rank had open when it is killed. In
another quarter the folder of --log-dir is on a disk that is full, or becomes so: it costs logs and rings, and not the job. Where
this machine permits no namespaces of mounts, no disk is full, and the last line says so.
In a quarter of the trials one rank kills itself within the first half millisecond of a commit, before the others are killed.
Half of the trials divide the state over the ranks; in half of them others are started in the places of the lost (--elastic 1:4),
which may be killed, too, and end with the same bits. Each trial prints its seed only where it fails; --seed N runs that one
first. The programs are those of the build folder (--build, by default build/release): tinyshard and
transport_elastic_rank.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time

from local_job import CAP_S, RANKS, add_options, run_trials, send

STEPS, STEPS_WITH_NEWCOMERS = 400, 3000
INSIDE = "TINYSHARD_ELASTIC_INSIDE"  # of a namespace of mounts
DISK_KIB = [64, 700, 1500, 2600]  # none, one, two or four rings fit
LOST = re.compile(r"of the (\d+) ranks that committed step \d+, rank (\d+), which held it, and rank (\d+), which held its copy, are both gone")


class Found:
    def __init__(self):
        self.kills, self.at_once, self.worlds, self.parts_lost, self.joined = 0, 0, 0, 0, 0
        self.compared, self.full, self.helped = 0, 0, 0
        self.delays, self.redone = [], []


def enter_own_mounts():
    """Starts this script again where it may mount disks of its own, if the machine permits it."""
    if INSIDE in os.environ:
        return
    for words in (["unshare", "--mount"], ["unshare", "--mount", "--user", "--map-root-user"]):
        probe = [*words, "mount", "-t", "tmpfs", "none", "/mnt"]
        if subprocess.run(probe, capture_output=True).returncode == 0:
            os.environ[INSIDE] = "1"
            os.execvp(words[0], [*words, sys.executable, *sys.argv])


def mount_small_disk(job_of, draw):
    """In the folder of the trial; the flags that lead a job there."""
    folder = job_of.args[1] / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={draw.choice(DISK_KIB)}k", "none", folder], check=True)
    return folder, ["--log-dir", folder]


def kill_some(job, draw, killed):
    """Kills one rank or several of those that train, never all: their numbers, and those of the others."""
    living = sorted(set(map(int, re.findall(r"^(\d+) world ", job.text(), re.M))) or set(range(RANKS)))
    living = [rank for rank in living if rank not in killed]
    if len(living) < 2:
        return [], living
    group = draw.sample(living, min(len(living) - 1, draw.choice([1, 1, 1, 1, 2, 3])))
    pids = job.pids()
    for victim in group:
        send(pids[victim], signal.SIGKILL)
    return group, set(living) - set(group)


def check_samples(text, rank, steps):
    joined = re.search(rf"^{rank} done \S+ joined:(\d+)", text, re.M)
    took = [tuple(map(int, t)) for t in re.findall(rf"^{rank} took (\d+) (\d+) (\d+)$", text, re.M)]
    first = int(joined[1]) if joined else 0
    if [t[0] for t in took] != list(range(first, steps)):
        return f"rank {rank} lost or repeated steps"
    if not joined and took[0][1] != 0 or any(a[2] != b[1] for a, b in zip(took, took[1:])):
        return f"rank {rank} lost or repeated samples"
    return None


def check_lost_parts(text, lost, divided, renumbered):
    """Of a job that ended as nobody has a part of its state."""
    said = {tuple(map(int, found)) for found in LOST.findall(text)}
    if not divided or len(lost) < 2 or len(said) != 1:
        return f"parts are said to be lost: {said}, and ranks {sorted(lost)} are"
    ranks, holder, copier = next(iter(said))
    if copier != (holder + 1) % ranks or not renumbered and ranks == RANKS and not {holder, copier} <= lost:
        return f"ranks {holder} and {copier} of {ranks} are not those that were lost, {sorted(lost)}"
    return None


def measure(text, kills, found):
    """The first step after each kill, as the last of the ranks that trained by then and are left commits it."""
    steps = [(int(rank), int(at) * 1e-9, int(redone))
             for rank, at, redone in re.findall(r"^(\d+) next \d+ at (\d+) redone (\d+)$", text, re.M)]
    for (since, left), (until, _) in zip(kills, [*kills[1:], (float("inf"), None)]):
        first = {}
        for rank, at, redone in sorted(steps, key=lambda step: step[1]):
            if since < at < until and rank in left:
                first.setdefault(rank, (at, redone))
        if first:
            found.worlds += 1
            found.delays.append(max(at for at, _ in first.values()) - since)
            found.redone.append(max(redone for _, redone in first.values()))


def trial(job_of, draw, found, steps_with_newcomers):
    divided, grows = draw.random() < 0.5, draw.random() < 0.5
    steps = steps_with_newcomers if grows else STEPS
    words = (["divided"] if divided else []) + [f"steps={steps}"]
    death = ["at", f"{draw.randrange(RANKS)}:0", f"{draw.randrange(2, 60)}:{draw.randrange(500)}"] if draw.random() < 0.25 else []
    in_commit = {int(death[1].split(":")[0])} if death else set()
    flags = ["--elastic", f"1:{RANKS}" if grows else "1", "--cores", "all", "--timeout", "20"]
    odd = draw.choice(["", "", "helped", "full"])
    disk = None
    if odd == "full" and INSIDE in os.environ:
        disk, more = mount_small_disk(job_of, draw)
        flags += more
        found.full += 1
    found.helped += odd == "helped"
    job = job_of("", 20, flags, "transport_elastic_rank", (["helped"] if odd == "helped" else []) + words + death)
    try:
        if not job.ready():
            return "the job did not begin", job
        groups, kills = [], []
        for _ in range(draw.randrange(1, 7 if grows else 4)):
            time.sleep(draw.uniform(0, 0.6 if grows else 0.3))
            since = time.monotonic()
            group, left = kill_some(job, draw, {rank for group in groups for rank in group} | in_commit)
            groups.append(group)
            if group:
                kills.append((since, left))
        status = job.finish()
        text = job.text()
        about = f"(kills {groups}{f', in a commit {death[1:]}' if death else ''}{', divided' if divided else ''}{', others join' if grows else ''}" \
                f"{', ' + odd if odd else ''})"
        if status is None:
            return f"it hangs {about}", job
        done = {int(rank): rest for rank, rest in re.findall(r"^(\d+) done (.*)$", text, re.M)}
        lost = set(map(int, re.findall(r"rank (\d+) \(process \d+ on \S+\) has ended, killed", text)))
        trained = set(map(int, re.findall(r"^(\d+) world ", text, re.M)))
        killed = {victim for group in groups for victim in group} | in_commit
        found.kills += len(lost & killed)
        found.at_once += sum(len(lost & set(group)) for group in groups if len(lost & set(group)) > 1)
        found.joined += len([rank for rank in trained if rank >= RANKS])
        measure(text, kills, found)
        if LOST.search(text):
            found.parts_lost += 1
            problem = check_lost_parts(text, lost, divided, grows)
            return problem and f"{problem} {about}", job
        # Whoever came too late to join trained nothing.
        if status != 0 or not lost <= killed or not (set(range(RANKS)) | trained) - lost <= set(done) or not done or \
                len({rest.split()[0] for rest in done.values()}) != 1:
            return f"ranks ended otherwise, status {status} {about}", job
        for rank in done:
            if problem := check_samples(text, rank, steps):
                return f"{problem} {about}", job
        ends = {rest for rank, rest in done.items() if rank < RANKS}
        if len(ends) > 1:
            return f"the ranks were in different worlds {about}", job
        for end in ends:
            undisturbed = subprocess.run([job.program, *words, "schedule", *end.split()[1:]], capture_output=True, text=True,
                                         timeout=CAP_S)
            if f"0 done {end}\n" not in undisturbed.stdout:
                return f"undisturbed it is {undisturbed.stdout.splitlines()[-1:]}{undisturbed.stderr} {about}", job
        found.compared += len(ends)
        return None, job
    finally:
        job.sweep()
        if disk:
            subprocess.run(["umount", "--lazy", disk], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, trials=20)
    parser.add_argument("--steps", type=int, default=STEPS_WITH_NEWCOMERS,
                        help="of trials in which others join: fewer on a busy machine (default: %(default)s)")
    options = parser.parse_args()
    enter_own_mounts()
    found, begun = Found(), time.monotonic()
    bad = run_trials(options, lambda job_of, draw: trial(job_of, draw, found, options.steps))
    delays, redone = sorted(found.delays), sorted(found.redone)
    late = bool(delays) and (delays[len(delays) // 2] > 1 or delays[-1] > 3)
    print(f"{options.trials} trials, {bad} bad, {time.monotonic() - begun:.0f} s; {found.kills} kills, {found.at_once} of them "
          f"at once with others, {found.joined} ranks joined, {found.parts_lost} jobs ended as a part was lost with its copy, "
          f"{found.compared} were compared with undisturbed ones; {found.helped} had helpers, {found.full} full disks"
          f"{'' if INSIDE in os.environ else ' (this machine permits no mounts)'}")
    if delays:
        print(f"{found.worlds} new worlds: the next step after {delays[len(delays) // 2] * 1e3:.0f} ms in the median, "
              f"{delays[-1] * 1e3:.0f} ms at most; steps done again: {sum(redone)} in all, {redone[-1]} at most")
    return 1 if bad or late else 0


if __name__ == "__main__":
    sys.exit(main())
