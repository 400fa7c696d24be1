#!/usr/bin/env bash
# Installs what is missing, builds, runs the test suite, and ends with its summary line.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
  cat <<'EOF'
usage: scripts/test.sh [--preset NAME] [--target NAME] [--jobs N] [--werror] [ctest arguments...]
  --preset NAME  release (default), dev, asan-ubsan or tsan: see CMakePresets.json
  --target NAME  build this only (threads_tests: the tests with the label threads), and what it needs
  --jobs N       tests at a time (default: the number of cores)
  --werror       a warning of the compiler is an error, as it is in all presets but release
Everything else goes to ctest, e.g.
  scripts/test.sh -L mpi            only tests with the label mpi (others: slow, gpu, install, threads, values, plans)
  scripts/test.sh -R conformance    only tests whose name matches
EOF
}

preset=release
targets=()
jobs=$(nproc)
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --preset=*) preset=${1#*=}; shift ;;
    --target) targets+=("${2:?--target needs a name}"); shift 2 ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
    --werror) configure_flags+=(-DTINYSHARD_WERROR=ON); shift ;;
    -h | --help) usage; exit 0 ;;
    *) break ;;
  esac
done

scripts/setup.sh
build_preset "$preset" "${targets[@]}"

results=build/$preset/test-results.txt
status=0
ctest --preset "$preset" --output-on-failure -j "$jobs" "$@" </dev/null 2>&1 | tee "$results" || status=$?
summary=$(grep -E '^[0-9]+% tests passed' "$results" | tail -n 1 || true)
seconds=$(sed -n 's/^Total Test time (real) = *//p' "$results" | tail -n 1)
echo
echo "${summary:-no test ran} (preset $preset, ${seconds:-0 sec})"
exit "$status"
