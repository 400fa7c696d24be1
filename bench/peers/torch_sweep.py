#!/usr/bin/env python3
"""The cases of bench/sweep_bench.cpp in PyTorch, printed as lines "ID KIND MICROSECONDS" or "ID KIND failed: WHY".

    sweep_bench --draw 1 > cases
    python3 bench/peers/torch_sweep.py cases [--seconds 0.1] [--only TEXT] [--device cuda] [--json] > theirs

Calls are eager, as programs write them. What is made of several elementwise calls goes through torch.compile, unless
--eager is given. On a GPU images lie with their channels last for convolutions and pools, which is the faster layout there.
"""
import argparse
import time

import torch
import torch.nn.functional as F

from rows import print_row

parser = argparse.ArgumentParser()
parser.add_argument("cases")
parser.add_argument("--seconds", type=float, default=0.1, help="for each case, about")
parser.add_argument("--only", default="", help="part of the names of the kinds")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--threads", type=int, default=torch.get_num_threads())
parser.add_argument("--eager", action="store_true", help="compiles nothing")
parser.add_argument("--json", action="store_true", help="prints a JSON object a line")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(0)
on_gpu = args.device.startswith("cuda")
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.allow_tf32 = False

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64, "i16": torch.int16,
         "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool}
CAST_TARGETS = ["f32", "bf16", "f16", "f64", "i32", "i64", "u8", "bool"]
LINKS = [lambda y, x: y.relu(), lambda y, x: y * 1.5, lambda y, x: y + 0.5, lambda y, x: y * x, lambda y, x: y - x,
         lambda y, x: y.tanh(), lambda y, x: y.sigmoid(), lambda y, x: y.abs().sqrt(), lambda y, x: torch.maximum(y, x),
         lambda y, x: torch.where(x > 0, y, x), lambda y, x: y.square(), lambda y, x: y.sin()]
FORMULAS = ["bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bi,ij,bj->b", "ij,jk,kl->il", "abc,bd,cd->ad", "bic,cd,bjd->bij",
            "ab,bc,cd,de->ae", "bi,bj,bk->ijk", "i,j,k,l->ijkl", "abc,ad,bd,cd->d"]
CONVS = [F.conv1d, F.conv2d, F.conv3d]
TRANSPOSED = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]
MAX_POOLS = [F.max_pool1d, F.max_pool2d, F.max_pool3d]
AVG_POOLS = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d]


class Case:
    """A line: sizes before the colon, numbers behind it."""

    def __init__(self, line):
        head, _, tail = line.partition(":")
        self.id, self.kind, dtype, *sizes = head.split()
        self.dtype = TYPES[dtype]
        self.sizes = [int(size) for size in sizes]
        self.numbers = [int(number) for number in tail.split()]

    def random(self, *shape):
        if not self.dtype.is_floating_point:
            return torch.randint(0, 100, shape, dtype=self.dtype, device=args.device)
        return torch.randn(shape, device=args.device).to(self.dtype)

    def operand(self):
        return self.random(*self.sizes)


def places(shape, n):
    return torch.randint(0, n, shape, device=args.device)


def image(x):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if on_gpu and x.dim() in formats else x


def compiled(function):
    return function if args.eager else torch.compile(function, dynamic=False)


def gradient(function, inputs, targets, alone):
    """The gradients of the first `targets` inputs. Where they need no values of the way forward it is taken once."""
    wanted = inputs[:targets]
    for x in wanted:
        x.requires_grad_()
    result = function(*inputs)
    upstream = torch.randn_like(result)
    if alone:
        return lambda: torch.autograd.grad(result, wanted, upstream, retain_graph=True)
    return lambda: torch.autograd.grad(function(*inputs), wanted, upstream)


# --- kinds: by name, what makes inputs and function of a case, and whether gradients need inputs alone
KINDS = {}
COMPILED = {"chain", "where", "gelu", "exact_gelu", "silu", "swiglu", "bits", "adam", "halves", "rms_norm", "length",
            "product_sum"}


def kind(*names, alone=False):
    """Adds what takes a case to inputs, a function and, where gradients are of some inputs only, their number."""

    def add(make):
        for name in names:
            KINDS[name] = (make, alone)
        return make

    return add


def step_of(case):
    base = case.kind.removesuffix("_grad")
    make, alone = KINDS[base]
    inputs, function, *targets = make(case)
    if base in COMPILED:
        function = compiled(function)
    if base == case.kind:
        return lambda: function(*inputs)
    return gradient(function, inputs, targets[0] if targets else len(inputs), alone)


def one(names, function, alone=False):
    """Kinds of one operand: the function takes it and the numbers."""
    kind(*names.split(), alone=alone)(lambda c: ([c.operand()], lambda x: function(x, c.numbers)))


def two(names, function):
    kind(*names.split())(lambda c: ([c.operand(), c.operand()], lambda x, y: function(x, y, c.numbers)))


def chain(x, links):
    y = x
    for link in links:
        y = LINKS[link](y, x)
    return y


def clone(x):
    return x.clone(memory_format=torch.contiguous_format)


def pairs(numbers):
    return list(zip(numbers[::2], numbers[1::2]))


def halves(x):
    a, b = x.chunk(2, 1)
    return F.silu(a) * b


# Elementwise.
one("chain", chain)
two("add", lambda x, y, n: x + y)
two("where", lambda x, y, n: torch.where(x > y, x, y * 2))
two("compare", lambda x, y, n: x < y)
one("gelu", lambda x, n: F.gelu(x, approximate="tanh"))
one("exact_gelu", lambda x, n: F.gelu(x))
one("silu", lambda x, n: F.silu(x))
two("swiglu", lambda x, y, n: F.silu(x) * y)
two("bits", lambda x, y, n: ((x * 3 + 7) ^ (y >> 2)) & x)
one("cast", lambda x, n: x.to(TYPES[CAST_TARGETS[n[0]]], copy=True))


@kind("broadcast", alone=True)
def broadcast(c):
    missing = lambda which: [1 if n == which else size for size, n in zip(c.sizes, c.numbers)]
    return [c.random(*missing(2)), c.random(*missing(1))], lambda x, y: x * y


@kind("adam")
def adam(c):
    def update(w, g, first, second):
        m, s = first * 0.9 + g * 0.1, second.abs() * 0.999 + g.square() * 0.001
        return w * 0.9999 - m * 0.001 / (s.sqrt() + 1e-8), m, s

    return [c.operand() for _ in range(4)], update


# Reductions.
one("sum", lambda x, n: x.sum(n), alone=True)
one("mean", lambda x, n: x.mean(n))
one("max", lambda x, n: x.amax(n))
one("min", lambda x, n: x.amin(n))
one("var", lambda x, n: x.var(n, correction=0))
one("logsumexp", lambda x, n: x.logsumexp(n))
one("length", lambda x, n: x.square().sum(n).sqrt())
two("product_sum", lambda x, y, n: (x * y).sum(n))
one("mean_and_variance", lambda x, n: torch.var_mean(x, n, correction=0))
one("argmax", lambda x, n: x.argmax(n[0]))
one("any", lambda x, n: (x > 2).any(n[0]))
one("softmax", lambda x, n: x.softmax(n[0]))
one("log_softmax", lambda x, n: x.log_softmax(n[0]))


@kind("cross_entropy")
def cross_entropy(c):
    return [c.operand(), places((c.sizes[0],), c.sizes[1])], F.cross_entropy, 1


# Norms.
def weights(c, count):
    return [c.operand()] + [c.random(c.sizes[1]) for _ in range(count)]


kind("layer_norm")(lambda c: (weights(c, 2), lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b)))
kind("rms_norm")(lambda c: (weights(c, 1), lambda x, w: (
    x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w).to(x.dtype)))
kind("group_norm")(lambda c: (weights(c, 2), lambda x, w, b: F.group_norm(x, c.numbers[0], w, b)))


@kind("batch_norm")
def batch_norm(c):
    x, w, b = weights(c, 2)
    return [image(x), w, b], lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)


# Movement.
one("permute", lambda x, n: clone(x.permute(n)))
one("add_transposed", lambda x, n: x + x.transpose(1, 2))
one("slice", lambda x, n: clone(x[tuple(slice(a, a + size) for a, size in pairs(n))]), alone=True)
one("strided", lambda x, n: clone(x[tuple(slice(None, None, step) for step in n)]))
one("pad", lambda x, n: F.pad(x, [number for pair in reversed(pairs(n)) for number in pair]))
one("reflect", lambda x, n: F.pad(x, n * 4, mode="reflect"))
one("flip", lambda x, n: x.flip(n))
one("roll", lambda x, n: x.roll(n[0], n[1]))
one("tril", lambda x, n: x.tril(n[0]))
one("triu", lambda x, n: x.triu(n[0]))
one("repeat", lambda x, n: x.repeat(n))
one("interleave", lambda x, n: x.repeat_interleave(n[0], n[1]))
one("unfold", lambda x, n: clone(x.unfold(1, n[0], n[1])))
one("halves", lambda x, n: halves(x))
kind("permute_add")(lambda c: ([c.operand(), c.random(*[c.sizes[n] for n in c.numbers])],
                               lambda x, y: x.permute(c.numbers) + y))
kind("cat")(lambda c: ([c.operand() for _ in range(c.numbers[1])], lambda *x: torch.cat(x, c.numbers[0])))
kind("stack")(lambda c: ([c.operand() for _ in range(c.numbers[1])], lambda *x: torch.stack(x, c.numbers[0])))
kind("one_hot")(lambda c: ([places(c.sizes, c.numbers[0])], lambda x: F.one_hot(x, c.numbers[0])))

# Running totals and sorts.
one("cumsum", lambda x, n: x.cumsum(n[0]), alone=True)
one("cumprod", lambda x, n: x.cumprod(n[0]))
one("logcumsumexp", lambda x, n: x.logcumsumexp(n[0]))
one("cummax", lambda x, n: x.cummax(n[0]))
one("sort", lambda x, n: x.sort(dim=n[0], stable=True))
one("argsort", lambda x, n: x.argsort(dim=n[0], stable=True))
one("topk", lambda x, n: x.topk(n[1], n[0]))


# Indices.
@kind("gather", alone=True)
def gather(c):
    axis, count = c.numbers
    shape = [count if i == axis else size for i, size in enumerate(c.sizes)]
    return [c.operand(), places(shape, c.sizes[axis])], lambda x, i: x.gather(axis, i), 1


@kind("index_select")
def index_select(c):
    axis, count = c.numbers
    return [c.operand(), places((count,), c.sizes[axis])], lambda x, i: x.index_select(axis, i)


@kind("embedding", alone=True)
def embedding(c):
    return [c.operand(), places((c.numbers[0],), c.sizes[0])], lambda x, i: F.embedding(i, x), 1


@kind("index_add", "segment_sum", "scatter_max")
def into_rows(c):
    count = c.numbers[0]
    rows = places((c.sizes[0],), count)
    if c.kind == "segment_sum":
        rows = rows.sort().values
    zeros = lambda: torch.zeros(count, c.sizes[1], dtype=c.dtype, device=args.device)
    if c.kind == "scatter_max":
        return [c.operand(), rows[:, None].expand(c.sizes)], lambda x, i: zeros().scatter_reduce_(0, i, x, "amax")
    return [c.operand(), rows], lambda x, i: zeros().index_add_(0, i, x)


@kind("scatter")
def scatter(c):
    axis = c.numbers[0]
    return [c.operand(), places(c.sizes, c.sizes[axis]), c.operand()], lambda x, i, y: x.scatter(axis, i, y)


@kind("masked_fill")
def masked_fill(c):
    return [c.operand(), torch.randn(c.sizes, device=args.device) > 0], lambda x, mask: x.masked_fill(mask, 0)


# Products.
@kind("matmul", "batched_matmul", "integer_matmul", alone=True)
def matmul(c):
    *batch, rows, terms, columns = c.sizes

    def operand(a, b, turned):
        return c.random(*batch, b, a) if turned else c.random(*batch, a, b)

    turn = lambda x, turned: x.transpose(-2, -1) if turned else x
    inputs = [operand(rows, terms, c.numbers[0]), operand(terms, columns, c.numbers[1])]
    return inputs, lambda x, y: turn(x, c.numbers[0]) @ turn(y, c.numbers[1])


@kind("linear_gelu")
def linear_gelu(c):
    rows, terms, columns = c.sizes
    inputs = [c.random(rows, terms), c.random(terms, columns), c.random(columns)]
    return inputs, lambda x, w, b: F.gelu(torch.addmm(b, x, w), approximate="tanh")


@kind("einsum")
def einsum(c):
    formula = FORMULAS[c.numbers[0]]
    terms = formula.split("->")[0].split(",")
    size = dict(zip(dict.fromkeys("".join(terms)), c.sizes))
    return [c.random(*[size[letter] for letter in term]) for term in terms], lambda *x: torch.einsum(formula, *x)


@kind("attention")
def attention(c):
    causal = bool(c.numbers[0])
    return [c.operand() for _ in range(3)], lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


# Windows.
@kind("conv1d", "conv2d", "conv3d", "depthwise", "grouped_conv", "conv_transpose1d", "conv_transpose2d", alone=True)
def conv(c):
    out, kernel, stride, groups = c.numbers
    dims = len(c.sizes) - 2
    padding = 0 if stride == kernel else (kernel - 1) // 2
    turned = c.kind.startswith("conv_transpose")
    channels = (c.sizes[1], out // groups) if turned else (out, c.sizes[1] // groups)
    function = (TRANSPOSED if turned else CONVS)[dims - 1]
    return ([image(c.operand()), image(c.random(*channels, *[kernel] * dims))],
            lambda x, w: function(x, w, stride=stride, padding=padding, groups=groups))


@kind("max_pool")
def max_pool(c):
    kernel, stride = c.numbers
    function = MAX_POOLS[len(c.sizes) - 3]
    return [image(c.operand())], lambda x: function(x, kernel, stride, 1 if kernel == 3 else 0)


@kind("avg_pool", alone=True)
def avg_pool(c):
    kernel, stride = c.numbers
    function = AVG_POOLS[len(c.sizes) - 3]
    return [image(c.operand())], lambda x: function(x, kernel, stride)


@kind("resize", alone=True)
def resize(c):
    *size, linear = c.numbers
    return [image(c.operand())], lambda x: F.interpolate(x, size, mode="bilinear" if linear else "nearest")


# --- times ----------------------------------------------------------------------------------------
def times_of(step):
    """Microseconds: means of calls in a row, enough of them that the wait at their end does not count."""

    def mean(calls):
        start = time.perf_counter()
        for _ in range(calls):
            step()
        if on_gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6 / calls

    mean(1), mean(1)
    budget = args.seconds * 1e6
    calls = max(1, min(1000, int(budget / 8 / mean(1))))
    us, spent = [], 0.0
    while len(us) < 3 or spent < budget:
        us.append(mean(calls))
        spent += us[-1] * calls
    return sorted(us)


def time_case(line):
    case = Case(line)
    if args.only not in case.kind:
        return
    try:
        us = times_of(step_of(case))
    except Exception as error:  # of whatever kind: the next case is timed all the same
        print(case.id, case.kind, "failed:", " ".join(f"{type(error).__name__}: {error}".split())[:200], flush=True)
        return
    finally:
        torch._dynamo.reset()  # else the next compiled case counts as a recompilation
        if on_gpu:
            torch.cuda.empty_cache()
    if args.json:
        print_row(line.strip(), us)
    else:
        print(case.id, case.kind, f"{us[len(us) // 2]:.2f}", flush=True)


for line in open(args.cases):
    if line.strip() and not line.startswith("#"):
        time_case(line)
