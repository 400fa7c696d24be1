#!/usr/bin/env python3
"""Breaks one line of the protocol at a time and exits 0 when the simulator finds each within so many runs, 1 otherwise.

    scripts/mutants.py                      all of them, 10,000 runs each at most
    scripts/mutants.py --list               their names
    scripts/mutants.py news-not-passed-on   some

The sources stay as they are: the broken copy of a file is compiled apart and linked before the library, whose own
version it hides; the library is the one of the build folder (--build), built by the preset release.
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import typing

GROUP, HEALTH = "transport/group.cpp", "transport/group_health.cpp"
FORMATION, STORED = "transport/formation.cpp", "transport/rendezvous/stored_values.cpp"
SIGHTS, HEADER, COMMITS = "transport/detector/sights.cpp", "transport/call_header.cpp", "core/nn/commits.h"
PROGRAM = "tests/simulator/run.cpp"  # includes COMMITS


class Mutant(typing.NamedTuple):
    name: str
    file: str
    line: str   # a part of exactly one line
    broken: str


MUTANTS = [
    # Epochs, and who is in them.
    Mutant("epoch-stays", FORMATION, "  ++last.formation;", ""),
    Mutant("later-proposal-counts", STORED, "if (found != values_.end()) return",
           'if (found != values_.end() && key.ends_with("/members")) found->second = value;\n  if (found != values_.end()) return'),
    Mutant("proposal-leaves-out-the-last", FORMATION, "if (state.here && !state.gone) left.push_back",
           "if (state.here && !state.gone && rank + 1 < last_.size) left.push_back"),
    Mutant("proposal-before-all-are-known", FORMATION, "if (all_known() || host_.now() >= deadline_) propose();",
           "all_known(), propose();"),
    # What a failed call leaves.
    Mutant("failed-call-succeeds", GROUP, "if (request.generation != ticket >> kPlaceBits) return true;",
           "if (request.generation != ticket >> kPlaceBits || failed()) return true;"),
    # Commits.
    Mutant("commit-before-all-have-it", COMMITS, "before_ = std::exchange(last_, std::pair(step, std::move(snapshot)));",
           "last_ = std::pair(step, std::move(snapshot));"),
    Mutant("return-to-the-own-newest", COMMITS, "last_ = std::move(before_);", ""),
    # The detector.
    Mutant("silence-is-never-seen", SIGHTS, "sight.silent = looked_ - peer.heard > kSilentPeriods * period_;",
           "sight.silent = false;"),
    Mutant("closed-connection-is-nothing", SIGHTS, "if (!sight.left) sight.gone = true;", ""),
    Mutant("farewell-is-not-heard", SIGHTS, "if (beat.kind == BeatKind::Farewell) peer.sight.left = true;", ""),
    Mutant("gone-elsewhere-is-nothing", HEALTH, "if (rank == this->rank() || !endpoint_->detector()->sight(rank).gone) continue;",
           "continue;"),
    # Blame.
    Mutant("ended-is-blamed-for-the-silent", HEALTH, "if (worst == 2 && silent_member() >= 0) culprit = -1;", ""),
    Mutant("no-turn-for-news", HEALTH, "now - *overdue_ < kNewsTurn)", "false)"),
    Mutant("silent-ones-are-not-the-latest", HEALTH, "if (const int silent = silent_member(); silent >= 0) return silent;", ""),
    Mutant("suspicion-outlives-what-came", HEALTH, "if (rank < 0 || rank != suspicion_.rank || suspicion_.completed != channel.completed())", "if (rank < 0 || rank != suspicion_.rank)"),
    Mutant("the-majority-is-blamed", HEADER, "most ? &members == &found[0]", "most ? &members != &found[0]"),
    Mutant("divergence-waits-for-no-headers", GROUP, "if (diverged || !awaits_headers())", "if (true)"),
    # News.
    Mutant("news-not-told", GROUP, "if (!tell_peers) return;", "return;"),
    Mutant("news-not-passed-on", GROUP, "if (member.rank != rank() && member.rank != notice.from)", "if (false)"),
    Mutant("news-names-the-witness", GROUP,
           'fail({notice.culprit, fmt::format("rank {} reports: {}", notice.from, notice.text),',
           'fail({notice.from, fmt::format("rank {} reports: {}", notice.from, notice.text),'),
]


def broken_text(mutant):
    text = pathlib.Path(mutant.file).read_text()
    if text.count(mutant.line) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.file} has {text.count(mutant.line)} times: {mutant.line}")
    return text.replace(mutant.line, mutant.broken)


def build_mutant(mutant, build, folder):
    """The simulator with the mutant in it."""
    copy = folder / mutant.file
    copy.parent.mkdir(parents=True)
    copy.write_text(broken_text(mutant))
    source = copy
    if mutant.file.endswith(".h"):
        source = folder / PROGRAM
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(pathlib.Path(PROGRAM).read_text())
    commands = {entry["file"]: entry["command"] for entry in json.loads((build / "compile_commands.json").read_text())}
    path = str((pathlib.Path.cwd() / source.relative_to(folder)))
    # Sources that are compiled together have the words of any other of their folder.
    words = commands.get(path) or next(c for c in commands.values() if f" -o {mutant.file.split('/')[0]}/" in c)
    compile_words = shlex.split(words)
    compile_words[compile_words.index("-o") + 1] = str(folder / "broken.o")
    compile_words[compile_words.index("-c") + 1] = str(source)
    subprocess.run([compile_words[0], "-w", f"-I{folder}", *compile_words[1:]], check=True, cwd=build)
    link = subprocess.run(["ninja", "-C", build, "-t", "commands", "simulator"], check=True, capture_output=True,
                          text=True).stdout.splitlines()[-1]
    link_words = shlex.split(link.removeprefix(": && ").removesuffix(" && :"))
    link_words[link_words.index("-o") + 1] = str(folder / "simulator")
    if source.name == pathlib.Path(PROGRAM).name:
        link_words = [word for word in link_words if not word.endswith("/run.cpp.o")]
    link_words.insert(1, str(folder / "broken.o"))
    subprocess.run(link_words, check=True, cwd=build)
    return folder / "simulator"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="which; all by default")
    parser.add_argument("--list", action="store_true", help="print their names and end")
    parser.add_argument("--runs", type=int, default=10000, help="within which each must be found")
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    options = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    if options.list:
        print("\n".join(known))
        return 0
    for name in options.names:
        if name not in known:
            parser.error(f"no mutant is named {name}; --list prints their names")
    subprocess.run(["ninja", "-C", options.build, "simulator"], check=True, stdout=subprocess.DEVNULL)
    missed = 0
    for name in options.names or known:
        with tempfile.TemporaryDirectory(prefix="tinyshard-mutant.") as folder:
            program = build_mutant(known[name], options.build.resolve(), pathlib.Path(folder))
            told = subprocess.run([program, "--seed", str(options.seed), "--runs", str(options.runs), "--findings", "1"],
                                  capture_output=True, text=True).stdout.splitlines()
        broken = [line for line in told if line.startswith("broken promise: ")]
        found = [line for line in told if line.startswith("found in run ")]
        if found:
            print(f"{name}: {found[0].split(';')[0]}: {broken[0]}", flush=True)
        else:
            missed += 1
            print(f"{name}: NOT FOUND: {told[-1] if told else 'the simulator said nothing'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
