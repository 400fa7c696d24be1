#!/usr/bin/env python3
"""Every figure that tinyshard is judged by on GPUs, each beside its limit or peer measured in the same run.

    python3 bench/gpu_table.py BUILD [--gpus N] [--json FILE] [--rows PART,...] [--peers torch,jax | --no-peers] [--quick]

A ratio above 1 is better than the limit or peer. Peers (PyTorch, JAX) are those of the Python that runs this. --quick takes
small sizes: with --device CPU it tries the whole driver on a machine without a GPU; such figures mean nothing.
"""
import argparse
import datetime
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from gpu_rows import PARTS
from gpu_runs import Missing, Runs, TooFew


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path, help="folder of the build")
    parser.add_argument("--gpus", type=int, default=0, help="of the rows of several GPUs [all of the machine; 2 of CPU]")
    parser.add_argument("--json", type=pathlib.Path, help="file for all that was measured")
    parser.add_argument("--rows", default=",".join(PARTS), help=f"parts of the table [{','.join(PARTS)}]")
    parser.add_argument("--peers", default="torch,jax", help="peers to run where they are installed [torch,jax]")
    parser.add_argument("--no-peers", action="store_true", help="run our programs only")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the driver")
    parser.add_argument("--device", default="CUDA", help="kind of device")
    parser.add_argument("--mpirun", help="launcher with its options: rows of several GPUs also with a rank each")
    args = parser.parse_args()
    args.rows = [part for part in args.rows.split(",") if part]
    for part in args.rows:
        if part not in PARTS:
            stop(f'--rows: there is no "{part}"; the parts are {", ".join(PARTS)}')
    args.rows = [part for part in PARTS if part in args.rows]  # the first one meets empty caches
    args.peers = [] if args.no_peers else args.peers.split(",")
    if not (args.build / "cli/tinyshard").is_file():
        stop(f"{args.build} is no build of tinyshard: it has no cli/tinyshard")
    if args.json and not args.json.absolute().parent.is_dir():
        stop(f"--json {args.json}: there is no such folder")
    return args


def stop(why):
    sys.exit(f"gpu_table: {why}")


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine(runs):
    try:
        gpus = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.splitlines()
    except OSError:
        gpus = []
    return {"gpus": gpus, "found": runs.found(), "torch": version("torch"), "jax": version("jax"), "nccl of torch": version("nvidia-nccl-cu13"),
            "python": sys.version.split()[0]}


def figure(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


LAYOUT = "{:66} {:>10} {:8} {:>10} {:>6} {:>12} {:4} {}"


def print_row(r):
    ratio = "-" if r["ratio"] is None else f"{r['ratio']:.2f}"
    met = {None: "", True: "met", False: "no"}[r["met"]]
    print(LAYOUT.format(r["row"], figure(r["ours"]), r["unit"], figure(r["theirs"]), ratio, r["goal"], met,
                        r["note"] or r["against"]), flush=True)


def main():
    args = arguments()
    rows, failed = [], False
    with tempfile.TemporaryDirectory(prefix="gpu_table") as folder:
        runs = Runs(args.build.resolve(), args.device, args.gpus, args.mpirun, args.peers, args.quick,
                    pathlib.Path(folder))
        try:
            there, wanted = runs.count()
        except Missing as missing:
            stop(missing)
        if args.gpus > there:
            stop(f"--gpus {args.gpus}: there are {there}")
        runs.gpus = args.gpus or wanted
        result = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                  "gpus": runs.gpus, "quick": args.quick, "machine": machine(runs), "seconds": {}, "rows": rows}
        print(LAYOUT.format("", "ours", "unit", "beside", "ratio", "goal", "", "what it stands beside"))
        for part in args.rows:
            start = time.monotonic()
            try:
                for row in PARTS[part](runs):
                    rows.append({"part": part, **row})
                    print_row(row)
            except Missing as missing:
                failed |= not isinstance(missing, TooFew)
                rows.append({"part": part, "row": part, "note": str(missing)})
                print(f"{part}: {missing}", flush=True)
            result["seconds"][part] = round(time.monotonic() - start, 1)
            if args.json:  # after each part, so that a run that is cut leaves what it had
                args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
