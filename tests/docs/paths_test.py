#!/usr/bin/env python3
"""Every path that README, CONTRIBUTING and docs/ name exists: links, and in backquotes files below a folder of the project, or
programs, which are built from a file of that name (those of bench/ without the folder, too).

    python3 tests/docs/paths_test.py ROOT
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
FOLDERS = "bench|cli|core|devices|docs|examples|io|launch|multi|report|scripts|tests|tinyshard|transport"
QUOTED = re.compile(rf"`((?:{FOLDERS})(?:/[\w.+-]+)*/?)(?::\d+)?`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")



def exists(base, path):
    candidates = [base / path, base / f"{path}.cpp", base / "bench" / f"{path}.cpp"]
    return any(candidate.exists() for candidate in candidates)


missing = []
pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
for page in pages:
    for number, line in enumerate(page.read_text().splitlines(), 1):
        named = [(root, path) for path in QUOTED.findall(line)]
        named += [(page.parent, path) for path in LINK.findall(line) if "://" not in path]
        missing += [f"{page.relative_to(root)}:{number}: there is no {path}" for base, path in named
                    if not exists(base, path)]
print("\n".join(missing) or f"{len(pages)} pages name only what exists")
sys.exit(bool(missing))
