#!/usr/bin/env python3
"""Makes the small tokenizers of this folder, and vectors.json: texts and what the reference library makes of them.

variants.json holds changes of gpt2.json, as JSON merge patches, with texts and tokens of each.

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


def split(pattern, behavior="Isolated"):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def pre_tokenizer(*cuts, prefix=False, words=False):
    level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": words}
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, level]}}


def added(*tokens):
    return {"added_tokens": [{"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": normalized, "special": not normalized}
                             for id, content, normalized in tokens]}


# What other libraries of regular expressions read differently, and what else a file may ask for.
VARIANTS = {
    "space": pre_tokenizer(split(r"\s+(?!\S)|\s+")),
    "no space": pre_tokenizer(split(r"[^\S\n]+|\S")),
    "word": pre_tokenizer(split(r"\w+|[\w-]+")),
    "no word": pre_tokenizer(split(r"\W+")),
    "edge": pre_tokenizer(split(r"\bthe\b|\B[a-z]")),
    "hex": pre_tokenizer(split(r"\h+|\H\v")),
    "lines": pre_tokenizer(split(r"^.|.$")),
    "dot": pre_tokenizer(split(r"(?m:e.)|(?i:T).")),
    "script": pre_tokenizer(split(r"\p{Han}+|[\p{Greek}\p{Lu}]+")),
    "sets": pre_tokenizer(split(r" ?[^(\s|[.,!?…。，、।۔،])]+")),
    "set": pre_tokenizer(split(r"[]\d-]+|[[:space:][:digit:]a-c]+")),
    "numbers": pre_tokenizer(split(r"\u0065|\x{61}{,2}")),
    "threes": pre_tokenizer(split(r"(?=(\d{3})+(?!\d))"), split(r"x", "Removed")),
    "digits": pre_tokenizer({"type": "Digits", "individual_digits": True}, words=True),
    "numbers at once": pre_tokenizer({"type": "Digits", "individual_digits": False}),
    "letters": pre_tokenizer({**split(""), "pattern": {"String": "h."}}, {**split(""), "pattern": {"String": "\\"}}),
    "prefix": pre_tokenizer(split(r"\d|\s"), prefix=True),
    "prefix and words": pre_tokenizer(split(r"\d"), prefix=True, words=True),
    "normalized": {**pre_tokenizer(words=True), **added((330, "the", True), (331, "het", False), (332, "th", True))},
    "ignored": {**pre_tokenizer(words=True), "model": {"ignore_merges": True}, **added((330, "Ġquick", True))},
    **{form: {"normalizer": {"type": form}, **pre_tokenizer(words=True), **added((330, "e\u0301", True), (331, "\u00c5", False))}
       for form in ("NFC", "NFD", "NFKC", "NFKD")},
    "two forms": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "NFKC"}]}},
    "empty": {"normalizer": {"type": "Sequence", "normalizers": []}, "model": {"dropout": 0.0, "unk_token": "e"}},
    "repetitions": pre_tokenizer(split(r"\d{2,3}+|e{2}?|[a-d]++|(?>t+)h")),
    "intersections": pre_tokenizer(split(r"[a-z&&[^aeiou]]+|[\p{L}&&[^\p{Han}\p{Latin}]]")),
    "negated in sets": pre_tokenizer(split(r"[a[^b-z\s]]+|[\W_]|[^\H]")),
    "classes": pre_tokenizer(split(r"[[:alpha:]]+|[[:upper:][:digit:]_]|[[:^graph:]]")),
    "properties": pre_tokenizer(split(r"\p{Emoji}|\p{Uppercase_Letter}+|\p{^Alphabetic}")),
    "clusters": pre_tokenizer(split(r"e\X|\R|\N\O")),
    "kept": pre_tokenizer(split(r"t\Kh|(?<=[a-e]+)\s|\G.")),
    "groups": pre_tokenizer(split(r"(?<h>[a-h])\k<h>|\\g|(?<t>t)?(?(<t>)h|1)")),
    "absent": pre_tokenizer(split(r"(?~the)t|(?i:ss|\p{Lu}k?)")),
    "edges": pre_tokenizer(split(r"a|(?=1)|(?=[hq])", "Removed")),
    "possessive words": pre_tokenizer(split(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")),
}
MORE = ["\u180e", "A\u030a", "\u212b", "\u1100\u1161\u11a8", "\u0344", "\ufb01", "the", "hethe", " quick", "then", "e\u0301", "Ⓐ", "\u093f", "²", "α", "漢", "。", "1234567", "h.", "\\", "cab", "-", "]", "A"]


def patched(target, patch):
    for key, value in patch.items():
        target[key] = patched(target.get(key) or {}, value) if isinstance(value, dict) else value
    return target


def make_variants():
    random.seed(6)
    variants = {}
    for name, patch in VARIANTS.items():
        root = patched(json.loads((FOLDER / "gpt2.json").read_text()), json.loads(json.dumps(patch)))
        tokenizer = Tokenizer.from_str(json.dumps(root))
        texts = ["".join(random.choice(PIECES + MORE + MORE) for _ in range(random.randint(1, 25))) for _ in range(40)]
        variants[name] = {"patch": patch, "texts": [[text, tokenizer.encode(text).ids] for text in texts]}
    (FOLDER / "variants.json").write_text(json.dumps(variants, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    make()
    make_variants()
