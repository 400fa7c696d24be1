// Where values begin and end: storages, assignments, and the placements that users ask for.
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/uop/args.h"
#include "multi/strategies/strategies.h"

namespace tinyshard {
namespace {

// Leaves out the first device to which a value is brought from a file when it goes on from there:
// then each device reads its part of the file and none the whole.
UOp past_first_device(const UOp& x) {
  if (x.op() != Op::Redistribute || x.src(0).op() != Op::Buffer) return x;
  const bool file = is_file(static_cast<const Placed*>(x.src(0)->payload.get())->sharding.mesh);
  return file && x.dtype() == x.src(0).dtype() ? x.src(0) : x;
}

// Moves the value at once where a placement is asked for, though others gather it on use.
LocalValue as_placed(LocalValue v) {
  v.gather_on_use = nullptr;
  return v;
}

}  // namespace

LocalValue buffer(const UOp& x, LocalValues& /*values*/) {
  const Placed& placed = *static_cast<const Placed*>(x->payload.get());
  const Sharding& where = placed.sharding;
  if (!placed.label.empty()) set_about(x, placed.label);
  Dims arg{buffer_number(*x)};
  Dims local = where.local_shape(x.shape());
  arg.insert(arg.end(), local.begin(), local.end());
  LocalValue v{UOp::make(Op::Buffer, x.dtype(), {}, arg, x->payload), where.mesh, where.placements};
  for (Placement& p : v.place) p = without_parts(p);  // in the order of the devices: joined_parts.h
  v.gather_on_use = placed.gather_on_use.get();
  return v;
}

LocalValue assign(const UOp& x, LocalValues& values) {
  LocalValue target = values.lying(x.src(0));
  check_internal(target.mesh.has_value(), "an assigned storage has a place");
  LocalValue value = as_placed(values.lying(x.src(1)));
  const std::string& label = static_cast<const Placed*>(storage_node(x)->payload.get())->label;
  if (!label.empty() && origin_of(value.origin).about.empty())
    value.origin = with_about(value.origin, fmt::format("new value of {}", label));
  value = redistribute(std::move(value), x.shape(), *target.mesh, target.place);
  LocalValue assigned = rebuilt(x, {target, value}, target);
  assigned.gather_on_use = target.gather_on_use;
  return assigned;
}

LocalValue placed(const UOp& x, LocalValues& values) {
  Sharding where = placement_of(*x);
  const UOp& source = x.src(0);
  // If the source repeats something, only that travels.
  const bool repeats = source.op() == Op::Expand && values.lying(source).mesh == where.mesh;
  LocalValue v = repeats ? values.brought(source, where.mesh, where.placements)
                         : as_placed(values.lying(past_first_device(source)));
  v.local = cast(v.local, x.dtype());
  return redistribute(std::move(v), x.shape(), where.mesh, where.placements);
}

}  // namespace tinyshard
