// Weights that join several, such as [q, k, v] rows, of which each is divided by itself:
// Shard(0, {8, 4, 4}) on two devices.
//
//   rows of the value      q0 q1 q2 q3 q4 q5 q6 q7 k0 k1 k2 k3 v0 v1 v2 v3
//   device 0 holds         q0 q1 q2 q3 k0 k1 v0 v1
//   device 1 holds         q4 q5 q6 q7 k2 k3 v2 v3
//
// Side by side the devices hold the rows in another order. What follows from such a weight is
// computed in that order as long as ops treat all places of the dim alike: a value in the order of
// the devices is an ordinary one that is divided along the dim, and every rule of multi/strategies
// holds for it. A slice that takes whole parts of the value takes each device's share of them:
//
//   x.linear(w)        16 columns in the order of the devices, nothing is sent
//   [.., 0:8] of it    the first 4 columns of each device: q, divided as a usual value
//
// In gradients slices become pads, and go the same way back. Where an op needs the true order, the
// value is put into it, and what that needs is sent. Nothing of this is seen outside: values have
// their shapes and their order, whoever asks.
#pragma once
#include <string>
#include <vector>

#include "core/uop/graph.h"
#include "multi/mesh.h"

namespace tinyshard {

// A dim in the order of the devices. No `sizes`: in the true one.
struct DeviceOrder {
  int dim = 0;
  const Dims* sizes = nullptr;  // interned, as those of placements
  int64_t devices = 1;
  explicit operator bool() const { return sizes != nullptr; }
  bool operator==(const DeviceOrder&) const = default;
};

struct OrderedGraph {
  Graph graph;
  std::vector<DeviceOrder> orders;  // of each root
};

// The same values without placements that divide parts, but for those of the storages: these hold
// the order of the devices. Roots that can be computed in it are; `in_true_order` names those that
// must not be. Graphs without such a placement come back as they are, without orders.
OrderedGraph in_order_of_devices(const Graph& graph, const std::vector<bool>& in_true_order);

// Without those along axes of one device, which has all of each part. Fails the running call
// (UserError) where the parts of a placement do not make up its dim, do not divide among the
// devices, or another axis divides the dim, too. `what`: the value of that shape, for the message.
Sharding with_checked_parts(Sharding where, DimSpan shape, const std::string& what);

// The placement of a value with that order in dim; false where none divides it so: then the value
// is no value of a storage that is placed so.
bool name_parts(Sharding& where, const DeviceOrder& order);

}  // namespace tinyshard
