#!/usr/bin/env bash
# Installs the Debian packages that tinyshard needs, says which and why, and does nothing when none is missing.
# The other scripts call it first; it is written for Debian 12 and runs as root or with sudo.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: scripts/setup.sh [--lint] [--fuzz] [--slurm] [--browser] [--list]
  installs what is missing to build, run and test tinyshard
  --lint   also the formatter and the linter (scripts/format.sh, scripts/lint.sh)
  --fuzz   also the compiler with libFuzzer (scripts/fuzz_files.sh)
  --slurm  also Slurm, for its test (scripts/slurm.py)
  --browser  also Chromium, for the test of the page of tinyshard view (100 MB)
  --list   only prints the packages, what each is for and whether it is here
EOF
}

# package | what it is for
build_packages='
g++|C++20 compiler
cmake|build system
ninja-build|runs the build
pkg-config|finds hwloc, Oniguruma and utf8proc
python3-minimal|include check in the build
ccache|makes the second build quick
mold|links LLVM in under a second
llvm-19-dev|turns kernels into machine code (linked statically)
lld-19|links code objects for AMD GPUs in tests
zlib1g-dev|used by LLVM and by the readers of compressed files
libzstd-dev|used by LLVM
libdnnl-dev|oneDNN: matrix products and convolutions on the CPU
libopenmpi-dev|communication between processes
openmpi-bin|mpirun
iproute2|hosts made of network namespaces (scripts/cluster.py)
libonig-dev|regular expressions of tokenizers
libutf8proc-dev|normal forms of Unicode, for tokenizers
libhwloc-dev|cores, caches and memory of the machine
libboost-dev|Boost.Asio: sockets between processes
libssl-dev|libcrypto: proofs that a process belongs to the job; libssl: TLS between its ranks
libfmt-dev|text formatting
nlohmann-json3-dev|JSON: checkpoints and logs
libcli11-dev|command lines
libgtest-dev|tests
libbenchmark-dev|benchmarks
'
lint_packages='
clang-format-19|formatter, this version exactly
clang-tidy-19|linter, this version exactly
'
fuzz_packages='
clang-19|compiler with libFuzzer
libclang-rt-19-dev|its sanitizers
libfuzzer-19-dev|libFuzzer
'
slurm_packages='
slurmctld|Slurm: the controller of a cluster
slurmd|Slurm: the daemon of a node
slurm-client|Slurm: srun, sbatch, sinfo
'

browser_packages='
chromium|opens the page of tinyshard view in its test
'

wanted=$build_packages
list=0
for argument in "$@"; do
  case $argument in
    --lint) wanted+=$lint_packages ;;
    --fuzz) wanted+=$fuzz_packages ;;
    --slurm) wanted+=$slurm_packages ;;
    --browser) wanted+=$browser_packages ;;
    --list) list=1 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "setup: unknown argument '$argument'" >&2; usage >&2; exit 2 ;;
  esac
done

installed() {
  # One query for all names: a complete set costs some 20 ms.
  dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p' | sort -u
}

if ! command -v dpkg-query >/dev/null; then
  echo "setup: this is no Debian system; packages are left to you. Needed (Debian names):"
  awk -F'|' 'NF == 2 { printf "  %-20s %s\n", $1, $2 }' <<<"$wanted"
  exit 0
fi

mapfile -t names < <(awk -F'|' 'NF == 2 { print $1 }' <<<"$wanted")
present=$(installed "${names[@]}" || true)
missing=()
while IFS='|' read -r name purpose; do
  [[ -n $name ]] || continue
  if grep -qxF "$name" <<<"$present"; then
    [[ $list == 0 ]] || printf '  %-20s %-9s %s\n' "$name" here "$purpose"
    continue
  fi
  missing+=("$name")
  if [[ $list == 1 ]]; then
    printf '  %-20s %-9s %s\n' "$name" missing "$purpose"
  else
    [[ ${#missing[@]} -gt 1 ]] || echo "setup: these Debian packages are missing and will be installed:"
    printf '  %-20s %s\n' "$name" "$purpose"
  fi
done <<<"$wanted"

[[ $list == 0 && ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) != 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: not root and no sudo here. Run this as root, then try again:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

log=$(mktemp "${TMPDIR:-/tmp}/tinyshard-setup.XXXXXX")
# stdin is closed: under a job that has none, nothing may wait for an answer.
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 \
    -o Acquire::Retries=3 "$@" >>"$log" 2>&1 </dev/null
}
try_install() { apt install -y --no-install-recommends "${missing[@]}"; }

start=$SECONDS
# The package lists are fetched only when those here do not do: absent (a fresh image) or too old.
lists_known() { apt-cache show "${missing[@]}" >/dev/null 2>&1; }
if ! lists_known || ! try_install; then
  echo "setup: fetching the package lists (apt-get update)"
  if ! apt update || ! try_install; then
    echo "setup: apt-get failed; the end of its output:" >&2
    tail -n 20 "$log" >&2
    echo "setup: the whole of it is in $log" >&2
    exit 1
  fi
fi
rm -f "$log"
echo "setup: ${#missing[@]} packages installed in $((SECONDS - start)) s"
