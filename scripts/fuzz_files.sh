#!/usr/bin/env bash
# Lets libFuzzer look for files that make a reader crash, hang, misbehave or take too much memory; see docs/files.md.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

targets=(safetensors index torch gguf npy npz tokenizer chat_template manifest manifest_signed)
usage() {
  cat <<USAGE
usage: scripts/fuzz_files.sh [--minutes N] [--seeds DIR] [TARGET...] [-- libFuzzer arguments...]
  --minutes N   for each target (default: 1)
  --seeds DIR   files to begin with (default: golden/files of the test data, where it is)
  TARGET        all of: ${targets[*]}
Under AddressSanitizer and UndefinedBehaviorSanitizer; a reader may hold at most twice the file and 1 MiB. What
it learns stays in build/fuzz-files/corpus/TARGET. The first finding of a target ends with status 1, and its file is named.
USAGE
}

minutes=1 seeds='' chosen=() more=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --minutes) minutes=${2:?--minutes needs a number}; shift 2 ;;
    --seeds) seeds=${2:?--seeds needs a folder}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    --) shift; more=("$@"); break ;;
    -*) echo "fuzz_files: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
    *) chosen+=("$1"); shift ;;
  esac
done
[[ ${#chosen[@]} -gt 0 ]] || chosen=("${targets[@]}")
if [[ -z $seeds ]]; then
  for folder in golden shared/golden ../shared/golden; do
    [[ ! -d $folder/files ]] || seeds=$folder/files
  done
fi

scripts/setup.sh --fuzz
build_preset fuzz-files "${chosen[@]/#/fuzz_files_}"
status=0
for target in "${chosen[@]}"; do
  corpus=build/fuzz-files/corpus/$target
  mkdir -p "$corpus" "build/fuzz-files/found"
  case $target in
    torch) pattern='*.pth' ;;
    npz) pattern='*.pth' ;; # zip archives
    *) pattern="*.$target" ;;
  esac
  if [[ -n $seeds ]]; then
    find "$seeds" -name "$pattern" -size -65k -exec cp -n {} "$corpus" \;
  fi
  echo "fuzz_files: $target, $minutes minutes"
  "build/fuzz-files/fuzz_files_$target" -max_total_time="$((minutes * 60))" -timeout=5 -rss_limit_mb=2048 -max_len=65536 \
    -print_final_stats=0 -verbosity=0 -artifact_prefix="build/fuzz-files/found/$target-" "${more[@]}" "$corpus" || status=1
done
[[ $status == 0 ]] && echo "fuzz_files: nothing found"
exit $status
