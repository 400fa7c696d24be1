#include "multi/redistribute.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "core/runtime/communicator.h"
#include "multi/mesh_names.h"
#include "multi/wire.h"

namespace tinyshard {
namespace {

UOp collective(const UOp& x, CollectiveOp op, ReduceOp reduce, const Mesh& mesh, int axis,
               bool before, bool after) {
  Dims arg{int64_t(op), int64_t(reduce), axis, mesh.axes()[axis].size, before, after};
  // The mesh is part of the identity: equal calls on different meshes are different nodes.
  UOp source = x.op() == Op::Contiguous ? x : UOp::make(Op::Contiguous, x.dtype(), {x});
  return UOp::make(Op::Collective, x.dtype(), {source}, arg, mesh.payload());
}

// [.., P * k, ..] -> [P, .., k, ..], padding the dim where it does not divide.
UOp parts_first(UOp x, int dim, int64_t parts) {
  Dims shape(x.shape().begin(), x.shape().end());
  int64_t part = (shape[dim] + parts - 1) / parts, missing = part * parts - shape[dim];
  if (missing > 0) {
    Dims lo_hi(2 * shape.size());
    lo_hi[2 * dim + 1] = missing;
    x = pad(x, lo_hi);
  }
  shape[dim] = part;
  shape.insert(shape.begin() + dim, parts);
  Dims order{dim};
  for (int i = 0; i < int(shape.size()); ++i) {
    if (i != dim) order.push_back(i);
  }
  return permute(reshape(x, shape), order);
}

// [P, .., k, ..] -> [.., P * k, ..], cut to `size`.
UOp parts_joined(const UOp& x, int dim, int64_t size) {
  Dims shape(x.shape().begin() + 1, x.shape().end());
  Dims order;
  for (int i = 0; i < int(shape.size()); ++i) {
    if (i == dim) order.push_back(0);
    order.push_back(i + 1);
  }
  UOp joined = permute(x, order);
  shape[dim] *= x.shape()[0];
  joined = reshape(joined, shape);
  if (shape[dim] == size) return joined;
  Dims lo_hi;
  for (int64_t s : shape) lo_hi.insert(lo_hi.end(), {0, s});
  lo_hi[2 * dim + 1] = size;
  return shrink(joined, lo_hi);
}

// Size of `dim` when the placements of the axes below `axis` are applied.
int64_t size_above(const LocalValue& v, DimSpan global, int dim, int axis) {
  int64_t size = global[dim];
  for (int a = 0; a < axis; ++a) {
    if (v.place[a].is_shard() && v.place[a].dim == dim)
      size = (size + v.mesh->axes()[a].size - 1) / v.mesh->axes()[a].size;
  }
  return size;
}

void change_mesh(LocalValue& v, DimSpan global, const Mesh& mesh,
                 const std::vector<Placement>& wanted) {
  Mesh from = *v.mesh;
  if (from.size() > 1 && mesh.size() > 1) {
    auto [one, other] = told_apart(from, mesh);
    throw UserError(fmt::format(
        "a value on {} cannot meet one on {}: bring one of them over with shard() or to()", one,
        other));
  }
  v = redistribute(std::move(v), global, from, std::vector<Placement>(from.axes().size()));
  Dims parts;
  v.place.assign(mesh.axes().size(), Replicate);
  for (size_t a = 0; a < wanted.size(); ++a) {
    if (!wanted[a].is_shard()) continue;
    parts.insert(parts.end(), {wanted[a].dim, int64_t(a), mesh.axes()[a].size});
    v.place[a] = wanted[a];
  }
  parts.push_back(mesh.id());  // identity; the copy reads triples only
  v.local = UOp::make(Op::CopyIn, v.local.dtype(), {v.local}, parts, mesh.payload());
  v.mesh = mesh;
}

}  // namespace

int64_t parts_of(const LocalValue& v, int dim) {
  int64_t parts = 1;
  for (size_t a = 0; a < v.place.size(); ++a) {
    if (v.place[a].is_shard() && v.place[a].dim == dim) parts *= v.mesh->axes()[a].size;
  }
  return parts;
}

UOp with_padding_filled(const LocalValue& v, DimSpan global, int dim, const UOp& fill) {
  if (v.local.shape()[dim] * parts_of(v, dim) == global[dim]) return v.local;
  // Places count from 1 and are cut as the value was, axis by axis: a slice beyond the end is 0.
  UOp place = UOp::make(Op::Iota, DType::I64, {}, Dims{global[dim]});
  place = binary(Op::Add, place, const_like(place, 1));
  for (size_t a = 0; a < v.place.size(); ++a) {
    if (!v.place[a].is_shard() || v.place[a].dim != dim) continue;
    place =
        UOp::make(Op::ShardSlice, DType::I64, {place}, Dims{0, int64_t(a), v.mesh->axes()[a].size});
  }
  Dims ones(global.size(), 1);
  ones[dim] = v.local.shape()[dim];
  UOp inside = binary(Op::CmpLt, const_like(place, 0), place);
  inside = expand(reshape(inside, ones), v.local.shape());
  Dims one(global.size(), 1);
  return where(inside, v.local, expand(reshape(fill, one), v.local.shape()));
}

LocalValue redistribute(LocalValue v, DimSpan global, const Mesh& mesh,
                        const std::vector<Placement>& wanted) {
  if (!v.mesh) {
    v.mesh = mesh;
    v.place.assign(mesh.axes().size(), Replicate);
    // Every part of a constant is a constant, and so is every term of zero.
    bool possible = std::ranges::all_of(wanted, [&](const Placement& p) {
      return !p.is_partial() || (p.op == ReduceOp::Sum && is_const(v.local, 0));
    });
    if (is_const(v.local) && possible) {
      v.place = wanted;
      v.local = reshape(v.local, Sharding{mesh, wanted}.local_shape(global));
    }
  }
  if (!(*v.mesh == mesh)) {
    change_mesh(v, global, mesh, wanted);
  }
  for (size_t a = 0; a < wanted.size(); ++a) {
    if (mesh.axes()[a].size == 1)
      v.place[a] = wanted[a];  // on an axis of one device all placements are the same
  }
  if (v.place == wanted) return v;
  if (options().debug >= 2) {
    log_line(fmt::format("reshard {} {}: {} -> {}", name(v.local.dtype()), to_string(global),
                         Sharding{mesh, v.place}.to_string(), Sharding{mesh, wanted}.to_string()));
  }
  int axes = int(wanted.size());
  auto splits = [](const Placement& p, int dim) { return p.is_shard() && p.dim == dim; };
  auto alone = [&](int axis, int dim) {  // no other axis splits this dim, before or after
    for (int a = 0; a < axes; ++a) {
      if (a != axis && (splits(v.place[a], dim) || splits(wanted[a], dim))) return false;
    }
    return true;
  };
  // Axes that split one dim nest, the first one outermost: an outer one changes only when no inner
  // one is in the way, so those are gathered first and cut again afterwards.
  std::vector<bool> changes(axes);
  for (int a = 0; a < axes; ++a) changes[a] = !(v.place[a] == wanted[a]);
  for (int a = 0; a < axes; ++a) {
    if (!changes[a]) continue;
    for (int b = a + 1; b < axes; ++b) {
      bool nested = (v.place[a].is_shard() && splits(v.place[b], v.place[a].dim)) ||
                    (wanted[a].is_shard() && splits(v.place[b], wanted[a].dim));
      changes[b] = changes[b] || nested;
    }
  }
  for (int a = axes; a-- > 0;) {
    if (!changes[a]) continue;
    Placement from = v.place[a], to = wanted[a];
    int64_t parts = mesh.axes()[a].size;
    auto reduced = [&](const UOp& terms, CollectiveOp op) {
      UOp sum = collective(terms, op, from.op, mesh, a, op == CollectiveOp::ReduceScatter, false);
      return from_wire(sum, v.local.dtype(), from.op);
    };
    if (from.is_partial() && to.is_shard() && alone(a, to.dim)) {
      v.local = reduced(parts_first(to_wire(v.local, from.op), to.dim, parts),
                        CollectiveOp::ReduceScatter);
      v.place[a] = to;
    } else if (from.is_partial() && !(to == from)) {
      v.local = reduced(to_wire(v.local, from.op), CollectiveOp::AllReduce);
      v.place[a] = Replicate;
    } else if (from.is_shard() && to.is_shard() && from.dim != to.dim && alone(a, to.dim) &&
               alone(a, from.dim)) {
      UOp swapped = collective(parts_first(v.local, to.dim, parts), CollectiveOp::AllToAll,
                               ReduceOp::Sum, mesh, a, true, true);
      v.local = parts_joined(swapped, from.dim, global[from.dim]);
      v.place[a] = to;
    } else if (from.is_shard()) {
      UOp all = collective(v.local, CollectiveOp::AllGather, ReduceOp::Sum, mesh, a, false, true);
      v.local = parts_joined(all, from.dim, size_above(v, global, from.dim, a));
      v.place[a] = Replicate;
    }
  }
  for (int a = 0; a < axes; ++a) {
    if (v.place[a] == wanted[a]) continue;
    if (wanted[a].is_partial()) {
      throw UserError(fmt::format("a value that is {} over \"{}\" cannot become {}",
                                  v.place[a].to_string(), mesh.axes()[a].name,
                                  wanted[a].to_string()));
    }
    if (!wanted[a].is_shard()) continue;
    v.local = UOp::make(Op::ShardSlice, v.local.dtype(), {v.local},
                        Dims{wanted[a].dim, a, mesh.axes()[a].size});
    v.place[a] = wanted[a];
  }
  return v;
}

}  // namespace tinyshard
