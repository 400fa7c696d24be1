#!/usr/bin/env bash
# Builds the fuzzer and lets it look for wrong values, crashes and hangs; see docs/notes/search.md.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
  cat <<'USAGE'
usage: scripts/fuzz.sh [--preset NAME] [--training] [--minutes N] [fuzz arguments...]
  --preset NAME  release (default), dev or asan-ubsan: see CMakePresets.json
  --training     random models with optimizers, trained in all ways that must agree, instead of random ops
  --minutes N    how long (default: 1); everything else goes to the program, whose --help lists it:
  scripts/fuzz.sh --minutes 120 --seed 1     the same programs each time
  scripts/fuzz.sh --replay FILE              one program, as a finding prints it
Ends with status 1 where something was found. Each finding is printed as a small C++ program.
USAGE
}

preset=release
program=fuzz
arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --preset=*) preset=${1#*=}; shift ;;
    --training) program=fuzz_training; shift ;;
    -h | --help) usage; exit 0 ;;
    *) arguments+=("$1"); shift ;;
  esac
done

build_preset "$preset" "$program"
exec "build/$preset/tests/$program/$program" "${arguments[@]}"
