// The system locks memory page by page, which takes as long as to fill it. Memory that is given back stays
// locked and waits for the next copy; what is beyond the bound goes.
#include "core/exec/locked_memory.h"

#include <algorithm>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/file_jobs.h"
#include "core/exec/context.h"
#include "core/runtime/host_copies.h"

namespace tinyshard {
namespace {

constexpr size_t kPagesKept = (size_t{256} << 20) / HostPage::kBytes;

// Memory that waits for the next who needs it. Never destroyed: threads may outlive static objects.
struct Kept {
  std::mutex mutex;
  std::vector<std::unique_ptr<LockedMemory>> pages;
  std::shared_ptr<LockedMemory> snapshot;

  static Kept& get() {
    static auto& kept = *new Kept;
    return kept;
  }
};

// Several threads touch large memory first: the system clears each page for who does.
void touch(std::byte* data, size_t bytes) {
  constexpr size_t kAtOnce = size_t{64} << 20, kSmallPage = 4096;
  run_file_jobs((bytes + kAtOnce - 1) / kAtOnce, [&](size_t i) {
    const size_t end = std::min(bytes, (i + 1) * kAtOnce);
    for (size_t at = i * kAtOnce; at < end; at += kSmallPage) data[at] = std::byte{0};
    return int64_t(end - i * kAtOnce);
  });
}

}  // namespace

LockedMemory::LockedMemory(size_t bytes, Device* device) : bytes_(bytes) {
  void* memory = ::mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw DeviceError(fmt::format("the host has no memory for {} bytes to copy", bytes));
  data_ = static_cast<std::byte*>(memory);
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  HostCopies* copies = device && bytes > 0 ? host_copies(*device) : nullptr;
  if (!copies) return;
  touch(data_, bytes);
  if (!copies->lock_memory(memory, bytes)) return;
  locked_by_ = device;
  join_runtime();
}

LockedMemory::~LockedMemory() {
  leave_runtime();
  unlock();
  ::munmap(data_, std::max<size_t>(bytes_, 1));
}

void LockedMemory::unlock() noexcept {
  Device* device = std::exchange(locked_by_, nullptr);
  if (device && Context::is_ours()) host_copies(*device)->unlock_memory(data_);
}

HostPage::HostPage(Device& device) {
  Kept& kept = Kept::get();
  {
    const std::lock_guard lock(kept.mutex);
    while (!kept.pages.empty() && !memory_) {
      memory_ = std::move(kept.pages.back());
      kept.pages.pop_back();
      if (memory_->is_lost()) memory_.reset();  // locked for devices that are gone
    }
  }
  if (!memory_) memory_ = std::make_unique<LockedMemory>(kBytes, &device);
}

HostPage::~HostPage() {
  if (!memory_) return;
  Kept& kept = Kept::get();
  const std::lock_guard lock(kept.mutex);
  if (kept.pages.size() < kPagesKept) kept.pages.push_back(std::move(memory_));
}

size_t most_kept_of_snapshots() {
  const auto host = size_t(::sysconf(_SC_PHYS_PAGES)) * size_t(::sysconf(_SC_PAGESIZE));
  const auto places = builtins().launch();
  return host / 4 / size_t(std::max(1, places.at(1).second));
}

std::shared_ptr<LockedMemory> snapshot_memory(size_t bytes, Device* device) {
  Kept& kept = Kept::get();
  std::shared_ptr<LockedMemory> memory;
  {
    const std::lock_guard lock(kept.mutex);
    memory = std::exchange(kept.snapshot, nullptr);
  }
  const bool fits = memory && memory.use_count() == 1 && memory->size() >= bytes &&
                    !memory->is_lost() && memory->is_locked();
  if (!fits) {
    memory.reset();  // before there is another
    const bool keeps = bytes <= most_kept_of_snapshots();
    // A thread that saves lets go of it, and is in no other use of the runtime.
    memory = {new LockedMemory(bytes, keeps ? device : nullptr), [](LockedMemory* last) {
                const Context::Use use;
                delete last;
              }};
  }
  if (memory->is_locked()) {
    const std::lock_guard lock(kept.mutex);
    kept.snapshot = memory;
  }
  return memory;
}

}  // namespace tinyshard
