#!/usr/bin/env bash
# Builds the simulator and runs jobs on its virtual clock until a promise is broken; see docs/notes/search.md.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
  cat <<'USAGE'
usage: scripts/simulate.sh [--preset NAME] [--runs N] [--seed S] [simulator arguments...]
  --preset NAME  release (default), dev or asan-ubsan: see CMakePresets.json
  --runs N       so many jobs (default: 10000), of consecutive seeds
  --seed S       the first of them (default: drawn, and printed)
everything else goes to the program, whose --help lists it:
  scripts/simulate.sh --runs 1000000 --jobs 2
One job again, with what happened in it: build/release/tests/simulator/simulator --seed S
Ends with status 1 where a promise was broken.
USAGE
}

preset=release
runs=10000
seed=$((RANDOM * 32768 * 32768 + RANDOM * 32768 + RANDOM))
arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --preset=*) preset=${1#*=}; shift ;;
    --runs) runs=${2:?--runs needs a number}; shift 2 ;;
    --runs=*) runs=${1#*=}; shift ;;
    --seed) seed=${2:?--seed needs a number}; shift 2 ;;
    --seed=*) seed=${1#*=}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) arguments+=("$1"); shift ;;
  esac
done

build_preset "$preset" simulator
echo "seed $seed"
exec "build/$preset/tests/simulator/simulator" --seed "$seed" --runs "$runs" "${arguments[@]}"
