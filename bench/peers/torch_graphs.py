#!/usr/bin/env python3
"""The GPU cases of bench/steps_bench.cpp as CUDA graphs of PyTorch: a step of the MLP, and many tiny kernels.

    python3 bench/peers/torch_graphs.py [--only TEXT] [--batch 512] [--in-a-row N] [--tf32] [--cpu]

--cpu tries the script.
"""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from rows import print_row
from torch_timing import recorded

parser = argparse.ArgumentParser()
parser.add_argument("--only", default="")
parser.add_argument("--batch", type=int, default=512)
parser.add_argument("--in-a-row", type=int, default=0, help="also times so many steps of the MLP in a row")
parser.add_argument("--tf32", action="store_true")
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()
device = "cpu" if args.cpu else "cuda"
torch.backends.cuda.matmul.allow_tf32 = args.tf32


def synchronize():
    if not args.cpu:
        torch.cuda.synchronize()


def report(name, run, work=0.0, unit="", steps=1, after=lambda: None):
    if args.only not in name:
        return
    us, begin = [], time.perf_counter()
    synchronize()
    while len(us) < 7 or (time.perf_counter() - begin < 1 and len(us) < 2000):
        start = time.perf_counter()
        run()
        us.append((time.perf_counter() - start) * 1e6)
        after()
    print_row(name, us, work, unit, steps)


def mlp():
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    optim = torch.optim.SGD(net.parameters(), lr=1e-2, fused=True)
    x, y = torch.randn(args.batch, 784, device=device), torch.randint(0, 10, (args.batch,), device=device)

    def step():
        optim.zero_grad(set_to_none=False)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optim.step()
        return loss

    replay, loss = recorded(step, args.cpu)

    def with_loss():
        replay()
        loss.item()

    def in_a_row():
        for _ in range(args.in_a_row):
            replay()
        synchronize()

    name = f"mlp step B={args.batch} SGD"
    report(name, with_loss, args.batch, "samples/s")
    if args.in_a_row:
        report(f"{name}, in a row", in_a_row, args.in_a_row * args.batch, "samples/s", args.in_a_row)


def chain(count):
    v = torch.zeros(64, device=device)

    def kernels():
        for _ in range(count):
            v.add_(1)

    replay, _ = recorded(kernels, args.cpu)

    def run():
        replay()
        synchronize()

    name = f"replay of {count} dependent tiny kernels"
    report(name, run, count, "kernels/s", count)
    report(f"{name}, the host's part", replay, after=synchronize)


mlp()
chain(1000)
