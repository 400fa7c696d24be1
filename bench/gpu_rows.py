"""The rows of gpu_table.py, part by part. A part is a function that takes the runs and yields rows.

A row is a dictionary: row, unit, ours, p10, p90, against (what the figure stands beside), theirs, ratio (above 1: better
than what it stands beside), goal, met, note (why a figure is missing), and more of what was measured.
"""
from gpu_runs import Missing, TooFew

GIB = 1 << 30
BEAM = {"BEAM": "8"}  # plans of kernels and algorithms of the libraries that are timed before one is taken


class Goal:
    """What a figure should reach: a value of its own, or a ratio to what it stands beside."""

    def __init__(self, least=None, most=None, ratio=None):
        self.least, self.most, self.ratio = least, most, ratio

    def __str__(self):
        for sign, value in ((">= ", self.least), ("<= ", self.most), ("ratio ", self.ratio)):
            if value is not None:
                return f"{sign}{value:,g}"
        return ""

    def met(self, ours, ratio):
        if self.ratio is not None:
            return None if ratio is None else ratio >= self.ratio
        if ours is None or (self.least is None and self.most is None):
            return None
        return ours >= self.least if self.most is None else ours <= self.most


def row(name, unit, ours, against="", theirs=None, goal=Goal(), spread=(None, None), smaller=False, **more):
    """`theirs` may be the reason why there is none."""
    note = ""
    if isinstance(theirs, Missing):
        theirs, note = None, f"{against}: {theirs}"
    ratio = None
    if ours and theirs:
        ratio = theirs / ours if smaller else ours / theirs
    return {"row": name, "unit": unit, "ours": ours, "p10": spread[0], "p90": spread[1], "against": against,
            "theirs": theirs, "ratio": ratio, "goal": str(goal), "met": goal.met(ours, ratio), "note": note, **more}


def of(peer, *keys):
    """A figure of a peer, or why there is none."""
    for key in keys:
        if isinstance(peer, Missing):
            return peer
        peer = peer.get(key, Missing(f"it has no {key}"))
    return peer


def step_us(peer, name):
    """Microseconds of one of the steps in a run of a peer's case, or why there are none."""
    us, steps = of(peer, name, "us"), of(peer, name, "steps")
    return us if isinstance(us, Missing) else us / steps


def timed(name, case, against, theirs, goal=Goal(), **more):
    """Microseconds of one of the steps in a run of our case."""
    if "missing" in case:
        return {**row(name, "us", None, against, theirs, goal), "note": case["missing"]}
    ours, *spread = (case[key] / case["steps"] for key in ("us", "p10", "p90"))
    return row(name, "us", ours, against, theirs, goal, spread, True, n=case["n"], steps=case["steps"], **more)


# --- GPT-2 124M -----------------------------------------------------------------------------------


def tokens(name, ours, theirs, against, goal):
    spread = [ours["tokens_per_s"] * ours["ms"] / ours[ms] for ms in ("ms_p90", "ms_p10")]
    return row(name, "tokens/s", ours["tokens_per_s"], against, of(theirs, "tokens_per_s"), goal, spread,
               ms=ours["ms"], mfu=ours["mfu"], n=ours["steps"])


def first_step(name, ours, theirs, against, goal=Goal()):
    return row(f"{name}, first step", "s", ours["first_step_s"], against, of(theirs, "first_step_s"), goal, smaller=True)


def memory(name, ours, theirs, against, goal=Goal()):
    peak = of(theirs, "peak_bytes")
    return row(f"{name}, memory at the peak", "GiB", ours["peak_bytes"] / GIB, against,
               peak if isinstance(peak, Missing) else peak / GIB, goal, smaller=True)


def sizes(runs):
    """Sequences for each GPU, steps to time, and whether the peer needs CUDA graphs."""
    return [(4, 4, False), (2, 4, True)] if runs.quick else [(64, 40, False), (4, 100, True)]


def peers(runs, batch, steps, gpus, graphs):
    """What the peers measured, by name, one after the other."""
    torch = "PyTorch compiled" + (", CUDA graphs" if graphs else "") + (", DDP" if gpus > 1 else "")
    yield torch, runs.peer_gpt2("torch_gpt2.py", batch, steps, *(["--graphs"] if graphs else []), ranks=gpus)
    yield "JAX", runs.peer_gpt2("jax_gpt2.py", batch, steps, "--gpus", gpus)


def one_gpu(runs, batch, steps):
    """The speed on one GPU, which two parts need: measured once. The first call meets empty caches."""
    key = ("gpt2", batch)
    if key not in runs.kept:
        runs.kept[key] = runs.gpt2(on_one(runs), batch, steps)
    return runs.kept[key]


def on_one(runs):
    return [runs.build / "examples/gpt2", "--devices", f"{runs.device}:0"]


def gpt2(runs):
    goals = iter((Goal(least=545e3), Goal(least=420e3)))
    for batch, steps, graphs in sizes(runs):
        name, goal, ours = f"GPT-2 124M, 1 GPU, B={batch}", next(goals), one_gpu(runs, batch, steps)
        for against, theirs in peers(runs, batch, steps, 1, graphs):
            yield tokens(name, ours, theirs, against, goal)
            if graphs:
                continue
            yield first_step(f"{name}, empty caches", ours, theirs, against, Goal(most=5))
            if against == "JAX":  # which takes memory, and keeps kernels, in ways of its own
                continue
            yield memory(name, ours, theirs, against, Goal(most=27))
            warm = runs.gpt2(on_one(runs), batch, 3)
            yield first_step(f"{name}, warm caches", warm, runs.peer_gpt2("torch_gpt2.py", batch, 1), against, Goal(most=2))


# Of the published sizes above 124M: layers, width, heads, and sequences for one GPU.
LARGER = {"350M": (24, 1024, 16, 32), "774M": (36, 1280, 20, 16), "1558M": (48, 1600, 25, 8)}


def larger(runs):
    for model, (layers, width, heads, batch) in LARGER.items():
        batch, steps = (2, 4) if runs.quick else (batch, 15)
        size = ["--layers", layers, "--width", width, "--heads", heads]
        ours, theirs = runs.gpt2(on_one(runs), batch, steps, size=size), runs.peer_gpt2("torch_gpt2.py", batch, steps, size=size)
        name, against = f"GPT-2 {model}, 1 GPU, B={batch}", "PyTorch compiled"
        yield tokens(name, ours, theirs, against, Goal())
        yield first_step(name, ours, theirs, against)
        yield memory(name, ours, theirs, against)


def beam(runs):
    for batch, steps, _ in sizes(runs):
        ours, plain = runs.gpt2(on_one(runs), batch, steps, BEAM), one_gpu(runs, batch, steps)
        yield tokens(f"GPT-2 124M, 1 GPU, B={batch}, BEAM=8", ours, plain, "the same without BEAM", Goal())


def gpus(runs):
    if runs.gpus < 2:
        raise TooFew("takes two GPUs or more")
    goals = iter((Goal(least=4.2e6), Goal(least=2.6e6)) if runs.gpus == 8 else (Goal(), Goal()))
    for batch, steps, graphs in sizes(runs):
        name, goal = f"GPT-2 124M, {runs.gpus} GPUs, B={batch} each", next(goals)
        alone = one_gpu(runs, batch, steps)["tokens_per_s"]
        ways = {way: runs.gpt2(command, batch * runs.gpus, steps)
                for way, command in runs.ranks("examples/gpt2").items()}
        for way, ours in ways.items():
            yield row(f"{name}{way}, share of so many alone", "%", 100 * ours["tokens_per_s"] / alone / runs.gpus,
                      "linear", 100, Goal() if graphs else Goal(ratio=0.97))
        for against, theirs in peers(runs, batch, steps, runs.gpus, graphs):
            for way, ours in ways.items():
                yield tokens(name + way, ours, theirs, against, goal)


# --- the parts of a step --------------------------------------------------------------------------


MEMORY_BOUND = ["scale_relu", "add", "sum_rows", "sum_columns", "sum_parts", "softmax", "softmax_backward", "layernorm",
                "layernorm_backward", "rmsnorm", "rmsnorm_backward"]
PRODUCTS = ["8192 x 8192 x 8192", "4096 x 4096 x 4096", "1024 x 1024 x 1024", "65536 x 768 x 3072, bias, GELU"]


def kernels(runs):
    size = ["--rows", 64, "--columns", 768, "--samples", 3] if runs.quick else []
    cases = runs.ours("bench/gpu_codegen_bench", "--device", f"{runs.device}:0", *size)
    copy = cases.pop("copy")["rate"]
    for name, case in cases.items():
        goal = Goal(ratio=0.9) if name.rpartition("_")[0] in MEMORY_BOUND else Goal()
        yield row(name, "GB/s", case["rate"], "copy", copy, goal,
                  [case["rate"] * case["us"] / case[us] for us in ("p90", "p10")], us=case["us"], n=case["n"])


def products(runs):
    small = ["--shrink", 64, "--samples", 3] if runs.quick else []
    bench = ["bench/devices/gpu_product_bench", "--device", f"{runs.device}:0", *small]
    plain, torch = runs.ours(*bench), runs.peer("torch_gpu_products.py", *small)
    timed_first = runs.ours(*bench, env=BEAM)
    for name, case in plain.items():
        theirs, goal = step_us(torch, name), Goal(ratio=0.98) if name in PRODUCTS else Goal()
        yield timed(name, case, "PyTorch", theirs, goal, rate=case.get("rate"))
        yield timed(f"{name}, BEAM=8", timed_first[name], "PyTorch", theirs, goal, rate=timed_first[name].get("rate"))


def attention(runs):
    size = ["--batch", 2, "--heads", 2, "--rows", 32, "--samples", 3] if runs.quick else []
    ours = runs.ours("bench/devices/gpu_attention_bench", "--device", f"{runs.device}:0", *size)
    torch = runs.peer("torch_attention.py", *size)
    for name, case in ours.items():
        yield timed(name, case, "PyTorch", step_us(torch, name), rate=case["rate"])


def all_reduce(runs):
    if runs.gpus < 2:
        raise TooFew("takes two GPUs or more")
    size = ["--bytes", "4096,1048576", "--samples", 3] if runs.quick else []
    for way, command in runs.ranks("bench/transport/gpu_all_reduce_bench").items():
        cases = runs.cases([*command, *size])
        for name, case in cases.items():
            if name.endswith("alone"):
                continue
            yield timed(f"{name}, {runs.gpus} GPUs{way}", case, "NCCL alone", step_us(cases, f"{name}, NCCL alone"),
                        Goal(ratio=0.97), rate=case["rate"])


def replay(runs):
    name, part = "replay of 1000 dependent tiny kernels", "the host's part"
    variable = f"{name} that read a Variable, {part}"
    ours = runs.ours("bench/steps_bench", "--devices", f"{runs.device}:0", "--only", name)
    torch = runs.peer("torch_graphs.py", "--only", name)
    against = "PyTorch, CUDA graph"
    yield timed(f"{name}, each", ours[name], against, step_us(torch, name), Goal(most=1.1))
    if f"{name}, {part}" in ours:
        yield timed(f"{name}, {part}", ours[f"{name}, {part}"], against, step_us(torch, f"{name}, {part}"),
                    Goal(most=20))
    if variable in ours:
        yield timed(variable, ours[variable], "without", ours[f"{name}, {part}"]["us"], Goal(most=20))


def mlp(runs):
    flags = ["--only", "mlp step", "--batch", 32 if runs.quick else 512]
    for tf32 in (0, 1):
        ours = {way: runs.ours("bench/steps_bench", "--devices", f"{runs.device}:0", *flags, env={"TS_TF32": str(tf32), **env})
                for way, env in (("", {}), (", BEAM=8", BEAM))}
        in_a_row = max(case["steps"] for case in ours[""].values())  # the peer runs as many
        torch = runs.peer("torch_graphs.py", *flags, "--in-a-row", in_a_row, *(["--tf32"] if tf32 else []))
        for way, cases in ours.items():
            for name, case in cases.items():
                yield timed(f"{name}, {'TF32' if tf32 else 'f32'}{way}", case, "PyTorch, CUDA graph", step_us(torch, name),
                            Goal(most=60))


PARTS = {"gpt2": gpt2, "larger": larger, "beam": beam, "gpus": gpus, "kernels": kernels, "products": products,
         "attention": attention, "all-reduce": all_reduce, "replay": replay, "mlp": mlp}
