// Compute capabilities in order: a GPU runs code for the newest one that is not newer than itself. What
// plans are made by are figures measured on an H200, for all GPUs.
#include "devices/cuda/gpu_target.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard::cuda {
namespace {

constexpr std::array kKnown{60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90};  // to LLVM 19

// LLVM's version of PTX: one that every driver for the architecture reads.
const char* ptx_version(int driver) {
  return driver >= 12030 ? "+ptx83" : driver >= 12000 ? "+ptx80" : "+ptx78";
}

}  // namespace

Target gpu_target(int major, int minor, int driver) {
  const int capability = 10 * major + minor;
  const auto* newer = std::ranges::upper_bound(kKnown, capability);
  if (newer == kKnown.begin()) {
    throw DeviceError(
        fmt::format("a GPU of compute capability {}.{} is too old: 6.0 is needed", major, minor));
  }
  const int known = *(newer - 1);
  // Instructions of Hopper alone need "sm_90a", which no other GPU runs.
  const bool hopper = capability == 90;
  return {.triple = "nvptx64-nvidia-cuda",
          .cpu = fmt::format("sm_{}{}", known, hopper ? "a" : ""),
          .features = ptx_version(driver),
          .vector_bits = 128,
          .division_ulps = 2,
          .cache_bytes = 20 << 20,
          .launch_ns = 2000,
          .multiprocessor_bytes_per_ns = 30};
}

bool is_hopper(const Target& target) { return target.cpu == "sm_90a"; }
bool has_clusters(const Target& target) { return target.cpu.starts_with("sm_9"); }

const DeviceProfile& gpu_profile() {
  // NVLink of an H200 (docs/benchmarks.md): 356 GB/s, 6.3 us for the two steps of an all-reduce of 4 KB
  // over two GPUs, 10.4 us for the six over four. Other hosts by a network card of 400 Gbit/s a GPU.
  static constexpr LinkSpeed kNvlink{.bytes_per_s = 350e9, .start_s = 4e-6, .step_s = 1e-6};
  static constexpr LinkSpeed kNetwork{.bytes_per_s = 40e9, .start_s = 10e-6, .step_s = 5e-6};
  static constexpr DeviceProfile kProfile{
      .speeds = {.operations_per_s = 400e12,  // of 16-bit floats
                 .memory_bytes_per_s = 4e12,
                 .process = kNvlink,
                 .host = kNvlink,
                 .network = kNetwork},
      // Blocks for every multiprocessor of the largest GPUs; fixed, so that sums have the same bits
      // on all of them.
      .split = {.parts = 1024, .columns = 1024},
      // As much as takes some microseconds without tensor cores. One row by a matrix is what a decoded
      // token asks for: with loops a token takes 83 to 92 % of the time (docs/benchmarks.md), for they
      // read as fast, and what stands before and behind a product is a part of them.
      .small_products = {.terms = 16,
                         .elements = 1 << 20,
                         .columns = 16,
                         .multiplications = 1 << 24,
                         .few = 1,
                         .matrix = 1 << 14},
      // 132 multiprocessors with 128 multiplications and additions of f32 in a clock of 1.98 GHz.
      .most_loop_operations_per_s = 67e12,
      .joins_kernels = true,
      .copies_operands = true,
      .compiles_code = true,
      // Small steps gain from running items side by side; large ones fill the GPU with each.
      .spare_bytes = 64 << 20};
  return kProfile;
}

}  // namespace tinyshard::cuda
