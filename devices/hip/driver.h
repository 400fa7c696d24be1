// HIP's runtime as a table of devices/gpu/driver.h, found in libamdhip64.so at run time. Nothing of
// ROCm is needed to build.
#pragma once
#include <string>

#include "devices/gpu/driver.h"

namespace tinyshard::hip {

class HipDriver final : public gpu::Driver {
 public:
  // Opened and initialised at the first call; later calls return the same.
  static const HipDriver& get();

  // The instruction set of a GPU: "gfx942". Empty where the runtime does not say.
  std::string architecture(gpu::DeviceId id) const;
  std::string version_text() const;  // "6.3.42134"

 private:
  HipDriver();
};

}  // namespace tinyshard::hip
