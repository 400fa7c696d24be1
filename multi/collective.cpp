// A node says all in integers: the op, the mesh axis and its size, and behind them what its kind
// needs. Its source is stored first, as collectives read memory; a parameter that is gathered on
// use is sent from its storage, since a copy would live until the last gather. Reductions are named
// after the value that they complete, other collectives after the op that needs what arrives.
#include "multi/collective.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

// Describes a collective that moves a value with this origin, for the op that is being made local:
// its purpose, and the line to look at.
OriginId purpose_of(CollectiveOp op, ReduceOp reduce, OriginId moved) {
  const Origin& from = origin_of(moved);
  if (op == CollectiveOp::AllReduce || op == CollectiveOp::ReduceScatter) {
    if (!from.about.empty()) return moved;
    return with_about(moved, fmt::format("completes the {} of {}", name(reduce),
                                         from.op.empty() ? "a value" : from.op));
  }
  const OriginId user = current_origin();
  const std::string& by = origin_of(user).op;
  std::string what = !from.about.empty() ? from.about
                     : from.op.empty()   ? "a value"
                                         : "the result of " + from.op;
  const char* does = op == CollectiveOp::AllToAll    ? "changes the split of"
                     : op == CollectiveOp::Broadcast ? "brings all devices a part of"
                                                     : "gathers";
  return with_about(origin_of(user).source().empty() ? moved : user,
                    fmt::format("{} {}{}", does, what, by.empty() ? "" : " for " + by));
}

// The integers of a node: these six, and behind them what its kind has:
//   broadcast {root}, timed gather {turn, prefetch, keep}, exchange {received, (from, to, rows)...}
constexpr size_t kRoot = 6, kTurn = 6, kTimed = 9, kTransfers = 7;

Dims ints(CollectiveOp op, ReduceOp reduce, const Mesh& mesh, int axis, bool before, bool after) {
  return {int64_t(op), int64_t(reduce), axis, mesh.axes()[size_t(axis)].size, before, after};
}

UOp collective_of(const UOp& x, const Mesh& mesh, const Dims& arg) {
  // The mesh is part of the identity: equal calls on different meshes are different nodes.
  UOp source = x.op() == Op::Contiguous ? x : UOp::make(Op::Contiguous, x.dtype(), {x});
  return UOp::make(Op::Collective, x.dtype(), {source}, arg, mesh.payload());
}

}  // namespace

CollectiveArg collective_arg(const Node& x) {
  const DimSpan arg = x.arg();
  return {CollectiveOp(arg[0]), ReduceOp(arg[1]), int(arg[2]), arg[3], arg[4] != 0, arg[5] != 0};
}

bool is_all_reduce(const UOp& x, ReduceOp reduce) {
  if (x.op() != Op::Collective) return false;
  const CollectiveArg arg = collective_arg(*x);
  return arg.op == CollectiveOp::AllReduce && arg.reduce == reduce;
}

UOp collective(const UOp& x, CollectiveOp op, ReduceOp reduce, const Mesh& mesh, int axis,
               bool before, bool after, OriginId moved) {
  const OriginScope origin(purpose_of(op, reduce, moved));
  return collective_of(x, mesh, ints(op, reduce, mesh, axis, before, after));
}

UOp timed_gather(const UOp& x, const Mesh& mesh, int axis, const GatherOnUse& how, OriginId moved) {
  const OriginScope origin(purpose_of(CollectiveOp::AllGather, ReduceOp::Sum, moved));
  Dims arg = ints(CollectiveOp::AllGather, ReduceOp::Sum, mesh, axis, false, true);
  arg.insert(arg.end(), {int64_t(how.block), int64_t(how.prefetch), int64_t(how.keep)});
  // A storage is sent as it is: a copy of it would live until the last gather.
  if (x.op() == Op::Buffer || x.op() == Op::Assign)
    return UOp::make(Op::Collective, x.dtype(), {x}, arg, mesh.payload());
  return collective_of(x, mesh, arg);
}

GatherTime gather_time(const UOp& x) {
  if (x.op() != Op::Collective || x->arguments != kTimed) return {};
  const DimSpan how = x->arg().subspan(kTurn);
  return {how[0], int(how[1]), how[2] != 0};
}

UOp in_turn(const UOp& gather, const UOp& source, int64_t turn) {
  Dims arg(gather->arg().begin(), gather->arg().end());
  arg[kTurn] = turn;
  return UOp::make(gather.op(), gather.dtype(), {source}, arg, gather->payload);
}

UOp broadcast(const UOp& x, const Mesh& mesh, int axis, int64_t from, OriginId moved) {
  const OriginScope origin(purpose_of(CollectiveOp::Broadcast, ReduceOp::Sum, moved));
  Dims arg = ints(CollectiveOp::Broadcast, ReduceOp::Sum, mesh, axis, false, false);
  arg.push_back(from);
  return collective_of(x, mesh, arg);
}

int64_t broadcast_root(const Node& x) { return x.arg()[kRoot]; }

UOp exchange(const UOp& x, const Mesh& mesh, int axis, std::span<const Transfer> transfers,
             int64_t received, OriginId moved) {
  const OriginScope origin(purpose_of(CollectiveOp::AllToAll, ReduceOp::Sum, moved));
  Dims arg = ints(CollectiveOp::AllToAll, ReduceOp::Sum, mesh, axis, false, false);
  arg.push_back(received);
  for (const Transfer& t : transfers) arg.insert(arg.end(), {t.from, t.to, t.rows});
  return collective_of(x, mesh, arg);
}

std::vector<Transfer> transfers_of(const Node& x) {
  std::vector<Transfer> transfers;
  if (x.arguments == kTimed) return transfers;
  for (DimSpan rest = x.arg(); rest.size() >= kTransfers + 3; rest = rest.subspan(3))
    transfers.push_back({rest[kTransfers], rest[kTransfers + 1], rest[kTransfers + 2]});
  return transfers;
}

}  // namespace tinyshard
