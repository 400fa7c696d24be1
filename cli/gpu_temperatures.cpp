// The driver of NVIDIA's GPUs tells temperatures in a library (NVML) that comes with it, not in files. It is
// opened once, and asked without a context on any GPU: a look disturbs no job.
#include "cli/gpu_temperatures.h"

#include <array>

#include <fmt/format.h>

#include "core/runtime/vendor_library.h"

namespace tinyshard::cli {
namespace {

using NvmlDevice = struct NvmlDeviceTag*;
constexpr int kGood = 0;
constexpr int kCore = 0;  // the sensor on the chip

struct Nvml : VendorLibrary {
  explicit Nvml(const std::string& file) : VendorLibrary("", {file}) {
    resolve(init, "nvmlInit_v2");
    resolve(count, "nvmlDeviceGetCount_v2");
    resolve(device, "nvmlDeviceGetHandleByIndex_v2");
    resolve(temperature, "nvmlDeviceGetTemperature");
    if (found() && init() != kGood) refuse("nvmlInit_v2 failed");
  }
  int (*init)() = nullptr;
  int (*count)(unsigned* count) = nullptr;
  int (*device)(unsigned index, NvmlDevice* device) = nullptr;
  int (*temperature)(NvmlDevice device, int sensor, unsigned* celsius) = nullptr;
};

}  // namespace

std::vector<Temperature> gpu_temperatures(const std::string& library) {
  static const Nvml& nvml = *new Nvml(library);  // its threads live as long as the process
  std::vector<Temperature> found;
  unsigned count = 0;
  if (!nvml.found() || nvml.count(&count) != kGood) return found;
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    unsigned celsius = 0;
    if (nvml.device(i, &device) == kGood && nvml.temperature(device, kCore, &celsius) == kGood)
      found.push_back({fmt::format("GPU {}", i), double(celsius)});
  }
  return found;
}

}  // namespace tinyshard::cli
