#!/usr/bin/env python3
"""The cases of bench/decode_bench.cpp in PyTorch eager, printed as the same JSON lines.

    python3 bench/peers/torch_decode.py [--threads N] [--dtype f32,bf16] [--layers 12] [--cache 4096]

The same Llama with random weights: RMSNorm, rotary embedding, grouped queries over a cache of fixed length of which as
much is read as there is, SwiGLU, and the largest score as the next token.
"""
import argparse
import time

import torch
import torch.nn.functional as F

from rows import print_row

RUNS, WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, VOCABULARY = 16, 768, 12, 4, 64, 2048, 32000

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=torch.get_num_threads())
parser.add_argument("--dtype", default="f32,bf16")
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--cache", type=int, default=4096)
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(1)


class Model:
    def __init__(self, dtype):
        self.weights = []

        def weight(rows, columns):
            self.weights.append(torch.randn(rows, columns).mul_(columns ** -0.5).to(dtype))
            return self.weights[-1]

        self.embedding = torch.randn(VOCABULARY, WIDTH).to(dtype)
        self.layers = [
            dict(q=weight(HEADS * HEAD, WIDTH), k=weight(KV_HEADS * HEAD, WIDTH), v=weight(KV_HEADS * HEAD, WIDTH),
                 o=weight(WIDTH, HEADS * HEAD), gate=weight(HIDDEN, WIDTH), up=weight(HIDDEN, WIDTH),
                 down=weight(WIDTH, HIDDEN), n1=torch.ones(WIDTH, dtype=dtype), n2=torch.ones(WIDTH, dtype=dtype),
                 keys=torch.zeros(KV_HEADS, args.cache, HEAD, dtype=dtype),
                 values=torch.zeros(KV_HEADS, args.cache, HEAD, dtype=dtype)) for _ in range(args.layers)]
        self.norm, self.head = torch.ones(WIDTH, dtype=dtype), weight(VOCABULARY, WIDTH)
        angle = torch.arange(args.cache)[:, None] * 10000.0 ** (-torch.arange(HEAD // 2) / (HEAD // 2))
        self.cosine, self.sine = angle.cos().to(dtype), angle.sin().to(dtype)

    def turned(self, x, p):
        a, b = x.chunk(2, -1)
        c, s = self.cosine[p], self.sine[p]
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    def next(self, token, p):
        x = self.embedding[token]
        for l in self.layers:
            n = F.rms_norm(x, (WIDTH,), l["n1"], 1e-5)
            l["keys"][:, p] = self.turned(F.linear(n, l["k"]).view(KV_HEADS, HEAD), p)
            l["values"][:, p] = F.linear(n, l["v"]).view(KV_HEADS, HEAD)
            q = self.turned(F.linear(n, l["q"]).view(HEADS, 1, HEAD), p)
            y = F.scaled_dot_product_attention(q[None], l["keys"][None, :, :p + 1], l["values"][None, :, :p + 1],
                                               enable_gqa=True)
            x = x + F.linear(y.reshape(1, HEADS * HEAD), l["o"])
            n = F.rms_norm(x, (WIDTH,), l["n2"], 1e-5)
            x = x + F.linear(F.silu(F.linear(n, l["gate"])) * F.linear(n, l["up"]), l["down"])
        return F.linear(F.rms_norm(x, (WIDTH,), self.norm, 1e-5), self.head).argmax(-1)


def decode(name, dtype):
    model = Model(dtype)
    weights = sum(w.numel() * w.element_size() for w in model.weights)
    flat, times = torch.ones(weights // 4), []
    for i in range(-2, RUNS):
        start = time.perf_counter()
        flat.sum().item()
        if i >= 0:
            times.append((time.perf_counter() - start) * 1e6)
    print_row("sum " + name, times, weights / 1e9, "GB/s")
    token = torch.tensor([1])
    for i in range(4):
        token = model.next(token, i)
    for at in (10, 100, 1000, 4000):
        if at + RUNS > args.cache:
            continue
        times = []
        for i in range(at, at + RUNS):
            start = time.perf_counter()
            token = model.next(token, i)
            token.item()
            times.append((time.perf_counter() - start) * 1e6)
        seen = 2 * args.layers * KV_HEADS * HEAD * at * flat.new_empty(0, dtype=dtype).element_size()
        print_row(f"decode {name} at {at}", times, (weights + seen) / 1e9, "GB/s")


with torch.inference_mode():
    for kind in args.dtype.split(","):
        decode(kind, {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[kind])
