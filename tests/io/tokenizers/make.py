#!/usr/bin/env python3
"""Makes the small tokenizers of this folder, and vectors.json: texts and what the reference library makes of them.

    pip install tokenizers && python3 make.py
"""

import json
import pathlib
import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).parent
TRAINING = [
    "Hello world, it's a test of byte-level BPE. I'll see you; we've 12345 numbers!",
    "  spaces   and\n\nnewlines\t tabs  ",
    "Ünïcödé ﬀ 日本語 emoji 😀😀",
    "def f(x): return x**2  # code",
    "can't CAN'T won't the the the quick brown fox",
]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
PIECES = ["a", "b", "the", " ", "  ", "\n", "\t", "\r\n", "'s", "'T", "'Re", "1", "23", "4567", "é", "ß", "日", "本", "😀",
          "\u00a0", "\u2003", "\u3000", "Ⅷ", "½", "٣", "_", "-", "!", "?", "<|begin|>", "<|end|>", "<|endoftext|>", "<|",
          "|>", "ﬀ", "İ", "\u0301", "\x00", "\x7f", "\u200d", "ǅ", "ʼ", "。", "\u2028", "\x85"]


def train(tokenizer, special):
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TRAINING * 4, trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def make():
    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    train(gpt2, ["<|endoftext|>"]).save(str(FOLDER / "gpt2.json"), pretty=False)
    llama3 = Tokenizer(models.BPE(ignore_merges=True))
    llama3.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated", False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    train(llama3, ["<|begin|>", "<|end|>"])
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A <|end|>", special_tokens=[("<|begin|>", 0), ("<|end|>", 1)])])
    llama3.save(str(FOLDER / "llama3.json"), pretty=False)

    random.seed(5)
    texts = ["".join(random.choice(PIECES) for _ in range(random.randint(1, 25))) for _ in range(150)]
    vectors = {}
    for name in ("gpt2", "llama3"):
        tokenizer = Tokenizer.from_file(str(FOLDER / f"{name}.json"))
        vectors[name] = [{"text": text, "ids": tokenizer.encode(text).ids,
                          "plain": tokenizer.encode(text, add_special_tokens=False).ids,
                          "decoded": tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)}
                         for text in TRAINING + texts + ["", " ", "  a"]]
    (FOLDER / "vectors.json").write_text(json.dumps(vectors, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    make()
