#!/usr/bin/env python3
"""The C++ code of a page of docs/ is part of a source that is built and run: each block of ```cpp occurs there, but for
white space.

    python3 tests/docs/snippets_test.py PAGE SOURCE
"""
import pathlib
import re
import sys

page, source = (pathlib.Path(name) for name in sys.argv[1:])
BLOCK = re.compile(r"^```cpp\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def squeezed(text):
    return re.sub(r"\s+", "", text)


blocks = BLOCK.findall(page.read_text())
code = squeezed(source.read_text())
missing = [block for block in blocks if squeezed(block) not in code]
for block in missing:
    print(f"{page.name}: this is not in {source.name}:\n{block}")
if not blocks:
    print(f"{page.name} has no code")
print(f"{len(blocks) - len(missing)} of {len(blocks)} blocks of {page.name} are in {source.name}")
sys.exit(bool(missing) or not blocks)
