// The description asks the runtime only for facts that need no memory of a GPU. A GPU that no code is
// generated for is described as the others are, with that reason.
#include "devices/hip/hip_device.h"

#include <array>

#include <fmt/format.h>

#include "core/base/error.h"
#include "devices/gpu/gpu.h"
#include "devices/hip/driver.h"
#include "devices/hip/gpu_target.h"
#include "devices/hip/vendor.h"

namespace tinyshard {
namespace {

using gpu::DeviceId;
using hip::HipDriver;

std::string describe_gpu(const HipDriver& driver, int index) {
  DeviceId id = 0;
  std::array<char, 128> name{};
  size_t memory = 0;
  int units = 0;
  driver.device_get(&id, index);
  driver.device_name(name.data(), int(name.size()), id);
  driver.device_total_memory(&memory, id);
  driver.device_attribute(&units, driver.maker().multiprocessors, id);
  const std::string architecture = driver.architecture(id);
  std::string text = fmt::format("HIP:{} {}, {}, {} compute units, {:.1f} GiB", index, name.data(),
                                 architecture, units, double(memory) / (1 << 30));
  try {
    hip::gpu_target(architecture);
  } catch (const DeviceError& error) {
    text += fmt::format(" ({})", error.what());
  }
  std::string peers;
  for (int j = 0; j < driver.devices(); ++j) {
    DeviceId other = 0;
    int can = 0;
    driver.device_get(&other, j);
    if (j == index || driver.device_can_access_peer(&can, id, other) != gpu::kSuccess || !can)
      continue;
    peers += fmt::format("{}HIP:{}", peers.empty() ? "" : ", ", j);
  }
  if (driver.devices() == 1) return text;
  return text +
         (peers.empty() ? ", no direct way to the others" : ", reaches " + peers + " directly");
}

}  // namespace

int count_hip_devices() { return HipDriver::get().devices(); }

std::unique_ptr<Device> make_hip_device(int index) {
  return std::make_unique<gpu::Gpu>(hip::vendor(), index);
}

std::string describe_hip() {
  const HipDriver& driver = HipDriver::get();
  if (driver.path().empty()) return "no HIP runtime: " + driver.why_not();
  if (driver.devices() == 0) return driver.why_not();
  std::string text = fmt::format("HIP {}, {}", driver.version_text(), driver.path());
  for (int i = 0; i < driver.devices(); ++i) text += "\n    " + describe_gpu(driver, i);
  return text;
}

}  // namespace tinyshard
