// The figures by which plans for a kind of device are made: how much of it runs side by side, what a
// launch costs, which products loops do as well as a library. Each device gives its own
// (Device::profile), next to the measurements that they come from; no figure of a device is elsewhere.
#pragma once
#include <cstdint>

namespace tinyshard {

// A reduction of many elements to few results becomes two, so that many threads can share it.
struct SplitLimits {
  int64_t parts = 64;   // of a reduction to up to kFewResults; fewer where there are more results
  int64_t columns = 0;  // sums of so many columns are split too
  static constexpr int64_t kFewResults = 16;
};

// Products that no library need take, where a launch takes longer than to compute them. The
// defaults let none be one.
struct SmallProducts {
  // Sums of so few terms for so few elements are a part of the kernel that reads them.
  int64_t terms = 0, elements = 0;
  // So few columns with so few multiplications in all are sums of rows, in a kernel of their own:
  // libraries' tiles are wider than that.
  int64_t columns = 0, multiplications = 0;
  // So few rows, or columns, times a matrix of so many elements or more do little but read it, which
  // loops do as fast as memory goes: where it lies along the sums, and all of 16-bit floats.
  int64_t few = 0, matrix = 0;
};

// A link joins two devices. A collective takes `start_s`, for each of its steps `step_s`, and the time
// in which a device sends its bytes.
struct LinkSpeed {
  double bytes_per_s = 400e9, start_s = 0, step_s = 0;
};

// How fast a device computes and sends: by these figures the sharding rewrite chooses which values
// travel (multi/link_model.h). The defaults know bytes alone, between devices that do 1000 operations
// in the time in which they send one within their host.
struct Speeds {
  double operations_per_s = 400e12;  // of large products
  double memory_bytes_per_s = 4e12;
  LinkSpeed process, host;  // to devices of the process, of other ranks of the host
  LinkSpeed network = {.bytes_per_s = 40e9};  // and of other hosts
};

struct DeviceProfile {
  Speeds speeds = {};
  SplitLimits split = {};
  SmallProducts small_products = {};
  // More operations per second than any loops reach, such as those of f32 without matrix units: BEAM does
  // not try loops for what a library computes faster than that. 0: not known.
  double most_loop_operations_per_s = 0;
  bool joins_kernels = false;    // where launches are dear, independent kernels become one
  bool copies_operands = false;  // Device::worth_copying may say so
  bool compiles_code = false;    // Device::prepare takes time: many calls of it run side by side
  int64_t spare_bytes = 0;  // of memory that a plan may take so that items can run side by side
};

}  // namespace tinyshard
