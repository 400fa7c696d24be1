#!/usr/bin/env bash
# The plans of GPT-2 124M, the MNIST convnet, the quickstart's GPT and a token of a Llama, for an H200 and for this
# machine's CPU, against those of another build. Builds nothing: build the target plan_dump before.
#
#   scripts/compare_plans.sh --write BASE     writes the plans into the folder BASE
#   scripts/compare_plans.sh BASE             compares those of the present build with them; 1 where a plan differs
#   scripts/compare_plans.sh BASE NOW         compares two folders, or two files
#
# PLAN_DUMP names the program; build/release/bench/plan_dump where it is not set.
set -euo pipefail
plan_dump=${PLAN_DUMP:-$(dirname "$0")/../build/release/bench/plan_dump}

usage() {
  sed -n '2,9s/^# \{0,1\}//p' "$0"
  exit "$1"
}

write_plans() {
  local folder=$1 model device
  [[ -x $plan_dump ]] || { echo "compare_plans: $plan_dump is not there: build the target plan_dump" >&2 && exit 2; }
  mkdir -p "$folder"
  for model in gpt2 mnist quickstart decode; do
    for device in h200 cpu; do
      "$plan_dump" --model "$model" --device "$device" --out "$folder/$model-$device.txt"
    done
  done
  # Collectives take part only where there are several devices.
  "$plan_dump" --model gpt2 --device h200 --devices 8 --no-code --out "$folder/gpt2-8xh200.txt"
}

# The lines that match, cut to what a terminal shows.
shown() {
  local file=$1
  shift
  grep "$@" "$file" | cut -c 1-200 || true
}

# Prints whether two plans are equal; the first lines that differ where they are not.
compare() {
  local name=$1 base=$2 now=$3
  if cmp -s "$base" "$now"; then
    echo "$name: equal, $(grep -c '^item' "$now") items"
    return 0
  fi
  echo "$name: differs: $(grep -c '^item' "$base") items before, $(grep -c '^item' "$now" || true) now;" \
    "$(diff "$base" "$now" | grep -c '^[<>]' || true) lines"
  # The items first: a buffer more or less changes many numbers.
  diff -U 0 <(shown "$base" '^item') <(shown "$now" '^item') | tail -n +3 | head -n 24 || true
  diff -U 0 <(shown "$base" -v '^item') <(shown "$now" -v '^item') | tail -n +3 | head -n 24 || true
  return 1
}

case ${1:-} in
--help | -h) usage 0 ;;
--write)
  [[ $# -eq 2 ]] || usage 2
  write_plans "$2"
  exit 0
  ;;
esac
[[ $# -eq 1 || $# -eq 2 ]] || usage 2
base=$1 now=${2:-}
if [[ -f $base ]]; then
  [[ -f $now ]] || usage 2
  compare "$(basename "$base")" "$base" "$now" || exit 1
  exit 0
fi
[[ -d $base ]] || { echo "compare_plans: there is no folder $base" >&2 && exit 2; }
if [[ -z $now ]]; then
  now=$(mktemp -d)
  trap 'rm -rf "$now"' EXIT
  write_plans "$now"
fi
status=0
for file in "$base"/*.txt; do
  name=$(basename "$file" .txt)
  compare "$name" "$file" "$now/$name.txt" || status=1
done
exit "$status"
