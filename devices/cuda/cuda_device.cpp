// The description asks the driver only for facts that need no
// context, so `tinyshard devices` takes no memory of a GPU.
#include "devices/cuda/cuda_device.h"

#include <array>

#include <fmt/format.h>

#include "devices/cuda/driver.h"
#include "devices/cuda/executor.h"
#include "devices/cuda/vendor.h"

namespace tinyshard {

int count_cuda_devices() { return cuda::CudaDriver::get().devices(); }

std::unique_ptr<Device> make_cuda_device(int index) {
  return std::make_unique<gpu::Gpu>(cuda::vendor(), index);
}

std::string describe_cuda() {
  const cuda::CudaDriver& driver = cuda::CudaDriver::get();
  const gpu::Driver::Maker& maker = driver.maker();
  if (driver.path().empty()) return "no CUDA driver: " + driver.why_not();
  if (driver.devices() == 0) return driver.why_not();
  std::string text =
      fmt::format("driver for CUDA {}.{}", driver.version() / 1000, driver.version() % 1000 / 10);
  for (int i = 0; i < driver.devices(); ++i) {
    cuda::DeviceId id = 0;
    std::array<char, 128> name{};
    size_t memory = 0;
    driver.device_get(&id, i);
    driver.device_name(name.data(), int(name.size()), id);
    driver.device_total_memory(&memory, id);
    auto attribute = [&](int which) {
      int value = 0;
      driver.device_attribute(&value, which, id);
      return value;
    };
    const auto [major, minor] = driver.capability(id);
    text += fmt::format(
        "\n    CUDA:{} {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB", i,
        name.data(), major, minor, attribute(maker.multiprocessors), double(memory) / (1 << 30));
    std::string peers;
    for (int j = 0; j < driver.devices(); ++j) {
      cuda::DeviceId other = 0;
      int can = 0;
      driver.device_get(&other, j);
      if (j == i || driver.device_can_access_peer(&can, id, other) != cuda::kSuccess || !can)
        continue;
      peers += fmt::format("{}CUDA:{}", peers.empty() ? "" : ", ", j);
    }
    if (driver.devices() > 1)
      text += peers.empty() ? ", no direct way to the others" : ", reaches " + peers + " directly";
  }
  return text;
}

}  // namespace tinyshard
