#!/usr/bin/env python3
"""Fails the build when an include goes against the arrows of the architecture.

The tables below are the law: what a folder may include of ours, which vendor headers it may see, and where vendor
headers are allowed at all. Run by the build (target check_includes) and by .ci/run:

    scripts/check_includes.py [ROOT [FOLDER...]]  checks ROOT (by default the repository), all of it or the folders given
    scripts/check_includes.py --self-test         proves that each rule can fail
"""

import os
import re
import sys
import tempfile

IR = ["core/base", "core/dtype", "core/uop", "core/rewrite", "core/runtime"]

# Folder -> folders (or single headers) of ours it may include, besides itself and its subfolders. The longest
# matching folder counts.
# "*" means every library folder.
ALLOWED = {
    # core_ir: what a program is. It knows no device, socket or vendor.
    "core/base": [],
    "core/dtype": ["core/base"],
    "core/uop": ["core/base", "core/dtype"],
    "core/rewrite": ["core/base", "core/dtype", "core/uop"],
    "core/runtime": ["core/base", "core/dtype", "core/uop"],
    # Sharding rewrites the IR.
    "multi": IR,
    # core_engine: the pipeline, each stage after the ones whose data it consumes.
    "core/passes": IR + ["multi"],
    # An op that others spell, a row each: its spelling may be differentiated.
    "core/ops": IR + ["core/passes/gradient.h"],
    # The schedule holds kernels as the code generator takes them; the generator knows no schedule.
    "core/codegen": IR,
    "core/schedule": IR + ["multi", "core/passes", "core/codegen/kernel.h"],
    "core/exec": IR + ["multi", "core/passes", "core/schedule", "core/codegen"],
    "core/tensor": IR + ["multi", "core/passes", "core/ops", "core/schedule", "core/codegen", "core/exec"],
    "core/nn": IR + ["multi", "core/passes", "core/schedule", "core/codegen", "core/exec", "core/tensor", "io"],
    # Implementations of the interfaces in core/runtime, and helpers beside the pipeline.
    "transport": IR + ["launch"],
    "devices": IR,
    # Libraries of GPUs fuse some of these with products.
    "devices/gpu": IR + ["core/ops"],
    # Scatters and sorts are no loops of a graph: their kernels are asked for by name.
    "devices/cuda": IR + ["devices", "core/codegen/scatter.h", "core/codegen/sort.h"],
    "devices/hip": IR + ["devices", "core/codegen/scatter.h", "core/codegen/sort.h"],
    "launch": ["core/base"],
    "io": IR,
    "report": ["core/base", "io"],
    "view": ["core/base"],
    # The public header and the Runtime that names the built-in devices and transports.
    "tinyshard": ["*"],
    "cli": ["*"],
    "examples": ["tinyshard"],
    "bench": ["*", "examples"],
    "tests": ["*", "cli", "examples", "bench"],
}

LIBRARY = [f for f in ALLOWED if f not in ("cli", "examples", "bench", "tests")]

# Vendor headers -> folders whose sources may include them. Anything else in <...> must be a system header.
VENDORS = {
    r"llvm(-c)?/": ["core/codegen", "devices/cpu", "tests/amdgpu"],
    r"(oneapi/)?dnnl|omp\.h": ["devices/cpu"],
    r"mpi\.h": ["transport/mpi", "launch", "tests", "bench"],
    r"hwloc": ["core/base", "core/runtime", "devices", "launch", "cli"],
    r"fmt/": ["core", "multi", "transport", "devices", "launch", "io", "report", "view", "tinyshard", "cli",
              "examples",
              "bench", "tests"],
    r"nlohmann/": ["io", "report", "view", "core", "transport", "launch", "cli", "examples", "bench",
                   "tests"],
    r"CLI/": ["cli", "examples", "bench", "tests"],
    r"zlib\.h": ["io", "core/base", "tests"],
    r"oniguruma\.h": ["io"],
    r"boost/": ["transport/tcp", "transport/rendezvous"],
    r"openssl/": ["launch", "transport/tcp"],
    r"gtest/|gmock/": ["tests"],
    r"benchmark/": ["bench"],
}

# Headers that the build writes, and who includes them.
GENERATED = {"codegen_fingerprint.h": "core/codegen"}

# What a user includes. The headers they lead to are installed and may not need a vendor's.
PUBLIC_HEADERS = ["tinyshard/tinyshard.h", "tinyshard/uop.h"]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = (".h", ".hpp", ".cpp", ".cc", ".c")


def folder_of(path, folders):
    """The longest entry of `folders` that holds `path`, or None."""
    best = None
    for folder in folders:
        if path == folder or path.startswith(folder + "/"):
            if best is None or len(folder) > len(best):
                best = folder
    return best


def check_file(root, path, text, public):
    """Yields (line, message) for each include of the file `path` (relative to root) that breaks a rule."""
    source = folder_of(path, ALLOWED)
    if source is None:
        if path.split("/")[0] == "core":
            yield 0, "folder is not in the table of scripts/check_includes.py: add it with what it may include"
        return
    allowed = LIBRARY if "*" in ALLOWED[source] else []
    allowed = list(allowed) + [f for f in ALLOWED[source] if f != "*"] + [source]
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, name = match.groups()
        top = name.split("/")[0]
        if quote == "<" and top == "tinyshard" and source not in LIBRARY:
            quote = '"'  # programs may write the public header as a user would
        if quote == '"':
            if GENERATED.get(name) == source:
                continue
            if not os.path.exists(os.path.join(root, name)):
                yield number, f'"{name}" is not a path from the repository root'
                continue
            target = folder_of(name, ALLOWED)
            if target is None or folder_of(name, allowed) is None:
                may = ", ".join(ALLOWED[source]) or "nothing but itself"
                yield number, f'{source} may not include "{name}" (it may include: {may})'
            continue
        for pattern, folders in VENDORS.items():
            if not re.match(pattern, name):
                continue
            if folder_of(path, folders) is None:
                yield number, f"<{name}> belongs to {', '.join(folders)}, not to {source}"
            elif path in public:
                yield number, f"<{name}> in a header that users get through {' or '.join(PUBLIC_HEADERS)}"


def public_headers(root):
    """The public headers and all of ours that they lead to."""
    found, todo = set(), list(PUBLIC_HEADERS)
    while todo:
        path = todo.pop()
        full = os.path.join(root, path)
        if path in found or not os.path.exists(full):
            continue
        found.add(path)
        with open(full, encoding="utf-8") as handle:
            matches = map(INCLUDE.match, handle)
            todo += [match.group(2) for match in matches if match]
    return found


def check_tree(root, folders=None):
    problems = []
    public = public_headers(root)
    for top in folders or sorted({folder.split("/")[0] for folder in ALLOWED}):
        for directory, children, files in os.walk(os.path.join(root, top)):
            # The consumer project is a stranger's code: it sees the installed library only.
            children[:] = sorted(c for c in children if not c.startswith((".", "build")) and c != "consumer")
            for name in sorted(files):
                if not name.endswith(SOURCES):
                    continue
                full = os.path.join(directory, name)
                path = os.path.relpath(full, root)
                with open(full, encoding="utf-8") as handle:
                    text = handle.read()
                problems += [f"{path}:{number}: {message}" for number, message in check_file(root, path, text, public)]
    return problems


def self_test():
    """Builds a small tree, checks that it is clean, then breaks one rule at a time."""
    clean = {
        "core/base/error.h": "#pragma once\n#include <string>\n",
        "core/base/log.h": "#pragma once\n",
        "core/uop/uop.h": '#include "core/base/error.h"\n',
        "core/schedule/schedule.h": '#include "core/uop/uop.h"\n#include "core/codegen/kernel.h"\n',
        "core/codegen/emit.h": "#include <llvm/IR/Module.h>\n",
        "core/codegen/kernel.h": "",
        "core/codegen/emit.cpp": '#include "codegen_fingerprint.h"\n#include "core/codegen/emit.h"\n',
        "multi/mesh.h": '#include "core/uop/uop.h"\n',
        "devices/cpu/cpu.h": "",
        "devices/cpu/cpu.cpp": '#include <oneapi/dnnl/dnnl.hpp>\n#include "core/base/error.h"\n',
        "tinyshard/tinyshard.h": '#include "core/base/log.h"\n#include "core/schedule/schedule.h"\n',
        "examples/hello.cpp": "#include <tinyshard/tinyshard.h>\n",
    }
    broken = {
        "core/base/error.h": '#include "core/uop/uop.h"\n',
        "core/uop/uop.h": '#include "multi/mesh.h"\n',
        "core/base/log.h": "#include <fmt/format.h>\n",
        "multi/mesh.h": '#include "core/schedule/schedule.h"\n',
        "core/schedule/schedule.h": '#include "core/codegen/emit.h"\n',
        "core/codegen/emit.cpp": '#include "devices/cpu/cpu.h"\n',
        "core/codegen/kernel.h": '#include "core/schedule/schedule.h"\n',
        "core/dtype/dtype.h": "#include <llvm/IR/Module.h>\n",
        "core/uop/op.h": '#include "codegen_fingerprint.h"\n',
        "devices/cpu/cpu.cpp": "#include <mpi.h>\n",
        "examples/hello.cpp": '#include "core/base/error.h"\n',
        "core/sched/new.cpp": "",
        "transport/x.cpp": '#include "error.h"\n',
    }
    with tempfile.TemporaryDirectory() as root:

        def write(files):
            for path, text in files.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as handle:
                    handle.write(text)

        write(clean)
        assert check_tree(root) == [], check_tree(root)
        for path, text in broken.items():
            write({path: text})
            problems = check_tree(root)
            assert any(problem.startswith(path) for problem in problems), (path, problems)
            os.remove(os.path.join(root, path))
            if path in clean:
                write({path: clean[path]})
    print(f"check_includes: self-test passed, {len(broken)} wrong includes found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), ".."))
    problems = check_tree(root, sys.argv[2:])
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"check_includes: {len(problems)} includes against the arrows (scripts/check_includes.py)",
              file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
