// From the devices of one mesh to those of another: parts travel as they are, from device to device.
//
//   (CPU:0, CPU:1, CPU:2) to (CPU:2, CPU:0), part by part
//     among CPU:0, CPU:1, CPU:2:  CPU:0 sends its part, number 0, to CPU:2, and receives number 1
//     from CPU:1; part 2 stays behind
#pragma once
#include <utility>
#include <vector>

#include "multi/mesh.h"

namespace tinyshard {

// Device p of `to` gets the part of device p of x's mesh; nothing where there is no such device, so
// that its part is undefined. With `copies`, all devices of x's mesh have the same, and each device
// of `to` gets it.
UOp relocated(const UOp& x, const Mesh& from, const Mesh& to, bool copies);

inline bool is_relocation(const Node& x) { return x.op == Op::CopyIn && x.arguments == 1; }
// Whether the first dim of what is sent repeats it, for several devices each.
inline bool sends_copies(const Node& relocation) { return relocation.arg()[0] != 0; }

// Who sends to whom: places on one axis of all devices of both meshes.
struct Relocation {
  Mesh among;
  std::vector<std::pair<int, int>> pairs;  // sender and receiver
};
Relocation relocation(const Mesh& from, const Mesh& to, bool copies);

// Of a relocation of copies: to how many devices one device sends, itself included.
int64_t most_receivers(const Mesh& from, const Mesh& to);

// Whether both name the same device.
bool same_device(const DeviceRef& a, const DeviceRef& b);

}  // namespace tinyshard
