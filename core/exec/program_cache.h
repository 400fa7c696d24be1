// The programs that an epoch loaded, once for each device and kernel, or library call. Beyond a limit
// of bytes those that no plan holds are given back (TS_KERNEL_BYTES). Thread safe.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/bounded_cache.h"
#include "core/codegen/kernel.h"
#include "core/runtime/device.h"

namespace tinyshard {

class ProgramCache {
 public:
  // Returns a program, which its caller keeps for as long as it launches it.
  std::shared_ptr<Program> of(Device& device, const std::shared_ptr<const CompiledKernel>& kernel);
  std::shared_ptr<Program> of(Device& device, const LibraryCall& call);
  bool has(Device& device, const CompiledKernel& kernel);

 private:
  // The key names the kernel by its address, so the kernel lives as long.
  struct Loaded {
    std::shared_ptr<const CompiledKernel> kernel;  // null: of a library
    std::unique_ptr<Program> program;
    Device* device;
  };
  using Key = std::pair<Device*, std::string>;  // address of the kernel, or the call as text
  struct HashOfKey {
    size_t operator()(const Key& key) const {
      return std::hash<std::string>()(key.second) ^ std::hash<Device*>()(key.first);
    }
  };

  template <class Load>
  std::shared_ptr<Program> find_or_load(Key key, size_t bytes, const Load& load);
  void trim();

  std::mutex mutex_;
  BoundedCache<Key, Loaded, HashOfKey> loaded_;
};

}  // namespace tinyshard
