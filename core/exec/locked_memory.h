// Memory of the host through which devices copy. Where a device has copies of its own
// (core/runtime/host_copies.h) it is locked, which takes as long as to fill it: so it is kept. Pages
// pass bytes on, and a process keeps up to 256 MiB of them; a snapshot holds all that a save writes,
// and a process keeps one, up to a quarter of the host's memory divided by the processes there.
#pragma once
#include <cstddef>
#include <memory>

#include "core/exec/runtime_part.h"
#include "core/runtime/device.h"

namespace tinyshard {

// Bytes that are locked for devices of the kind of `device` until the runtime ends; ordinary ones
// where it is null or refuses. Readable as long as the object lives. Pages are taken and given back
// by threads that a use of the runtime waits for: they must not begin one, which might wait for them.
class LockedMemory : public RuntimePart {
 public:
  LockedMemory(size_t bytes, Device* device);  // DeviceError where there is no memory
  ~LockedMemory() override;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  bool is_locked() const { return locked_by_ != nullptr; }

 private:
  void unlock() noexcept;
  void runtime_ends() noexcept override { unlock(); }

  size_t bytes_;
  std::byte* data_;
  Device* locked_by_ = nullptr;
};

// A page, from here to the end of the scope.
class HostPage {
 public:
  static constexpr size_t kBytes = size_t{4} << 20;

  explicit HostPage(Device& device);
  ~HostPage();
  HostPage(HostPage&&) noexcept = default;
  HostPage& operator=(HostPage&&) noexcept = default;

  std::byte* data() const { return memory_->data(); }

 private:
  std::unique_ptr<LockedMemory> memory_;
};

// Memory for a snapshot of so many bytes, that of the last one if it is large enough and nobody
// holds it any more. `device` as above.
std::shared_ptr<LockedMemory> snapshot_memory(size_t bytes, Device* device);
size_t most_kept_of_snapshots();  // bytes

}  // namespace tinyshard
