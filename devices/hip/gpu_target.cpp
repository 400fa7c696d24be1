// Instruction sets by name: code of one runs on no other, unlike that of NVIDIA's. Figures of plans are
// those of data sheets of an MI300X for CDNA, and of a RX 7900 XTX for RDNA: nothing was measured.
#include "devices/hip/gpu_target.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard::hip {
namespace {

// Instruction sets of LLVM 19 that ROCm has had GPUs of, from Vega on.
constexpr std::array<std::string_view, 25> kKnown{
    "gfx900",  "gfx906",  "gfx908",  "gfx90a",  "gfx940",  "gfx941",  "gfx942",
    "gfx1010", "gfx1011", "gfx1012", "gfx1030", "gfx1031", "gfx1032", "gfx1033",
    "gfx1034", "gfx1035", "gfx1036", "gfx1100", "gfx1101", "gfx1102", "gfx1103",
    "gfx1150", "gfx1151", "gfx1200", "gfx1201"};

struct Family {
  std::string_view begins, generic;
};
constexpr std::array<Family, 3> kFamilies{
    {{"gfx103", "gfx10-3-generic"}, {"gfx11", "gfx11-generic"}, {"gfx120", "gfx12-generic"}}};

std::string processor(std::string_view architecture) {
  if (std::ranges::find(kKnown, architecture) != kKnown.end()) return std::string(architecture);
  for (const Family& family : kFamilies) {
    if (architecture == family.generic || architecture.starts_with(family.begins))
      return std::string(family.generic);
  }
  throw DeviceError(fmt::format("no code is generated for a GPU of architecture {}", architecture));
}

}  // namespace

Target gpu_target(std::string_view architecture) {
  const std::string cpu = processor(architecture);
  // A workgroup processor of RDNA counts as two compute units: 960 GB/s over 96 of them, 5300 over 304.
  const bool cdna = cpu.starts_with("gfx9");
  return {.triple = "amdgcn-amd-amdhsa",
          .cpu = cpu,
          .features = {},
          .vector_bits = 128,
          .division_ulps = 0,
          .shared_bytes = 32 << 10,  // of 64 KiB a compute unit: two blocks fit
          .cache_bytes = cdna ? 32 << 20 : 6 << 20,
          .launch_ns = 5000,
          .multiprocessor_bytes_per_ns = cdna ? 17.0 : 10.0};
}

const DeviceProfile& gpu_profile() {
  // Infinity Fabric of an MI300X: 64 GB/s to each of seven others.
  static constexpr LinkSpeed kFabric{.bytes_per_s = 300e9, .start_s = 6e-6, .step_s = 2e-6};
  static constexpr LinkSpeed kNetwork{.bytes_per_s = 40e9, .start_s = 10e-6, .step_s = 5e-6};
  static constexpr DeviceProfile kProfile{
      .speeds = {.operations_per_s = 80e12,  // of loops: there is no library
                 .memory_bytes_per_s = 4e12,
                 .process = kFabric,
                 .host = kFabric,
                 .network = kNetwork},
      // Fixed, so that sums have the same bits on all of them.
      .split = {.parts = 1024, .columns = 1024},
      .small_products = {.terms = 16,
                         .elements = 1 << 20,
                         .columns = 16,
                         .multiplications = 1 << 24,
                         .few = 1,
                         .matrix = 1 << 14},
      .joins_kernels = true,
      .compiles_code = false,  // Device::prepare has nothing to do
      .spare_bytes = 64 << 20};
  return kProfile;
}

}  // namespace tinyshard::hip
