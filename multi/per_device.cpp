// The nodes of code that each device runs for itself (per_device.h), and which axes a value is its own
// along: the axes of its sources, without those that a collective completes and with those that a part
// divides.
#include "multi/per_device.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "multi/mesh_names.h"
#include "multi/parts.h"

namespace tinyshard {
namespace {

Dims collective_ints(CollectiveOp op, ReduceOp reduce, const Mesh& mesh, int axis, bool before,
                     bool after) {
  return {int64_t(op), int64_t(reduce), -1 - axis, mesh.axes()[size_t(axis)].size, before, after};
}

// Set once this process makes a node of such code. Most never do, and then no graph need be looked
// through for one.
std::atomic<bool> any_made = false;

UOp collective_node(const UOp& x, const Mesh& mesh, const Dims& arg) {
  any_made.store(true, std::memory_order_relaxed);
  return UOp::make(Op::Collective, x.dtype(), {x}, arg, mesh.payload());
}

UOp slice_node(const UOp& x, const Mesh& mesh, int axis, int dim, int64_t parts) {
  any_made.store(true, std::memory_order_relaxed);
  return UOp::make(Op::ShardSlice, x.dtype(), {x}, Dims{dim, axis, parts}, mesh.payload());
}

Dims behind_one(DimSpan shape) {
  Dims out{1};
  out.insert(out.end(), shape.begin(), shape.end());
  return out;
}

UOp exchanged_values(const UOp& x, const Mesh& mesh, int axis, std::span<const Transfer> transfers,
                     int64_t received) {
  Dims arg = collective_ints(CollectiveOp::AllToAll, ReduceOp::Sum, mesh, axis, false, false);
  arg.push_back(received);
  for (const Transfer& t : transfers) arg.insert(arg.end(), {t.from, t.to, t.rows});
  return collective_node(x, mesh, arg);
}

// x where a receiver of these transfers has it, zeros on other devices.
UOp on_receivers(const UOp& x, const Mesh& mesh, int axis, std::span<const Transfer> transfers) {
  std::vector<bool> receives(size_t(mesh.axes()[size_t(axis)].size));
  for (const Transfer& t : transfers) receives[size_t(t.to)] = true;
  UOp inside;
  const UOp place = place_along(mesh, axis);
  for (size_t i = 0; i < receives.size(); ++i) {
    if (receives[i]) continue;
    const UOp other = binary(Op::CmpNe, place, const_like(place, double(i)));
    inside = inside ? binary(Op::And, inside, other) : other;
  }
  if (!inside) return x;
  return where(expand(reshape(inside, Dims(x.shape().size(), 1)), x.shape()), x, const_like(x, 0));
}

}  // namespace

std::optional<PartArg> part_arg(const Node& x) {
  if (x.op != Op::ShardSlice || !x.payload) return {};
  const DimSpan arg = x.arg();
  return PartArg{int(arg[0]), int(arg[1]), std::abs(arg[2]), arg[2] < 0};
}

std::optional<CollectiveArg> own_collective_arg(const Node& x) {
  if (x.op != Op::Collective) return {};
  CollectiveArg arg = collective_arg(x);
  if (arg.mesh_axis >= 0) return {};
  arg.mesh_axis = -1 - arg.mesh_axis;
  return arg;
}

bool has_own_values(const Graph& graph) {
  if (!any_made.load(std::memory_order_relaxed)) return false;
  return std::ranges::any_of(graph.order(), [](const UOp& x) {
    return (x.op() == Op::ShardSlice || x.op() == Op::Collective) &&
           (part_arg(*x) || own_collective_arg(*x));
  });
}

OwnAxes OwnAxesOf::derived(const UOp& x) const {
  // In some ops only the first source says what the value is; others say when or how.
  const bool first_alone = x.op() == Op::After || x.op() == Op::Checkpoint;
  OwnAxes own;
  for (const UOp& s : x->src().first(first_alone ? 1 : x->sources)) {
    const OwnAxes& of_source = known_.at(s);
    if (of_source.axes == 0) continue;
    if (own.mesh && own.mesh != of_source.mesh) {
      auto [one, other] =
          told_apart(Mesh::from_payload(own.mesh), Mesh::from_payload(of_source.mesh));
      throw UserError(
          fmt::format("values of one device's code meet that belong to the shard_map of {} and to "
                      "that of {}",
                      one, other));
    }
    own.axes |= of_source.axes;
    own.mesh = of_source.mesh;
  }
  auto set = [&](int axis, bool is_own) {
    const uint64_t bit = uint64_t{1} << axis;
    own.axes = is_own ? own.axes | bit : own.axes & ~bit;
    own.mesh = own.axes ? x->payload : nullptr;
  };
  if (std::optional<PartArg> part = part_arg(*x)) {
    set(part->axis, !part->whole);
  } else if (std::optional<CollectiveArg> arg = own_collective_arg(*x)) {
    set(arg->mesh_axis, arg->op != CollectiveOp::AllReduce);
  }
  return own;
}

const OwnAxes& OwnAxesOf::operator()(const UOp& x) {
  if (const OwnAxes* known = known_.find(x)) return *known;
  std::vector<std::pair<const UOp*, size_t>> stack{{&x, 0}};
  while (!stack.empty()) {
    auto& [node, next] = stack.back();
    const std::span<const UOp> sources = (*node)->src();
    while (next < sources.size() && known_.contains(sources[next])) ++next;
    if (next < sources.size()) {
      stack.emplace_back(&sources[next++], 0);
      continue;
    }
    OwnAxes own = derived(*node);
    known_[*node] = std::move(own);
    stack.pop_back();
  }
  return known_.at(x);
}

UOp part_of(const UOp& x, const Mesh& mesh, int axis, int dim) {
  return slice_node(x, mesh, axis, dim, mesh.axes()[size_t(axis)].size);
}

UOp whole_of(const UOp& x, const Mesh& mesh, int axis, int dim) {
  return slice_node(x, mesh, axis, dim, -mesh.axes()[size_t(axis)].size);
}

UOp rows_of_all(const UOp& x, const Mesh& mesh, int axis) {
  return whole_of(reshape(x, behind_one(x.shape())), mesh, axis, 0);
}

UOp all_reduced(const UOp& x, const Mesh& mesh, int axis, ReduceOp op) {
  return collective_node(x, mesh,
                         collective_ints(CollectiveOp::AllReduce, op, mesh, axis, false, false));
}

UOp reduce_scattered(const UOp& x, const Mesh& mesh, int axis, ReduceOp op) {
  return collective_node(x, mesh,
                         collective_ints(CollectiveOp::ReduceScatter, op, mesh, axis, true, false));
}

UOp part_of_sum(const UOp& x, const Mesh& mesh, int axis, int dim, ReduceOp op) {
  return reduce_scattered(parts_first(x, dim, mesh.axes()[size_t(axis)].size), mesh, axis, op);
}

UOp swapped(const UOp& x, const Mesh& mesh, int axis) {
  return collective_node(
      x, mesh, collective_ints(CollectiveOp::AllToAll, ReduceOp::Sum, mesh, axis, true, true));
}

UOp sent(const UOp& x, const Mesh& mesh, int axis, std::vector<std::pair<int64_t, int64_t>> pairs) {
  std::ranges::sort(pairs);
  std::vector<Transfer> transfers;
  for (const auto& [from, to] : pairs) transfers.push_back({from, to, 1});
  UOp arrived = exchanged_values(reshape(x, behind_one(x.shape())), mesh, axis, transfers, 1);
  return reshape(on_receivers(arrived, mesh, axis, transfers), x.shape());
}

UOp place_along(const Mesh& mesh, int axis) {
  const int64_t devices = mesh.axes()[size_t(axis)].size;
  return part_of(UOp::make(Op::Iota, DType::I64, {}, Dims{devices}), mesh, axis, 0);
}

UOp sent_back(const UOp& y, const UOp& g) {
  const Mesh mesh = Mesh::from_payload(y->payload);
  const std::optional<CollectiveArg> arg = own_collective_arg(*y);
  check_internal(arg && arg->op == CollectiveOp::AllToAll, "values of the user's graph come back");
  std::vector<Transfer> back = transfers_of(*y);
  if (back.empty()) return swapped(g, mesh, arg->mesh_axis);
  for (Transfer& t : back) std::swap(t.from, t.to);
  std::ranges::sort(back, {}, &Transfer::from);
  return on_receivers(exchanged_values(g, mesh, arg->mesh_axis, back, y.src(0).shape()[0]), mesh,
                      arg->mesh_axis, back);
}

}  // namespace tinyshard
