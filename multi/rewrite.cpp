#include "multi/rewrite.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/rewrite/fold.h"
#include "core/uop/node_map.h"
#include "multi/mesh_names.h"
#include "multi/redistribute.h"

namespace tinyshard {
namespace {

class Rewriter {
 public:
  LocalGraph run(std::span<const UOp> roots) {
    std::vector<UOp> order = toposort(roots);
    for (const UOp& x : order) values_[x] = rule(x);
    LocalGraph result;
    for (const UOp& root : roots) {
      const LocalValue& left = values_.at(root);
      // A storage may hold the terms of a sum; it is what was assigned, as it is.
      LocalValue v = root.op() == Op::Assign ? left : settled(left, root.shape());
      if (!v.mesh) v = redistribute(v, root.shape(), home(), {});
      result.roots.push_back(v.local);
      result.shardings.push_back({*v.mesh, v.place});
      result.pending.push_back({*v.mesh, left.mesh ? left.place : v.place});
    }
    return result;
  }

 private:
  static Mesh home() {
    DeviceRef first = world().devices.front();
    first.rank = DeviceRef::kHere;
    return Mesh::single(first);
  }

  static bool same_place(const DeviceRef& a, const DeviceRef& b) {
    int here = world().rank;
    auto rank = [&](const DeviceRef& d) { return d.rank == DeviceRef::kHere ? here : d.rank; };
    return a.kind == b.kind && a.index == b.index && rank(a) == rank(b);
  }

  const LocalValue& of(const UOp& x) { return values_.at(x); }

  // Pending reductions completed.
  static LocalValue settled(LocalValue v, DimSpan global) {
    std::vector<Placement> wanted = v.place;
    for (Placement& p : wanted) {
      if (p.is_partial()) p = Replicate;
    }
    if (!v.mesh) return v;
    Mesh mesh = *v.mesh;
    return redistribute(std::move(v), global, mesh, wanted);
  }
  static LocalValue without_shard(LocalValue v, DimSpan global, int dim) {
    std::vector<Placement> wanted = v.place;
    for (Placement& p : wanted) {
      if (p.is_shard() && p.dim == dim) p = Replicate;
    }
    if (!v.mesh) return v;
    Mesh mesh = *v.mesh;
    return redistribute(std::move(v), global, mesh, wanted);
  }

  // The mesh on which operands meet: that of several devices wins over single ones, and of two
  // names for one device the one with axes.
  std::optional<Mesh> meeting_place(std::span<const UOp> operands) {
    std::optional<Mesh> mesh;
    for (const UOp& x : operands) {
      const auto& m = of(x).mesh;
      if (!m || (mesh && *m == *mesh)) continue;
      if (!mesh) {
        mesh = m;
        continue;
      }
      bool same_device =
          mesh->size() == 1 && m->size() == 1 && same_place(mesh->devices()[0], m->devices()[0]);
      if ((mesh->size() == 1 && m->size() > 1) || (same_device && mesh->is_single())) {
        mesh = m;
      } else if (m->size() > 1 || (mesh->size() == 1 && !same_device)) {
        auto [one, other] = told_apart(*mesh, *m);
        throw UserError(fmt::format(
            "operands live on {} and on {}: bring one of them over with shard() or to()", one,
            other));
      }
    }
    return mesh;
  }
  LocalValue on(const UOp& x, const Mesh& mesh) {
    LocalValue v = of(x);
    if (v.mesh && *v.mesh == mesh) return v;
    return redistribute(std::move(v), x.shape(), mesh, std::vector<Placement>(mesh.axes().size()));
  }

  LocalValue rule(const UOp& x) {
    switch (info(x.op()).op_class) {
      case OpClass::Elementwise:
        return elementwise(x);
      case OpClass::Movement:
        return movement(x);
      default:
        break;
    }
    switch (x.op()) {
      case Op::Const:
      case Op::Iota:
        return {x, std::nullopt, {}};
      case Op::Buffer:
        return buffer(x);
      case Op::Reduce:
        return reduction(x);
      case Op::Gather:
        return gather(x);
      case Op::ScatterAdd:
        return scatter_add(x);
      case Op::Dot:
        return dot(x);
      case Op::Conv:
      case Op::ConvBackwardData:
      case Op::ConvBackwardWeight:
        return convolution(x);
      case Op::Attention:
      case Op::AttentionBackward:
        return attention(x);
      case Op::Assign:
        return assign(x);
      case Op::Redistribute:
        return placed(x);
      case Op::Contiguous:
      case Op::Detach:
      case Op::ContiguousBackward:
      case Op::Identity:
      case Op::Checkpoint: {
        LocalValue v = x.op() == Op::Contiguous ? settled(of(x.src(0)), x.shape()) : of(x.src(0));
        return rebuilt(x, {v}, v);
      }
      case Op::After: {  // of the second source only the time counts
        LocalValue v = settled(of(x.src(0)), x.shape());
        return rebuilt(x, {v, of(x.src(1))}, v);
      }
      default:
        throw InternalError("no sharding rule for " + describe(*x));
    }
  }

  // The op over local sources; shape and argument as they are.
  static LocalValue rebuilt(const UOp& x, const std::vector<LocalValue>& sources,
                            const LocalValue& like) {
    std::vector<UOp> src;
    src.reserve(sources.size());
    for (const LocalValue& s : sources) src.push_back(s.local);
    return {UOp::make(x.op(), x.dtype(), src, x->arg(), x->payload), like.mesh, like.place};
  }

  static LocalValue buffer(const UOp& x) {
    const Sharding& where = static_cast<const Placed*>(x->payload.get())->sharding;
    Dims arg{x.arg(0)};
    Dims local = where.local_shape(x.shape());
    arg.insert(arg.end(), local.begin(), local.end());
    return {UOp::make(Op::Buffer, x.dtype(), {}, arg, x->payload), where.mesh, where.placements};
  }

  // A pending sum may stay pending through ops that are linear in it.
  bool stays_partial(const UOp& x, std::span<const LocalValue> v, size_t axis) {
    auto partial = [&](size_t i) {
      return v[i].place[axis].is_partial() && v[i].place[axis].op == ReduceOp::Sum;
    };
    auto whole = [&](size_t i) { return v[i].place[axis].is_replicate(); };
    switch (x.op()) {
      case Op::Neg:
        return partial(0);
      case Op::Cast:  // of floats: integers may have wrapped in the sum
        return partial(0) && is_float(x.dtype()) && is_float(x.src(0).dtype()) &&
               itemsize(x.dtype()) >= itemsize(x.src(0).dtype());
      case Op::Add:
      case Op::Sub:
        return partial(0) && partial(1);
      case Op::Mul:
        return (partial(0) && whole(1)) || (whole(0) && partial(1));
      case Op::Div:
        return partial(0) && whole(1) && is_float(x.dtype());
      case Op::Where:
        return whole(0) && partial(1) && partial(2);
      default:
        return false;
    }
  }

  LocalValue elementwise(const UOp& x) {
    auto mesh = meeting_place(x->src());
    if (!mesh) return rebuilt(x, sources(x), {});
    std::vector<LocalValue> v;
    for (const UOp& s : x->src()) v.push_back(on(s, *mesh));
    std::vector<Placement> wanted(mesh->axes().size());
    for (size_t a = 0; a < wanted.size(); ++a) {
      // The split of the operand with most bytes, so that the larger one need not move.
      int64_t most = -1;
      for (const LocalValue& s : v) {
        int64_t bytes = s.local->numel() * int64_t(itemsize(s.local.dtype()));
        if (s.place[a].is_shard() && bytes > most) {
          most = bytes;
          wanted[a] = s.place[a];
        }
      }
      if (most < 0 && stays_partial(x, v, a)) wanted[a] = Partial();
    }
    for (LocalValue& s : v) {
      std::vector<Placement> mine = wanted;
      for (size_t a = 0; a < mine.size(); ++a) {
        if (wanted[a].is_partial()) mine[a] = s.place[a];
      }
      s = redistribute(std::move(s), x.shape(), *mesh, mine);
    }
    return rebuilt(x, v, {UOp(), mesh, wanted});
  }

  std::vector<LocalValue> sources(const UOp& x) {
    std::vector<LocalValue> v;
    for (const UOp& s : x->src()) v.push_back(of(s));
    return v;
  }

  // The dim of the new shape that starts where `dim` started and divides as it did.
  static int reshaped_dim(DimSpan from, DimSpan to, int dim, int64_t parts) {
    int64_t before = product(from.first(dim)), left = 1;
    for (int i = 0; i < int(to.size()); ++i) {
      if (left == before && to[i] != 1) {
        bool same = to[i] == from[dim];
        bool divides = to[i] % parts == 0 && from[dim] % parts == 0;
        return same || divides ? i : -1;
      }
      left *= to[i];
    }
    return -1;
  }

  LocalValue movement(const UOp& x) {
    LocalValue v = of(x.src(0));
    DimSpan global = x.src(0).shape();
    auto arg = x->arg();
    if (!v.mesh) return rebuilt(x, {v}, v);
    // What cannot be done on a split dim is done on the whole one.
    std::vector<Placement> placed = v.place;
    for (size_t a = 0; a < placed.size(); ++a) {
      if (!v.place[a].is_shard()) continue;
      int dim = v.place[a].dim;
      bool local = true;
      switch (x.op()) {
        case Op::Reshape: {
          placed[a].dim = reshaped_dim(global, x.shape(), dim, parts_of(v, dim));
          local = placed[a].dim >= 0;
          break;
        }
        case Op::Permute:
          placed[a].dim = int(std::ranges::find(arg, dim) - arg.begin());
          break;
        case Op::Expand:
          local = global[dim] == x.shape()[dim];
          break;
        case Op::Pad:
          local = arg[2 * dim] == 0 && arg[2 * dim + 1] == 0;
          break;
        case Op::Shrink:
          local = arg[2 * dim] == 0 && arg[2 * dim + 1] == global[dim];
          break;
        case Op::Flip:
          local = std::ranges::find(arg, dim) == arg.end();
          break;
        default:
          break;
      }
      if (!local) {
        v = without_shard(std::move(v), global, dim);
        placed = v.place;
        a = size_t(-1);  // look at all axes again
      }
    }
    if (x.op() == Op::Pad && std::ranges::any_of(v.place, [](const Placement& p) {
          return p.is_partial() && p.op != ReduceOp::Sum;
        })) {
      v = settled(std::move(v), global);
      placed = v.place;
    }
    Sharding after{*v.mesh, placed};
    Dims local_arg(arg.begin(), arg.end());
    if (x.op() == Op::Reshape || x.op() == Op::Expand) local_arg = after.local_shape(x.shape());
    if (x.op() == Op::Shrink) {
      for (size_t i = 0; i < global.size(); ++i) {
        if (parts_of(v, int(i)) > 1) local_arg[2 * i + 1] = v.local.shape()[i];
      }
    }
    UOp local = v.local;
    switch (x.op()) {
      case Op::Reshape:
        local = reshape(local, local_arg);
        break;
      case Op::Expand:
        local = expand(local, local_arg);
        break;
      case Op::Permute:
        local = permute(local, local_arg);
        break;
      case Op::Pad:
        local = pad(local, local_arg);
        break;
      case Op::Shrink:
        local = shrink(local, local_arg);
        break;
      case Op::Flip:
        local = flip(local, local_arg);
        break;
      default:
        throw InternalError("no sharding rule for " + describe(*x));
    }
    return {local, v.mesh, placed};
  }

  LocalValue reduction(const UOp& x) {
    LocalValue v = of(x.src(0));
    ReduceOp op = ReduceOp(x.arg(0));
    auto axes = x->arg().subspan(1);
    if (!v.mesh) return rebuilt(x, {v}, v);
    for (const Placement& p : v.place) {
      if (p.is_partial() && p.op != op) {
        v = settled(std::move(v), x.src(0).shape());
        break;
      }
    }
    std::vector<Placement> placed = v.place;
    for (Placement& p : placed) {
      if (!p.is_shard() || std::ranges::find(axes, p.dim) == axes.end()) continue;
      v.local = with_padding_filled(v, x.src(0).shape(), p.dim, identity_of(op, x.dtype()));
      p = Partial(op);
    }
    return rebuilt(x, {v}, {UOp(), v.mesh, placed});
  }

  LocalValue gather(const UOp& x) {
    int axis = int(x.arg(0));
    auto mesh = meeting_place(x->src());
    if (!mesh) return rebuilt(x, sources(x), {});
    LocalValue data = settled(on(x.src(0), *mesh), x.src(0).shape());
    LocalValue index = settled(on(x.src(1), *mesh), x.shape());
    DimSpan from = x.src(0).shape();
    std::vector<Placement> want_data(mesh->axes().size()), want_index = want_data;
    for (size_t a = 0; a < want_data.size(); ++a) {
      // Follow the index; else the data, where both have the dim.
      Placement p = index.place[a].is_shard() ? index.place[a] : data.place[a];
      if (!p.is_shard()) continue;
      if (p.dim == axis && !index.place[a].is_shard()) continue;
      if (p.dim != axis && from[p.dim] != x.shape()[p.dim]) continue;
      want_index[a] = p;
      if (p.dim != axis) want_data[a] = p;
    }
    data = redistribute(std::move(data), from, *mesh, want_data);
    index = redistribute(std::move(index), x.shape(), *mesh, want_index);
    return rebuilt(x, {data, index}, {UOp(), mesh, want_index});
  }

  LocalValue scatter_add(const UOp& x) {
    int axis = int(x.arg(0));
    auto mesh = meeting_place(x->src());
    if (!mesh) return rebuilt(x, sources(x), {});
    DimSpan global = x.src(0).shape();
    LocalValue index = settled(on(x.src(0), *mesh), global),
               data = settled(on(x.src(1), *mesh), global);
    std::vector<Placement> wanted(mesh->axes().size()), placed = wanted;
    for (size_t a = 0; a < wanted.size(); ++a) {
      wanted[a] = data.place[a].is_shard() ? data.place[a] : index.place[a];
      placed[a] = wanted[a].is_shard() && wanted[a].dim == axis ? Partial() : wanted[a];
    }
    index = redistribute(std::move(index), global, *mesh, wanted);
    data = redistribute(std::move(data), global, *mesh, wanted);
    index.local = with_padding_filled(index, global, axis, const_int(index.local.dtype(), 0));
    data.local = with_padding_filled(data, global, axis, const_int(data.local.dtype(), 0));
    return rebuilt(x, {index, data}, {UOp(), mesh, placed});
  }

  LocalValue dot(const UOp& x) {
    auto mesh = meeting_place(x->src());
    if (!mesh) return rebuilt(x, sources(x), {});
    int batch = int(x.arg(0)), row = batch, column = batch + 1;
    DimSpan ga = x.src(0).shape(), gb = x.src(1).shape();
    LocalValue a = on(x.src(0), *mesh), b = on(x.src(1), *mesh);
    size_t axes = mesh->axes().size();
    std::vector<Placement> want_a(axes), want_b(axes), placed(axes);
    auto bytes = [](const LocalValue& v) {
      return v.local->numel() * int64_t(itemsize(v.local.dtype()));
    };
    for (size_t i = 0; i < axes; ++i) {
      Placement pa = a.place[i], pb = b.place[i];
      bool inner_a = pa == Shard(column), inner_b = pb == Shard(row);
      bool lone_a = pa.is_partial() && pa.op == ReduceOp::Sum && pb.is_replicate();
      bool lone_b = pb.is_partial() && pb.op == ReduceOp::Sum && pa.is_replicate();
      if (lone_a || lone_b) {  // linear in the pending operand
        want_a[i] = pa;
        want_b[i] = pb;
        placed[i] = Partial();
      } else if (pa.is_shard() && pa.dim < batch) {
        want_a[i] = want_b[i] = placed[i] = pa;
      } else if (pb.is_shard() && pb.dim < batch) {
        want_a[i] = want_b[i] = placed[i] = pb;
      } else if ((inner_a && (inner_b || pb.is_replicate())) || (inner_b && pa.is_replicate())) {
        want_a[i] = Shard(column);
        want_b[i] = Shard(row);
        placed[i] = Partial();
      } else if (pa == Shard(row) && (pb != Shard(column) || bytes(a) >= bytes(b))) {
        want_a[i] = placed[i] = pa;
      } else if (pb == Shard(column)) {
        want_b[i] = placed[i] = pb;
      }
    }
    a = redistribute(std::move(a), ga, *mesh, want_a);
    b = redistribute(std::move(b), gb, *mesh, want_b);
    a.local = with_padding_filled(a, ga, column, const_int(a.local.dtype(), 0));
    b.local = with_padding_filled(b, gb, row, const_int(b.local.dtype(), 0));
    return rebuilt(x, {a, b}, {UOp(), mesh, placed});
  }

  LocalValue convolution(const UOp& x) {
    auto mesh = meeting_place(x->src());
    if (!mesh) return rebuilt(x, sources(x), {});
    LocalValue a = settled(on(x.src(0), *mesh), x.src(0).shape());
    LocalValue b = settled(on(x.src(1), *mesh), x.src(1).shape());
    size_t axes = mesh->axes().size();
    bool weights = x.op() == Op::ConvBackwardWeight;
    std::vector<Placement> want_a(axes), want_b(axes), placed(axes);
    ConvArg arg = conv_arg(*x);
    for (size_t i = 0; i < axes; ++i) {
      bool batch_a = a.place[i] == Shard(0), batch_b = weights && b.place[i] == Shard(0);
      if (batch_a || batch_b) {
        want_a[i] = Shard(0);
        if (weights) want_b[i] = Shard(0);
        placed[i] = weights ? Partial() : Shard(0);
      } else if (x.op() == Op::Conv && b.place[i] == Shard(0) && arg.groups == 1) {
        want_b[i] = Shard(0);  // output channels
        placed[i] = Shard(1);
      }
    }
    a = redistribute(std::move(a), x.src(0).shape(), *mesh, want_a);
    b = redistribute(std::move(b), x.src(1).shape(), *mesh, want_b);
    if (weights) {
      a.local = with_padding_filled(a, x.src(0).shape(), 0, const_int(a.local.dtype(), 0));
      b.local = with_padding_filled(b, x.src(1).shape(), 0, const_int(b.local.dtype(), 0));
    }
    Dims local = Sharding{*mesh, placed}.local_shape(x.shape());
    std::copy(local.begin(), local.end(), arg.result);
    return {UOp::make(x.op(), x.dtype(), {a.local, b.local}, to_ints(arg)), mesh, placed};
  }

  // Batches and heads do not know of each other; what is divided elsewhere is put together first.
  LocalValue attention(const UOp& x) {
    auto mesh = meeting_place(x->src());
    if (!mesh) return rebuilt(x, sources(x), {});
    int batch = int(x->shape().size()) - 2;
    std::vector<LocalValue> v;
    for (const UOp& s : x->src()) v.push_back(settled(on(s, *mesh), s.shape()));
    std::vector<Placement> wanted(mesh->axes().size());
    for (size_t a = 0; a < wanted.size(); ++a) {
      for (const LocalValue& s : v) {
        if (wanted[a].is_replicate() && s.place[a].is_shard() && s.place[a].dim < batch)
          wanted[a] = s.place[a];
      }
    }
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = redistribute(std::move(v[i]), x.src(i).shape(), *mesh, wanted);
    return rebuilt(x, v, {UOp(), mesh, wanted});
  }

  LocalValue assign(const UOp& x) {
    LocalValue target = of(x.src(0));
    check_internal(target.mesh.has_value(), "an assigned storage has a place");
    LocalValue value = redistribute(of(x.src(1)), x.shape(), *target.mesh, target.place);
    return rebuilt(x, {target, value}, target);
  }

  LocalValue placed(const UOp& x) {
    Sharding where = placement_of(*x);
    LocalValue v = of(x.src(0));
    v.local = cast(v.local, x.dtype());
    return redistribute(std::move(v), x.shape(), where.mesh, where.placements);
  }

  NodeMap<LocalValue> values_;
};

}  // namespace

LocalGraph to_local(std::span<const UOp> roots) { return Rewriter().run(roots); }

}  // namespace tinyshard
