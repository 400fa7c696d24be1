// Copies between the host and a device whose memory the host cannot touch, on queues of their own:
// the device does them by itself, beside its launches and beside those of other devices. A device
// that can derives from HostCopies, too:
//
//   auto batch = host_copies(device)->begin_copies();    behind what the device was told so far
//   auto there = batch->copy_in(to, page, bytes);         from any thread, as often as one likes
//   batch->wait(*there);                                  the page may be used again
//   batch->end();                                         launches from now on come behind the copies
#pragma once
#include <cstddef>
#include <memory>

#include "core/runtime/device.h"

namespace tinyshard {

class CopyBatch {
 public:
  // Waits for copies that are under way.
  virtual ~CopyBatch() = default;
  // Begin a copy; the memory on the host stays as it is until the event is reached. Any thread.
  virtual std::unique_ptr<Event> copy_in(void* to, const void* host, size_t bytes) = 0;
  virtual std::unique_ptr<Event> copy_out(void* host, const void* from, size_t bytes) = 0;
  // Waits on the host. Throws what Device::synchronize throws.
  virtual void wait(Event& event) = 0;
  virtual void end() = 0;
};

class HostCopies {
 public:
  virtual ~HostCopies() = default;
  // Locks memory of the host, so that all devices of this kind copy to and from it at full speed.
  // False where the system refuses: copies work all the same, and are slower.
  virtual bool lock_memory(void* memory, size_t bytes) = 0;
  virtual void unlock_memory(void* memory) noexcept = 0;
  virtual std::unique_ptr<CopyBatch> begin_copies() = 0;
};

// Null for a device that has none: Device::copy_in and copy_out do it.
inline HostCopies* host_copies(Device& device) { return dynamic_cast<HostCopies*>(&device); }

}  // namespace tinyshard
