// A driver that is there but does not start, or sees no GPU, counts
// as none, with the reason to tell.
#include "devices/gpu/driver.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard::gpu {

void Driver::start() {
  if (!found()) return;
  driver_version(&version_);
  Result result = init(0);
  if (result == kSuccess) result = device_count(&devices_);
  if (result != kSuccess) {
    devices_ = 0;
    if (result != kNoDevice)
      refuse(fmt::format("the {} driver does not start: {}", maker_.kind, describe(result)));
  }
  if (devices_ == 0) refuse(fmt::format("the {} driver sees no GPU", maker_.kind));
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

}  // namespace tinyshard::gpu
