// Collectives inside of shard_map become those of the mesh. A reduction is left pending, so that
// the rules of ordinary values complete it where it is read; a sum of equal terms is a product by
// the number of devices. All other ops are rebuilt on what each device has, whole.
#include "multi/strategies/own.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "multi/strategies/strategies.h"
#include "multi/wire.h"

namespace tinyshard {
namespace {

using Places = std::vector<Placement>;

// x on that mesh, along each axis as `wanted(axis, placement)` says of how it lies.
template <class Wanted>
LocalValue lying_as(const UOp& x, const Mesh& mesh, const LocalValues& values,
                    const Wanted& wanted) {
  LocalValue v = values.of(x);
  const bool there = v.mesh && *v.mesh == mesh;
  Places place = there ? v.place : Places(mesh.axes().size());
  for (size_t a = 0; a < place.size(); ++a) place[a] = wanted(int(a), place[a]);
  return redistribute(std::move(v), x.shape(), mesh, place);
}

// Returns x as each device reads it: whole.
LocalValue whole_on(const UOp& x, const Mesh& mesh, const LocalValues& values) {
  LocalValue v = values.of(x);
  const bool no_sum = std::ranges::none_of(v.place, &Placement::is_partial);
  if (is_const(v.local) && no_sum) return {reshape(v.local, x.shape()), mesh, {}, v.origin};
  return lying_as(x, mesh, values, [](int, const Placement&) { return Replicate; });
}

bool splits(const Placement& p, int dim) { return p.is_shard() && p.dim == dim; }

// Leaves a device what it has, for part_of and whole_of. Other axes that split the dim must do it
// inside of the part: an outer one would count the parts in another order.
LocalValue part(const UOp& x, const PartArg& arg, const Mesh& mesh, const LocalValues& values) {
  LocalValue v = lying_as(x.src(0), mesh, values, [&](int axis, const Placement& now) {
    if (axis == arg.axis) return arg.whole ? Replicate : Shard(arg.dim);
    return now.is_partial() || (axis < arg.axis && splits(now, arg.dim)) ? Replicate : now;
  });
  v.place[size_t(arg.axis)] = arg.whole ? Shard(arg.dim) : Replicate;
  v.apart = nullptr;
  return v;
}

// Left pending where it becomes an ordinary value: the rules of these complete it where it is read,
// as a reduce-scatter where it is split, or together with others.
LocalValue reduced(const UOp& x, const CollectiveArg& arg, const Mesh& mesh, LocalValues& values,
                   OwnAxesOf& own) {
  const UOp& source = x.src(0);
  const bool equal_terms = !own(source).along(arg.mesh_axis);
  if (equal_terms && arg.reduce == ReduceOp::Sum && x.dtype() != DType::Bool) {
    LocalValue v = whole_on(source, mesh, values);
    v.local = binary(Op::Mul, v.local, const_like(v.local, double(arg.parts)));
    v.place.assign(mesh.axes().size(), Replicate);
    return v;
  }
  LocalValue v = lying_as(source, mesh, values, [&](int axis, const Placement& now) {
    const bool same = axis != arg.mesh_axis && now == Partial(arg.reduce);
    return same ? now : Replicate;
  });
  v.place[size_t(arg.mesh_axis)] = Partial(arg.reduce);
  v.apart = nullptr;
  return v;
}

LocalValue exchanged(const UOp& x, const CollectiveArg& arg, const Mesh& mesh,
                     const LocalValues& values) {
  LocalValue v = whole_on(x.src(0), mesh, values);
  v.place.assign(mesh.axes().size(), Replicate);
  const std::vector<Transfer> transfers = transfers_of(*x);
  if (arg.parts == 1) {  // a device alone sends to itself
    v.local = reshape(v.local, x.shape());
    return v;
  }
  const bool reduces = arg.op == CollectiveOp::ReduceScatter;
  const UOp terms = reduces ? to_wire(v.local, arg.reduce) : v.local;
  const UOp arrived = transfers.empty()
                          ? collective(terms, arg.op, arg.reduce, mesh, arg.mesh_axis, arg.before,
                                       arg.after, v.origin)
                          : exchange(terms, mesh, arg.mesh_axis, transfers, x.shape()[0], v.origin);
  const std::string& by = origin_of(current_origin()).op;
  set_about(arrived, fmt::format("{} of shard_map", by.empty() ? name(arg.op) : by));
  v.local = reduces ? from_wire(arrived, x.dtype(), arg.reduce) : arrived;
  return v;
}

}  // namespace

LocalValue own_value(const UOp& x, LocalValues& values, OwnAxesOf& own) {
  if (std::optional<PartArg> arg = part_arg(*x))
    return part(x, *arg, Mesh::from_payload(x->payload), values);
  if (std::optional<CollectiveArg> arg = own_collective_arg(*x)) {
    const Mesh mesh = Mesh::from_payload(x->payload);
    return arg->op == CollectiveOp::AllReduce ? reduced(x, *arg, mesh, values, own)
                                              : exchanged(x, *arg, mesh, values);
  }
  const Mesh mesh = Mesh::from_payload(own(x).mesh);
  const Places everywhere(mesh.axes().size());
  if (x.op() == Op::Assign)
    throw UserError(fmt::format(
        "{} is assigned a value that each device of {} has for itself: return it from shard_map "
        "and assign the result",
        describe(*x.src(0)), mesh.to_string()));
  if (x.op() == Op::Redistribute) {
    const Sharding where = placement_of(*x);
    if (!(where == Sharding{mesh, everywhere}))
      throw UserError(fmt::format(
          "{} is what each device of {} has for itself, and cannot be brought to {}: inside "
          "shard_map values move by collectives",
          describe(*x.src(0)), mesh.to_string(), where.to_string()));
    LocalValue v = whole_on(x.src(0), mesh, values);
    return {cast(v.local, x.dtype()), mesh, everywhere};
  }
  // In After and Checkpoint only the first source says what the value is; others say when or how.
  std::vector<LocalValue> sources{whole_on(x.src(0), mesh, values)};
  if (x.op() == Op::After) sources.push_back(values.lying(x.src(1)));
  if (x.op() != Op::After && x.op() != Op::Checkpoint) {
    for (const UOp& s : x->src().subspan(1)) sources.push_back(whole_on(s, mesh, values));
  }
  if (x.op() == Op::Decompose) return decomposed(x, {sources[0].local, mesh, everywhere});
  return rebuilt(x, sources, {{}, mesh, everywhere});
}

}  // namespace tinyshard
