// A dim of equal parts is put into the order of the devices by a transpose. Of q, k and v with 4 rows each
// on two devices:
//
//   true order    [12] as [part 3, device 2, 2]        q0 q1 | q2 q3 | k0 k1 | k2 k3 | v0 v1 | v2 v3
//   of devices    [device 2, part 3, 2] as [12]        q0 q1 k0 k1 v0 v1 | q2 q3 k2 k3 v2 v3
//
// Parts of other sizes are sliced, seen as [devices, size / devices] each, and concatenated behind the
// devices. Each node of the graph then has up to two forms, one in each order. An op is computed in
// the order of the devices where that is possible, and a form in the other order is made when somebody
// asks for it.
#include "multi/joined_parts.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/sizes.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

DeviceOrder order_of(const Sharding& where) {
  for (size_t a = 0; a < where.placements.size(); ++a) {
    const Placement& p = where.placements[a];
    if (p.is_shard() && p.parts) return {p.dim, p.parts, where.mesh.axes()[a].size};
  }
  return {};
}

Sharding whole_dims(Sharding where) {
  for (Placement& p : where.placements) p = without_parts(p);
  return where;
}

// The order that x is said to have where it is a storage, or is placed.
DeviceOrder given_order(const UOp& x) {
  if (x.op() == Op::Redistribute) return order_of(placement_of(*x));
  if (x.op() == Op::Buffer && x->payload)
    return order_of(static_cast<const Placed*>(x->payload.get())->sharding);
  return {};
}

Dims shape_of(const UOp& x) { return {x.shape().begin(), x.shape().end()}; }

// Returns x with `dim` divided into several dims of these sizes.
UOp divided(const UOp& x, int dim, DimSpan sizes) {
  Dims shape = shape_of(x);
  shape.erase(shape.begin() + dim);
  shape.insert(shape.begin() + dim, sizes.begin(), sizes.end());
  return reshape(x, shape);
}
// Returns x with `dim` and the next dim joined.
UOp merged(const UOp& x, int dim) {
  Dims shape = shape_of(x);
  shape[size_t(dim)] *= shape[size_t(dim) + 1];
  shape.erase(shape.begin() + dim + 1);
  return reshape(x, shape);
}
UOp swapped(const UOp& x, int dim) {
  Dims order(x.shape().size());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[size_t(dim)], order[size_t(dim) + 1]);
  return permute(x, order);
}
UOp slice(const UOp& x, int dim, int64_t begin, int64_t end) {
  Dims lo_hi;
  for (int64_t size : x.shape()) lo_hi.insert(lo_hi.end(), {0, size});
  lo_hi[2 * size_t(dim)] = begin, lo_hi[2 * size_t(dim) + 1] = end;
  return shrink(x, lo_hi);
}
UOp padded(const UOp& x, int dim, int64_t before, int64_t after) {
  Dims lo_hi(2 * x.shape().size());
  lo_hi[2 * size_t(dim)] = before, lo_hi[2 * size_t(dim) + 1] = after;
  return pad(x, lo_hi);
}
UOp concatenated(const std::vector<UOp>& pieces, int dim) {
  int64_t total = 0, before = 0;
  for (const UOp& piece : pieces) total += piece.shape()[size_t(dim)];
  UOp all;
  for (const UOp& piece : pieces) {
    const int64_t size = piece.shape()[size_t(dim)];
    const UOp placed = padded(piece, dim, before, total - before - size);
    const bool bits = is_float(piece.dtype()) || piece.dtype() == DType::Bool;
    all = all ? binary(bits ? Op::Or : Op::Add, all, placed) : placed;
    before += size;
  }
  return all;
}

bool are_equal(const Dims& sizes) {
  return std::ranges::all_of(sizes, [&](int64_t size) { return size == sizes[0]; });
}

// x, in the true order, in that of the devices. `there`: and placed so, as values of `type`.
UOp arranged(const UOp& x, const DeviceOrder& o, const Sharding* there = nullptr,
             DType type = DType::F32) {
  const int64_t total = x.shape()[size_t(o.dim)];
  auto at = [&](const UOp& piece, int dim) {
    if (!there) return piece;
    Sharding where = *there;
    for (Placement& p : where.placements) {
      if (p.is_shard() && p.dim >= o.dim) p.dim += dim - o.dim;
    }
    return place_as(type, piece, where);
  };
  const auto parts = int64_t(o.sizes->size());
  if (are_equal(*o.sizes)) {
    const UOp apart = at(divided(x, o.dim, Dims{parts, total / parts}), o.dim + 1);
    const UOp finer = divided(apart, o.dim + 1, Dims{o.devices, total / parts / o.devices});
    return merged(merged(swapped(finer, o.dim), o.dim), o.dim);
  }
  std::vector<UOp> pieces;
  int64_t begin = 0;
  for (int64_t size : *o.sizes) {
    pieces.push_back(divided(at(slice(x, o.dim, begin, begin + size), o.dim), o.dim,
                             Dims{o.devices, size / o.devices}));
    begin += size;
  }
  return merged(concatenated(pieces, o.dim + 1), o.dim);
}

// Places [begin, end) of the true order, which are one part, of a value in the order of devices.
UOp part_of(const UOp& x, const DeviceOrder& o, int64_t begin, int64_t end) {
  const int64_t total = x.shape()[size_t(o.dim)];
  const UOp each = divided(x, o.dim, Dims{o.devices, total / o.devices});
  return merged(slice(each, o.dim + 1, begin / o.devices, end / o.devices), o.dim);
}

UOp restored(const UOp& x, const DeviceOrder& o) {
  const auto parts = int64_t(o.sizes->size());
  if (are_equal(*o.sizes)) {
    const int64_t each = x.shape()[size_t(o.dim)] / parts / o.devices;
    const UOp apart = divided(x, o.dim, Dims{o.devices, parts, each});
    return merged(merged(swapped(apart, o.dim), o.dim), o.dim);
  }
  std::vector<UOp> pieces;
  int64_t begin = 0;
  for (int64_t size : *o.sizes) {
    pieces.push_back(part_of(x, o, begin, begin + size));
    begin += size;
  }
  return concatenated(pieces, o.dim);
}

// Numbers [first, last) of the parts that make up [begin, end) of the dim; nothing where they do
// not.
std::optional<std::pair<size_t, size_t>> parts_between(const Dims& sizes, int64_t begin,
                                                       int64_t end) {
  std::optional<size_t> first;
  int64_t at = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (at == begin) first = i;
    at += sizes[i];
    if (first && at == end) return std::pair{*first, i + 1};
  }
  return std::nullopt;
}

// Tells whether elements of x may differ along a dim; those of a repeated value do not.
bool varies(const UOp& x, int dim, int depth = 0) {
  if (is_const(x)) return false;
  if (x.op() == Op::Expand && x.src(0).shape()[size_t(dim)] == 1) return false;
  if (info(x.op()).op_class != OpClass::Elementwise || depth > 8) return true;
  return std::ranges::any_of(x->src(), [&](const UOp& s) { return varies(s, dim, depth + 1); });
}

class Ordering {
 public:
  OrderedGraph run(const Graph& graph, const std::vector<bool>& in_true_order) {
    for (const UOp& x : graph.order()) {
      if (const DeviceOrder order = given_order(x)) know(order);
    }
    if (known_.empty()) return {graph, {}};
    for (const UOp& x : graph.order()) {
      const OriginScope origin(origin_id(x));
      forms_[x] = forms_of(x);
    }
    std::vector<UOp> roots = graph.roots();
    std::vector<DeviceOrder> orders;
    for (size_t i = 0; i < roots.size(); ++i) {
      const OriginScope origin(origin_id(roots[i]));
      const Forms& forms = forms_.at(roots[i]);
      const bool ordered = forms.order && !in_true_order[i];
      orders.push_back(ordered ? forms.order : DeviceOrder());
      roots[i] = ordered ? forms.ordered : plain(roots[i]);
    }
    return {std::move(roots), std::move(orders)};
  }

 private:
  // A value in the true order, in that of the devices, or both: what a storage holds in the order
  // of devices is put into the other one when an op asks.
  struct Forms {
    UOp plain, ordered;
    DeviceOrder order;
  };

  void know(const DeviceOrder& order) {
    if (std::ranges::find(known_, order) == known_.end()) known_.push_back(order);
  }

  const UOp& plain(const UOp& x) {
    Forms& forms = forms_.at(x);
    if (!forms.plain) {
      const OriginScope origin(origin_id(x));
      forms.plain = restored(forms.ordered, forms.order);
    }
    return forms.plain;
  }
  bool has_plain(const UOp& x) { return bool(forms_.at(x).plain); }
  bool lies_so(const UOp& x, const DeviceOrder& order) {
    const Forms& forms = forms_.at(x);
    return forms.order && forms.order == order;
  }
  UOp in(const UOp& x, const DeviceOrder& order) {
    return lies_so(x, order) ? forms_.at(x).ordered : arranged(plain(x), order);
  }

  static UOp again(const UOp& x, std::span<const UOp> src) {
    if (std::ranges::equal(src, x->src())) return x;
    return UOp::make(x.op(), x.dtype(), src, x->arg(), x->payload);
  }
  UOp on_plain(const UOp& x) {
    std::vector<UOp> src;
    for (const UOp& s : x->src()) src.push_back(plain(s));
    return again(x, src);
  }
  bool all_have_plain(const UOp& x) {
    return std::ranges::all_of(x->src(), [&](const UOp& s) { return has_plain(s); });
  }

  // x in an order, and in the true one where its sources are known in that, too.
  Forms both(const UOp& x, const DeviceOrder& order, std::span<const UOp> src) {
    return {all_have_plain(x) ? on_plain(x) : UOp(), again(x, src), order};
  }
  Forms on_first(const UOp& x, int dim) {
    std::vector<UOp> src(x->src().begin(), x->src().end());
    DeviceOrder order = forms_.at(src[0]).order;
    src[0] = forms_.at(src[0]).ordered;
    for (size_t i = 1; i < src.size(); ++i)
      src[i] = has_plain(src[i]) ? plain(src[i]) : forms_.at(src[i]).ordered;
    order.dim = dim;
    return both(x, order, src);
  }

  Forms forms_of(const UOp& x) {
    switch (x.op()) {
      case Op::Buffer:
        if (const DeviceOrder order = given_order(x)) return {UOp(), x, order};
        return {x, UOp(), {}};
      case Op::Redistribute:
        return placed(x);
      case Op::Assign:
        return assigned(x);
      case Op::Dot:
        return product_of(x);
      case Op::Pad:
        return padded_part(x);
      case Op::Reshape:
        if (!forms_.at(x.src(0)).order) return joined(x);
        break;
      default:
        break;
    }
    if (info(x.op()).op_class == OpClass::Elementwise) return elementwise(x);
    if (x->sources == 0 || !forms_.at(x.src(0)).order) return {on_plain(x), UOp(), {}};
    const DeviceOrder order = forms_.at(x.src(0)).order;
    switch (x.op()) {
      case Op::Permute:
        return on_first(x, int(std::ranges::find(x->arg(), order.dim) - x->arg().begin()));
      case Op::Reshape:
        return reshaped(x, order);
      case Op::Expand:
        return on_first(x, order.dim);
      case Op::Shrink:
        return sliced(x, order);
      case Op::Reduce: {
        const DimSpan axes = reduce_arg(*x).axes;
        if (std::ranges::find(axes, order.dim) == axes.end()) return on_first(x, order.dim);
        const UOp& source = forms_.at(x.src(0)).ordered;
        return {again(x, std::span(&source, 1)), UOp(), {}};
      }
      case Op::Contiguous:
      case Op::ContiguousBackward:
      case Op::Detach:
      case Op::Identity:
      case Op::Checkpoint:
      case Op::After:
        return on_first(x, order.dim);
      default:
        return {on_plain(x), UOp(), {}};
    }
  }

  Forms placed(const UOp& x) {
    Sharding where = placement_of(*x);
    const DeviceOrder order = order_of(where);
    const UOp& s = x.src(0);
    if (!order) {
      // A dim that is put together on the way gets its true order at the destination.
      const Forms& forms = forms_.at(s);
      auto divides = [&](const Placement& p) { return p.is_shard() && p.dim == forms.order.dim; };
      if (!forms.order || has_plain(s) || std::ranges::any_of(where.placements, divides))
        return {on_plain(x), UOp(), {}};
      return {UOp(), place_as(x.dtype(), forms.ordered, where), forms.order};
    }
    where = whole_dims(std::move(where));
    if (lies_so(s, order)) return {UOp(), place_as(x.dtype(), forms_.at(s).ordered, where), order};
    return {UOp(), arranged(plain(s), order, &where, x.dtype()), order};
  }

  Forms assigned(const UOp& x) {
    const Forms& target = forms_.at(x.src(0));
    if (!target.order) return {on_plain(x), UOp(), {}};
    const UOp src[] = {target.ordered, in(x.src(1), target.order)};
    return {UOp(), again(x, src), target.order};
  }

  Forms elementwise(const UOp& x) {
    // Among several orders, prefers that of an operand that has no plain form.
    DeviceOrder order;
    bool needed = false;
    for (const UOp& s : x->src()) {
      const bool only = forms_.at(s).order && !has_plain(s);
      if (!forms_.at(s).order || (order && (needed || !only))) continue;
      order = forms_.at(s).order;
      needed = only;
    }
    if (!order) return {on_plain(x), UOp(), {}};
    std::vector<UOp> src;
    for (const UOp& s : x->src()) {
      if (has_plain(s) && !varies(s, order.dim)) {
        src.push_back(plain(s));
      } else if (!needed && !lies_so(s, order)) {
        return {on_plain(x), UOp(), {}};
      } else {
        src.push_back(in(s, order));
      }
    }
    return both(x, order, src);
  }

  Forms product_of(const UOp& x) {
    const UOp &a = x.src(0), &b = x.src(1);
    const auto batch = int(dot_batch(*x));
    const DeviceOrder of_a = forms_.at(a).order, of_b = forms_.at(b).order;
    auto inner = [&](const DeviceOrder& o, int dim) { return o && o.dim == dim; };
    auto by = [&](const UOp& left, const UOp& right) {
      const UOp src[] = {left, right};
      return again(x, src);
    };
    if (inner(of_a, batch + 1) || inner(of_b, batch)) {
      DeviceOrder order = inner(of_a, batch + 1) ? of_a : of_b;
      order.dim = batch + 1;
      const UOp left = in(a, order);
      order.dim = batch;
      return {by(left, in(b, order)), UOp(), {}};
    }
    if (of_a && of_a.dim < batch) {
      const UOp src[] = {forms_.at(a).ordered, in(b, of_a)};
      return both(x, of_a, src);
    }
    if (of_b && of_b.dim < batch) {
      const UOp src[] = {in(a, of_b), forms_.at(b).ordered};
      return both(x, of_b, src);
    }
    if (of_a) {
      const UOp src[] = {forms_.at(a).ordered, plain(b)};
      return both(x, of_a, src);
    }
    if (of_b) {
      const UOp src[] = {plain(a), forms_.at(b).ordered};
      return both(x, of_b, src);
    }
    return {on_plain(x), UOp(), {}};
  }

  // The dim goes through, with each place as one or several, or several as one; or it becomes
  // [parts, of one part, ...].
  Forms reshaped(const UOp& x, const DeviceOrder& order) {
    const DimSpan from = x.src(0).shape(), to = x.shape();
    const int64_t before = product(from.first(size_t(order.dim))), size = from[size_t(order.dim)];
    const auto parts = int64_t(order.sizes->size());
    int64_t left = 1;
    for (int i = 0; i < int(to.size()); left *= to[size_t(i++)]) {
      if (left != before || to[size_t(i)] == 1) continue;
      if (std::optional<DeviceOrder> scaled = scaled_order(order, size, to[size_t(i)])) {
        scaled->dim = i;
        const UOp& source = forms_.at(x.src(0)).ordered;
        return both(x, *scaled, std::span(&source, 1));
      }
      if (to[size_t(i)] != parts || i + 1 == int(to.size()) || !are_equal(*order.sizes)) break;
      if (to[size_t(i) + 1] % order.devices != 0 || size / parts % to[size_t(i) + 1] != 0) break;
      // [.., devices, parts, one device's of a part, ..]
      Dims fine(to.begin(), to.end());
      fine[size_t(i) + 1] /= order.devices;
      fine.insert(fine.begin() + i, order.devices);
      const UOp apart = reshape(forms_.at(x.src(0)).ordered, fine);
      return {merged(swapped(apart, i), i + 1), UOp(), {}};
    }
    return {on_plain(x), UOp(), {}};
  }

  // The order of the dim at another size, if blocks of its places stay together.
  std::optional<DeviceOrder> scaled_order(const DeviceOrder& order, int64_t from, int64_t to) {
    if (from == to) return order;
    if (from % to != 0 && to % from != 0) return std::nullopt;
    Dims sizes = *order.sizes;
    for (int64_t& size : sizes) {
      if (to > from) {
        size *= to / from;
        continue;
      }
      if (size % (from / to * order.devices) != 0) return std::nullopt;
      size /= from / to;
    }
    const DeviceOrder scaled{order.dim, interned_parts(sizes), order.devices};
    know(scaled);
    return scaled;
  }

  // [parts, of one part, ..] become a dim of an order that is known here.
  Forms joined(const UOp& x) {
    Forms forms{on_plain(x), UOp(), {}};
    const DimSpan from = x.src(0).shape(), to = x.shape();
    for (const DeviceOrder& known : known_) {
      const auto parts = int64_t(known.sizes->size());
      const int64_t size = std::accumulate(known.sizes->begin(), known.sizes->end(), int64_t{0});
      if (!are_equal(*known.sizes)) continue;
      for (int i = 0; i < int(to.size()); ++i) {
        if (to[size_t(i)] != size) continue;
        const int64_t before = product(to.first(size_t(i)));
        int64_t left = 1;
        for (int j = 0; j + 1 < int(from.size()); left *= from[size_t(j++)]) {
          const int64_t next = from[size_t(j) + 1];
          if (left != before || from[size_t(j)] != parts || next % known.devices != 0 ||
              size / parts % next != 0)
            continue;
          const UOp apart =
              divided(plain(x.src(0)), j + 1, Dims{known.devices, next / known.devices});
          forms.ordered = reshape(swapped(apart, j), to);
          forms.order = {i, known.sizes, known.devices};
          return forms;
        }
      }
    }
    return forms;
  }

  Forms sliced(const UOp& x, const DeviceOrder& order) {
    const auto d = size_t(order.dim);
    const UOp& source = x.src(0);
    const int64_t begin = bounds_arg(*x).low(d), end = bounds_arg(*x).high(d);
    if (begin == 0 && end == source.shape()[d]) return on_first(x, order.dim);
    const auto whole = parts_between(*order.sizes, begin, end);
    if (!whole) return {on_plain(x), UOp(), {}};
    const UOp part = part_of(forms_.at(source).ordered, order, begin, end);
    Dims others(x->arg().begin(), x->arg().end());
    others[2 * d] = 0, others[2 * d + 1] = end - begin;
    const UOp made = shrink(part, others);
    if (whole->second - whole->first == 1) return {made, UOp(), {}};
    const Dims sizes(order.sizes->begin() + ptrdiff_t(whole->first),
                     order.sizes->begin() + ptrdiff_t(whole->second));
    const DeviceOrder some{order.dim, interned_parts(sizes), order.devices};
    know(some);
    return {UOp(), made, some};
  }

  // The adjoint of a slice that took whole parts.
  Forms padded_part(const UOp& x) {
    const UOp& source = x.src(0);
    const Forms& forms = forms_.at(source);
    for (size_t d = 0; d < x.shape().size(); ++d) {
      const int64_t before = bounds_arg(*x).low(d), size = source.shape()[d];
      if (size == x.shape()[d]) continue;
      if (forms.order && forms.order.dim != int(d)) continue;
      for (const DeviceOrder& known : known_) {
        const int64_t total = std::accumulate(known.sizes->begin(), known.sizes->end(), int64_t{0});
        if (total != x.shape()[d]) continue;
        const auto whole = parts_between(*known.sizes, before, before + size);
        if (!whole) continue;
        const Dims sizes(known.sizes->begin() + ptrdiff_t(whole->first),
                         known.sizes->begin() + ptrdiff_t(whole->second));
        const DeviceOrder own{int(d), interned_parts(sizes), known.devices};
        if (sizes.size() == 1 ? bool(forms.order) : !(forms.order == own)) continue;
        const UOp& value = sizes.size() == 1 ? plain(source) : forms.ordered;
        const UOp each = divided(value, int(d), Dims{known.devices, size / known.devices});
        const UOp wide = merged(padded(each, int(d) + 1, before / known.devices,
                                       (total - before - size) / known.devices),
                                int(d));
        Dims others(x->arg().begin(), x->arg().end());
        others[2 * d] = others[2 * d + 1] = 0;
        return {has_plain(source) ? on_plain(x) : UOp(),
                pad(wide, others),
                {int(d), known.sizes, known.devices}};
      }
    }
    if (!forms.order) return {on_plain(x), UOp(), {}};
    const auto d = size_t(forms.order.dim);
    if (bounds_arg(*x).low(d) == 0 && bounds_arg(*x).high(d) == 0)
      return on_first(x, forms.order.dim);
    return {on_plain(x), UOp(), {}};
  }

  std::vector<DeviceOrder> known_;
  NodeMap<Forms> forms_;
};

}  // namespace

Sharding with_checked_parts(Sharding where, DimSpan shape, const std::string& what) {
  for (size_t a = 0; a < where.placements.size(); ++a) {
    Placement& p = where.placements[a];
    if (!p.parts) continue;
    const MeshAxis& axis = where.mesh.axes()[a];
    int64_t sum = 0;
    for (int64_t size : *p.parts) {
      if (size < 1 || size % axis.size != 0)
        fail(
            fmt::format("{} divides a part of {} places, which is no multiple of the {} devices "
                        "along \"{}\"",
                        p.to_string(), size, axis.size, axis.name));
      sum = add_sizes(sum, size);
    }
    if (sum != shape[size_t(p.dim)])
      fail(fmt::format("the parts of {} add up to {}, but dim {} of {} has {}", p.to_string(), sum,
                       p.dim, what, shape[size_t(p.dim)]));
    for (size_t b = 0; b < where.placements.size(); ++b) {
      const Placement& other = where.placements[b];
      if (b != a && other.is_shard() && other.dim == p.dim)
        fail(fmt::format("\"{}\" divides dim {} by parts, so \"{}\" cannot divide it, too",
                         axis.name, p.dim, where.mesh.axes()[b].name));
    }
    if (axis.size == 1) p = without_parts(p);
  }
  return where;
}

OrderedGraph in_order_of_devices(const Graph& graph, const std::vector<bool>& in_true_order) {
  return Ordering().run(graph, in_true_order);
}

bool name_parts(Sharding& where, const DeviceOrder& order) {
  int axis = -1;
  for (size_t a = 0; a < where.placements.size(); ++a) {
    if (!where.placements[a].is_shard() || where.placements[a].dim != order.dim) continue;
    if (axis >= 0) return false;
    axis = int(a);
  }
  if (axis < 0 || where.mesh.axes()[size_t(axis)].size != order.devices) return false;
  where.placements[size_t(axis)].parts = order.sizes;
  return true;
}

}  // namespace tinyshard
