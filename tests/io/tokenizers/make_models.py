#!/usr/bin/env python3
"""Makes models.json: tokenizers of every kind of model, and what the reference library makes of texts.

    pip install tokenizers sentencepiece protobuf && python3 make_models.py

The first ones are put together as the folders of well-known models are; the others are drawn at random.
"""

import base64
import json
import pathlib
import random
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

FOLDER = pathlib.Path(__file__).parent
PIECES = ["a", "b", "the", "ing", "un", "able", " ", "  ", "\n", "\t", "'s", "1", "23", "é", "e\u0301", "ß", "日", "本", "😀",
          "\u00a0", "\u3000", "Ⅷ", "½", "_", "-", "--", "!", ".", ",", "<s>", "</s>", "[MASK]", "[CLS]", "ﬀ", "İ", "\u0301",
          "\x7f", "\u200d", "\u200b", "▁", "Hello", "WORLD", "don't", "do not", " .", "\ufffd", "Å", "##ing", "«", "£", "+", "Ａ", "①"]
LETTERS = sorted(set("".join(PIECES)))
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def text():
    return "".join(random.choice(PIECES) for _ in range(random.randint(0, 14)))


def chance(p):
    return random.random() < p


def words(count=60):
    tokens = {c for c in LETTERS if chance(0.8)}
    for _ in range(count):
        tokens.add("".join(random.choice(["▁", "the", "in", "g", "un", "a", "b", "e", "l", "o", "t", "h", "日"])
                           for _ in range(random.randint(1, 3))))
    return sorted(tokens)


def bpe(fallback, prefix="", suffix="", **options):
    tokens = set(words()) | {"<unk>"} | (set(BYTES) if fallback else set())
    for letter in [t for t in tokens if len(t) == 1]:
        tokens |= {prefix + letter, letter + suffix, prefix + letter + suffix}
    pool = sorted(t for t in tokens if t not in BYTES and t != "<unk>" and " " not in t)
    merges = []
    for _ in range(60):
        left, right = random.choice(pool), random.choice(pool)
        if not right.startswith(prefix) or suffix and left.endswith(suffix):
            continue
        merges.append([left, right])
        tokens.add(left + right[len(prefix):])
        pool.append(left + right[len(prefix):])
    return {"type": "BPE", "unk_token": "<unk>", "continuing_subword_prefix": prefix or None,
            "end_of_word_suffix": suffix or None, "byte_fallback": fallback,
            "vocab": {t: i for i, t in enumerate(sorted(tokens))}, "merges": merges, **options}


def unigram(fallback):
    vocab = [["<unk>", 0.0]] + [[t, -8.0] for t in (BYTES if fallback else [])] + [[t, -random.random() * 10] for t in words()]
    return {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": fallback}


def word_piece(unknown="<unk>", longest=100):
    tokens = [unknown] + words() + ["##" + t for t in words() if chance(0.7)]
    return {"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": longest, "vocab": {t: i for i, t in enumerate(dict.fromkeys(tokens))}}


def charsmap():
    """A small table of replacements, made by the library that invented it."""
    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder) / "rules.tsv"
        codes = lambda s: " ".join(f"{ord(c):X}" for c in s)
        rules.write_text("".join(f"{codes(a)}\t{codes(b)}\n" for a, b in [
            ("ﬀ", "ff"), ("Ａ", "A"), ("①", "1"), ("\t", " "), ("\n", " "), ("\u3000", " "), ("e\u0301", "é"), ("½", "1/2"),
            ("\u200b", ""), ("Ⅷ", "VIII"), ("Å", "A")]))
        corpus = pathlib.Path(folder) / "corpus.txt"
        corpus.write_text("\n".join("the quick brown fox " * 3 + str(i) for i in range(200)))
        sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=folder + "/m", vocab_size=40,
                                                 normalization_rule_tsv=str(rules), minloglevel=2)
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString(pathlib.Path(folder + "/m.model").read_bytes())
        return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def added(vocab, *tokens):
    known = {t[0] for t in vocab} if isinstance(vocab, list) else set(vocab)
    out, number = [], len(vocab)
    for content, options in tokens:
        out.append({"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                    "normalized": False, "special": True, **options})
        number += content not in known
    return out


def config(model, **parts):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model, **parts}


def template(before, after, numbers):
    special = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
    return {"type": "TemplateProcessing", "single": [*map(special, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(special, after)],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [numbers[t]], "tokens": [t]} for t in before + after}}


def well_known():
    model = bpe(True, fuse_unk=True)
    tokens = added(model["vocab"], ("<s>", {}), ("</s>", {}))
    numbers = {t["content"]: t["id"] for t in tokens}
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    bytes_joined = [{"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    yield "Llama 2", config(
        model, added_tokens=tokens, post_processor=template(["<s>"], [], numbers),
        normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, mark]},
        decoder={"type": "Sequence", "decoders": [spaces, *bytes_joined, strip]})
    yield "Mistral", config(
        model, added_tokens=tokens, post_processor=template(["<s>"], [], numbers),
        pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
        decoder={"type": "Sequence", "decoders": [spaces, *bytes_joined, strip]})
    yield "Gemma", config(
        model, added_tokens=tokens, normalizer=mark,
        pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        decoder={"type": "Sequence", "decoders": [spaces, *bytes_joined]})
    model = word_piece("[UNK]")
    tokens = added(model["vocab"], ("[CLS]", {}), ("[SEP]", {}), ("[MASK]", {"lstrip": True}))
    numbers = {t["content"]: t["id"] for t in tokens}
    yield "BERT", config(
        model, added_tokens=tokens, post_processor=template(["[CLS]"], ["[SEP]"], numbers),
        normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        pre_tokenizer={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    yield "BERT, older", config(
        model, added_tokens=tokens, pre_tokenizer={"type": "Whitespace"},
        post_processor={"type": "BertProcessing", "sep": ["[SEP]", numbers["[SEP]"]], "cls": ["[CLS]", numbers["[CLS]"]]})
    model = unigram(False)
    tokens = added(model["vocab"], ("</s>", {}), ("<s>", {"rstrip": True, "special": False}))
    yield "T5", config(
        model, added_tokens=tokens, post_processor=template([], ["</s>"], {"</s>": tokens[0]["id"]}),
        normalizer={"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": charsmap()},
            {"type": "Strip", "strip_left": False, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]},
        pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True})
    model = bpe(False, suffix="</w>")
    yield "CLIP", config(
        model, added_tokens=added(model["vocab"], ("a", {"single_word": True, "normalized": True})),
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"'s|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"}, "behavior": "Removed", "invert": True}]},
        decoder={"type": "BPEDecoder", "suffix": "</w>"})


BEHAVIORS = ["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"]


def pattern():
    return random.choice([{"String": random.choice([" ", "a", "▁", "--", "the", "."])},
                          {"Regex": random.choice([r"\s+", r"[0-9]", r"\p{L}+", r" {2,}", r"^a", r"\w"])}])


def normalizer(nested=False):
    kind = random.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "Prepend", "Replace", "Bert"]
                         + ([] if nested else ["ByteLevel", "Sequence", "Sequence"]))
    return {"type": kind, **{
        "Strip": lambda: {"strip_left": chance(.6), "strip_right": chance(.6)},
        "Prepend": lambda: {"prepend": random.choice(["▁", "x", ""])},
        "Replace": lambda: {"pattern": pattern(), "content": random.choice(["▁", " ", "", "xy"])},
        "Bert": lambda: {"type": "BertNormalizer", "clean_text": chance(.7), "handle_chinese_chars": chance(.7),
                         "strip_accents": random.choice([None, True, False]), "lowercase": chance(.5)},
        "Sequence": lambda: {"normalizers": [normalizer(True) for _ in range(random.randint(0, 3))]},
    }.get(kind, dict)()}


def pre_tokenizer(nested=False):
    kind = random.choice(["ByteLevel", "Whitespace", "WhitespaceSplit", "Split", "Digits", "Punctuation", "BertPreTokenizer",
                          "Metaspace", "CharDelimiterSplit"] + ([] if nested else ["Sequence"] * 3))
    return {"type": kind, **{
        "ByteLevel": lambda: {"add_prefix_space": chance(.5), "trim_offsets": True, "use_regex": chance(.5)},
        "Split": lambda: {"pattern": pattern(), "behavior": random.choice(BEHAVIORS), "invert": chance(.3)},
        "Digits": lambda: {"individual_digits": chance(.5)},
        "Punctuation": lambda: {"behavior": random.choice(BEHAVIORS)},
        "CharDelimiterSplit": lambda: {"delimiter": random.choice(["a", "-", "▁"])},
        "Metaspace": lambda: {"replacement": random.choice(["▁", "_"]), "split": chance(.6),
                              "prepend_scheme": random.choice(["always", "never"] if nested else ["always", "never", "first"])},
        "Sequence": lambda: {"pretokenizers": [pre_tokenizer(True) for _ in range(random.randint(1, 3))]},
    }.get(kind, dict)()}


def decoder(nested=False):
    kind = random.choice(["ByteLevel", "ByteFallback", "Fuse", "Metaspace", "WordPiece", "BPEDecoder", "Replace"]
                         + ([] if nested else ["Sequence"] * 3))
    return {"type": kind, **{
        "Metaspace": lambda: {"replacement": "▁", "prepend_scheme": random.choice(["always", "first", "never"]), "split": True},
        "WordPiece": lambda: {"prefix": "##", "cleanup": chance(.5)},
        "BPEDecoder": lambda: {"suffix": random.choice(["</w>", "g"])},
        "Replace": lambda: {"pattern": pattern(), "content": random.choice([" ", "", "x"])},
        "Sequence": lambda: {"decoders": [decoder(True) for _ in range(random.randint(1, 4))]},
    }.get(kind, dict)()}


def drawn():
    for number in range(40):
        model = random.choice([
            lambda: bpe(chance(.5), random.choice(["", "##"]), random.choice(["", "</w>"]), fuse_unk=chance(.5), ignore_merges=chance(.2)),
            lambda: unigram(chance(.5)), lambda: word_piece(longest=random.choice([6, 100])),
            lambda: {**word_piece(), "type": "WordLevel"}])()
        flags = lambda: {name: chance(.25) for name in ("single_word", "lstrip", "rstrip", "special")}
        tokens = added(model["vocab"], *[(c, flags()) for c in random.sample(["<s>", "</s>", "[MASK]", "the", "é", "WORLD", "日本"], 3)])
        yield f"drawn {number}", config(model, added_tokens=tokens, normalizer=normalizer() if chance(.6) else None,
                                        pre_tokenizer=pre_tokenizer() if chance(.9) else None, decoder=decoder() if chance(.9) else None)


def make():
    random.seed(7)
    out = {}
    for name, parts in [*well_known(), *drawn()]:
        try:
            tokenizer = Tokenizer.from_str(json.dumps(parts))
        except BaseException:  # a drawn one may ask for what does not exist
            continue
        rows = []
        for _ in range(30 if not name.startswith("drawn") else 8):
            piece = text()
            ids = tokenizer.encode(piece).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=True)
            rows.append([piece, ids, decoded if "\ufffd" not in decoded else None])
        out[name] = {"config": parts, "texts": rows}
    (FOLDER / "models.json").write_text(json.dumps(out, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    make()
