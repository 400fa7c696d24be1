// Keeps the allocations of the emulated devices, and finds the one that an access falls into.
#include "tests/amdgpu/device_memory.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <sstream>
#include <sys/mman.h>

#include "tests/amdgpu/wave.h"

namespace amdgpu_emulator {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kGap = 4096;                 // between allocations, belongs to none
constexpr std::uint64_t kRange = 1ULL << 38;         // addresses of a device
constexpr std::uint64_t kFilled = 16ULL << 20;       // larger ones begin with zeros
constexpr std::uint64_t kFirst = 0x100000000000ULL;  // far from what the host maps

std::uint64_t up(std::uint64_t size) { return (size + kPage - 1) / kPage * kPage; }

std::string hex(std::uint64_t value) {
  std::ostringstream out;
  out << "0x" << std::hex << value;
  return out.str();
}

}  // namespace

DeviceMemory::DeviceMemory(int devices, std::uint64_t bytes_each) : bytes_each_(bytes_each) {
  for (int d = 0; d < devices; ++d) {
    // Reserved without access: a host that follows a device's pointer fails there.
    void* wanted = reinterpret_cast<void*>(kFirst + static_cast<std::uint64_t>(d) * kRange);
    void* got = mmap(wanted, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) {
      throw Fault("no addresses are left for an emulated device");
    }
    ranges_.push_back({reinterpret_cast<std::uint64_t>(got), 0});
  }
}

DeviceMemory::~DeviceMemory() {
  for (const auto& [base, allocation] : allocations_) {
    if (allocation.device >= 0) {
      munmap(allocation.bytes, up(allocation.size));
    }
  }
  for (const Range& range : ranges_) {
    munmap(reinterpret_cast<void*>(range.base), kRange);
  }
}

std::uint64_t DeviceMemory::allocate(int device, std::uint64_t size) {
  const std::unique_lock lock(mutex_);
  Range& range = ranges_[static_cast<std::size_t>(device)];
  size = std::max<std::uint64_t>(size, 1);
  if (range.used + up(size) > bytes_each_) {
    return 0;
  }
  // The first hole that is wide enough.
  std::uint64_t base = range.base + kPage;
  for (auto it = allocations_.lower_bound(range.base);
       it != allocations_.end() && it->first < range.base + kRange; ++it) {
    if (it->first >= base + up(size) + kGap) {
      break;
    }
    base = it->first + up(it->second.size) + kGap;
  }
  void* bytes = mmap(nullptr, up(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base + up(size) > range.base + kRange || bytes == MAP_FAILED) {
    return 0;
  }
  if (size <= kFilled) {
    std::memset(bytes, 0xcd, size);  // what was never written is no zero
  }
  range.used += up(size);
  allocations_[base] = {base, size, static_cast<std::uint8_t*>(bytes), device};
  ++version_;
  return base;
}

bool DeviceMemory::release(std::uint64_t address) {
  const std::unique_lock lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.device < 0) {
    return false;
  }
  munmap(found->second.bytes, up(found->second.size));
  ranges_[static_cast<std::size_t>(found->second.device)].used -= up(found->second.size);
  allocations_.erase(found);
  ++version_;
  return true;
}

std::uint64_t DeviceMemory::left(int device) const {
  const std::shared_lock lock(mutex_);
  return bytes_each_ - ranges_[static_cast<std::size_t>(device)].used;
}

bool DeviceMemory::add_host(void* at, std::uint64_t size) {
  const std::unique_lock lock(mutex_);
  const auto base = reinterpret_cast<std::uint64_t>(at);
  ++version_;
  return allocations_.emplace(base, Allocation{base, size, static_cast<std::uint8_t*>(at), -1})
      .second;
}

bool DeviceMemory::remove_host(void* at) {
  const std::unique_lock lock(mutex_);
  ++version_;
  return allocations_.erase(reinterpret_cast<std::uint64_t>(at)) == 1;
}

void DeviceMemory::let_reach(int from, int to) {
  const std::unique_lock lock(mutex_);
  reach_.emplace(from, to);
  ++version_;
}

bool DeviceMemory::reaches(int from, int to) const {
  const std::shared_lock lock(mutex_);
  return from == to || reach_.contains({from, to});
}

Allocation DeviceMemory::holder(std::uint64_t address, std::uint64_t size) const {
  const std::shared_lock lock(mutex_);
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) {
    return {};
  }
  const Allocation& allocation = std::prev(it)->second;
  const bool inside = address - allocation.base <= allocation.size &&
                      allocation.size - (address - allocation.base) >= size;
  return inside ? allocation : Allocation{};
}

std::string DeviceMemory::neighbours(std::uint64_t address) const {
  const std::shared_lock lock(mutex_);
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) {
    return "no allocation lies below";
  }
  const Allocation& below = std::prev(it)->second;
  return "the allocation below is [" + hex(below.base) + ", " + hex(below.base + below.size) +
         "), " + (below.device < 0 ? "of the host" : "of device " + std::to_string(below.device));
}

std::uint8_t* DeviceMemory::find(std::uint64_t address, std::uint64_t size) const {
  const Allocation allocation = holder(address, size);
  return allocation.bytes == nullptr ? nullptr : allocation.bytes + (address - allocation.base);
}

std::uint8_t* DeviceMemory::at(int device, std::uint64_t address, std::uint64_t size) const {
  // Accesses of neighbouring lanes fall into one allocation nearly always.
  struct Last {
    const DeviceMemory* memory = nullptr;
    std::uint64_t version = 0;
    int device = -1;
    Allocation allocation;
  };
  thread_local std::array<Last, 4> recent;
  thread_local unsigned next = 0;
  const std::uint64_t version = version_.load(std::memory_order_acquire);
  for (const Last& last : recent) {
    const std::uint64_t offset = address - last.allocation.base;
    if (last.memory == this && last.version == version && last.device == device &&
        offset < last.allocation.size && last.allocation.size - offset >= size) {
      return last.allocation.bytes + offset;
    }
  }
  const Allocation allocation = holder(address, size);
  if (allocation.bytes == nullptr) {
    throw Fault("a wild address: " + std::to_string(size) + " bytes at " + hex(address) + "; " +
                neighbours(address));
  }
  if (allocation.device >= 0 && !reaches(device, allocation.device)) {
    throw Fault("device " + std::to_string(device) + " may not reach " + hex(address) +
                " of device " + std::to_string(allocation.device) + ": peer access is not enabled");
  }
  recent[next++ % recent.size()] = {this, version, device, allocation};
  return allocation.bytes + (address - allocation.base);
}

}  // namespace amdgpu_emulator
