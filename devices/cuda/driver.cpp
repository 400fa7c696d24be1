#include "devices/cuda/driver.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/runtime/vendor_library.h"

namespace tinyshard::cuda {

const Driver& Driver::get() {
  static const Driver* driver = new Driver;  // outlives every static tensor
  return *driver;
}

Driver::Driver() {
  VendorLibrary library("CUDA driver", {"libcuda.so.1"});
  if (!library.found()) {
    why_not_ = fmt::format("no CUDA driver: {}", library.why_not());
    return;
  }
  bool complete = true;
#define TINYSHARD_CUDA_RESOLVE(name, symbol, parameters) \
  complete = complete && library.resolve(name, symbol);
  TINYSHARD_CUDA_FUNCTIONS(TINYSHARD_CUDA_RESOLVE)
#undef TINYSHARD_CUDA_RESOLVE
  if (!complete) {
    why_not_ = library.why_not();
    return;
  }
  driver_version(&version_);
  Result result = init(0);
  if (result == kSuccess) result = device_count(&devices_);
  if (result != kSuccess) {
    devices_ = 0;
    why_not_ = result == kNoDevice
                   ? "the CUDA driver sees no GPU"
                   : fmt::format("the CUDA driver does not start: {}", describe(result));
  } else if (devices_ == 0) {
    why_not_ = "the CUDA driver sees no GPU";
  }
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
