// Memory of the emulated devices. Each device has a range of addresses of its own, which the host cannot read; an
// allocation is known with its bounds, so that an access outside of all is found. Any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

namespace amdgpu_emulator {

struct Allocation {
  std::uint64_t base = 0;
  std::uint64_t size = 0;
  std::uint8_t* bytes = nullptr;  // where the host keeps them
  int device = -1;                // -1: the host's own memory
};

class DeviceMemory {
 public:
  DeviceMemory(int devices, std::uint64_t bytes_each);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // An address of `device`, 4096-byte aligned; 0 when it has no room.
  std::uint64_t allocate(int device, std::uint64_t size);
  // False where nothing was allocated at `address`.
  bool release(std::uint64_t address);
  [[nodiscard]] std::uint64_t left(int device) const;
  [[nodiscard]] std::uint64_t total() const { return bytes_each_; }

  // Host memory that devices may reach by the host's addresses.
  bool add_host(void* at, std::uint64_t size);
  bool remove_host(void* at);

  void let_reach(int from, int to);
  [[nodiscard]] bool reaches(int from, int to) const;

  // Where the bytes at `address` lie for the host, or null where no allocation holds all of them.
  std::uint8_t* find(std::uint64_t address, std::uint64_t size) const;
  // As find, for a kernel on `device`; fails with a Fault that says what lies near.
  std::uint8_t* at(int device, std::uint64_t address, std::uint64_t size) const;

 private:
  struct Range {
    std::uint64_t base = 0;
    std::uint64_t used = 0;
  };
  [[nodiscard]] Allocation holder(std::uint64_t address, std::uint64_t size) const;
  [[nodiscard]] std::string neighbours(std::uint64_t address) const;

  std::uint64_t bytes_each_;
  std::vector<Range> ranges_;
  mutable std::shared_mutex mutex_;
  std::map<std::uint64_t, Allocation> allocations_;
  std::set<std::pair<int, int>> reach_;
  std::atomic<std::uint64_t> version_{1};
};

}  // namespace amdgpu_emulator
