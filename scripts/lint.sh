#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy: a short list of checks, each an error) on our sources, in parallel.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOF'
usage: scripts/lint.sh [--changed | --since REF] [FILE...]
  --since REF  only sources that differ from the git revision REF; of a header that does, one source that includes it.
               Files of which only comments behind // and blank lines differ are left out, unless clang-tidy reads
               the comment: NOLINT, TODO or FIXME
  --changed    --since the last commit in common with the main branch or, on that branch, the commit ten before; in a
               shallow clone the oldest there is. All sources when it holds one commit only
  FILE...      only these sources (default: all that the build compiles)
A source that passed is not read again while it and all headers stay as they are (~/.cache/tinyshard/lint remembers).
LINT_JOBS says how many run at a time (default: as many as there are processors). The last line lists the sources with findings.
EOF
}

# What --changed compares with; nothing where that cannot be told.
changed_since() {
  local branch base head
  head=$(git rev-parse --verify --quiet HEAD) || return 0
  for branch in origin/HEAD origin/main main; do
    base=$(git merge-base "$branch" HEAD 2>/dev/null) || continue
    [[ $base == "$head" ]] || { echo "$base"; return; }
  done
  base=$(git rev-list --first-parent --max-count=11 HEAD | tail -n 1)
  [[ $base == "$head" ]] || echo "$base"
}

# The source on stdin as clang-tidy reads it: without blank lines and comments behind //, but for those that it heeds. A comment or
# a blank line stays behind a NOLINTNEXTLINE, which then speaks of nothing. Raw strings stay, and so does whatever may be no
# comment: a quote or the end of another comment follows its slashes.
without_comments() {
  awk '
    function stays(text) { return text ~ /NOLINT|TODO|FIXME|\*\/|\\$/ }
    in_string != "" { print; if (index($0, in_string)) in_string = ""; next }
    is_next { is_next = 0; if ($0 ~ /^[ \t]*(\/\/|$)/) { print; next } }
    /^[ \t]*\/\// { if (stays($0)) { print; is_next = /NOLINTNEXTLINE/ } next }
    match($0, /R"[^ ()]*\(/) {
      in_string = ")" substr($0, RSTART + 2, RLENGTH - 3) "\""
      if (index(substr($0, RSTART + RLENGTH), in_string)) in_string = ""
      print
      next
    }
    match($0, /[ \t]*\/\/[^"]*$/) && !stays(substr($0, RSTART)) { $0 = substr($0, 1, RSTART - 1) }
    { sub(/[ \t]+$/, "") }
    $0 != "" { print }'
}

# Tells whether a file has the code that it had in the revision.
has_code_of() {
  local before
  before=$(git show "$1:$2" 2>/dev/null) && cmp -s <(without_comments <<<"$before") <(without_comments <"$2")
}

since=
while [[ $# -gt 0 ]]; do
  case $1 in
    --since) since=${2:?--since needs a git revision}; shift 2 ;;
    --changed) since=$(changed_since); shift ;;
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

# A source that includes the header, whose own findings it shows: the one of its name, if there is one.
includer() {
  local own=${1%.h}.cpp
  if grep -qxF "$own" <<<"$compiled"; then
    echo "$own"
  else
    grep -lF "\"$1\"" $compiled | head -n 1 || true
  fi
}

if [[ $# -gt 0 ]]; then
  wanted=$(printf '%s\n' "$@" | sed "s|^$PWD/||; s|^\./||")
elif [[ -n $since ]]; then
  changed=$(git diff --name-only --diff-filter=d "$since" -- '*.cpp' '*.h'; git ls-files --others --exclude-standard '*.cpp' '*.h')
  wanted=$(
    while read -r file; do
      [[ -n $file ]] && ! has_code_of "$since" "$file" || continue
      case $file in
        *.cpp) echo "$file" ;;
        *.h) includer "$file" ;;
      esac
    done <<<"$changed"
  )
else
  wanted=$compiled
fi
mapfile -t files < <(comm -12 <(echo "$compiled") <(echo "$wanted" | sort -u))
[[ ${#files[@]} -gt 0 && -n ${files[0]} ]] || { echo "lint: no sources to check"; exit 0; }

# Where a name stands for each source that passed: of its text, of all headers and of how it is compiled and checked.
export passed=${XDG_CACHE_HOME:-$HOME/.cache}/tinyshard/lint around
mkdir -p "$passed"
find "$passed" -type f -mtime +30 -delete
around=$({ "$tidy" --version; cat .clang-tidy; sed "s|$PWD||g" build/tidy/compile_commands.json
  find . -path ./build -prune -o \( -name '*.h' -o -name '*.inc' \) -print0 | sort -z | xargs -0 cat; } | sha256sum)

# Checks one source: its findings go to stdout in one piece, so that those of two sources do not mix, and its name to the list. The
# counts of warnings that were suppressed ("12 warnings generated.") are dropped. GCC knows warnings
# and options that clang does not.
export tidy found=build/tidy/found.txt
check() {
  local text status=0 name
  name=$passed/$({ echo "$around $1"; cat "$1"; } | sha256sum | cut -d ' ' -f 1)
  [[ ! -e $name ]] || return 0
  text=$("$tidy" --quiet --extra-arg=-Wno-deprecated-declarations --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Wno-unused-command-line-argument -p build/tidy "$1" 2>&1) || status=$?
  [[ $status -ne 0 ]] || { : >"$name"; return 0; }
  grep -vE '^[0-9]+ (warnings?|errors?)( and [0-9]+ errors?)? generated\.$|^Suppressed [0-9]+ warnings|^[0-9]+ warnings? treated as errors?$' <<<"$text" || echo "$1: $tidy ended with status $status"
  echo "$1" >>"$found"
}
export -f check

[[ -z $since ]] || echo "lint: ${#files[@]} sources, for what changed since $(git log -1 --format='%h (%as)' "$since")"
start=$SECONDS
: >"$found"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "${LINT_JOBS:-$(nproc)}" bash -c 'check "$1"' check
if [[ -s $found ]]; then
  echo "lint: findings in $(sort "$found" | paste -sd ' ') ($((SECONDS - start)) s)" >&2
  exit 1
fi
echo "lint: ${#files[@]} sources, nothing to say, $((SECONDS - start)) s"
