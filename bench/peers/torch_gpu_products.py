#!/usr/bin/env python3
"""The products of bench/devices/gpu_product_bench.cpp in PyTorch, in CUDA graphs.

    python3 bench/peers/torch_gpu_products.py [--only TEXT] [--shrink N] [--cpu]     (the last two try the script)
"""
import argparse

import torch
import torch.nn.functional as F

from rows import print_row
from torch_timing import recorded, times

parser = argparse.ArgumentParser()
parser.add_argument("--only", default="")
parser.add_argument("--shrink", type=int, default=1)
parser.add_argument("--samples", type=int, default=12)
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()
torch.set_grad_enabled(False)
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def numbers(*shape):
    return torch.randn(*shape, device="cpu" if args.cpu else "cuda", dtype=torch.bfloat16)


def report(name, m, k, n, transposed, f, needs_third=False):
    if args.only not in name:
        return
    m, k, n = (max(1, size // args.shrink) for size in (m, k, n))
    a, b = numbers(m, k), numbers(n, k).t() if transposed else numbers(k, n)
    bias, out = numbers(n), numbers(m, n)
    third = numbers(m, n) if needs_third else None
    flops = 2 * m * k * n
    repeat = int(min(max(1e13 / flops, 4), 200))

    def calls():
        for _ in range(repeat):
            f(a, b, bias, out, third)

    run, _ = recorded(calls, args.cpu)
    us = [time / repeat for time in times(run, args.samples, args.cpu)]
    print_row(name, us, flops * 1e-12, "TFLOP/s")


def plain(a, b, bias, out, third):
    torch.mm(a, b, out=out)


def with_bias(a, b, bias, out, third):
    F.linear(a, b.t(), bias)


def with_gelu(a, b, bias, out, third):
    F.gelu(F.linear(a, b.t(), bias), approximate="tanh")


def with_fused_gelu(a, b, bias, out, third):
    torch._addmm_activation(bias, a, b, use_gelu=True)


def gelu_gradient(a, b, bias, out, third):
    torch.ops.aten.gelu_backward(torch.mm(a, b), third, approximate="tanh")


for size in (8192, 4096, 1024):
    report(f"{size} x {size} x {size}", size, size, size, False, plain)
report("65536 x 768 x 3072", 65536, 768, 3072, True, plain)
report("65536 x 768 x 3072, bias", 65536, 768, 3072, True, with_bias)
report("65536 x 768 x 3072, bias, GELU, eager", 65536, 768, 3072, True, with_gelu)
report("65536 x 768 x 3072, bias, GELU", 65536, 768, 3072, True, with_fused_gelu)
report("65536 x 3072 x 768, bias", 65536, 3072, 768, True, with_bias)
report("65536 x 768 x 3072, not transposed", 65536, 768, 3072, False, plain)
report("65536 x 768 x 3072, GELU's gradient", 65536, 768, 3072, False, gelu_gradient, True)
report("65536 x 768 x 2304, bias", 65536, 768, 2304, True, with_bias)
report("65536 x 768 x 50304", 65536, 768, 50304, True, plain)
