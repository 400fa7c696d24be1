// From a graph of local values to a list of items: kernels, library calls, collectives and copies,
// in an order that respects every dependency. Nothing here runs or compiles anything.
//
// core/schedule/steps.cpp is the list of steps that it takes, core/schedule/schedule_state.h what they leave
// for each other. lower.cpp makes one kernel: index ranges pushed from the output down to the
// loads.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/codegen/kernel.h"
#include "core/runtime/communicator.h"
#include "core/runtime/device.h"
#include "core/uop/graph.h"
#include "multi/mesh.h"

namespace tinyshard {

// A value that has memory while the schedule runs, of the same shape on every device of its mesh.
struct VirtualBuffer {
  DType dtype = DType::F32;
  Dims shape;  // local shape
  Mesh mesh = Mesh::unset();
  std::shared_ptr<const void> storage;  // of a Buffer that exists outside of the schedule
  int previous = -1;                    // a later version: same memory as that buffer
  int container = -1;                   // a member of a bucket, or a further name: lives inside it
  int64_t container_offset = 0;         // in bytes
  bool output = false;                  // read by the caller afterwards: never in the arena
  int64_t arena_offset = -1;            // by memory.cpp; -1 outside of the arena
  OriginId origin = 0;                  // of the value; not part of what the schedule does
  mutable int earlier = -1;             // some version before this one: for earliest_version
  int64_t numel() const { return product(shape); }
  int64_t bytes() const { return numel() * int64_t(itemsize(dtype)); }
};

// Which part of a replicated source a device copies: {axis, mesh axis, parts}.
struct CopyPart {
  int axis, mesh_axis;
  int64_t parts;
};

struct Item {
  enum class Kind : uint8_t { Kernel, Library, Collective, Copy } kind = Kind::Kernel;
  Mesh mesh = Mesh::unset();  // runs on each of its devices that this process holds
  std::vector<int> buffers;   // parameters in slot order; Library and others: operands, then result
  std::vector<int> reads, writes;

  KernelSource kernel;
  LibraryCall call;
  Collective collective;  // its count is in elements per part, over all pieces
  // An exchange between pairs of participants: what each sends to each, in elements. Pairs that send
  // nothing are left out, as there are few others where there are many devices.
  struct Transfer {
    int from, to;
    int64_t count;
  };
  std::vector<Transfer> transfers;
  // A collective of several values: `buffers` holds operand and result of each in turn, `pieces`
  // their counts. One value: empty.
  std::vector<size_t> pieces;
  int mesh_axis = 0;            // of the collective
  uint64_t sequence = 0;        // of the collective, from 1 in schedule order
  std::vector<CopyPart> parts;  // of the copy
  Dims source_shape;            // of the copy: its source as it is cut, not as it is stored
  bool place_by_place = false;  // of the copy: each device has a source of its own, in its place
  // The places whose parts the copy takes, one after the other; `buffers` then names the source
  // once for each. Empty: see above.
  std::vector<int> places;
  std::vector<int> waits;  // items whose collective must be done before this one starts
  std::string describe() const;
};

struct Schedule {
  std::vector<VirtualBuffer> buffers;
  std::vector<Item> items;
  std::vector<int> roots;                  // buffer of each root, in the order given
  bool updates_at_once = false;            // storages are written to behind all collectives
  int64_t arena_bytes = 0;                 // of the device that needs most: see arena_bytes_on
  uint64_t hash() const;                   // equal on ranks that built the same graph
  std::vector<std::string> lines() const;  // one per item, for dumps
  // The lines, without ranks of devices, each followed by lines with all else that the hash is of:
  // buffers, and the graph of a kernel. For the comparison across ranks.
  std::vector<std::string> details() const;
};

struct ScheduleOptions {
  // Asked before a product or convolution is left to a library.
  std::function<bool(const LibraryCall&)> library_supports = [](const LibraryCall&) {
    return false;
  };
  int threads = 1;  // of a device: how far big reductions are split
  int64_t bucket_bytes = 25 << 20;
  bool join_kernels = false;  // where launches are dear
  bool updates_at_once =
      false;                // where that can be: storages are written to behind all collectives
  int64_t spare_bytes = 0;  // of memory, where items run side by side: for plan_memory and
                            // for reuse_operands each
};

// Roots and their shardings as multi/rewrite.h leaves them: every shape is local, roots are values
// or Assigns.
Schedule make_schedule(const Graph& graph, std::span<const Sharding> shardings,
                       const ScheduleOptions& options);

}  // namespace tinyshard
