"""The rows of gpu_table.py, part by part. A part is a function that takes the runs and yields rows.

A row is a dictionary: row, unit, ours, p10, p90, against (what the figure stands beside), theirs, ratio (above 1: better
than what it stands beside), goal, note (why a figure is missing).
"""
from gpu_runs import Missing

GIB = 1 << 30


def row(name, unit, ours, against="", theirs=None, goal="", spread=(None, None), smaller=False, **more):
    """`theirs` may be the reason why there is none."""
    note = ""
    if isinstance(theirs, Missing):
        theirs, note = None, f"{against}: {theirs}"
    ratio = None
    if ours and theirs:
        ratio = theirs / ours if smaller else ours / theirs
    return {"row": name, "unit": unit, "ours": ours, "p10": spread[0], "p90": spread[1], "against": against,
            "theirs": theirs, "ratio": ratio, "goal": goal, "note": note, **more}


def of(peer, *keys):
    """A figure of a peer, or why there is none."""
    for key in keys:
        if isinstance(peer, Missing):
            return peer
        peer = peer.get(key, Missing(f"it has no {key}"))
    return peer


def timed(name, case, against, theirs, goal="", runs=1, **more):
    """Microseconds of one of `runs` that a case did."""
    if "missing" in case:
        return {**row(name, "us", None, against, theirs, goal), "note": case["missing"]}
    if not isinstance(theirs, Missing):
        theirs = theirs / runs
    return row(name, "us", case["us"] / runs, against, theirs, goal, (case["p10"] / runs, case["p90"] / runs), True,
               n=case["n"], **more)


# --- GPT-2 124M -----------------------------------------------------------------------------------


def tokens(name, ours, theirs, against, goal):
    spread = [ours["tokens_per_s"] * ours["ms"] / ours[ms] for ms in ("ms_p90", "ms_p10")]
    return row(name, "tokens/s", ours["tokens_per_s"], against, of(theirs, "tokens_per_s"), goal, spread,
               ms=ours["ms"], mfu=ours["mfu"], n=ours["steps"])


def sizes(runs):
    """Sequences for each GPU, steps to time, and whether the peer needs CUDA graphs."""
    return [(4, 4, False), (2, 4, True)] if runs.quick else [(64, 40, False), (4, 100, True)]


def torch_name(graphs):
    return "PyTorch compiled, CUDA graphs" if graphs else "PyTorch compiled"


def one_gpu(runs, batch, steps):
    """The speed on one GPU, which two parts need: measured once. The first call meets empty caches."""
    key = ("gpt2", batch)
    if key not in runs.kept:
        runs.kept[key] = runs.gpt2([runs.build / "examples/gpt2", "--devices", f"{runs.device}:0"], batch, steps, "gpt2")
    return runs.kept[key]


def gpt2(runs):
    goals = iter(("545k", "420k"))
    for batch, steps, graphs in sizes(runs):
        name, against = f"GPT-2 124M, 1 GPU, B={batch}", torch_name(graphs)
        ours, torch = one_gpu(runs, batch, steps), runs.torch_gpt2(batch, steps, graphs=graphs)
        yield tokens(name, ours, torch, against, next(goals))
        if graphs:
            continue
        memory = of(torch, "peak_bytes")
        yield row(f"{name}, memory at the peak", "GiB", ours["peak_bytes"] / GIB, against,
                  memory if isinstance(memory, Missing) else memory / GIB, "27", smaller=True)
        yield row(f"{name}, first step, empty caches", "s", ours["first_step_s"], against, of(torch, "first_step_s"), "5",
                  smaller=True)
        again = runs.gpt2([runs.build / "examples/gpt2", "--devices", f"{runs.device}:0"], batch, 3, "gpt2")
        yield row(f"{name}, first step, warm caches", "s", again["first_step_s"], against,
                  of(runs.torch_gpt2(batch, 1), "first_step_s"), "2", smaller=True)


def gpus(runs):
    if runs.gpus < 2:
        raise Missing("takes two GPUs or more")
    goals = iter(("", "") if runs.gpus != 8 else ("4.2M", "2.6M"))
    for batch, steps, graphs in sizes(runs):
        name, against, goal = f"GPT-2 124M, {runs.gpus} GPUs, B={batch} each", torch_name(graphs) + ", DDP", next(goals)
        alone = one_gpu(runs, batch, steps)["tokens_per_s"]
        torch = runs.torch_gpt2(batch, steps, runs.gpus, graphs)
        for way, command in runs.ranks("examples/gpt2").items():
            ours = runs.gpt2(command, batch * runs.gpus, steps, "gpt2")
            yield tokens(name + way, ours, torch, against, goal)
            yield row(f"{name}{way}, share of so many alone", "%", 100 * ours["tokens_per_s"] / alone / runs.gpus,
                      "linear", 100, "97" if not graphs else "")


# --- the parts of a step --------------------------------------------------------------------------


def kernels(runs):
    size = ["--rows", 64, "--columns", 768, "--samples", 3] if runs.quick else []
    cases = runs.ours("bench/gpu_codegen_bench", "--device", f"{runs.device}:0", *size)
    copy = cases.pop("copy")["rate"]
    for name, case in cases.items():
        yield row(name, "GB/s", case["rate"], "copy", copy, "0.9",
                  [case["rate"] * case["us"] / case[us] for us in ("p90", "p10")], us=case["us"], n=case["n"])


def products(runs):
    small = ["--shrink", 64, "--samples", 3] if runs.quick else []
    bench = ["bench/devices/gpu_product_bench", "--device", f"{runs.device}:0", *small]
    plain, torch = runs.ours(*bench), runs.peer("torch_gpu_products.py", *small)
    beam = runs.ours(*bench, env={"BEAM": "8"})
    for name, case in plain.items():
        theirs = of(torch, name, "us")
        yield timed(name, case, "PyTorch", theirs, "0.98", rate=case.get("rate"))
        yield timed(f"{name}, BEAM=8", beam[name], "PyTorch", theirs, "0.98", rate=beam[name].get("rate"))


def all_reduce(runs):
    if runs.gpus < 2:
        raise Missing("takes two GPUs or more")
    size = ["--bytes", "4096,1048576", "--samples", 3] if runs.quick else []
    for way, command in runs.ranks("bench/transport/gpu_all_reduce_bench").items():
        cases = runs.cases([*command, *size])
        for name, case in cases.items():
            if name.endswith("alone"):
                continue
            yield timed(f"{name}, {runs.gpus} GPUs{way}", case, "NCCL alone", of(cases, f"{name}, NCCL alone", "us"), "0.97",
                        rate=case["rate"])


def replay(runs):
    name, part = "replay of 1000 dependent tiny kernels", "the host's part"
    ours = runs.ours("bench/steps_bench", "--devices", f"{runs.device}:0", "--only", name)
    torch = runs.peer("torch_graphs.py", "--only", name)
    against = "PyTorch, CUDA graph"
    yield timed(f"{name}, each", ours[name], against, of(torch, name, "us"), "1.1 us", 1000)
    if f"{name}, {part}" in ours:
        yield timed(f"{name}, {part}", ours[f"{name}, {part}"], against, of(torch, f"{name}, {part}", "us"), "20 us")


def mlp(runs):
    batch, row_of = 32 if runs.quick else 512, 20
    for tf32 in (0, 1):
        flags = ["--only", "mlp step", "--batch", batch]
        ours = runs.ours("bench/steps_bench", "--devices", f"{runs.device}:0", *flags, env={"TS_TF32": str(tf32)})
        torch = runs.peer("torch_graphs.py", *flags, *(["--tf32"] if tf32 else []))
        for name, case in ours.items():
            runs_of_case = row_of if "in a row" in name else 1
            yield timed(f"{name}, {'TF32' if tf32 else 'f32'}", case, "PyTorch, CUDA graph", of(torch, name, "us"), "60 us",
                        runs_of_case)


PARTS = {"gpt2": gpt2, "gpus": gpus, "kernels": kernels, "products": products, "all-reduce": all_reduce,
         "replay": replay, "mlp": mlp}
