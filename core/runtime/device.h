// The seam between the engine and the devices. A device owns a memory, loads programs and launches
// them in order; the engine asks `library` before it places an op on a device. Devices of one kind
// share a Target, so a kernel is compiled once for all of them.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/runtime/target.h"
#include "core/uop/uop.h"

namespace tinyshard {

// Something a device can run again and again. Launches on one device run in the order of the calls.
class Program {
 public:
  virtual ~Program() = default;
  // buffers: one pointer per parameter slot; coordinates: this device's place on each mesh axis.
  // Allocates nothing.
  virtual void launch(void* const* buffers, const int64_t* coordinates) = 0;
  virtual std::string describe() const = 0;
};

// One operand of a library call: elements of a buffer seen through strides.
struct StridedView {
  int64_t offset = 0;
  Dims shape, strides;  // in elements
};

// A Dot, a convolution or a ScatterAdd that a device may run by a library. Operands are sources of
// the node in order, then the result, which is contiguous.
struct LibraryCall {
  UOp node;
  std::vector<StridedView> operands;
};

struct MemoryStats {
  int64_t used = 0, peak = 0, allocations = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "CPU:1"
  virtual const Target& target() const = 0;

  // False for devices that plan but do not run: programs are then never compiled nor launched.
  virtual bool executes() const { return true; }

  // Bytes aligned to 64. Throws DeviceError naming the request and what is held.
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* memory, size_t bytes) noexcept = 0;
  virtual MemoryStats memory() const = 0;

  virtual void copy_in(void* to, const void* host, size_t bytes) = 0;
  virtual void copy_out(void* host, const void* from, size_t bytes) = 0;
  // Host view of the memory, or null where the host cannot touch it.
  virtual void* host_pointer(void* memory) = 0;

  virtual std::unique_ptr<Program> load(const ObjectCode& code) = 0;
  // Whether a library takes the call as it is; `why` (may be null) says why not.
  virtual bool supports(const LibraryCall& call, std::string* why) const = 0;
  // The program of a supported call: buffers are the operands in order, then the result.
  virtual std::unique_ptr<Program> library(const LibraryCall& call) = 0;

  // Waits until every launch has run.
  virtual void synchronize() = 0;
};

}  // namespace tinyshard
