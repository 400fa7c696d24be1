#!/usr/bin/env python3
"""The cases of bench/steps_bench.cpp in PyTorch eager, printed as the same JSON lines.

    python3 bench/peers/torch_steps.py [--threads N] [--only TEXT]
"""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from rows import print_row

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=torch.get_num_threads())
parser.add_argument("--only", default="")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(0)


def report(name, run, work=0.0, unit="", seconds=2.0, least=7):
    if args.only not in name:
        return
    for _ in range(4):
        run()
    times, begin = [], time.perf_counter()
    while len(times) < least or (time.perf_counter() - begin < seconds and len(times) < 2000):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e6)
    print_row(name, times, work, unit)


def trainer(net, optim, x, y):
    def step():
        optim.zero_grad(set_to_none=True)
        out = net(x)
        loss = F.cross_entropy(out.reshape(y.numel(), -1), y.reshape(-1))
        loss.backward()
        optim.step()
        return loss.item()
    return step


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (p.view(b, t, self.heads, w // self.heads).transpose(1, 2) for p in self.qkv(self.n1(x)).split(w, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context, vocabulary):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, index):
        return self.head(self.norm(self.blocks(self.tokens(index) + self.positions(torch.arange(index.shape[1])))))


mlp = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
report("mlp step B=128 SGD", trainer(mlp, torch.optim.SGD(mlp.parameters(), lr=1e-2), torch.randn(128, 784),
                                     torch.randint(0, 10, (128,))), 128, "samples/s")
cnn = nn.Sequential(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.Conv2d(32, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2),
                    nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.BatchNorm2d(64), nn.MaxPool2d(2),
                    nn.Flatten(), nn.Linear(576, 10))
report("convnet step B=128 Adam", trainer(cnn, torch.optim.Adam(cnn.parameters()), torch.randn(128, 1, 28, 28),
                                          torch.randint(0, 10, (128,))), 128, "samples/s", 4)
gpt = Gpt(4, 128, 4, 128, 256)
report("gpt step L4 d128 T128 B8 AdamW", trainer(gpt, torch.optim.AdamW(gpt.parameters(), lr=1e-3),
                                                 torch.randint(0, 256, (8, 128)), torch.randint(0, 256, (8, 128))), 1024, "tok/s", 4)

n, row = 1 << 24, 2048
x, z, m = torch.randn(n), torch.randn(n), torch.randn(row, row)
w, c, s = torch.randn(row), torch.randn(row), torch.randn(16)
report("copy 64MiB", lambda: x.clone(), 8e-9 * n, "GB/s")
report("(x*a+b).relu 64MiB", lambda: (x * 1.5 + 0.5).relu(), 8e-9 * n, "GB/s")
report("x+y 64MiB", lambda: x + z, 12e-9 * n, "GB/s")
report("gelu tanh 64MiB", lambda: F.gelu(x, approximate="tanh"), 8e-9 * n, "GB/s")
report("sum 64MiB", lambda: x.sum().item(), 4e-9 * n, "GB/s")
report("softmax 2048x2048", lambda: m.softmax(-1), 8e-9 * row * row, "GB/s")
report("layernorm 2048x2048", lambda: F.layer_norm(m, (row,), w, c), 8e-9 * row * row, "GB/s")
report("tiny op x+1 (16 elements), replayed", lambda: s + 1, 1, "op/s", 1)

n = 1000000
x, zeros, places, rows = torch.rand(n), torch.zeros(n), torch.randperm(n), torch.rand(1000, 1000)
report("sort 1e6 f32", lambda: x.sort(stable=True), n / 1e6, "M/s")
report("argsort 1e6 f32", lambda: x.argsort(stable=True), n / 1e6, "M/s")
report("sort 1000x1000 f32", lambda: rows.sort(stable=True), n / 1e6, "M/s")
report("topk 10 of 1e6 f32", lambda: x.topk(10), n / 1e6, "M/s")
report("randperm 1e6", lambda: torch.randperm(n), n / 1e6, "M/s")
report("scatter 1e6 f32", lambda: zeros.scatter(0, places, x), n / 1e6, "M/s")
for how in "sum", "prod", "mean", "amax", "amin":
    report(f"scatter {how} 1e6 f32", lambda: zeros.scatter_reduce(0, places, x, how), n / 1e6, "M/s")
report("setitem 1e6 f32", lambda: zeros.index_put_((places,), x), n / 1e6, "M/s")
report("logcumsumexp 1e6 f32", lambda: x.logcumsumexp(0), n / 1e6, "M/s")
report("multinomial 1e5 of 1e6", lambda: x.multinomial(n // 10, True), n / 1e6, "M/s")
