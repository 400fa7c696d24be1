#!/usr/bin/env python3
"""Compares the scores of examples/llama with those of the transformers library, for models of random weights.

    pip install torch transformers safetensors gguf
    python3 bench/peers/transformers_llama.py build/release/examples/llama [--keep FOLDER]

Each case is a LlamaForCausalLM that transformers makes and saves: grouped queries, tied words, wide heads, each kind of
rope_scaling, old and new spellings of config.json, f32 and bf16. The program reads the folder, and GGUF files that the
gguf package writes of such models in several types, on one device and on two. Prints a line per case, with the errors of
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

import gguf
import numpy as np
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


# As llama.cpp's converter does: rows of queries and keys are pairs of neighbours, not of halves.
def in_pairs(weight, heads):
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(path, model, kind, scaling=None):
    """Also gives `model` the values that the file's types can hold."""
    c = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(c.head_dim)
    if scaling == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(c.rope_parameters["factor"])
    if scaling == "llama3":
        plain = c.rope_parameters["rope_theta"] ** -(np.arange(0, c.head_dim, 2) / c.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32))
    tokens = json.loads(TOKENIZER.read_text())
    spelled = {number: token for token, number in tokens["model"]["vocab"].items()}
    special = {t["id"] for t in tokens["added_tokens"]}
    spelled |= {t["id"]: t["content"] for t in tokens["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([spelled[i] for i in range(WORDS)])
    writer.add_token_types([gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(WORDS)])
    writer.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in tokens["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, value in model.state_dict().items():
        stem = name.removesuffix(".weight")
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        array = value.float().numpy()
        if stem in TOP:
            there = TOP[stem]
        else:
            layer, part = stem.removeprefix("model.layers.").split(".", 1)
            there = f"blk.{layer}.{NAMES[part]}"
            if part == "self_attn.q_proj":
                array = in_pairs(array, c.num_attention_heads)
            if part == "self_attn.k_proj":
                array = in_pairs(array, c.num_key_value_heads)
        if array.ndim == 1:
            writer.add_tensor(there + ".weight", array)
            continue
        stored = gguf.quants.quantize(array, kind)
        held = gguf.quants.dequantize(stored, kind).reshape(array.shape)
        if there.endswith("attn_q"):
            held = held.reshape(c.num_attention_heads, -1, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        if there.endswith("attn_k"):
            held = held.reshape(c.num_key_value_heads, -1, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        with torch.no_grad():
            value.copy_(torch.from_numpy(np.ascontiguousarray(held)))
        writer.add_tensor(there + ".weight", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


with tempfile.TemporaryDirectory() as folder:
    folder = args.keep or folder
    for name, case in CASES.items():
        where = pathlib.Path(folder) / name
        where.mkdir(parents=True, exist_ok=True)
        model = make(where, case)
        compare(name, where, model)
    kinds = gguf.GGMLQuantizationType
    for kind in (kinds.F32, kinds.F16, kinds.BF16, kinds.Q8_0, kinds.Q4_0, kinds.Q5_1):
        for name in ("plain", "tied", "linear", "llama3"):
            if name != "plain" and kind not in (kinds.F32, kinds.Q8_0):
                continue
            model = make(pathlib.Path(folder) / name, CASES[name])
            file = pathlib.Path(folder) / f"{name}-{kind.name}.gguf"
            write_gguf(file, model, kind, name)
            compare(file.name, file, model.to({kinds.F16: torch.float16, kinds.BF16: torch.bfloat16}.get(kind)))
sys.exit(bad != 0)
