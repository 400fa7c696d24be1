// Entering and leaving: an argument is moved to the placements that `in` names and becomes its part
// on each device (ShardSlice); a result is taken as the part of a whole. Between the two, the
// collectives are nodes like any other.
#include "core/tensor/shard_map.h"

#include <set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/exec/state.h"
#include "core/tensor/value_internal.h"
#include "core/uop/sizes.h"
#include "multi/parts.h"
#include "multi/per_device.h"

namespace tinyshard {

using value::Value;

namespace {

// The mesh of the shard_map whose function this thread is running.
thread_local const Mesh* running_on = nullptr;

class RunningOnMesh {
 public:
  explicit RunningOnMesh(const Mesh& mesh) { running_on = &mesh; }
  ~RunningOnMesh() { running_on = nullptr; }
  RunningOnMesh(const RunningOnMesh&) = delete;
  RunningOnMesh& operator=(const RunningOnMesh&) = delete;
};

struct Axis {
  const Mesh& mesh;
  int number;
  int64_t size() const { return mesh.axes()[static_cast<size_t>(number)].size; }
  std::string text() const {
    return fmt::format("\"{}\" has {} devices", mesh.axes()[static_cast<size_t>(number)].name,
                       size());
  }
};

Axis axis_named(const std::string& name) {
  if (!running_on)
    fail(
        fmt::format("over \"{}\": devices have values of their own only in the function of a "
                    "shard_map",
                    name));
  return {*running_on, running_on->axis(name)};
}

void need_divisible(const Value& x, int64_t dim, const Axis& axis) {
  if (x.size(dim) % axis.size() == 0) return;
  fail(fmt::format("dim {} of {} does not divide: the axis {}", dim, value::text_of(x),
                   axis.text()));
}

// Returns one device's part of an argument.
Tensor entered(const Tensor& x, const Sharding& where, size_t number) {
  if (const SymbolicShape* sizes = symbolic_shape(x.uop()); sizes)
    fail(
        fmt::format("argument {}, {}, has a size that is known when a captured step runs; "
                    "to_bound() gives it a plain one",
                    number, x.describe()));
  if (where.has_parts())
    fail(
        fmt::format("argument {} is divided as {}; parts of its own for each of several joined "
                    "values are no slice of the whole",
                    number, where.to_string()));
  UOp node = place(x.uop(), where);
  for (size_t a = 0; a < where.placements.size(); ++a) {
    if (!where.placements[a].is_shard()) continue;
    const int dim = where.placements[a].dim;
    const Axis axis{where.mesh, static_cast<int>(a)};
    if (node.shape()[static_cast<size_t>(dim)] % axis.size() != 0)
      fail(fmt::format("dim {} of argument {}, {}, does not divide: the axis {}; pad() it first",
                       dim, number, x.describe(), axis.text()));
    node = part_of(node, where.mesh, axis.number, dim);
  }
  return Tensor(node);
}

// The value of all devices that a result is part of.
StatePtr left(const Tensor& x, const Mesh& mesh, const std::vector<AxisPlacement>& placements,
              size_t number) {
  if (!x.defined()) fail(fmt::format("result {} is no tensor", number));
  const Sharding where{
      mesh, value::placements_of(mesh, placements, x.ndim(), fmt::format("result {}", number))};
  if (where.has_parts()) fail(fmt::format("result {} cannot lie as {}", number, where.to_string()));
  OwnAxesOf own_axes;
  UOp node = x.uop();
  const OwnAxes own = own_axes(node);
  if (own.mesh && !(Mesh::from_payload(own.mesh) == mesh))
    fail(fmt::format("result {} is of a shard_map over {}, not over {}", number,
                     Mesh::from_payload(own.mesh).to_string(), mesh.to_string()));
  for (size_t a = where.placements.size(); a-- > 0;) {
    if (where.placements[a].is_shard()) {
      node = whole_of(node, mesh, static_cast<int>(a), where.placements[a].dim);
    } else if (own.along(static_cast<int>(a)) && mesh.axes()[a].size > 1) {
      const std::string& name = mesh.axes()[a].name;
      fail(fmt::format(
          "result {}, {}{}, differs from device to device of \"{}\", over which it is "
          "to be Replicate: return what all_reduce or all_gather over \"{}\" makes of "
          "it, or say which dim the devices divide",
          number, tinyshard::name(x.dtype()), value::shape_text(x.shape()), name, name));
    }
  }
  return Tensor(place(node, where)).state();
}

}  // namespace

std::vector<StatePtr> detail::run_shard_map(const Mesh& mesh, const ShardMapPlacements& placements,
                                            const std::vector<Tensor>& arguments,
                                            const LocalFunction& f, Caller caller) {
  std::vector<Tensor> local;
  {
    Call call("shard_map", caller);
    if (running_on)
      fail(fmt::format("called inside of the function of another shard_map, over {}",
                       running_on->to_string()));
    if (arguments.size() != placements.in.size())
      fail(fmt::format("called with {} tensors; it has placements of {}", arguments.size(),
                       placements.in.size()));
    value::note_placement(replicated(mesh));
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!arguments[i].defined()) fail(fmt::format("argument {} is no tensor", i));
      const std::vector<Placement> place = value::placements_of(
          mesh, placements.in[i], arguments[i].ndim(), arguments[i].describe());
      local.push_back(entered(arguments[i], {mesh, place}, i));
    }
  }
  std::vector<StatePtr> results;
  {
    const RunningOnMesh running(mesh);
    results = f(local);
  }
  Call call("shard_map", caller);
  if (results.size() != placements.out.size())
    fail(fmt::format("its function returns {} tensors; it has placements of {}", results.size(),
                     placements.out.size()));
  for (size_t i = 0; i < results.size(); ++i)
    results[i] = left(results[i] ? Tensor(results[i]) : Tensor(), mesh, placements.out[i], i);
  return results;
}

Tensor axis_index(const std::string& axis, Caller caller) {
  Call call("axis_index", caller);
  const Axis over = axis_named(axis);
  return Tensor(cast(reshape(place_along(over.mesh, over.number), Dims{}), DType::I32));
}

int64_t axis_size(const std::string& axis, Caller caller) {
  Call call("axis_size", caller);
  return axis_named(axis).size();
}

Tensor all_reduce(const Tensor& x, const std::string& axis, ReduceOp op, Caller caller) {
  Call call("all_reduce", caller);
  const Axis over = axis_named(axis);
  return Tensor(all_reduced(x.uop(), over.mesh, over.number, op));
}

Tensor all_gather(const Tensor& x, const std::string& axis, int64_t dim, Caller caller) {
  Call call("all_gather", caller);
  const Axis over = axis_named(axis);
  const Value v(x);
  return Tensor(
      whole_of(v.node(), over.mesh, over.number, static_cast<int>(value::resolve_dim(dim, v))));
}

Tensor reduce_scatter(const Tensor& x, const std::string& axis, int64_t dim, ReduceOp op,
                      Caller caller) {
  Call call("reduce_scatter", caller);
  const Axis over = axis_named(axis);
  const Value v(x);
  const int64_t along = value::resolve_dim(dim, v);
  need_divisible(v, along, over);
  return Tensor(part_of_sum(v.node(), over.mesh, over.number, static_cast<int>(along), op));
}

Tensor all_to_all(const Tensor& x, const std::string& axis, int64_t split_dim, int64_t concat_dim,
                  Caller caller) {
  Call call("all_to_all", caller);
  const Axis over = axis_named(axis);
  const Value v(x);
  const int64_t split = value::resolve_dim(split_dim, v);
  const int64_t concat = value::resolve_dim(concat_dim, v);
  need_divisible(v, split, over);
  const UOp parts = parts_first(v.node(), static_cast<int>(split), over.size());
  const UOp arrived = swapped(parts, over.mesh, over.number);
  const auto joined = static_cast<int>(concat);
  return Tensor(parts_joined(arrived, joined, arrived.shape()[concat + 1] * over.size()));
}

Tensor collective_permute(const Tensor& x, const std::string& axis,
                          const std::vector<std::pair<int64_t, int64_t>>& pairs, Caller caller) {
  Call call("collective_permute", caller);
  const Axis over = axis_named(axis);
  std::set<int64_t> senders, receivers;
  for (const auto& [from, to] : pairs) {
    for (const int64_t device : {from, to}) {
      if (device < 0 || device >= over.size())
        fail(fmt::format("the pair {{{}, {}}} names device {}: the axis {}", from, to, device,
                         over.text()));
    }
    if (!senders.insert(from).second) fail(fmt::format("device {} sends twice", from));
    if (!receivers.insert(to).second) fail(fmt::format("device {} receives twice", to));
  }
  if (pairs.empty()) return x.zeros_like();
  return Tensor(sent(x.uop(), over.mesh, over.number, pairs));
}

Tensor shift(const Tensor& x, const std::string& axis, int64_t by, Caller caller) {
  Call call("shift", caller);
  const int64_t devices = axis_named(axis).size();
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int64_t i = 0; i < devices; ++i)
    pairs.emplace_back(i, ((i + by) % devices + devices) % devices);
  return collective_permute(x, axis, pairs, caller);
}

}  // namespace tinyshard
