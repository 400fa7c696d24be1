// The seam between the engine and the devices. A device owns a memory, loads programs and launches
// them in order; the engine asks `supports` before it places an op on a device. Devices of one kind
// share a Target, so a kernel is compiled once for all of them.
//
// A device may be asynchronous: launches return at once and run later, in the order of the calls.
// Everything here keeps that order (copies, and the reuse of freed memory, come after the launches
// before them), so only who looks at values waits: `copy_out` and `synchronize`. Collectives run
// beside the launches, on a queue of their own; events order the two.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/runtime/pending_copy.h"
#include "core/runtime/profile.h"
#include "core/runtime/strided_view.h"
#include "core/runtime/target.h"
#include "core/uop/uop.h"

namespace tinyshard {

class LibraryProvider;  // core/runtime/library_provider.h

// Something a device can run again and again. Launches on one device run in the order of the calls.
class Program {
 public:
  virtual ~Program() = default;
  // buffers: one pointer per parameter slot; coordinates: this device's place on each mesh axis.
  // Allocates nothing.
  virtual void launch(void* const* buffers, const int64_t* coordinates) = 0;
  virtual std::string describe() const = 0;
  // Memory beside the buffers that launches use, maybe of other programs, too; null without any.
  virtual const void* scratch() const { return nullptr; }
};

// A Dot, an attention, a convolution, a ScatterAdd, a Sort or a Decompose that a device may run by a
// library.
// Operands are the sources of the node in order. `also` are nodes of the same op and sources, with
// other arguments, that the same call computes (the statistics of a softmax beside its result).
// `results` says where those of the node and of `also` lie, maybe several in one buffer without
// overlap; empty when each is contiguous, as most libraries want them.
struct LibraryCall {
  UOp node;
  std::vector<StridedView> operands;
  std::vector<UOp> also = {};
  std::vector<StridedView> results = {};
};
// Its operands dense and in order, which is how passes ask before it is known where they lie.
inline LibraryCall row_major_call(const UOp& node) {
  LibraryCall call{node, {}};
  for (const UOp& s : node->src()) call.operands.push_back(row_major(s.shape()));
  return call;
}

struct MemoryStats {
  int64_t used = 0, peak = 0, allocations = 0;
  int64_t held = 0;  // taken from the system, in use or kept for later
};

// The queues of an asynchronous device; what is in one runs in order.
enum class Queue : uint8_t { Compute, Communication };

// A point in a queue, of the device that made it.
class Event {
 public:
  virtual ~Event() = default;
};

// The work that a device was told between begin_recording and end_recording, to run again as one.
class Recording {
 public:
  virtual ~Recording() = default;
  // In order with the launches before and after it.
  virtual void launch() = 0;
  // The pointers in these lists, as they were given to Program::launch, have changed: the next
  // launch reads them again. False when the step has to be recorded again.
  virtual bool update(std::span<void* const* const> lists) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "CPU:1"
  virtual const Target& target() const = 0;
  virtual const DeviceProfile& profile() const {
    static constexpr DeviceProfile kNothingSpecial;
    return kNothingSpecial;
  }

  // False for devices that plan but do not run: programs are then never compiled nor launched.
  virtual bool executes() const { return true; }

  // Returns a name of the hardware, the same for two handles on one piece of it, in any process.
  // Empty if devices are only memories.
  virtual std::string hardware() const { return {}; }

  // Bytes aligned to 64. Throws DeviceError naming the request and what is held; `purpose` is a
  // literal, such as "tensors", by which that error sums up what is held.
  virtual void* allocate(size_t bytes, const char* purpose) = 0;
  void* allocate(size_t bytes) { return allocate(bytes, "tensors"); }
  virtual void free(void* memory, size_t bytes) noexcept = 0;
  virtual MemoryStats memory() const = 0;

  // `host` may change as soon as this returns.
  virtual void copy_in(void* to, const void* host, size_t bytes) = 0;
  virtual void copy_out(void* host, const void* from, size_t bytes) = 0;
  // Begins a copy_out() and returns at once. Launches that come later may write over `from`. The
  // result must not outlive the device.
  virtual std::unique_ptr<PendingCopy> begin_copy_out(const void* from, size_t bytes) {
    std::vector<std::byte> host(bytes);
    copy_out(host.data(), from, bytes);
    return std::make_unique<DoneCopy>(std::move(host));
  }
  // Copies between devices of this kind (`source` may be this one), ordered after everything that
  // is queued on `source`. False where there is no such way: the caller goes through the host.
  virtual bool copy_from(void* /*to*/, Device& /*source*/, const void* /*from*/, size_t /*bytes*/) {
    return false;
  }
  virtual bool fill_zero(void* /*to*/, size_t /*bytes*/) { return false; }
  // Host view of the memory, or null where the host cannot touch it.
  virtual void* host_pointer(void* memory) = 0;

  // Does ahead of `load` what takes most of its time and needs no order: several threads call this
  // for many kernels at once.
  virtual void prepare(const ObjectCode& /*code*/) {}
  // Prepares a call of library(). Returns at once if the call needs nothing, or was prepared
  // already.
  virtual void prepare(const LibraryCall& /*call*/) {}
  virtual std::unique_ptr<Program> load(const ObjectCode& code) = 0;
  // Tells whether a library takes the call as it is; `why` (may be null) says why not.
  virtual bool supports(const LibraryCall& call, std::string* why) const = 0;
  // The provider finds what those libraries fuse with products; null where that is nothing. It lives
  // until the process ends, and is one for all devices of a maker.
  virtual const LibraryProvider* library_provider() const { return nullptr; }
  // Break-even size, in elements, of copying operand 0 or 1 of a product into a layout whose last
  // dim is the summed one, the other operand left as it is; 0: never worth it.
  virtual int64_t worth_copying(const LibraryCall& /*call*/, int /*operand*/) const { return 0; }
  // The program of a supported call: buffers are those of the operands in order, then that of the
  // node's result, then those of `also`.
  virtual std::unique_ptr<Program> library(const LibraryCall& call) = 0;

  // Waits until everything has run. Throws DeviceError when something failed, and what a watcher
  // throws.
  virtual void synchronize() = 0;

  // --- Asynchronous devices. The defaults are those of a device whose launches return when done.

  // The vendor's handle of a queue, for a communicator that works on it.
  virtual void* native_queue(Queue) { return nullptr; }
  virtual std::unique_ptr<Event> make_event() { return nullptr; }
  virtual void record(Event&, Queue) {}
  virtual bool reached(Event&) { return true; }
  // Lets what is queued from now on run after the event; the host does not wait.
  virtual void wait(Event&, Queue) {}
  // Makes this the device on which the vendor's library works when this thread calls it.
  virtual void make_current() {}

  // Asked again and again while the host waits for this device, with the time it has waited:
  // throws when what the device waits for will not come (a peer that is gone). Kept until
  // `unwatch`.
  using Watcher = std::function<void(std::chrono::nanoseconds waited)>;
  virtual void watch(const void* /*owner*/, Watcher) {}
  virtual void unwatch(const void* /*owner*/) noexcept {}

  // Between begin and end, launches and collectives on this device are recorded instead of run.
  // `end_recording` may throw DeviceError; the device then runs things again.
  virtual bool can_record() const { return false; }
  virtual void begin_recording() {}
  // Begins a step of the recording, numbered from 0: what is told from now on comes after these
  // earlier ones and may run beside all others, of which urgent ones go first. Without steps,
  // everything runs in order.
  virtual void record_step(std::span<const int> /*after*/, bool /*urgent*/) {}
  virtual std::unique_ptr<Recording> end_recording() { return nullptr; }
  virtual void abandon_recording() noexcept {}
  // Takes from the recordings that hold collectives what they consist of: to launch one is a
  // DeviceError from now on. A communicator that ends calls it, aborts, then lets go of the result:
  // it must not be destroyed before the recordings of its calls.
  virtual std::shared_ptr<void> take_recorded_collectives() { return nullptr; }
};

}  // namespace tinyshard
