"""The products of bench/devices/gpu_product_bench.cpp in PyTorch: medians of replayed CUDA graphs.

    torch_gpu_products.py [part of a name]
"""
import sys
import time

import torch
import torch.nn.functional as F

only = sys.argv[1] if len(sys.argv) > 1 else ""
torch.set_grad_enabled(False)
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def numbers(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def report(name, m, k, n, transposed, f, needs_third=False):
    if only not in name:
        return
    a, b = numbers(m, k), numbers(n, k).t() if transposed else numbers(k, n)
    bias, out = numbers(n), numbers(m, n)
    third = numbers(m, n) if needs_third else None
    flops = 2 * m * k * n
    repeat = int(min(max(1e13 / flops, 4), 200))
    call = lambda: f(a, b, bias, out, third)
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            call()
    us = []
    for _ in range(12):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        us.append((time.perf_counter() - start) * 1e6 / repeat)
    us = sorted(us)[len(us) // 2]
    print(f"{name:44} {us:9.2f} us {flops / us / 1e6:7.1f} TFLOP/s", flush=True)


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
report("65536 x 768 x 3072, bias, GELU, fused", 65536, 768, 3072, True, with_fused_gelu)
report("65536 x 3072 x 768, bias", 65536, 3072, 768, True, with_bias)
report("65536 x 768 x 3072", 65536, 768, 3072, False, plain)
report("65536 x 768 x 3072, GELU's gradient", 65536, 768, 3072, False, gelu_gradient, True)
report("65536 x 768 x 2304, bias", 65536, 768, 2304, True, with_bias)
report("65536 x 768 x 50304", 65536, 768, 50304, True, plain)
