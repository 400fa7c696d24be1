// The nodes that communicate, with what each is for. Placements decide which ones a value needs
// (multi/redistribute.h, multi/window.h); nothing else makes them.
#pragma once
#include <span>
#include <vector>

#include "core/runtime/communicator.h"
#include "multi/gather_on_use.h"
#include "multi/mesh.h"

namespace tinyshard {

// The argument of a Collective, as far as all kinds have it.
struct CollectiveArg {
  CollectiveOp op;
  ReduceOp reduce;
  int mesh_axis;
  int64_t parts;       // devices on that axis
  bool before, after;  // whether the first dim counts the parts there
};
CollectiveArg collective_arg(const Node& x);
bool is_all_reduce(const UOp& x, ReduceOp reduce);

// Along one axis of a mesh. `before` and `after`: whether the first dim counts the parts there.
// `moved`: the origin of the value, for the purpose that plans name.
UOp collective(const UOp& x, CollectiveOp op, ReduceOp reduce, const Mesh& mesh, int axis,
               bool before, bool after, OriginId moved);

// An all-gather of a parameter that is gathered on use: its node says when it has its turn
// (core/passes/regather.h).
UOp timed_gather(const UOp& x, const Mesh& mesh, int axis, const GatherOnUse& how, OriginId moved);
struct GatherTime {
  int64_t turn = 0;  // number of the block, or of the turn that it has; 0: not a timed gather
  int prefetch = 0;
  bool keep = false;
};
GatherTime gather_time(const UOp& x);
UOp in_turn(const UOp& gather, const UOp& source, int64_t turn);

// x as the device with coordinate `from` has it, on all devices of the axis.
UOp broadcast(const UOp& x, const Mesh& mesh, int axis, int64_t from, OriginId moved);
int64_t broadcast_root(const Node& x);

// Rows that one device sends to another.
struct Transfer {
  int64_t from, to, rows;
};

// Rows of the first dim go from device to device along one axis, point to point. On each device x
// starts with the rows for receiver 0, then those for receiver 1, ...; the result has `received`
// rows, of which the first ones are from sender 0, then from sender 1, ... Rows behind them are
// undefined. `transfers` are sorted, by sender and then by receiver; pairs that it does not name
// send nothing.
//
//   transfers {0 1 2} {1 0 1} {1 1 1}, received 3       device 0    device 1
//                                                  x    a b         c d
//                                             result    c - -       a b d
UOp exchange(const UOp& x, const Mesh& mesh, int axis, std::span<const Transfer> transfers,
             int64_t received, OriginId moved);
std::vector<Transfer> transfers_of(const Node& x);  // none where x is no exchange

}  // namespace tinyshard
