#!/usr/bin/env python3
"""The training step of examples/gpt2.cpp in JAX: bf16 over f32 weights, AdamW by optax, gradients clipped at 1.0.

    python3 bench/peers/jax_gpt2.py --batch 64 [--gpus 8]      (one process; a batch for each GPU)

Prints a JSON object with the names of `gpt2 --json`. --cpu: tries the script.
"""
import argparse
import functools
import json
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--gpus", type=int, default=1)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--context", type=int, default=1024)
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()
if args.cpu:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", args.gpus)
VOCABULARY, TOKENS, BF16 = 50304, 50257, jnp.bfloat16  # padded, drawn


def seconds_since_start():
    ticks = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")


def make_weights():
    w = args.width
    shapes = {"qkv": (w, 3 * w), "project": (w, w), "up": (w, 4 * w), "down": (4 * w, w)}
    random = np.random.default_rng(1)
    normal = lambda *shape: random.standard_normal(shape, np.float32) * np.float32(0.02)
    weights = {"tokens": normal(VOCABULARY, w), "positions": normal(args.context, w)}
    weights["norm"] = {"scale": np.ones(w, np.float32), "bias": np.zeros(w, np.float32)}
    weights["blocks"] = []
    for _ in range(args.layers):
        block = {name: {"weight": normal(*shape), "bias": np.zeros(shape[1], np.float32)} for name, shape in shapes.items()}
        for norm in ("norm1", "norm2"):
            block[norm] = {"scale": np.ones(w, np.float32), "bias": np.zeros(w, np.float32)}
        weights["blocks"].append(block)
    return weights


def linear(p, x):
    return x @ p["weight"].astype(BF16) + p["bias"].astype(BF16)


def layernorm(p, x):
    x = x.astype(jnp.float32)
    x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return (x * p["scale"] + p["bias"]).astype(BF16)


def block(p, x):
    parts = linear(p["qkv"], layernorm(p["norm1"], x)).reshape(*x.shape[:2], 3, args.heads, -1)
    heads = jax.nn.dot_product_attention(parts[:, :, 0], parts[:, :, 1], parts[:, :, 2], is_causal=True,
                                         implementation="xla" if args.cpu else "cudnn")
    x = x + linear(p["project"], heads.reshape(x.shape))
    return x + linear(p["down"], jax.nn.gelu(linear(p["up"], layernorm(p["norm2"], x))))


def loss_of(p, tokens):
    x = (p["tokens"][tokens[:, :-1]] + p["positions"]).astype(BF16)
    for each in p["blocks"]:
        x = block(each, x)
    logits = layernorm(p["norm"], x) @ p["tokens"].T.astype(BF16)
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), tokens[:, 1:]).mean()


def is_matrix(p):
    return jax.tree.map(lambda x: x.ndim > 1, p)


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(6e-4, 0.9, 0.95, weight_decay=0.1, mask=is_matrix))


@functools.partial(jax.jit, donate_argnums=(0, 1))
def step(p, state, tokens):
    loss, gradients = jax.value_and_grad(loss_of)(p, tokens)
    updates, state = optimizer.update(gradients, state, p)
    return optax.apply_updates(p, updates), state, loss


mesh = Mesh(np.array(jax.devices()[:args.gpus]), ("data",))
everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
weights = jax.device_put(make_weights(), everywhere)
state = jax.device_put(optimizer.init(weights), everywhere)
drawn = np.random.default_rng(0).integers(0, TOKENS, (4, args.batch * args.gpus, args.context + 1), np.int32)
batches = [jax.device_put(batch, split) for batch in drawn]

weights, state, loss = step(weights, state, batches[0])
loss.block_until_ready()
first = seconds_since_start()
ms, row = [], max(1, args.steps // 8)
for sample in range(9):  # the host waits after a row of steps, so that it does not hold the devices up
    start = time.perf_counter()
    for i in range(row):
        weights, state, loss = step(weights, state, batches[i % 4])
    loss.block_until_ready()
    ms.append((time.perf_counter() - start) * 1e3 / row)
ms = sorted(ms[1:])
statistics = jax.devices()[0].memory_stats() or {}
print(json.dumps({"steps": row * len(ms), "first_step_s": first,
                  "tokens_per_s": args.batch * args.gpus * args.context / ms[len(ms) // 2] * 1e3, "ms": ms[len(ms) // 2],
                  "ms_p10": ms[0], "ms_p90": ms[-1], "peak_bytes": statistics.get("peak_bytes_in_use", 0),
                  "jax": jax.__version__}))
