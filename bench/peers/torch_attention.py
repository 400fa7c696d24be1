#!/usr/bin/env python3
"""The attention of bench/devices/gpu_attention_bench.cpp in PyTorch, in CUDA graphs.

    python3 bench/peers/torch_attention.py [--batch N --heads N --rows N --width N] [--cpu]     (the last tries the script)
"""
import argparse
import math
import time

import torch
import torch.nn.functional as F

from rows import print_row

parser = argparse.ArgumentParser()
for name, size in (("batch", 64), ("heads", 12), ("rows", 1024), ("width", 64), ("samples", 12)):
    parser.add_argument(f"--{name}", type=int, default=size)
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()
device = "cpu" if args.cpu else "cuda"


def numbers(parts):
    return torch.randn(args.batch, args.rows, parts * args.heads * args.width, device=device, dtype=torch.bfloat16)


packed, upstream = numbers(3).requires_grad_(), numbers(1)


def attention():
    q, k, v = (part.unflatten(-1, (args.heads, -1)).transpose(1, 2) for part in packed.chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def forward():
    with torch.no_grad():
        attention()


def both():
    torch.autograd.grad(attention(), packed, upstream)


def recorded(run):
    if args.cpu:
        return run
    side = torch.cuda.Stream()  # where what is recorded must have run before
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def timed(run, times):
    start = time.perf_counter()
    for _ in range(times):
        run()
    if not args.cpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6 / times


one = 2e-12 * args.batch * args.heads * args.rows**2 * args.width
for name, work, products in (("attention", forward, 1), ("attention and its gradient", both, 3.5)):
    run = recorded(work)
    timed(run, 2)
    times = math.ceil(max(1, 2e4 / timed(run, 1)))
    print_row(name, [timed(run, times) for _ in range(args.samples)], products * one, "TFLOP/s")
