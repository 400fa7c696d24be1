// A plain value that tells what a plan will do: items, bytes, memory. See summarize() in
// core/tensor/explain.h.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tinyshard {

// A collective of a plan.
struct CollectiveItem {
  std::string op;       // "all_reduce"
  std::string axis;     // of the mesh
  int64_t bytes = 0;    // that each device sends (ring algorithms)
  std::string purpose;  // "gradient of h.0.attn.weight", as far as that is known
  std::string source;   // "train.cpp:21": the line that the value comes from; empty: not known
  double seconds = 0;   // that it takes where nothing runs beside it, as plans are chosen by
};

// The memory that a plan takes on one device.
struct DeviceMemory {
  std::string device;       // "CPU:1@3"
  int64_t held_bytes = 0;   // storages that live on
  int64_t arena_bytes = 0;  // temporaries
  // Kept by library calls beside these, as sorts and decompositions do, where devices tell it.
  int64_t workspace_bytes = 0;
  int64_t peak_bytes() const { return held_bytes + arena_bytes + workspace_bytes; }
};

struct PlanSummary {
  int64_t kernels = 0, library_calls = 0, collectives = 0, copies = 0;
  // Bytes that kernels and library calls read and write, on the device with most of them. A kernel
  // counts the bytes of a buffer that it touches, a library call all of them, a scatter into a
  // storage the rows that it names.
  int64_t bytes_read = 0, bytes_written = 0;
  // Arithmetic on the device that does most: two for each term of a product or a convolution, one for
  // each elementwise op, term of a reduction and comparison of a place with an index. What sorts and
  // decompositions do in libraries is not counted.
  double operations = 0;
  int64_t collective_bytes = 0;  // sent by the device that sends most (ring algorithms)
  // Bytes by kind and axis, "all_reduce over data", of the device that sends most of that kind.
  // "copy between meshes" is what devices send to those at their places on another mesh, as between
  // stages of a pipeline.
  std::map<std::string, int64_t> collective_kinds;
  std::vector<CollectiveItem> collective_items;  // in the order in which they start
  // The device that holds most has these; the others hold as much, unless they work on different
  // things, as the stages of a pipeline do.
  int64_t held_bytes = 0;            // storages that live on
  int64_t arena_bytes = 0;           // temporaries
  int64_t workspace_bytes = 0;       // kept by library calls
  std::vector<DeviceMemory> memory;  // of each device that the plan names
  int64_t devices = 1;               // of the largest mesh
  int64_t peak_bytes() const { return held_bytes + arena_bytes + workspace_bytes; }
};

}  // namespace tinyshard
