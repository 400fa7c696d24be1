// NULL:n and its like. Everything is planned, nothing runs: memory is counted, never taken. A
// program over a thousand devices can be looked at on a laptop, and the plan of a GPU without one.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "core/runtime/device.h"

namespace tinyshard {

// The device that a plan is made for.
struct PlannedDevice {
  std::string kind;  // "NULL": device n is named "NULL:n"
  Target target;
  DeviceProfile profile;
  // Answers of Device::supports, Device::library_provider and Device::worth_copying.
  std::function<bool(const LibraryCall&, std::string* why)> supports;
  const LibraryProvider* provider = nullptr;
  std::function<int64_t(const LibraryCall&, int operand)> worth_copying;
};
std::unique_ptr<Device> make_null_device(int index, PlannedDevice like);

// Describes this machine's CPU as a null device, with every op that some device's library has.
PlannedDevice planned_host(const Target& host, const DeviceProfile& profile);

}  // namespace tinyshard
