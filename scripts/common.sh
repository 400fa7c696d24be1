# Shared by the scripts beside it (sourced, from the repository root): building a preset quietly, running mpirun.

# build_preset <preset> [target...]: configures, with configure_flags beside the preset's own, and builds with one progress
# line; the log is shown when it fails.
configure_flags=()
build_preset() {
  local preset=$1
  shift
  local log=build/$preset/build.log start=$SECONDS targets=()
  [[ $# -eq 0 ]] || targets=(--target "$@")
  mkdir -p "build/$preset"
  echo "build: configuring preset $preset (log: $log)"
  if ! cmake --preset "$preset" "${configure_flags[@]}" >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    return 1
  fi
  # ninja's own status line is parsed, not shown: on a terminal the line is rewritten, elsewhere it appears each 10 %.
  if ! NINJA_STATUS='[%f/%t] ' cmake --build --preset "$preset" "${targets[@]}" </dev/null 2>&1 | tee -a "$log" |
    build_progress; then
    echo "build: failed; what the compiler said:" >&2
    grep -nE -A 12 'error:|Error at|FAILED:|undefined|against the arrows' "$log" | tail -n 60 >&2 ||
      tail -n 40 "$log" >&2
    return 1
  fi
  echo "build: preset $preset is up to date after $((SECONDS - start)) s"
}

build_progress() {
  local line done total percent last=-1
  while IFS= read -r line; do
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    done=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
    percent=$((total > 0 ? 100 * done / total : 100))
    if [[ -t 1 ]]; then
      printf '\rbuild: %3d %%  (%d of %d steps) ' "$percent" "$done" "$total"
    elif ((total > 4 && percent / 10 > last)); then
      last=$((percent / 10))
      echo "build: $percent % ($done of $total steps)"
    fi
  done
  [[ ! -t 1 || -z ${total:-} ]] || echo
}

# mpirun_flags <ranks>: fills the array MPIRUN_FLAGS with what mpirun needs on this machine and says why.
mpirun_flags() {
  local ranks=$1
  MPIRUN_FLAGS=()
  if [[ $(id -u) == 0 ]]; then
    MPIRUN_FLAGS+=(--allow-run-as-root)
    echo "mpirun: --allow-run-as-root, because this shell is root and mpirun refuses root otherwise"
  fi
  if ((ranks > $(physical_cores))); then
    MPIRUN_FLAGS+=(--oversubscribe)
    echo "mpirun: --oversubscribe, because $ranks ranks are more than the $(physical_cores) cores here"
  fi
  # Left alone, mpirun binds each of two ranks to one core and each of more ranks to a socket, whatever runs beside it.
  MPIRUN_FLAGS+=(--bind-to none)
  echo "mpirun: --bind-to none, because tinyshard divides the cores among the ranks itself"
  if [[ -e /.dockerenv || -e /run/.containerenv ]]; then
    MPIRUN_FLAGS+=(--mca btl_vader_single_copy_mechanism none)
    echo "mpirun: --mca btl_vader_single_copy_mechanism none, because containers forbid reading another process"
  fi
}

# mpirun counts one slot a physical core (not one a hardware thread) among those this shell may run on.
physical_cores() {
  local cores allowed
  allowed=$(nproc)
  cores=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l)
  echo $((cores > 0 && cores < allowed ? cores : allowed))
}
