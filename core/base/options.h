// Every environment variable that the library reads, in one place, read once at first use.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tinyshard {

// TS_CHECK: checks that cost much. A new one is a row of for_each_check, too.
struct Checks {
  bool costs = false;     // remembered costs of ways to divide an op against those found anew
  bool memory = false;    // each access of a generated kernel against its buffer
  bool replicas = false;  // what several devices hold of what a run wrote against each other
  bool values = false;    // the results of each generated kernel against an interpreter
  bool operator==(const Checks&) const = default;
};

struct Options {
  // DEBUG: 1 times and counts, 2 reshards and kernels, 3 graphs after passes, 4 kernel IR, 5 LLVM
  // IR, 6 assembly.
  int debug = 0;
  // SPEC: 1 verifies graphs at the entry and exit of the pipeline, 2 after every pass, and that no
  // item of a schedule reads memory after another one wrote it.
  int spec = 0;
  // JIT: 0 calls the function of a Jit each time, 2 replays a captured step item by item (jit_mode.h).
  int jit = 1;
  // NOOPT: makes plans as the program is written, without libraries, BEAM, and the passes and steps
  // that only make plans faster. Slow, with the same values.
  bool no_opt = false;
  // DEFAULT_FLOAT: a name of a type, of tinygrad or of ours; empty: f32.
  std::string default_float;
  // TS_LIBRARIES: 0 keeps every product and convolution in generated kernels.
  bool libraries = true;
  // TS_THREADS: threads of the CPU device, 0 = cores of this process / local ranks.
  int threads = 0;
  // TS_CACHE: 0 keeps compiled kernels in memory only.
  bool cache = true;
  // TS_CACHE_DIR: default $XDG_CACHE_HOME/tinyshard or ~/.cache/tinyshard.
  std::string cache_dir;
  // TS_CACHE_BYTES: what that folder may hold; 0 = no limit.
  int64_t cache_bytes = 1 << 30;
  // TS_KERNEL_BYTES: what compiled kernels, and the programs that devices loaded of them, may each take in
  // memory; 0 = no limit.
  int64_t kernel_bytes = 128 << 20;
  // TS_CHECK: comma separated names of checks.
  Checks check;
  // TS_TIMEOUT: deadline of one collective, in seconds; or inf.
  double timeout_s = 300;
  // TS_DISABLE_PASSES: comma separated names from core/passes/passes.cpp and
  // core/schedule/steps.cpp.
  std::string disabled_passes;
  // TS_DEVICES: default devices of this process, such as CPU:0,CPU:1.
  std::string devices;
  // TS_DEVICES_PER_RANK: where the program does not say; 0: as it does.
  int devices_per_rank = 0;
  // TS_HOSTS: among which the ranks are shared out evenly, in order; 0: as if all were one.
  int hosts = 0;
  // TS_CUDA_PATH: folders with CUDA's libraries, separated by ':'.
  std::string cuda_path;
  // TS_HIP_PATH: folders with ROCm's libraries, separated by ':'.
  std::string hip_path;
  // TS_TRANSPORT: a name of the table in transport/world.cpp; empty: mpi where mpirun or PMIx
  // started us, else tcp.
  std::string transport;
  // TS_RECORD: folder for the ring of each rank; empty: none.
  std::string record;
  // TS_TRACE: file of events for trace viewers; empty: none.
  std::string trace;
  // VIZ: file of what the engine did, for `tinyshard view`; 1: named after the program; 2: the same with
  // the code of kernels, which are compiled again for it; empty: none.
  std::string viz;
  // TS_TF32: 1 lets f32 products on CUDA round their operands to 10 bits.
  bool tf32 = false;
  // TS_SHUFFLE: not 0 runs the items of each run in a random order of those that they allow, drawn
  // from this number.
  int shuffle = 0;
  // TS_SERIAL: 1 runs what a captured step does on a GPU in one chain, nothing side by side.
  bool serial = false;
  // BEAM: candidates for a kernel, or on a GPU a library's product, that are timed before one is
  // chosen, and so are the library and loops for a product or a convolution; 0 takes what planner
  // and library advise.
  int beam = 0;
  // TS_BUCKET_BYTES: gradients are all-reduced in buckets of this size.
  int64_t bucket_bytes = 100 << 20;
  // TS_COMPOSITES: spell has ops that have a name, as a GELU, become smaller ops before all else, keep
  // leaves them whole until libraries were asked; empty: those stay that a library may take.
  std::string composites;
  bool operator==(const Options&) const = default;
};

// The options of this process, with those of the scopes that are open (option_scope.h). Throws UserError
// naming the variable when a value does not parse. What is returned stays as it is.
const Options& options();

// A row of `tinyshard env`: what the variable means, its value now, and whether it was set.
struct OptionRow {
  std::string variable, value, meaning;
  bool from_environment = false;
};
std::vector<OptionRow> option_rows();

// For tests: reads the environment again.
void reload_options();

}  // namespace tinyshard
