// From the devices of one mesh to those of another: parts travel as they are, from device to device.
//
//   (CPU:0, CPU:1, CPU:2) to (CPU:2, CPU:0), part by part
//     among CPU:0, CPU:1, CPU:2:  CPU:0 sends its part, number 0, to CPU:2, and receives number 1
//     from CPU:1; part 2 stays behind
//
// Or among those of one mesh, so that two of its axes change places:
//
//   f32[8, 8] on 2 x 2, rows over the first axis and columns over the second, to columns over the
//   first: device (0, 1), which has the upper right part, gives it to device (1, 0)
#pragma once
#include <utility>
#include <vector>

#include "core/uop/args.h"
#include "multi/mesh.h"

namespace tinyshard {

// Device p of `to` gets the part of device p of x's mesh; nothing where there is no such device, so
// that its part is undefined. With `copies`, all devices of x's mesh have the same, and each device
// of `to` gets it.
UOp relocated(const UOp& x, const Mesh& from, const Mesh& to, bool copies);

// Device (.., i, .., j, ..) of x's mesh gets the part of device (.., j, .., i, ..), by its places on
// two axes of one size.
UOp swapped_over(const UOp& x, const Mesh& mesh, int axis, int other);

// {times}, or {axis, other}: copied_parts() come by three, and places behind a number below 0.
inline bool is_relocation(const Node& x) {
  return x.op == Op::CopyIn && (x.arguments == 1 || x.arguments == 2) &&
         !copies_place_by_place(x) && !copies_from_places(x);
}

// The senders and receivers of a relocation, as places on one axis of all devices of both meshes.
struct Relocation {
  Mesh among;
  std::vector<std::pair<int, int>> pairs;  // sender and receiver
};
Relocation relocation(const Mesh& from, const Mesh& to, bool copies);
// Returns the relocation of a node for which is_relocation() holds, of a value on `from`.
Relocation relocation(const Node& x, const Mesh& from);

// The most devices to which a device sends when it relocates copies, itself included.
int64_t most_receivers(const Mesh& from, const Mesh& to);

// x, of which what has no mesh of its own, as constants, is computed on that one: leaves without a mesh
// take that of whoever reads them.
UOp on_its_mesh(const UOp& x, const Mesh& mesh);

// Returns whether both name the same device.
bool same_device(const DeviceRef& a, const DeviceRef& b);

}  // namespace tinyshard
