// The part of the executor of devices/gpu that a maker's folder supplies: driver, compiler and
// libraries. A further maker implements this beside devices/cuda/vendor.cpp.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "core/runtime/device.h"
#include "devices/gpu/driver.h"

namespace tinyshard::gpu {

class Gpu;

class Vendor {
 public:
  virtual ~Vendor() = default;

  virtual const Driver& driver() const = 0;
  // Names what GPUs that run the same machine code have in common: "9.0", "gfx942".
  virtual std::string capability(DeviceId id) const = 0;
  // Describes a GPU with this capability to code generation; the driver tells how many multiprocessors
  // it has, and the shared memory of a block where this does not. DeviceError for one that no code is
  // generated for.
  virtual Target target(std::string_view capability) const = 0;
  virtual const DeviceProfile& profile() const = 0;

  // For generated code, with the device's context current. Machine code is made once for all GPUs
  // of a kind: some 100 ms a kernel. DeviceError with the compiler's log if it refuses.
  virtual void prepare(const ObjectCode& code, std::string_view capability,
                       std::string_view device) const = 0;
  virtual Module load(const ObjectCode& code, std::string_view capability,
                      std::string_view device) const = 0;
  // How many parameters the entry declares. -1 where there is no such entry.
  virtual int count_parameters(const ObjectCode& code) const = 0;

  // Library calls, as Device has them.
  virtual bool supports(const Gpu& gpu, const LibraryCall& call, std::string* why) const = 0;
  virtual const LibraryProvider* provider() const = 0;
  virtual int64_t worth_copying(const Gpu& gpu, const LibraryCall& call, int operand) const = 0;
  virtual void prepare(Gpu& gpu, const LibraryCall& call) const = 0;
  virtual std::unique_ptr<Program> library(Gpu& gpu, const LibraryCall& call) const = 0;
};

}  // namespace tinyshard::gpu
