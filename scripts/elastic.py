#!/usr/bin/env python3
"""Kills ranks of a small training of four at random moments, from outside, one after the other or several at once, and exits 0
when every trial ended as docs/launch.md says, 1 otherwise:

    scripts/elastic.py [--trials 500]

- The ranks that are left go on, take each sample once, and end with the bits of a run through the same worlds in which
  nobody dies.
- Of state that is divided, a rank and the one behind it may die together: then every rank that is left names both and ends.
- Nothing hangs; the first step after a kill is committed within a second in the median and three at most.

Half of the trials divide the state over the ranks. Each trial prints its seed only where it fails; --seed N runs that one
first. The programs are those of the build folder (--build, by default build/release): tinyshard and
transport_elastic_rank.
"""

import argparse
import re
import signal
import subprocess
import sys
import time

from local_job import CAP_S, RANKS, add_options, run_trials, send

STEPS = 400
LOST = re.compile(r"of the (\d+) ranks that committed step \d+, rank (\d+), which held it, and rank (\d+), which held its copy, are both gone")


class Found:
    def __init__(self):
        self.kills, self.at_once, self.worlds, self.parts_lost = 0, 0, 0, 0
        self.delays, self.redone = [], []


def draw_groups(draw):
    """Victims, together where they die at once."""
    groups = []
    for victim in draw.sample(range(RANKS), draw.randrange(1, RANKS)):
        if groups and draw.random() < 0.4:
            groups[-1].append(victim)
        else:
            groups.append([victim])
    return groups


def check_samples(text, rank):
    took = [tuple(map(int, t)) for t in re.findall(rf"^{rank} took (\d+) (\d+) (\d+)$", text, re.M)]
    if [t[0] for t in took] != list(range(STEPS)):
        return f"rank {rank} lost or repeated steps"
    if took[0][1] != 0 or any(a[2] != b[1] for a, b in zip(took, took[1:])):
        return f"rank {rank} lost or repeated samples"
    return None


def check_lost_parts(text, lost, divided):
    """Of a job that ended as nobody has a part of its state."""
    said = {tuple(map(int, found)) for found in LOST.findall(text)}
    if not divided or len(lost) < 2 or len(said) != 1:
        return f"parts are said to be lost: {said}, and ranks {sorted(lost)} are"
    ranks, holder, copier = next(iter(said))
    if copier != (holder + 1) % ranks or ranks == RANKS and not {holder, copier} <= lost:
        return f"ranks {holder} and {copier} of {ranks} are not those that were lost, {sorted(lost)}"
    return None


def measure(text, moments, found):
    """The first step after each kill, as the last of the ranks that are left commits it."""
    steps = [(int(at) * 1e-9, int(redone)) for at, redone in re.findall(r"^\d+ next \d+ at (\d+) redone (\d+)$", text, re.M)]
    for since, until in zip(moments, [*moments[1:], float("inf")]):
        within = [(at, redone) for at, redone in steps if since < at < until]
        if within:
            found.worlds += 1
            found.delays.append(max(at for at, _ in within) - since)
            found.redone.append(max(redone for _, redone in within))


def trial(job_of, draw, found):
    groups, divided = draw_groups(draw), draw.random() < 0.5
    words = (["divided"] if divided else []) + [f"steps={STEPS}"]
    job = job_of("", 20, ["--elastic", "1", "--cores", "all", "--timeout", "20"], "transport_elastic_rank", words)
    try:
        if not job.ready():
            return "the job did not begin", job
        moments = []
        for group in groups:
            time.sleep(draw.uniform(0, 0.3))
            moments.append(time.monotonic())
            for victim in group:
                send(job.pids()[victim], signal.SIGKILL)
        status = job.finish()
        text, about = job.text(), f"(kills {groups}{', divided' if divided else ''})"
        if status is None:
            return f"it hangs {about}", job
        done = {int(rank): rest for rank, rest in re.findall(r"^(\d+) done (.*)$", text, re.M)}
        lost = set(map(int, re.findall(r"rank (\d+) \(process \d+ on \S+\) has ended, killed", text)))
        found.kills += len(lost)
        found.at_once += sum(len(lost & set(group)) for group in groups if len(lost & set(group)) > 1)
        if not lost <= {victim for group in groups for victim in group}:
            return f"ranks {sorted(lost)} were lost {about}", job
        measure(text, moments, found)
        if LOST.search(text):
            found.parts_lost += 1
            problem = check_lost_parts(text, lost, divided)
            return problem and f"{problem} {about}", job
        if status != 0 or set(done) | lost != set(range(RANKS)) or len(set(done.values())) != 1:
            return f"ranks ended otherwise, status {status} {about}", job
        for rank in done:
            if problem := check_samples(text, rank):
                return f"{problem} {about}", job
        end = next(iter(done.values()))
        undisturbed = subprocess.run([job.program, *words, "schedule", *end.split()[1:]], capture_output=True, text=True,
                                     timeout=CAP_S)
        if f"0 done {end}\n" not in undisturbed.stdout:
            return f"undisturbed it is {undisturbed.stdout.splitlines()[-1:]}{undisturbed.stderr} {about}", job
        return None, job
    finally:
        job.sweep()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, trials=20)
    options = parser.parse_args()
    found, begun = Found(), time.monotonic()
    bad = run_trials(options, lambda job_of, draw: trial(job_of, draw, found))
    delays, redone = sorted(found.delays), sorted(found.redone)
    late = bool(delays) and (delays[len(delays) // 2] > 1 or delays[-1] > 3)
    print(f"{options.trials} trials, {bad} bad, {time.monotonic() - begun:.0f} s; {found.kills} kills, {found.at_once} of them "
          f"at once with others, {found.parts_lost} jobs ended as a part was lost with its copy")
    if delays:
        print(f"{found.worlds} new worlds: the next step after {delays[len(delays) // 2] * 1e3:.0f} ms in the median, "
              f"{delays[-1] * 1e3:.0f} ms at most; steps done again: {sum(redone)} in all, {redone[-1]} at most")
    return 1 if bad or late else 0


if __name__ == "__main__":
    sys.exit(main())
