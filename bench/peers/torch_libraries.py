"""The shapes of bench/devices/library_bench.cpp in PyTorch eager: median microseconds and GFLOP/s.

    torch_libraries.py [threads] [part of a name]
"""
import sys
import time

import torch
import torch.nn.functional as F

threads = int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads()
only = sys.argv[2] if len(sys.argv) > 2 else ""
torch.set_num_threads(threads)
torch.set_grad_enabled(False)


def report(name, flops, f):
    if only not in name:
        return

    def once():
        start = time.perf_counter()
        f()
        return (time.perf_counter() - start) * 1e6

    for _ in range(5):
        f()
    rounds = max(7, min(2000, int(2e5 / once())))
    us = sorted(once() for _ in range(rounds))[rounds // 2]
    print(f"{name:16} {us:9.1f} us {flops / us / 1e3:7.1f} GFLOP/s", flush=True)


def linear(name, m, k, n):
    x, w, dy = torch.randn(m, k), torch.randn(n, k), torch.randn(m, n)
    y, dx, dw = torch.empty(m, n), torch.empty(m, k), torch.empty(n, k)
    flops = 2 * m * k * n
    report(name + ".forward", flops, lambda: torch.mm(x, w.t(), out=y))
    report(name + ".dx", flops, lambda: torch.mm(dy, w, out=dx))
    report(name + ".dw", flops, lambda: torch.mm(dy.t(), x, out=dw))


def batched(name, b, m, k, n):
    a, a_t = torch.randn(b, m, k), torch.randn(b, k, m).transpose(1, 2)
    w, w_t = torch.randn(b, k, n), torch.randn(b, n, k).transpose(1, 2)
    y = torch.empty(b, m, n)
    flops = 2 * b * m * k * n
    report(name + ".nn", flops, lambda: torch.bmm(a, w, out=y))
    report(name + ".nt", flops, lambda: torch.bmm(a, w_t, out=y))
    report(name + ".tn", flops, lambda: torch.bmm(a_t, w, out=y))


def conv(name, n, c, oc, size, k):
    x, w = torch.randn(n, c, size, size), torch.randn(oc, c, k, k)
    y = F.conv2d(x, w)
    dy = torch.randn_like(y)
    flops = 2 * y.numel() * c * k * k

    def backward(which):
        return torch.ops.aten.convolution_backward(
            dy, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, which)

    report(name + ".forward", flops, lambda: F.conv2d(x, w))
    report(name + ".dx", flops, lambda: backward([True, False, False]))
    report(name + ".dw", flops, lambda: backward([False, True, False]))


linear("mlp1", 128, 784, 1024)
linear("mlp2", 128, 1024, 1024)
linear("mlp3", 128, 1024, 10)
linear("qkv", 1024, 128, 384)
linear("proj", 1024, 128, 128)
linear("fc1", 1024, 128, 512)
linear("fc2", 1024, 512, 128)
linear("logits", 1024, 128, 256)
batched("scores", 32, 128, 32, 128)
batched("values", 32, 128, 128, 32)
conv("conv1", 128, 1, 32, 28, 5)
conv("conv2", 128, 32, 32, 24, 5)
conv("conv3", 128, 32, 64, 12, 3)
conv("conv4", 128, 64, 64, 10, 3)
