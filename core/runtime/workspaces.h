// Memory that library calls keep beside their operands and results, where a device can tell it before the
// calls are loaded: sorts take some 12 to 24 bytes a key. Plans tell it with the rest of their memory.
#pragma once
#include <cstdint>
#include <span>

#include "core/runtime/device.h"

namespace tinyshard {

// A device may be one of these.
class TellsWorkspaces {
 public:
  // Bytes that all these calls of one plan keep on the device.
  virtual int64_t workspace_bytes(std::span<const LibraryCall* const> calls) const = 0;

 protected:
  ~TellsWorkspaces() = default;
};

}  // namespace tinyshard
