#!/usr/bin/env python3
"""Breaks one line at a time and exits 0 when what looks for faults finds each, 1 otherwise.

    scripts/mutants.py                      the protocol's lines: the simulator finds each within 10,000 runs
    scripts/mutants.py --finder fuzz        lines of the compiler: the fuzzer finds each within 10 minutes
    scripts/mutants.py --finder transport_blame_test   lines that matter for some milliseconds: that test finds them
    scripts/mutants.py --list               their names, unless a line is no longer where it was
    scripts/mutants.py news-not-passed-on   some
    scripts/mutants.py --finder fuzz --keep FOLDER   the broken fuzzers alone, to be run elsewhere

The sources stay as they are: the broken copy of a file is compiled apart and linked before the library, whose own
version it hides; the library is the one of the build folder (--build), built by the preset release.
"""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import typing

GROUP, HEALTH = "transport/group.cpp", "transport/group_health.cpp"
FORMATION, STORED = "transport/formation.cpp", "transport/rendezvous/stored_values.cpp"
SIGHTS, HEADER, COMMITS = "transport/detector/sights.cpp", "transport/call_header.cpp", "core/nn/commits.h"
PROGRAM = "tests/simulator/run.cpp"  # includes COMMITS
REUSE, FOLDS, TAILS = "core/schedule/reuse.cpp", "core/codegen/emit.cpp", "core/codegen/emit_values.cpp"
LOWER, NESTS, RULES = "core/schedule/lower.cpp", "core/codegen/plan.cpp", "core/passes/gradient_rules.cpp"
BUCKETS, LINEAR = "core/schedule/buckets.cpp", "multi/strategies/pending.cpp"
MOVEMENT, PADDING = "multi/strategies/movement.cpp", "multi/strategies/reduction.cpp"


class Mutant(typing.NamedTuple):
    name: str
    file: str
    line: str   # a part of exactly one line
    broken: str


SIMULATED = [
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
    Mutant("silence-is-never-seen", SIGHTS, "sight.silent = !sight.left && looked_ - peer.heard > kSilentPeriods * period_;",
           "sight.silent = false;"),
    Mutant("closed-connection-is-nothing", SIGHTS, "if (!sight.left) sight.gone = true;", ""),
    Mutant("farewell-is-not-heard", SIGHTS, "if (beat.kind == BeatKind::Farewell) peer.sight.left = true;", ""),
    Mutant("gone-elsewhere-is-nothing", HEALTH, "if (rank == this->rank() || !endpoint_->detector()->sight(rank).gone) continue;",
           "continue;"),
    Mutant("circles-are-never-told", SIGHTS, "if (ranks.empty()) return std::nullopt;", "return std::nullopt;"),
    # Blame.
    Mutant("ended-is-blamed-for-the-silent", HEALTH, "if (worst == 2 && silent_member() >= 0) culprit = -1;", ""),
    Mutant("silent-ones-are-not-the-latest", HEALTH, "if (const int silent = silent_member(); silent >= 0) return silent;", ""),
    Mutant("the-majority-is-blamed", HEADER, "most ? &members == &found[0]", "most ? &members != &found[0]"),
    Mutant("divergence-waits-for-no-headers", GROUP, "if (diverged || !awaits_headers())", "if (true)"),
    # News.
    Mutant("news-not-told", GROUP, "if (!tell_peers) return;", "return;"),
    Mutant("news-not-passed-on", GROUP, "if (member.rank != rank() && member.rank != notice.from)", "if (false)"),
    Mutant("news-names-the-witness", GROUP,
           'fail({notice.culprit, fmt::format("rank {} reports: {}", notice.from, notice.text),',
           'fail({notice.from, fmt::format("rank {} reports: {}", notice.from, notice.text),'),
]

# Milliseconds decide: random jobs come to them once in tens of thousands or less.
SCRIPTED = [
    Mutant("no-turn-for-news", HEALTH, "now - *overdue_ < kNewsTurn)", "false)"),
    Mutant("suspicion-outlives-what-came", HEALTH, "if (rank < 0 || rank != suspicion_.rank || suspicion_.completed != channel.completed())", "if (rank < 0 || rank != suspicion_.rank)"),
]

FUZZED = [
    # Memory: what a kernel writes over.
    Mutant("another-element-is-overwritten", REUSE, "if (!(load.src(1) == output.index)) return false;",
           "if (!(load.src(1) == output.index)) return true;"),
    Mutant("a-fold-reads-what-is-overwritten", REUSE,
           "if (!contains(before, x) || !same_elements(load.src(1), output.index, free_ranges(x)))",
           "if (!contains(before, x) && !same_elements(load.src(1), output.index, free_ranges(x)))"),
    # Vectors, and sums.
    Mutant("a-tail-stores-one-element-more", TAILS, "i < open_[vector].active", "i <= open_[vector].active"),
    Mutant("a-tail-adds-one-element-more", FOLDS, "n < open.active; ++n", "n <= open.active; ++n"),
    Mutant("a-fold-before-what-it-reads", NESTS, "level[source] + is_found[source]", "level[source] - is_found[source]"),
    Mutant("one-sum-in-two-orders", LOWER, "other && !(*other == x)) return *origin;", "other && !(*other == x)) return {};"),
    # Gradients.
    Mutant("slope-of-a-logarithm", RULES, "return div(mul(g, std::numbers::log2e), y.src(0));",
           "return div(mul(g, std::numbers::ln2), y.src(0));"),
    Mutant("slope-of-the-larger", RULES, "return where(binary(Op::CmpLt, other, mine), g,",
           "return where(binary(Op::CmpLt, mine, other), g,"),
    # Meshes.
    Mutant("gradients-of-a-bucket-overlap", BUCKETS, "    bucket.bytes = aligned(end);", "    bucket.bytes = aligned(bytes_of(t));"),
    Mutant("sin-is-linear", LINEAR, "    case Op::Neg:", "    case Op::Sin:"),
    Mutant("a-permuted-split-goes-back", MOVEMENT, "int(std::ranges::find(arg, dim) - arg.begin())", "int(arg[size_t(dim)])"),
    Mutant("padding-is-reduced", PADDING, "p.dim, identity_of(op, x.dtype())", "p.dim, identity_of(ReduceOp::Sum, x.dtype())"),
]


def broken_text(mutant):
    text = pathlib.Path(mutant.file).read_text()
    if text.count(mutant.line) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.file} has {text.count(mutant.line)} times: {mutant.line}")
    return text.replace(mutant.line, mutant.broken)


def build_mutant(mutant, finder, build, folder):
    """The program that looks for faults, with the mutant in it."""
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
    words = commands.get(path) or next(c for folder_of_it in pathlib.Path(mutant.file).parents for c in commands.values()
                                       if f" -o {folder_of_it}/" in c and "c++-header" not in c)
    compile_words = shlex.split(words)
    compile_words[compile_words.index("-o") + 1] = str(folder / "broken.o")
    compile_words[compile_words.index("-c") + 1] = str(source)
    subprocess.run([compile_words[0], "-w", f"-I{folder}", *compile_words[1:]], check=True, cwd=build)
    words = link_words_of(finder, build)
    if source == copy:  # a broken library, then, beside its user: what is broken uses what the library keeps to itself
        name = next(build.glob("libtinyshard.so.*.*.*")).name
        library = link_words_of(name, build)
        library[library.index("-o") + 1] = str(folder / name)
        subprocess.run([library[0], str(folder / "broken.o"), "-Wl,-z,muldefs", *library[1:]], check=True, cwd=build)
        (folder / name.rpartition(".")[0]).symlink_to(name)
        words = [str(folder / name) if word == name else word for word in words if not word.startswith("-Wl,-rpath")]
        words.append("-Wl,-rpath,$ORIGIN")
    else:
        words = [word for word in words if not word.endswith("/run.cpp.o")]
        words.insert(1, str(folder / "broken.o"))
    words[words.index("-o") + 1] = str(folder / finder)
    subprocess.run(words, check=True, cwd=build)
    return folder / finder


def link_words_of(target, build):
    """The words of the command that links it."""
    lines = subprocess.run(["ninja", "-C", build, "-t", "commands", target], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    return shlex.split(lines[-1].removeprefix(": && ").removesuffix(" && :"))


def run_simulator(program, options):
    """Where the fault was found, or None; and the last line that was printed."""
    told = subprocess.run([program, "--seed", str(options.seed), "--runs", str(options.runs), "--findings", "1"],
                          capture_output=True, text=True).stdout.splitlines()
    broken = [line for line in told if line.startswith("broken promise: ")]
    found = [line for line in told if line.startswith("found in run ")]
    return f"{found[0].split(';')[0]}: {broken[0]}" if found else None, told[-1] if told else "the simulator said nothing"


def run_fuzzer(program, options):
    """The same. Nobody else may meet the broken kernels: the fuzzer makes a cache of its own, unless it is told of one."""
    environment = {name: value for name, value in os.environ.items() if name != "TS_CACHE_DIR"}
    told = subprocess.run([program, "--seed", str(options.seed), "--minutes", str(options.minutes), "--jobs", str(options.jobs),
                           "--findings", "1", "--minimise", "0"], capture_output=True, text=True, env=environment).stdout.splitlines()
    found = [number for number, line in enumerate(told) if line.startswith("--- finding ")]
    text = f"{told[found[0]].strip('- ')}: {told[found[0] + 1].removeprefix('// ')}" if found else None
    return text, told[-1] if told else "the fuzzer said nothing"


def run_test(program, options):
    """The same, of peers that follow a script (tests/transport/blame_test.cpp)."""
    told = subprocess.run([program], capture_output=True, text=True).stdout.splitlines()
    found = [line.removeprefix("[  FAILED  ] ") for line in told if line.startswith("[  FAILED  ] Blame.")]
    return f"found by {found[0]}" if found else None, told[-1] if told else "the test said nothing"


FINDERS = {"simulator": (SIMULATED, run_simulator), "transport_blame_test": (SCRIPTED, run_test), "fuzz": (FUZZED, run_fuzzer)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="which; all by default")
    parser.add_argument("--finder", choices=FINDERS, default="simulator", help="what looks for them")
    parser.add_argument("--list", action="store_true", help="print their names and end; fails where a line is not in its file, or twice")
    parser.add_argument("--runs", type=int, default=10000, help="of the simulator, within which each must be found")
    parser.add_argument("--minutes", type=float, default=10, help="of the fuzzer, within which each must be found")
    parser.add_argument("--jobs", type=int, default=2, help="programs that the fuzzer runs at once")
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="put the broken programs there, run none")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    options = parser.parse_args()
    mutants, run = FINDERS[options.finder]
    known = {mutant.name: mutant for mutant in mutants}
    if options.list:
        for mutant in mutants:
            broken_text(mutant)
            print(mutant.name)
        return 0
    for name in options.names:
        if name not in known:
            parser.error(f"no mutant is named {name}; --list prints their names")
    subprocess.run(["ninja", "-C", options.build, options.finder], check=True, stdout=subprocess.DEVNULL)
    missed = 0
    for name in options.names or known:
        with tempfile.TemporaryDirectory(prefix="tinyshard-mutant.") as folder:
            program = build_mutant(known[name], options.finder, options.build.resolve(), pathlib.Path(folder))
            if options.keep:
                shutil.rmtree(options.keep / name, ignore_errors=True)
                shutil.copytree(program.parent, options.keep / name, symlinks=True)
                continue
            found, last = run(program, options)
        missed += not found
        print(f"{name}: {found or f'NOT FOUND: {last}'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
