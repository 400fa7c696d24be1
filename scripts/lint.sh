#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy: a short list of checks, each an error) on our sources, in parallel.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOF'
usage: scripts/lint.sh [--since REF] [FILE...]
  --since REF  only sources that differ from the git revision REF, and those that include a header that does
  FILE...      only these sources (default: all that the build compiles)
EOF
}

since=
while [[ $# -gt 0 ]]; do
  case $1 in
    --since) since=${2:?--since needs a git revision}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) break ;;
  esac
done

tidy=${CLANG_TIDY:-clang-tidy-19}
command -v "$tidy" >/dev/null || { echo "lint: $tidy is not here; scripts/setup.sh --lint installs it" >&2; exit 1; }

log=build/tidy/configure.log
mkdir -p build/tidy
cmake --preset tidy >"$log" 2>&1 </dev/null || { tail -n 30 "$log" >&2; exit 1; }

# A header that the build generates; what it says does not matter here.
cmake -DFILES= -DVERSION=lint -DOUT=build/tidy/core/codegen/codegen_fingerprint.h -P core/codegen/fingerprint.cmake

# The sources of the compilation database, as paths from the root.
compiled=$(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' build/tidy/compile_commands.json | sed "s|^$PWD/||" |
  grep -v '^/\|^build/' | sort -u)

if [[ $# -gt 0 ]]; then
  wanted=$(printf '%s\n' "$@" | sed "s|^$PWD/||; s|^\./||")
elif [[ -n $since ]]; then
  changed=$(git diff --name-only --diff-filter=d "$since" -- '*.cpp' '*.h'; git ls-files --others --exclude-standard '*.cpp' '*.h')
  wanted=$(
    while read -r file; do
      case $file in
        *.cpp) echo "$file" ;;
        *.h) grep -rlF --include='*.cpp' "\"$file\"" $(ls -d */ | grep -v '^build/') || true ;;
      esac
    done <<<"$changed"
  )
else
  wanted=$compiled
fi
mapfile -t files < <(comm -12 <(echo "$compiled") <(echo "$wanted" | sort -u))
[[ ${#files[@]} -gt 0 && -n ${files[0]} ]] || { echo "lint: no sources to check"; exit 0; }

start=$SECONDS
# GCC knows warnings that clang does not. Only findings are printed; the count of suppressed warnings in system headers goes to stderr and is dropped.
if ! printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" "$tidy" --quiet --extra-arg=-Wno-deprecated-declarations --extra-arg=-Wno-unknown-warning-option -p build/tidy 2>build/tidy/lint.err; then
  grep -E 'error' build/tidy/lint.err >&2 || true
  echo "lint: findings above, in $((SECONDS - start)) s" >&2
  exit 1
fi
echo "lint: ${#files[@]} sources, nothing to say, $((SECONDS - start)) s"
