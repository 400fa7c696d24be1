#!/usr/bin/env python3
"""The training step of examples/gpt2.cpp in PyTorch: bf16 autocast over f32 weights, fused AdamW, gradients clipped at 1.0.

    python3 bench/peers/torch_gpt2.py --batch 64 [--graphs]
    python3 -m torch.distributed.run --nproc_per_node 8 bench/peers/torch_gpt2.py --batch 64    (DDP, a batch for each GPU)

Prints a JSON object with the names of `gpt2 --json`. --graphs: torch.compile's CUDA graphs. --cpu: tries the script.
"""
import argparse
import json
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--context", type=int, default=1024)
parser.add_argument("--graphs", action="store_true")
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()
VOCABULARY, TOKENS = 50304, 50257  # padded, drawn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, x):
        x = x + self.project(self.attend(self.norm1(x)))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, args.width)
        self.positions = nn.Embedding(args.context, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):
        x, y = tokens[:, :-1], tokens[:, 1:]
        h = self.tokens(x) + self.positions.weight
        for block in self.blocks:
            h = block(h)
        logits = F.linear(self.norm(h), self.tokens.weight)  # the embedding once more
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def seconds_since_start():
    ticks = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")


def median_and_spread(values):
    ordered = sorted(values)
    return [ordered[(len(ordered) - 1) * part // 10] for part in (5, 1, 9)]


rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
gpu = int(os.environ.get("LOCAL_RANK", 0))
device = torch.device("cpu") if args.cpu else torch.device("cuda", gpu)
if not args.cpu:
    torch.cuda.set_device(device)
if ranks > 1:
    torch.distributed.init_process_group("gloo" if args.cpu else "nccl", device_id=None if args.cpu else device)
torch.manual_seed(1)
torch.set_float32_matmul_precision("high")
model = Gpt2().to(device)
weights = list(model.parameters())
if ranks > 1:
    model = nn.parallel.DistributedDataParallel(model, device_ids=None if args.cpu else [gpu],
                                                gradient_as_bucket_view=True)
model = torch.compile(model, mode="reduce-overhead" if args.graphs else "default", disable=args.cpu)
optimizer = torch.optim.AdamW([{"params": [w for w in weights if w.dim() > 1], "weight_decay": 0.1},
                               {"params": [w for w in weights if w.dim() == 1], "weight_decay": 0.0}],
                              lr=6e-4, betas=(0.9, 0.95), fused=True)
torch.manual_seed(rank)
batches = [torch.randint(TOKENS, (args.batch, args.context + 1), device=device) for _ in range(4)]


def step(batch):
    with torch.autocast(device.type, torch.bfloat16):
        loss = model(batch)
    loss.backward()
    nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def mark():
    """A point in the work of the device, which the host does not wait for."""
    if args.cpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def ms_between(start, end):
    return (end - start) * 1e3 if args.cpu else start.elapsed_time(end)


step(batches[0]).item()
first = seconds_since_start()
for i in range(min(8, args.steps)):  # graphs are recorded in here
    step(batches[i % 4])
marks = [mark()]
for i in range(args.steps):
    step(batches[i % 4])
    marks.append(mark())
if not args.cpu:
    torch.cuda.synchronize()
ms = [ms_between(*pair) for pair in zip(marks, marks[1:])]
median, p10, p90 = median_and_spread(ms)
if rank == 0:
    print(json.dumps({"steps": args.steps, "first_step_s": first, "tokens_per_s": args.batch * ranks * args.context / median * 1e3,
                      "ms": median, "ms_p10": p10, "ms_p90": p90,
                      "peak_bytes": 0 if args.cpu else torch.cuda.max_memory_allocated(), "torch": torch.__version__}))
if ranks > 1:
    torch.distributed.destroy_process_group()
