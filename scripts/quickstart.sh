#!/usr/bin/env bash
# From a fresh machine to a trained model: installs what is missing, builds, and trains a small GPT on two ranks.
# Arguments go to the program, e.g. scripts/quickstart.sh --corpus my_notes/ --steps 500
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
. scripts/common.sh

ranks=${RANKS:-2}
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  cat <<'EOF'
usage: [RANKS=n] scripts/quickstart.sh [arguments of train_gpt...]
  installs the missing Debian packages, builds preset release, and runs
    mpirun -n 2 build/release/examples/train_gpt [arguments...]
EOF
  [[ ! -x build/release/examples/train_gpt ]] || { echo; build/release/examples/train_gpt --help; }
  exit 0
fi

scripts/setup.sh
build_preset release train_gpt tinyshard_cli

echo
mpirun_flags "$ranks"
program=$PWD/build/release/examples/train_gpt
# Paths in the arguments mean what they meant where the script was called.
cd "$caller"
program=$(realpath --relative-to=. "$program")
[[ $program == */* ]] || program=./$program
command=(mpirun "${MPIRUN_FLAGS[@]}" -n "$ranks" "$program")
echo "\$ ${command[*]}$([[ $# -eq 0 ]] || printf ' %q' "$@")"
echo
# The program ends with the command to go on with, these flags included.
exec "${command[@]}" "$@" </dev/null
