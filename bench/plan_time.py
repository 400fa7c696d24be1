#!/usr/bin/env python3
"""Processor time of passes and schedule of a training step by its depth, on eight devices that only plan.

  python3 bench/plan_time.py                        GPT-2 with 12, 48 and 96 layers, medians of 7 runs
  python3 bench/plan_time.py --layers 96 --each     each pass and each step of the schedule, too
  python3 bench/plan_time.py --model llama --divide "--fsdp 2 --tp 2 --sp --pp 2" --layers 16 32 64
"""
import argparse
import os
import re
import statistics
import subprocess

MODELS = {
    "gpt2": "--plan --tokens random --width 768 --heads 12 --batch 64 --devices-per-rank 8",
    # The layers of an 8B Llama.
    "llama": "train --plan --tokens random --width 4096 --heads 32 --kv-heads 8 --hidden 14336 --context 1024"
             " --vocabulary 128256 --batch 16 --devices-per-rank 8",
}


def times(command, layers):
    """Milliseconds by pass and step, of all graphs of one run."""
    run = subprocess.run([*command, "--layers", str(layers)], check=True, text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, env={**os.environ, "DEBUG": "2"})
    found = {}
    for kind, name, ms in re.findall(r"^(pass|step) (\S+)\s+([\d.]+) ms", run.stdout, re.MULTILINE):
        found[kind, name] = found.get((kind, name), 0) + float(ms)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--divide", default="", help="how the devices share it, as the example takes it")
    parser.add_argument("--programs", default="build/release/examples", help="the folder of the examples")
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 48, 96])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--each", action="store_true")
    options = parser.parse_args()
    command = [os.path.join(options.programs, options.model), *MODELS[options.model].split(), *options.divide.split()]
    for layers in options.layers:
        runs = [times(command, layers) for _ in range(options.runs)]
        # The steps are within the pass that is named "schedule".
        sums = [sum(ms for (kind, _), ms in run.items() if kind == "pass") for run in runs]
        print(f"{layers} layers: {statistics.median(sums):.1f} ms, the least {min(sums):.1f} ms, "
              f"{statistics.median(sums) / layers:.2f} ms a layer")
        for kind, name in runs[0] if options.each else []:
            print(f"  {kind} {name:20s} {statistics.median(run[kind, name] for run in runs):8.2f} ms")


if __name__ == "__main__":
    main()
