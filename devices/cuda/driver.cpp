#include "devices/cuda/driver.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard::cuda {

const Driver& Driver::get() {
  static const Driver* driver = new Driver;  // outlives every static tensor
  return *driver;
}

Driver::Driver() : VendorLibrary({"libcuda.so.1"}) {
#define TINYSHARD_CUDA_RESOLVE(name, symbol, parameters) resolve(name, symbol);
  TINYSHARD_CUDA_FUNCTIONS(TINYSHARD_CUDA_RESOLVE)
#undef TINYSHARD_CUDA_RESOLVE
  if (!found()) return;
  driver_version(&version_);
  Result result = init(0);
  if (result == kSuccess) result = device_count(&devices_);
  if (result != kSuccess) {
    devices_ = 0;
    if (result != kNoDevice)
      refuse(fmt::format("the CUDA driver does not start: {}", describe(result)));
  }
  if (devices_ == 0) refuse("the CUDA driver sees no GPU");
}

std::string Driver::describe(Result result) const {
  const char *name = nullptr, *text = nullptr;
  error_name(result, &name);
  error_string(result, &text);
  return fmt::format("{} ({}): {}", name ? name : "unknown error", result, text ? text : "?");
}

void Driver::fail(Result result, std::string_view device, std::string_view asked) const {
  throw DeviceError(fmt::format("{}: {} failed: {}", device, asked, describe(result)));
}

}  // namespace tinyshard::cuda
