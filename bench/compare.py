#!/usr/bin/env python3
"""Runs steps_bench or decode_bench and, where PyTorch is installed, the same work there, alternately, and prints both with their ratio.

    python3 bench/compare.py build/release/bench/steps_bench [--threads N] [--only TEXT] [--rounds 2] [--json out.json]
    python3 bench/compare.py build/release/bench/decode_bench [--threads N] [--rounds 2] [--json out.json]

Ratios are PyTorch's time over ours: above 1 is faster than PyTorch. Each figure is the better median of the rounds.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("bench")
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--only", default="")
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--json")
args = parser.parse_args()
name = pathlib.Path(args.bench).name
peer = pathlib.Path(__file__).parent / "peers" / f"torch_{name.removesuffix('_bench')}.py"
only = ["--only", args.only] if args.only else []


def run(command, env=None):
    out = subprocess.run(command, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {row["case"]: row for row in map(json.loads, filter(None, out.splitlines()))}


ours, theirs = {}, {}
have_torch = importlib.util.find_spec("torch") is not None
for _ in range(args.rounds):
    runs = [(ours, [args.bench, *only], {"TS_THREADS": str(args.threads)})]
    if have_torch:
        runs.append((theirs, [sys.executable, str(peer), "--threads", str(args.threads), *only], None))
    for table, command, env in runs:
        for case, row in run(command, env).items():
            if case not in table or row["us"] < table[case]["us"]:
                table[case] = row

copy = ours.get("copy 64MiB", {}).get("rate", 0)
print(f"{'case':40} {'tinyshard':>12} {'PyTorch':>12} {'ratio':>7} {'of copy' if copy else 'of sum':>8}")
for case, row in ours.items():
    other = theirs.get(case)
    ratio = f"{other['us'] / row['us']:.2f}" if other else "-"
    if row["unit"] == "%":
        continue
    of_sum = ours.get(f"{case}, of the sum")
    share = f"{row['rate'] / copy:.0%}" if copy and row["unit"] == "GB/s" else f"{of_sum['rate']:.0f}%" if of_sum else ""
    theirs_ms = other["us"] / 1e3 if other else float("nan")
    print(f"{case:40} {row['us'] / 1e3:9.4f} ms {theirs_ms:9.4f} ms {ratio:>7} {share:>8}")
if not have_torch:
    print("PyTorch is not installed: no peer to compare with (pip install torch)")
if args.json:
    pathlib.Path(args.json).write_text(json.dumps({"tinyshard": ours, "torch": theirs, "threads": args.threads}, indent=1))
