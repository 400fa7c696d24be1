#!/usr/bin/env bash
# Formats our C++ files with the pinned formatter; --check changes nothing and fails when a file would change.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(-i)
case ${1:-} in
  "") ;;
  --check) mode=(--dry-run --Werror) ;;
  *) echo "usage: scripts/format.sh [--check]"; [[ ${1:-} == --help || ${1:-} == -h ]] && exit 0 || exit 2 ;;
esac

formatter=${CLANG_FORMAT:-clang-format-19}
if ! command -v "$formatter" >/dev/null; then
  echo "format: $formatter is not here; scripts/setup.sh --lint installs it" >&2
  exit 1
fi
if ! "$formatter" --version | grep -q 'version 19\.'; then
  echo "format: the formatter is pinned to version 19; this is: $("$formatter" --version)" >&2
  exit 1
fi

# Tracked files and new ones that git does not ignore; without git (an unpacked archive), all of them.
if git rev-parse --git-dir >/dev/null 2>&1; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cpp' | sort -u)
else
  mapfile -t files < <(find . -path ./build -prune -o \( -name '*.h' -o -name '*.cpp' \) -print | sort)
fi
existing=()
for file in "${files[@]}"; do [[ -f $file ]] && existing+=("$file"); done
[[ ${#existing[@]} -gt 0 ]] || { echo "format: no files"; exit 0; }

if ! printf '%s\0' "${existing[@]}" | xargs -0 -n 16 -P "$(nproc)" "$formatter" "${mode[@]}"; then
  echo "format: files differ from .clang-format; scripts/format.sh puts them right" >&2
  exit 1
fi
echo "format: ${#existing[@]} files"
