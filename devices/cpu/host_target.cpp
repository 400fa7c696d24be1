// This machine as a target of LLVM. Needs LLVM's host detection only: no target is initialised.
#include <algorithm>
#include <vector>

#include <llvm/ADT/StringMap.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/TargetParser/Triple.h>

#include "devices/cpu/program.h"

namespace tinyshard {

const Target& host_target() {
  static const Target& target = []() -> const Target& {  // outlives every static tensor
    Target& t = *new Target;
    t.triple = llvm::sys::getProcessTriple();
    t.cpu = llvm::sys::getHostCPUName().str();
    std::vector<std::string> features;
    for (auto& feature : llvm::sys::getHostCPUFeatures()) {
      // Kernels compute 16-bit floats in f32, so this one gains nothing, and LLVM 19 fails on casts
      // between its numbers and masks.
      const bool used = feature.second && feature.first() != "avx512fp16";
      features.push_back((used ? "+" : "-") + feature.first().str());
    }
    std::sort(features.begin(), features.end());  // part of cache keys: the order must not vary
    auto has = [&](const char* name) {
      return std::ranges::find(features, name) != features.end();
    };
    for (const std::string& feature : features)
      t.features += (t.features.empty() ? "" : ",") + feature;
    t.vector_bits = has("+avx512f") && has("+avx512vl") ? 512 : has("+avx2") ? 256 : 128;
    return t;
  }();
  return target;
}

// The libraries' products of one row by a matrix that lies along the sums read it at a third of the
// rate that loops reach, those of 16-bit floats in any order at a quarter. From three rows on they
// may be faster (decode_bench --product 3,768,2048).
const DeviceProfile& host_profile() {
  // For a core or two per device. All-reduces of a process run at 8 GB/s, between ranks of a
  // host at 2.5 (gpu_all_reduce_bench, all_reduce_bench); other hosts are behind a card of 10 Gbit/s.
  static constexpr DeviceProfile kProfile{
      .speeds = {.operations_per_s = 50e9,
                 .memory_bytes_per_s = 10e9,
                 .process = {.bytes_per_s = 8e9, .start_s = 2e-6, .step_s = 0.2e-6},
                 .host = {.bytes_per_s = 2.5e9, .start_s = 3e-6, .step_s = 0.5e-6},
                 .network = {.bytes_per_s = 1.2e9, .start_s = 30e-6, .step_s = 15e-6}},
      .small_products = {.few = 2, .matrix = 1 << 14}};
  return kProfile;
}

}  // namespace tinyshard
