#!/usr/bin/env python3
"""Fails when a comment of our sources begins with a word that hides what it speaks of.

A comment is a sentence with a subject and a verb: a function's begins with a verb ("Returns", "Throws"), a class's or a
member's with a noun. "What", "Of", "One", "Those" and "Whether" at its beginning, and "that which" anywhere, make a reader
look for the subject in the code below. Each .cpp of the library begins with a comment that says what the file does.
Comments behind code are left alone. Run by .ci/run:

    scripts/check_comments.py [ROOT [FOLDER...]]  checks ROOT (by default the repository), all of it or the folders given
    scripts/check_comments.py --self-test         proves that each rule can fail
"""

import os
import re
import subprocess
import sys
import tempfile

FIRST_WORDS = ("What", "Of", "One", "Those", "Whether")
PHRASES = ("that which",)

# Folders whose .cpp files begin with a comment.
LIBRARY = ("core", "multi", "devices", "transport", "launch", "io", "report")

COMMENT = re.compile(r"\s*//+\s?(.*)")
FIRST_WORD = re.compile(r"\s*(" + "|".join(FIRST_WORDS) + r")\b")
PHRASE = re.compile(r"\b(" + "|".join(phrase.replace(" ", r"\s+") for phrase in PHRASES) + r")\b", re.IGNORECASE)


def blocks(text):
    """Yields (line, texts) for each block of full-line comments: where it begins, and its lines without slashes."""
    begin, texts = 0, []
    for number, line in enumerate(text.splitlines() + [""], 1):
        match = COMMENT.match(line)
        if match:
            begin = begin if texts else number
            texts.append(match.group(1))
        elif texts:
            yield begin, texts
            texts = []


def check_file(path, text):
    """Yields (line, message) for each comment of the file `path` (relative to the root) that breaks a rule."""
    if path.endswith(".cpp") and path.split("/")[0] in LIBRARY and not text.startswith("//"):
        yield 1, "no comment on the first line says what the file does"
    for line, texts in blocks(text):
        word = FIRST_WORD.match(texts[0])
        if word:
            yield line, f'a comment begins with "{word.group(1)}": begin with a verb or a noun'
        phrase = PHRASE.search("\n".join(texts))
        if phrase:
            at = line + "\n".join(texts)[: phrase.start()].count("\n")
            yield at, f'a comment says "{" ".join(phrase.group(1).split())}": name it'


def sources(root):
    """The paths of our sources below root: those of git and new ones that it does not ignore; without git, all."""
    command = ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.h", "*.cpp"]
    if os.path.exists(os.path.join(root, ".git")):
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
        return sorted(path for path in set(listed) if path and os.path.isfile(os.path.join(root, path)))
    found = []
    for directory, children, files in os.walk(root):
        children[:] = [c for c in children if not c.startswith((".", "build"))]
        found += [os.path.relpath(os.path.join(directory, f), root) for f in files if f.endswith((".h", ".cpp"))]
    return sorted(found)


def check_tree(root, folders=None):
    problems = []
    for path in sources(root):
        if folders and not any(path.startswith(folder.rstrip("/") + "/") for folder in folders):
            continue
        with open(os.path.join(root, path), encoding="utf-8") as handle:
            text = handle.read()
        problems += [f"{path}:{line}: {message}" for line, message in check_file(path, text)]
    return problems


def self_test():
    """Builds a small tree, checks that it is clean, then breaks one rule at a time."""
    head = "// Adds numbers.\n"
    clean = {
        "core/base/sum.cpp": head + '#include "core/base/sum.h"\n\nint one = 1;  // One of them\n',
        "core/base/sum.h": "#pragma once\n// Returns the sum, of one type. What overflows wraps.\nint sum(int a, int b);\n",
        "tests/core/sum_test.cpp": '#include "core/base/sum.h"\n',
        "build/made.h": "// What the build makes.\n",
    }
    broken = [
        *(("io/a.h", f"#pragma once\n\n  // {word} is\n  // added.\n", 3) for word in FIRST_WORDS),
        ("io/a.h", "/// What is added.\n", 1),
        ("io/a.h", "int a;\n// Adds that which\n// comes.\n", 2),
        ("io/a.h", "int a;\n// Adds what is\n// left and that\n// which comes.\n", 3),
        ("tests/a.cpp", "//What is tested.\n", 1),
        *((f"{folder}/base/new.cpp", '#include "core/base/sum.h"\n', 1) for folder in LIBRARY),
        ("core/base/new.cpp", "\n" + head, 1),
    ]
    with tempfile.TemporaryDirectory() as root:

        def write(path, text):
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as handle:
                handle.write(text)

        for path, text in clean.items():
            write(path, text)
        assert check_tree(root) == [], check_tree(root)
        for path, text, line in broken:
            write(path, text)
            problems = check_tree(root)
            assert len(problems) == 1 and problems[0].startswith(f"{path}:{line}: "), (path, text, problems)
            assert check_tree(root, ["core/base/x"]) == [], path
            os.remove(os.path.join(root, path))
    print(f"check_comments: self-test passed, {len(broken)} wrong comments found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    if len(sys.argv) > 1 and sys.argv[1].startswith("-"):
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), ".."))
    problems = check_tree(root, sys.argv[2:])
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"check_comments: {len(problems)} findings (scripts/check_comments.py)", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
