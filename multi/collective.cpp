#include "multi/collective.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

// Of a collective that moves a value with this origin, for the op that is being made local: what it
// is for, and the line to look at.
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

UOp collective_of(const UOp& x, const Mesh& mesh, const Dims& arg) {
  // The mesh is part of the identity: equal calls on different meshes are different nodes.
  UOp source = x.op() == Op::Contiguous ? x : UOp::make(Op::Contiguous, x.dtype(), {x});
  return UOp::make(Op::Collective, x.dtype(), {source}, arg, mesh.payload());
}

}  // namespace

UOp collective(const UOp& x, CollectiveOp op, ReduceOp reduce, const Mesh& mesh, int axis,
               bool before, bool after, OriginId moved) {
  const OriginScope origin(purpose_of(op, reduce, moved));
  return collective_of(
      x, mesh, {int64_t(op), int64_t(reduce), axis, mesh.axes()[size_t(axis)].size, before, after});
}

// {.., after, turn, prefetch, keep}
constexpr size_t kTurn = 6, kTimed = 9;

UOp timed_gather(const UOp& x, const Mesh& mesh, int axis, const GatherOnUse& how, OriginId moved) {
  const OriginScope origin(purpose_of(CollectiveOp::AllGather, ReduceOp::Sum, moved));
  const Dims arg{int64_t(CollectiveOp::AllGather),
                 int64_t(ReduceOp::Sum),
                 axis,
                 mesh.axes()[size_t(axis)].size,
                 0,
                 1,
                 how.block,
                 how.prefetch,
                 how.keep};
  // A storage is sent as it is: a copy of it would live until the last gather.
  if (x.op() == Op::Buffer || x.op() == Op::Assign)
    return UOp::make(Op::Collective, x.dtype(), {x}, arg, mesh.payload());
  return collective_of(x, mesh, arg);
}

GatherTime gather_time(const UOp& x) {
  if (x.op() != Op::Collective || x->arg().size() != kTimed) return {};
  return {x.arg(kTurn), int(x.arg(kTurn + 1)), x.arg(kTurn + 2) != 0};
}

UOp in_turn(const UOp& gather, const UOp& source, int64_t turn) {
  Dims arg(gather->arg().begin(), gather->arg().end());
  arg[kTurn] = turn;
  return UOp::make(gather.op(), gather.dtype(), {source}, arg, gather->payload);
}

UOp broadcast(const UOp& x, const Mesh& mesh, int axis, int64_t from, OriginId moved) {
  const OriginScope origin(purpose_of(CollectiveOp::Broadcast, ReduceOp::Sum, moved));
  return collective_of(x, mesh,
                       {int64_t(CollectiveOp::Broadcast), int64_t(ReduceOp::Sum), axis,
                        mesh.axes()[size_t(axis)].size, 0, 0, from});
}

UOp exchange(const UOp& x, const Mesh& mesh, int axis, std::span<const Transfer> transfers,
             int64_t received, OriginId moved) {
  const OriginScope origin(purpose_of(CollectiveOp::AllToAll, ReduceOp::Sum, moved));
  Dims arg{int64_t(CollectiveOp::AllToAll),
           int64_t(ReduceOp::Sum),
           axis,
           mesh.axes()[size_t(axis)].size,
           0,
           0,
           received};
  for (const Transfer& t : transfers) arg.insert(arg.end(), {t.from, t.to, t.rows});
  return collective_of(x, mesh, arg);
}

}  // namespace tinyshard
