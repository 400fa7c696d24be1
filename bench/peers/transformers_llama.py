#!/usr/bin/env python3
"""Compares the scores of examples/llama with those of the transformers library, for models of random weights.

    pip install torch transformers safetensors
    python3 bench/peers/transformers_llama.py build/release/examples/llama [--keep FOLDER]

Each case is a LlamaForCausalLM that transformers makes and saves: grouped queries, tied words, wide heads, each kind of
rope_scaling, old and new spellings of config.json, f32 and bf16. The program reads the folder
on one device and on two. Prints a line per case, with the errors of
both against the same model in f64, and ends with status 1 where ours is more than three times theirs.
"""
import argparse
import copy
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "tests/io/tokenizers/llama3.json"
WORDS = 330
PROMPT = "the shards of a mesh turn with their positions, however far they are from one another"

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--keep", help="leave the models there")
args = parser.parse_args()

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
LINEAR = dict(rope_type="linear", factor=2.5)
CASES = {
    "plain": dict(),
    "one-head-of-keys": dict(num_key_value_heads=2, num_attention_heads=8),
    "tied": dict(tie_word_embeddings=True),
    "wide-heads": dict(head_dim=32, rms_norm_eps=1e-3),
    "linear": dict(rope=LINEAR),
    "llama3": dict(rope=LLAMA3, base=500.0),
    "llama3-old-spelling": dict(rope=LLAMA3, base=500.0, old=True),
    "linear-old-spelling": dict(rope=dict(type="linear", factor=4.0), old=True),
    "bf16": dict(dtype=torch.bfloat16),
}


def make(folder, case):
    case = dict(case)
    rope, base, old = case.pop("rope", None), case.pop("base", 10000.0), case.pop("old", False)
    dtype = case.pop("dtype", torch.float32)
    parameters = dict(rope or dict(rope_type="default"), rope_theta=base)
    parameters.setdefault("rope_type", parameters.get("type"))
    config = LlamaConfig(**(dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                                 num_key_value_heads=2, vocab_size=WORDS, max_position_embeddings=256,
                                 rope_parameters=parameters) | case))
    torch.manual_seed(7)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():  # far from uniform scores
            p.copy_(torch.randn_like(p) * (0.3 if p.ndim == 2 else 0.2) + (0 if p.ndim == 2 else 1))
    model.to(dtype)
    model.save_pretrained(folder)
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    if old:  # as files were before version 5
        file = folder / "config.json"
        fields = json.loads(file.read_text())
        fields.pop("rope_parameters", None)
        file.write_text(json.dumps(fields | dict(rope_theta=base, rope_scaling=rope)))
    return model


def scores_of_program(model, devices):
    out = pathlib.Path(folder) / "scores.safetensors"
    command = [args.program, "--model", str(model), "--prompt", PROMPT, "--scores", str(out), "--devices", devices]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    found = load_file(out)
    return found["tokens"].long(), found["scores"].double()


bad = 0


def compare(name, path, model):
    global bad
    exact = copy.deepcopy(model).double()  # of the same weights
    for devices in ("CPU:0", "CPU:0,CPU:1"):
        tokens, scores = scores_of_program(path, devices)
        with torch.no_grad():
            wanted = exact(tokens[None]).logits[0]
            theirs = model(tokens[None]).logits[0]
        largest = wanted.abs().max()
        ours, peers = (((x - wanted).abs().max() / largest).item() for x in (scores, theirs))
        ok = ours < 3 * peers + 1e-6
        bad += not ok
        print(f"{'ok ' if ok else 'BAD'} {name:24} {devices:12} {len(tokens)} tokens, worst error {ours:.1e} of the largest "
              f"score, transformers' {peers:.1e}", flush=True)


with tempfile.TemporaryDirectory() as folder:
    folder = args.keep or folder
    for name, case in CASES.items():
        where = pathlib.Path(folder) / name
        where.mkdir(parents=True, exist_ok=True)
        model = make(where, case)
        compare(name, where, model)
sys.exit(bad != 0)
