#!/usr/bin/env python3
"""Registers, local memory and occupancy of the hottest kernels of a model's step on an AMD GPU.

No GPU is needed: the plan is made for one that is not there (plan_dump), and what each code object says
of itself is printed beside the limits. Exits with 1 where a kernel spills registers to memory of a thread;
scalars that find no register go to lanes of a vector register, which takes no memory.

  scripts/gpu_kernels.py                          the 20 kernels of a step of GPT-2 124M that move most bytes, gfx942
  scripts/gpu_kernels.py --model mnist --device rx7900 --count 10
"""
import argparse
import os
import struct
import subprocess
import sys
import tempfile

# Vector registers of a lane of a SIMD, what they are given out in, waves of a SIMD at most, SIMDs that the
# waves of a block are spread over (of a compute unit, of a workgroup processor), bytes of LDS they share.
LIMITS = {
    "mi300x": dict(warp=64, registers=512, step=8, waves=8, simds=4, lds=64 << 10),
    "rx7900": dict(warp=32, registers=1536, step=24, waves=16, simds=4, lds=128 << 10),
}


def unpack(data, at=0):
    """Returns a value of MessagePack and where it ends."""
    kind = data[at]
    if kind < 0x80:
        return kind, at + 1
    if kind < 0x90:
        return read_map(data, at + 1, kind & 15)
    if kind < 0xA0:
        return read_list(data, at + 1, kind & 15)
    if kind < 0xC0:
        end = at + 1 + (kind & 31)
        return data[at + 1:end].decode(), end
    if kind in (0xC2, 0xC3):
        return kind == 0xC3, at + 1
    if 0xCC <= kind <= 0xCF:
        size = 1 << (kind - 0xCC)
        return int.from_bytes(data[at + 1:at + 1 + size], "big"), at + 1 + size
    if 0xD9 <= kind <= 0xDB:
        size = 1 << (kind - 0xD9)
        begin = at + 1 + size
        end = begin + int.from_bytes(data[at + 1:begin], "big")
        return data[begin:end].decode(), end
    if kind in (0xDC, 0xDE):
        count = int.from_bytes(data[at + 1:at + 3], "big")
        return (read_list if kind == 0xDC else read_map)(data, at + 3, count)
    raise ValueError(f"MessagePack of kind {kind:#x}")


def read_map(data, at, count):
    result = {}
    for _ in range(count):
        key, at = unpack(data, at)
        result[key], at = unpack(data, at)
    return result, at


def read_list(data, at, count):
    result = []
    for _ in range(count):
        value, at = unpack(data, at)
        result.append(value)
    return result, at


def kernel_of(path):
    """Returns the metadata of the one kernel of a code object."""
    with open(path, "rb") as file:
        data = file.read()
    first, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    for i in range(count):
        kind, _, offset = struct.unpack_from("<IIQ", data, first + 56 * i)
        if kind != 4:  # PT_NOTE
            continue
        size = struct.unpack_from("<I", data, offset + 4)[0]
        return unpack(data[offset + 20:offset + 20 + size])[0]["amdhsa.kernels"][0]
    raise ValueError(f"{path} has no notes")


def occupancy(kernel, block, limits):
    """Returns waves of a SIMD, of those that fit, and what keeps more out."""
    registers = kernel[".vgpr_count"] + kernel.get(".agpr_count", 0)
    step = limits["step"]
    by_registers = limits["registers"] // max(step, -(-registers // step) * step)
    waves_of_block = -(-block // limits["warp"])
    lds = kernel[".group_segment_fixed_size"]
    by_lds = limits["lds"] // lds * waves_of_block / limits["simds"] if lds else limits["waves"]
    waves = min(limits["waves"], by_registers, by_lds)
    why = "" if waves == limits["waves"] else "registers" if waves == by_registers else "LDS"
    return waves, why


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2", choices=["gpt2", "mnist", "quickstart", "decode"])
    parser.add_argument("--device", default="mi300x", choices=sorted(LIMITS))
    parser.add_argument("--count", type=int, default=20, help="of the kernels that move most bytes")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--plan-dump", default=os.path.join(here, "../build/release/bench/plan_dump"))
    args = parser.parse_args()
    limits = LIMITS[args.device]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([args.plan_dump, "--model", args.model, "--device", args.device, "--out", os.devnull,
                        "--objects", folder], check=True)
        kernels = {}
        for name in os.listdir(folder):
            _, moved, blocks, block, entry = name[:-2].split(".", 4)
            key = open(os.path.join(folder, name), "rb").read()
            if not key:
                continue
            times = kernels[key][-1] + 1 if key in kernels else 1
            kernels[key] = (int(moved), int(blocks), int(block), entry, os.path.join(folder, name), times)
        rows = sorted(kernels.values(), key=lambda k: -k[0] * k[5])
        print(f"{args.model} on {args.device}: {len(rows)} kernels; limits: "
              f"{limits['registers']} registers a lane of a SIMD, {limits['lds'] >> 10} KiB of LDS, "
              f"{limits['waves']} waves a SIMD")
        print(f"{'kernel':<28} {'times':>5} {'MB':>9} {'blocks':>9} {'block':>5} {'vgpr':>5} {'sgpr':>5} "
              f"{'LDS':>6} {'waves':>6}  limit")
        spilled = 0
        for position, (moved, blocks, block, entry, path, times) in enumerate(rows):
            kernel = kernel_of(path)
            waves, why = occupancy(kernel, block, limits)
            spills = kernel[".vgpr_spill_count"] + kernel[".private_segment_fixed_size"]
            lanes = kernel[".sgpr_spill_count"]
            spilled += spills > 0
            if position >= args.count and not spills:
                continue
            print(f"{entry[:28]:<28} {times:>5} {moved / 1e6:>9.1f} {blocks:>9} {block:>5} "
                  f"{kernel['.vgpr_count']:>5} {kernel['.sgpr_count']:>5} "
                  f"{kernel['.group_segment_fixed_size']:>6} {waves:>6.3g}  {why}"
                  f"{f'  {lanes} scalars in lanes' if lanes else ''}{'  SPILLS' if spills else ''}")
        print(f"{spilled} of {len(rows)} kernels spill registers or use memory of a thread")
    sys.exit(1 if spilled else 0)


if __name__ == "__main__":
    main()
