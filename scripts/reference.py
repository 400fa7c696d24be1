#!/usr/bin/env python3
"""Writes the reference pages docs/reference/ from one table of methods (core/tensor/methods.inc), the declarations in
core/tensor/tensor.h and the results of the examples (tests/docs/reference_results.txt, which docs_reference_test checks).

    scripts/reference.py           writes the pages
    scripts/reference.py --check   fails where a page is not what it would write, a public method of Tensor is not in the
                                   table, or the table names what is none
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "core/tensor/methods.inc"
HEADER = ROOT / "core/tensor/tensor.h"
RESULTS = ROOT / "tests/docs/reference_results.txt"
PAGES = ROOT / "docs/reference"

# What holds for all methods of an area: page, title, then shapes, types, gradient and sharding.
AREAS = {
    "Making": (
        "making", "Making tensors",
        "as given; the `_like` methods take those of their tensor.",
        "`default_float()` (f32) unless a type is given; `full` and `arange` take that of their numbers.",
        "none: they are where gradients end.",
        "a new tensor lies nowhere yet and joins what it meets; the `_like` methods lie as their tensor does. Random numbers depend "
        "on the seed, the order of creation and the element alone, never on devices."),
    "Values": (
        "values", "What it is, and its storage",
        "unchanged.",
        "unchanged; `item` and `to_vector` convert to the type that they are asked for.",
        "what is read on the host has none; `contiguous`, `clone` and `to_bound` pass it on.",
        "`contiguous` completes a pending sum, the others leave a value where it lies. Reading collects the parts on the host."),
    "Gradients": (
        "gradients", "Gradients",
        "a gradient has the shape of what it is of.",
        "a gradient has the type of what it is of: a float.",
        "`gradient` and `backward` build a graph like any other, which may be differentiated again. [uops.md](../uops.md) has functions "
        "with gradients of their own.",
        "a gradient lies as the ops that make it leave it, and where a parameter is whole on several devices it is summed over them."),
    "Placement": (
        "placement", "Where it lies",
        "those of the whole, always; `local` has the parts.",
        "unchanged.",
        "goes the way back.",
        "[shard.md](../shard.md) says what moves."),
    "Types": (
        "types", "Element types",
        "unchanged; `bitcast` to a type of the same size.",
        "floats become integers by cutting off, saturated, NaN gives 0; narrower floats round to nearest.",
        "passes through casts between floats.",
        "each device casts what it has; a value travels in the narrower of both types."),
    "Movement": (
        "movement", "Movement",
        "negative dims count from the end.",
        "unchanged.",
        "takes the same way back: what was repeated is summed, what was cut off is 0.",
        "a split dim that keeps its place sends nothing; windows along it send the rows beside a part, and other orders what changes "
        "its device."),
    "Elementwise": (
        "elementwise", "Elementwise, one operand",
        "unchanged.",
        "functions of floats make floats of integers; 16-bit floats are computed in f32 and rounded once. `isnan` and the like are bool.",
        "that of the function; 0 for those that round.",
        "each device computes what it has. A pending sum stays pending through what is linear, and is completed before anything else."),
    "Activations": (
        "activations", "Activations",
        "unchanged.",
        "as for [elementwise](elementwise.md) functions.",
        "that of the function; at a kink that of one side.",
        "as for [elementwise](elementwise.md) functions."),
    "Operands": (
        "operands", "Elementwise, several operands",
        "broadcast as in numpy.",
        "promoted to the least type that holds both; a number takes the type of the tensor beside it, unless it is a fraction beside integers. Comparisons give bool.",
        "goes to all float operands; of `maximum` and `minimum` of equal operands half to each.",
        "operands meet where the wider one lies; a value that is whole joins parts without sending anything."),
    "Reductions": (
        "reductions", "Reductions and scans",
        "the axes go, or stay with size 1 with `keepdim`; without axes all go. Scans keep the shape.",
        "16-bit floats are summed in f32 and rounded once, small integers in i32.",
        "that of the function; ties of `max` and `min` share it, places have none.",
        "along a split dim each device reduces what it has, and the sum, or the largest, stays pending until somebody needs it."),
    "Products": (
        "products", "Products and windows",
        "matrices in the last two dims, batches before them; images are [n, channels, spatial...].",
        "of both operands, promoted; `dtype` is that of the sum and the result. `qr` and `svd` compute in f64.",
        "a product, or a window, of the same kind.",
        "rows, columns, the summed dim and batches divide; what moves is what is cheapest."),
    "Indices": (
        "indices", "Indices and sorting",
        "as the index has it; places out of range read 0 and write nothing.",
        "an index is of integers; results keep the type of the values, places are i32.",
        "goes to the elements that were read, summed where one was read twice; an index has none.",
        "rows are looked up, and sorted, where they lie as far as that sends less; [shard.md](../shard.md) says what moves."),
    "Layers": (
        "layers", "Layers and losses",
        "as for the tensors of a batch; losses are one number unless `reduction` says none.",
        "16-bit floats are computed in f32 and rounded once.",
        "that of the formula.",
        "as the ops that they are made of."),
}

ROW = re.compile(r'^METHOD\((\w+), (\w+), (\w+), "((?:[^"\\]|\\.)*)", (.*)\)$')


def table():
    rows = []
    for number, line in enumerate(TABLE.read_text().splitlines(), 1):
        if not line.startswith("METHOD("):
            continue
        match = ROW.match(line)
        if not match or match.group(1) not in AREAS:
            sys.exit(f"{TABLE.relative_to(ROOT)}:{number}: this is no row: {line}")
        rows.append(match.groups())
    return rows


def declarations():
    """Name -> declarations in the public part of class Tensor, without callers, as a reader wants them."""
    text = HEADER.read_text()
    begin = text.index("class Tensor {")
    body = text[begin:text.index(" private:", begin)]
    body = re.sub(r"//[^\n]*", "", body)
    found = {}
    # From a type to the end of the arguments.
    for match in re.finditer(r"((?:static )?(?:std::)?[\w:<>, &]+?[>&\w])\s+(\w+)\(", body):
        result, name = match.group(1).split("\n")[-1].strip(), match.group(2)
        if result.split()[0] in ("friend", "return", "for", "explicit", "template", "operator") or name == "operator":
            continue
        depth, at = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(body[at], 0)
            at += 1
        arguments, rest = body[match.end():at - 1], body[at:at + 24]
        if "&&" in rest.split(";")[0].split("{")[0] or "= delete" in rest or "ListItem" in arguments:
            continue
        if not re.match(r"\s*(const)?\s*&?\s*(=|;|{|$)", rest):
            continue
        arguments = re.sub(r"\s+", " ", arguments)
        arguments = re.sub(r"(, )?Caller( caller)? = Caller::current\(\)", "", arguments)
        arguments = arguments.replace("std::", "").replace("const ", "").replace("&", "")
        result = result.replace("std::", "").replace("const ", "").replace("&", "")
        found.setdefault(name, [])
        line = f"{result} {name}({arguments})"
        if line not in found[name]:
            found[name].append(line)
    return found


def results():
    if not RESULTS.exists():
        return {}
    return dict(line.split("\t", 1) for line in RESULTS.read_text().splitlines() if "\t" in line)


def pages():
    signatures, gives, rows = declarations(), results(), table()
    texts = {}
    for area, (page, title, shapes, types, gradient, sharding) in AREAS.items():
        text = [f"# {title}", "", "<!-- Written by scripts/reference.py from core/tensor/methods.inc. -->", "",
                f"- **Shapes:** {shapes}", f"- **Types:** {types}", f"- **Gradient:** {gradient}",
                f"- **Sharding:** {sharding}", ""]
        for row_area, name, _, line, example in rows:
            if row_area != area:
                continue
            text += [f"## {name}", "", line, "", "```", *signatures.get(name, []), "```", "", f"`{example}`"]
            if name in gives:
                text[-1] += f" gives `{gives[name]}`"
            text.append("")
        texts[PAGES / f"{page}.md"] = "\n".join(text).rstrip() + "\n"
    index = ["# Methods of Tensor", "", "<!-- Written by scripts/reference.py from core/tensor/methods.inc. -->", "",
             "Examples are run (`tests/docs/reference_test.cpp`), with these tensors:", "", "```cpp",
             *inputs(), "```", ""]
    for area, (page, title, *_) in AREAS.items():
        names = [f"[{name}]({page}.md#{name.lower()})" for row_area, name, *_ in rows if row_area == area]
        index += [f"**[{title}]({page}.md):** " + ", ".join(names), ""]
    texts[PAGES / "README.md"] = "\n".join(index).rstrip() + "\n"
    return texts


def inputs():
    text = (ROOT / "tests/docs/reference_test.cpp").read_text()
    part = text[text.index("// inputs\n") + len("// inputs\n"):text.index("// end of inputs")]
    return [line.strip() for line in part.splitlines() if line.strip()]


def problems():
    declared, named = set(declarations()), {name for _, name, *_ in table()}
    for name in sorted(declared - named):
        yield f"{name} is a method of Tensor and has no row in {TABLE.relative_to(ROOT)}"
    for name in sorted(named - declared):
        yield f"{name} has a row in {TABLE.relative_to(ROOT)} and is no method of Tensor"
    known = results()
    for name in sorted(named ^ set(known)):
        yield f"{name} is in the table or in {RESULTS.relative_to(ROOT)}, but not in both"
    written = pages()
    for page, text in written.items():
        if not page.exists() or page.read_text() != text:
            yield f"{page.relative_to(ROOT)} is not up to date: run scripts/reference.py"
    for page in PAGES.glob("*.md"):
        if page not in written:
            yield f"{page.relative_to(ROOT)} belongs to no area"


def main():
    if sys.argv[1:] == ["--check"]:
        found = list(problems())
        print("\n".join(found) or f"{len(table())} methods on {len(AREAS)} pages are up to date")
        return bool(found)
    if sys.argv[1:]:
        sys.exit(__doc__)
    PAGES.mkdir(exist_ok=True)
    for page, text in pages().items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
