#!/usr/bin/env bash
# Lets libFuzzer look for bytes that harm what reads the wire: handshakes, the store, frames between ranks, host files.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

targets=(handshake gate store frames hosts)
usage() {
  cat <<USAGE
usage: scripts/fuzz_wire.sh [--minutes N] [TARGET...] [-- libFuzzer arguments...]
  --minutes N   for each target (default: 1)
  TARGET        all of: ${targets[*]}
Under AddressSanitizer and UndefinedBehaviorSanitizer. handshake and gate: whoever has no key does not get in. store and
frames: nor does a peer that has it do harm. hosts: host lists, host files and what the launcher sends its agents.
What it learns stays in build/fuzz-files/corpus/TARGET. The first finding of a target ends with status 1, and its file
is named.
USAGE
}

minutes=1 chosen=() more=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --minutes) minutes=${2:?--minutes needs a number}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    --) shift; more=("$@"); break ;;
    -*) echo "fuzz_wire: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
    *) chosen+=("$1"); shift ;;
  esac
done
[[ ${#chosen[@]} -gt 0 ]] || chosen=("${targets[@]}")

scripts/setup.sh --fuzz
build_preset fuzz-files "${chosen[@]/#/fuzz_wire_}"
# Seeds: proper messages, which chance would not find.
python3 - build/fuzz-files/corpus <<'SEEDS'
import pathlib, struct, sys

frame = lambda kind, tag, handle, size, offset=0, payload=b"": struct.pack("<IIIIQQ", kind, 0, tag, handle, size, offset) + payload
request = lambda operation, key, value: struct.pack("<III", operation, len(key), len(value)) + key + value
seeds = {
    "handshake": [b"tshard\r\n" + struct.pack("<I", 1) + bytes(216)],
    "gate": [b"tshard\r\n" + struct.pack("<I", 1) + bytes(148)],
    "store": [request(1, b"k/1", b"v") + request(2, b"k/1", b"") + request(2, b"k/2", b"")],
    "frames": [frame(1, 2, 0, 4, 0, b"abcd") + frame(2, 2, 0, 100000) + frame(4, 0, 1, 1000, 16, bytes(1000)),
               frame(4, 0, 1, 1000, 99000, bytes(1000)) + b"\xff",
               frame(3, 3, 7, 100000) + frame(5, 0, 0, 256, 0, bytes(256)) + frame(6, 0, 0, 0),
               frame(1, 9, 0, 64, 0, bytes(64)) + frame(1, 4, 0, 100, 0, bytes(100)) + frame(3, 5, 7, 40000)],
    "hosts": [b"a:4,[fe80::1]:2,b", b"a slots=4 # one\nb 2\n",
              b'{"command":["p"],"environment":[],"folder":"","first_rank":0,"ranks":1,"size":2,"bind_cores":true}'],
}
for target, list in seeds.items():
    folder = pathlib.Path(sys.argv[1]) / target
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(list):
        (folder / f"seed-{number}").write_bytes(seed)
SEEDS
mkdir -p build/fuzz-files/found
status=0
for target in "${chosen[@]}"; do
  echo "fuzz_wire: $target, $minutes minutes"
  "build/fuzz-files/fuzz_wire_$target" -max_total_time="$((minutes * 60))" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
    -use_value_profile=1 -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz-files/found/wire-$target-" \
    "${more[@]}" "build/fuzz-files/corpus/$target" || status=1
done
[[ $status == 0 ]] && echo "fuzz_wire: nothing found"
exit $status
