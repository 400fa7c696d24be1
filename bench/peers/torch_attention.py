#!/usr/bin/env python3
"""The attention of bench/devices/gpu_attention_bench.cpp in PyTorch, in CUDA graphs.

    python3 bench/peers/torch_attention.py [--batch N --heads N --rows N --width N] [--cpu]     (the last tries the script)
"""
import argparse

import torch
import torch.nn.functional as F

from rows import print_row
from torch_timing import recorded, times

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


one = 2e-12 * args.batch * args.heads * args.rows**2 * args.width
title = f"attention {args.batch} x {args.heads} heads x {args.rows} x {args.width}, bf16"
for name, work, products in ((title, forward, 1), (f"{title}, and its gradient", both, 3.5)):
    run, _ = recorded(work, args.cpu)
    print_row(name, times(run, args.samples, args.cpu), products * one, "TFLOP/s")
