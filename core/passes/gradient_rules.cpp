// The derivative of every op, as a table. The arithmetic folds on the way what the seeds and the
// identities of exp and log would otherwise leave for every later pass to meet again.
#include "core/passes/gradient_rules.h"

#include <algorithm>
#include <array>
#include <numbers>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/passes/attention.h"
#include "core/passes/decompose_gradient.h"
#include "core/passes/gradient.h"
#include "core/rewrite/pattern.h"
#include "core/rewrite/scan_spelling.h"
#include "core/uop/args.h"
#include "core/uop/composite.h"
#include "core/uop/node_map.h"
#include "core/uop/sizes.h"
#include "core/uop/unfold.h"
#include "multi/change_mesh.h"
#include "multi/mesh.h"
#include "multi/per_device.h"

namespace tinyshard {
namespace {

// --- arithmetic with the identities --------------------------------------------------------------

Dims dims(DimSpan d) { return {d.begin(), d.end()}; }

UOp mul(UOp a, UOp b) {
  if (is_const(a)) std::swap(a, b);
  if (!is_const(b)) return binary(Op::Mul, a, b);
  // Constants of exp, log and mean meet in a chain; their product is kept as a double, so that
  // ln(2) * log2(e) is 1 in every type.
  double factor = const_as_double(b);
  if (factor == 1) return a;
  if (is_const(a)) return const_like(a, const_as_double(a) * factor);
  if (a.op() == Op::Mul && is_const(a.src(1))) {
    return mul(a.src(0), const_like(b, const_as_double(a.src(1)) * factor));
  }
  return binary(Op::Mul, a, b);
}
UOp mul(const UOp& a, double factor) { return mul(a, const_like(a, factor)); }

UOp neg(const UOp& x) {
  if (x.op() == Op::Neg) return x.src(0);
  if (is_const(x) || (x.op() == Op::Mul && is_const(x.src(1)))) return mul(x, -1);
  return unary(Op::Neg, x);
}

UOp add(const UOp& a, const UOp& b) {
  if (is_const(a, 0)) return b;
  if (is_const(b, 0)) return a;
  if (a == b) return mul(a, 2);
  if (b.op() == Op::Neg) return binary(Op::Sub, a, b.src(0));
  return binary(Op::Add, a, b);
}

UOp div(const UOp& a, const UOp& b) {
  if (is_const(b, 1)) return a;
  if (is_const(a) && is_const(b)) return const_like(a, const_as_double(a) / const_as_double(b));
  return binary(Op::Div, a, b);
}

// x where the condition holds, 0 elsewhere.
UOp masked(const UOp& condition, const UOp& x) { return where(condition, x, const_like(x, 0)); }

UOp convert(const UOp& x, DType dtype) {
  return is_const(x) ? const_float(dtype, const_as_double(x), x.shape()) : cast(x, dtype);
}

// Narrow floats are summed in a wider type.
UOp sum(const UOp& x, DimSpan axes) {
  if (axes.empty()) return x;
  if (is_const(x)) {
    Dims shape = dims(x.shape());
    double count = 1;
    for (int64_t axis : axes) count *= double(std::exchange(shape[axis], 1));
    return const_float(x.dtype(), const_as_double(x) * count, shape);
  }
  return cast(reduce(ReduceOp::Sum, cast(x, accumulator(x.dtype())), axes), x.dtype());
}

// --- rules ---------------------------------------------------------------------------------------

UOp through(const UOp&, const UOp& g, size_t) { return g; }
UOp neg_rule(const UOp&, const UOp& g, size_t) { return neg(g); }
UOp exp2_rule(const UOp& y, const UOp& g, size_t) { return mul(mul(g, y), std::numbers::ln2); }
UOp log2_rule(const UOp& y, const UOp& g, size_t) {
  return div(mul(g, std::numbers::log2e), y.src(0));
}
UOp sqrt_rule(const UOp& y, const UOp& g, size_t) { return div(mul(g, 0.5), y); }
UOp recip_rule(const UOp& y, const UOp& g, size_t) { return neg(mul(g, mul(y, y))); }
UOp cast_rule(const UOp& y, const UOp& g, size_t) { return convert(g, y.src(0).dtype()); }
UOp sub_rule(const UOp&, const UOp& g, size_t source) { return source == 0 ? g : neg(g); }
UOp mul_rule(const UOp& y, const UOp& g, size_t source) { return mul(g, y.src(1 - source)); }
UOp reshape_rule(const UOp& y, const UOp& g, size_t) { return reshape(g, y.src(0).shape()); }
UOp flip_rule(const UOp& y, const UOp& g, size_t) { return flip(g, y->arg()); }
UOp contiguous_rule(const UOp&, const UOp& g, size_t) {
  return is_const(g) ? g : unary(Op::Contiguous, g);
}

UOp where_rule(const UOp& y, const UOp& g, size_t source) {
  return source == 1 ? masked(y.src(0), g) : where(y.src(0), const_like(g, 0), g);
}

// cos x = 1 - 2 sin(x/2)^2: halving is exact, where x + pi/2 would round a large x.
UOp sin_rule(const UOp& y, const UOp& g, size_t) {
  UOp half = unary(Op::Sin, mul(y.src(0), 0.5));
  return mul(g, add(mul(mul(half, half), -2), const_like(half, 1)));
}

// In f32 for narrow floats, and rounded once: g / b / b alone leaves the range of f16 early.
UOp div_rule(const UOp& y, const UOp& g, size_t source) {
  DType wide = accumulator(y.dtype());
  UOp divisor = convert(y.src(1), wide), first = div(convert(g, wide), divisor);
  if (source == 0) return convert(first, y.dtype());
  UOp quotient = wide == y.dtype() ? y : div(convert(y.src(0), wide), divisor);
  return convert(neg(mul(first, quotient)), y.dtype());
}

// a - trunc(a / b) * b; of integers nobody asks for a gradient.
UOp mod_rule(const UOp& y, const UOp& g, size_t source) {
  if (source == 0) return g;
  return neg(mul(g, div(binary(Op::Sub, y.src(0), y), y.src(1))));
}

// Equal operands have half of the gradient each.
UOp max_rule(const UOp& y, const UOp& g, size_t source) {
  const UOp &mine = y.src(source), &other = y.src(1 - source);
  if (mine == other) return mul(g, 0.5);
  return where(binary(Op::CmpLt, other, mine), g,
               masked(binary(Op::CmpEq, mine, other), mul(g, 0.5)));
}

UOp expand_rule(const UOp& y, const UOp& g, size_t) {
  DimSpan from = y.src(0).shape(), to = y.shape();
  Dims axes;
  for (size_t i = 0; i < to.size(); ++i) {
    if (from[i] != to[i]) axes.push_back(int64_t(i));
  }
  return sum(g, axes);
}

UOp permute_rule(const UOp& y, const UOp& g, size_t) {
  Dims back(y->arguments);
  for (size_t i = 0; i < back.size(); ++i) back[y->arg()[size_t(i)]] = int64_t(i);
  return permute(g, back);
}

UOp pad_rule(const UOp& y, const UOp& g, size_t) {
  Dims keep = dims(y->arg());
  for (size_t i = 0; i < keep.size(); i += 2) keep[i + 1] = keep[i] + y.src(0).shape()[i / 2];
  return shrink(g, keep);
}

UOp shrink_rule(const UOp& y, const UOp& g, size_t) {
  Dims around = dims(y->arg());
  for (size_t i = 0; i < around.size(); i += 2)
    around[i + 1] = y.src(0).shape()[i / 2] - around[i + 1];
  return pad(g, around);
}

// The product of the other elements. Where none of them is zero it is the product of all elements but
// the zeros, `rest`, divided by the element unless that is the zero; else it is zero.
//
// It is differentiated again. Where one other element z is zero, the product has a slope by it, so
// zero is written as z times the product of those that remain. The sum of 1 + z over the zeros is
// their number, exactly, and has the slope of z: one sum counts them and stands for z. Where two
// zeros remain, their product is half of (y + z)^2 - (y^2 + z^2). Third derivatives are right
// everywhere by this, fourth ones where at most two elements are zero.
template <class Sum, class Product, class Spread>
UOp prod_gradient(const UOp& x, const UOp& g, const Sum& sum_of, const Product& product_of,
                  const Spread& spread) {
  UOp one = const_like(x, 1), zero = const_like(x, 0);
  UOp is_zero = binary(Op::CmpEq, x, zero);
  UOp rest = where(is_zero, one, x), counted = masked(is_zero, binary(Op::Add, x, one));
  UOp quotient = div(spread(product_of(rest)), rest);
  UOp zeros = binary(Op::Sub, spread(sum_of(counted)), counted);  // among the others
  // Infinity times zero would be no zero.
  UOp is_finite = binary(Op::CmpEq, binary(Op::Sub, quotient, quotient), zero);
  UOp linear = where(is_finite, mul(quotient, binary(Op::Sub, zeros, one)), zero);
  UOp two = const_like(x, 2), squared = masked(is_zero, mul(x, x));
  UOp sum_of_two = binary(Op::Sub, zeros, two);
  UOp twice = binary(Op::Sub, mul(sum_of_two, sum_of_two),
                     binary(Op::Sub, spread(sum_of(squared)), squared));
  UOp quadratic = where(is_finite, mul(quotient, div(twice, two)), zero);
  UOp others = where(binary(Op::CmpEq, zeros, zero), quotient,
                     where(binary(Op::CmpEq, zeros, one), linear,
                           masked(binary(Op::CmpEq, zeros, two), quadratic)));
  return mul(others, g);
}

// The gradient of a maximum or minimum y, split evenly among the elements of x that are equal to
// it.
template <class Sum, class Spread>
UOp shared_gradient(const UOp& x, const UOp& y, const UOp& g, const Sum& sum_of,
                    const Spread& spread) {
  UOp chosen = binary(Op::CmpEq, x, spread(y));
  DType wide = accumulator(x.dtype());  // in which ties are counted exactly
  UOp ties = sum_of(masked(chosen, const_float(wide, 1, x.shape())));
  UOp share = convert(div(convert(g, wide), ties), x.dtype());
  return masked(chosen, spread(share));
}

UOp reduce_rule(const UOp& y, const UOp& g, size_t) {
  const UOp& x = y.src(0);
  DimSpan axes = reduce_arg(*y).axes;
  auto spread = [&](const UOp& v) { return expand(v, x.shape()); };
  auto sum_of = [&](const UOp& v) { return sum(v, axes); };
  switch (reduce_arg(*y).op) {
    case ReduceOp::Sum:
      return spread(g);
    case ReduceOp::Prod:
      return prod_gradient(
          x, spread(g), sum_of, [&](const UOp& v) { return reduce(ReduceOp::Prod, v, axes); },
          spread);
    default:
      return shared_gradient(x, y, g, sum_of, spread);
  }
}

// Positions along `axis` and the index, both of this shape and of a type that can count the axis.
std::pair<UOp, UOp> comparable_positions(const UOp& index, DimSpan shape, int64_t axis) {
  int64_t n = shape[axis];
  DType type = itemsize(index.dtype()) < itemsize(DType::I32) ? DType::I32 : index.dtype();
  if (n > int64_t{1} << 31) type = DType::I64;
  return {iota_along(shape, size_t(axis), type), expand(cast(index, type), shape)};
}

UOp gather_rule(const UOp& y, const UOp& g, size_t) {
  const UOp &x = y.src(0), &index = y.src(1);
  int64_t axis = gather_axis(*y);
  Dims shape = dims(index.shape());
  shape[axis] = x.shape()[axis];
  UOp out;
  if (index.shape()[axis] == 1) {  // one pick a row: a comparison fuses with what surrounds it
    auto [positions, wanted] = comparable_positions(index, shape, axis);
    out = masked(binary(Op::CmpEq, positions, wanted), expand(g, shape));
  } else {
    out = UOp::make(Op::ScatterAdd, g.dtype(), {index, g}, Dims{axis, shape[axis]});
  }
  Dims behind(2 * shape.size());
  for (size_t i = 0; i < shape.size(); ++i) behind[2 * i + 1] = x.shape()[i] - shape[i];
  return pad(out, behind);
}

// As the gradients of Reduce, among the elements that meet at a place.
UOp scatter_rule(const UOp& y, const UOp& g, size_t) {
  const UOp &index = y.src(0), &x = y.src(1);
  auto at_place = [&](const UOp& v) {
    return UOp::make(Op::Gather, v.dtype(), {v, index}, Dims{scatter_arg(*y).axis});
  };
  auto scattered = [&](const UOp& v) {
    const ScatterArg a = scatter_arg(*y);
    return UOp::make(Op::ScatterAdd, v.dtype(), {index, v}, Dims{a.axis, a.size});
  };
  switch (scatter_arg(*y).op) {
    case ReduceOp::Sum:
      return at_place(g);
    case ReduceOp::Prod:
      return prod_gradient(
          x, at_place(g), scattered,
          [&](const UOp& v) { return UOp::make(Op::ScatterAdd, v.dtype(), {index, v}, y->arg()); },
          at_place);
    default:
      return shared_gradient(x, y, g, scattered, at_place);
  }
}

// The log of sums and the product are differentiated as they are spelled, for a device like this.
template <ScanKind kind, bool short_ones>
UOp spelled_along_last(std::span<const UOp> x) {
  const ScanArg arg{.kind = kind, .axis = int64_t(x[0].shape().size()) - 1};
  return spelled_scan(x[0], arg, short_ones ? short_chunks(x[0], kind) : ScanChunks());
}

UOp along_last(const UOp& x, int64_t axis) {
  Dims order;
  for (size_t d = 0; d < x.shape().size(); ++d) order.push_back(int64_t(d));
  std::swap(order[size_t(axis)], order.back());
  return permute(x, order);
}

std::optional<Mesh> mesh_under(const UOp& x);

UOp scan_rule(const UOp& y, const UOp& g, size_t) {
  const UOp& x = y.src(0);
  ScanArg arg = scan_arg(*y);
  switch (arg.kind) {
    case ScanKind::Sum:
      arg.reverse = !arg.reverse;
      return scan(g, arg);
    case ScanKind::Max:
    case ScanKind::Min: {
      arg.places = true;
      return UOp::make(Op::ScatterAdd, g.dtype(), {scan(x, arg), g},
                       Dims{arg.axis, x.shape()[arg.axis]});
    }
    default:
      break;
  }
  const bool product = arg.kind == ScanKind::Prod;
  const std::optional<Mesh> mesh = mesh_under(x);
  const bool short_ones = !mesh || mesh->devices()[0].kind == "CPU";
  auto* spell = product ? (short_ones ? spelled_along_last<ScanKind::Prod, true>
                                      : spelled_along_last<ScanKind::Prod, false>)
                        : (short_ones ? spelled_along_last<ScanKind::LogSumExp, true>
                                      : spelled_along_last<ScanKind::LogSumExp, false>);
  const UOp line = along_last(x, arg.axis), arriving = along_last(g, arg.axis);
  return along_last(gradient_of_spelling(spell, std::span(&line, 1), arriving, 0), arg.axis);
}

UOp decompose_rule(const UOp& y, const UOp& g, size_t) { return decompose_gradient(y, g); }

UOp dot_rule(const UOp& y, const UOp& g, size_t source) {
  const UOp &a = y.src(0), &b = y.src(1);
  const UOp& mine = y.src(source);
  UOp gradient = convert(g, mine.dtype());
  if (source == 0) return UOp::make(Op::Dot, a.dtype(), {gradient, swap_last_two(b)}, y->arg());
  return UOp::make(Op::Dot, b.dtype(), {swap_last_two(a), gradient}, y->arg());
}

// The three convolutions are derivatives of one trilinear form in (x, w, gradient): the gradient of
// each with respect to a source is the one that has the other two.
UOp conv_op(Op op, const UOp& like, const UOp& a, const UOp& b, const UOp& result) {
  ConvArg arg = conv_arg(*like);
  std::ranges::copy(result.shape(), arg.result);
  return UOp::make(op, result.dtype(), {a, b}, to_ints(arg));
}
UOp conv_rule(const UOp& y, const UOp& g, size_t source) {
  const UOp &x = y.src(0), &w = y.src(1);
  return source == 0 ? conv_op(Op::ConvBackwardData, y, g, w, x)
                     : conv_op(Op::ConvBackwardWeight, y, x, g, w);
}
UOp conv_data_rule(const UOp& y, const UOp& g, size_t source) {
  const UOp &out = y.src(0), &w = y.src(1);
  return source == 0 ? conv_op(Op::Conv, y, g, w, out)
                     : conv_op(Op::ConvBackwardWeight, y, g, out, w);
}
UOp conv_weight_rule(const UOp& y, const UOp& g, size_t source) {
  const UOp &x = y.src(0), &out = y.src(1);
  return source == 0 ? conv_op(Op::ConvBackwardData, y, out, g, x)
                     : conv_op(Op::Conv, y, x, g, out);
}

UOp unfold_rule(const UOp& y, const UOp& g, size_t) {
  UnfoldArg arg = unfold_arg(*y);
  if (y.op() == Op::UnfoldBackward) {
    arg.size = 0;
    return unfold(g, arg);
  }
  arg.size = y.src(0).shape().back();
  return unfold_backward(g, arg);
}

// The three gradients read the result and its statistics, so that a library needs no scores.
UOp attention_rule(const UOp& y, const UOp& g, size_t source) {
  AttentionArg arg = attention_arg(*y);
  arg.which = 1;
  UOp statistics = UOp::make(Op::Attention, accumulator(y.src(0).dtype()), y->src(), to_ints(arg));
  arg.which = int64_t(source);
  return UOp::make(Op::AttentionBackward, g.dtype(),
                   {y.src(0), y.src(1), y.src(2), y, statistics, g}, to_ints(arg));
}

// Derivatives that no library has: those of the products and the softmax it stands for.
UOp spelled_rule(const UOp& y, const UOp& g, size_t source) {
  // Operands may be one node, as in spell_attention(), and g may have detached ones.
  std::vector<UOp> src, detached;
  NodeMap<UOp> attached;
  for (const UOp& s : y->src()) {
    src.push_back(named(const_like(s, 0)));
    detached.push_back(unary(Op::Detach, src.back()));
    attached[detached.back()] = s;
  }
  UOp spelled = spell_attention(UOp::make(y.op(), y.dtype(), src, y->arg()));
  UOp out = gradient(std::span(&spelled, 1), std::span(&g, 1), std::span(&detached[source], 1))[0];
  return out ? substitute(out, attached) : const_like(y.src(source), 0);
}
UOp attention_or_spelled_rule(const UOp& y, const UOp& g, size_t source) {
  return attention_arg(*y).which == 0 ? attention_rule(y, g, source) : spelled_rule(y, g, source);
}

UOp composite_rule(const UOp& y, const UOp& g, size_t source) {
  const Composite& row = composite_row(*y);
  return row.gradient ? row.gradient(y, g, source)
                      : gradient_of_spelling(row.spell, y->src(), g, source);
}

// --- placements ----------------------------------------------------------------------------------

// Where a value lies, as far as it takes no sharding rules to tell.
std::optional<Sharding> known_sharding(const UOp& x) {
  switch (x.op()) {
    case Op::Buffer:
      if (!x->payload) return {};
      return static_cast<const Placed*>(x->payload.get())->sharding;
    case Op::Redistribute:
      return placement_of(*x);
    case Op::Assign:
    case Op::Cast:
    case Op::Contiguous:
    case Op::Checkpoint:
    case Op::After:
    case Op::Identity:
      return known_sharding(x.src(0));
    default:
      return {};
  }
}

// The mesh of the storages that x is computed from, or that it was brought to.
std::optional<Mesh> mesh_under(const UOp& x) {
  std::optional<Mesh> mesh;
  std::vector<UOp> todo{x};
  NodeMap<bool> seen;
  while (!todo.empty()) {
    const UOp y = todo.back();
    todo.pop_back();
    if (std::exchange(seen[y], true)) continue;
    const std::optional<Sharding> where = known_sharding(y);
    if (!where) {
      todo.insert(todo.end(), y->src().begin(), y->src().end());
    } else if (!mesh || where->mesh.size() > mesh->size()) {
      mesh = where->mesh;
    }
  }
  return mesh;
}

// From another mesh, a gradient goes back to that of its value. A value of a mesh that one device got
// has a gradient that joins the mesh from there, unless the device's own value joined a third mesh:
//
//   x on (0, 1), y = x.sum().to("CPU:0"), (q * y) with q on (0, 1, 2)    y's gradient lies where q does
std::optional<Sharding> across_meshes(const UOp& y, const UOp& g) {
  const Sharding there = placement_of(*y);
  const std::optional<Mesh> mesh = mesh_under(y.src(0));
  if (!mesh || *mesh == there.mesh) return {};
  const bool from_one = mesh->size() == 1, to_one = there.mesh.size() == 1;
  if (from_one && !to_one) return {};
  if (to_one && !from_one) {
    const std::optional<Mesh> now = mesh_under(g);
    if (!now || now->size() == 1 || *now == *mesh) return {};
    return replicated(*mesh);
  }
  Sharding back = replicated(*mesh);
  if (mesh->axes().size() == there.placements.size()) back.placements = there.placements;
  return back;
}

// A gradient lies as its value does: the adjoint of an all-gather is a reduce-scatter. A pending
// sum is the sum of its terms, so each term has the whole gradient. Where the source's placement
// takes the sharding rules to tell, they also place the gradient.
UOp redistribute_rule(const UOp& y, const UOp& g, size_t) {
  std::optional<Sharding> where = known_sharding(y.src(0));
  if (!where) where = across_meshes(y, g);
  if (!where || is_const(g)) return cast(g, y.src(0).dtype());
  for (Placement& p : where->placements) {
    if (p.is_partial()) p = Replicate;
  }
  return cast(place(g, *where), y.src(0).dtype());
}

// The event has no part in the value; where it is given a gradient, this is a zero that comes after
// that of the value.
UOp after_rule(const UOp& y, const UOp& g, size_t source) {
  if (source == 0) return g;
  const UOp& event = y.src(1);
  const Dims ones(event.shape().size(), 1);
  const UOp zero = unary(Op::Contiguous, const_float(event.dtype(), 0, ones));
  return expand(UOp::make(Op::After, event.dtype(), {zero, g}), event.shape());
}

UOp part_rule(const UOp& y, const UOp& g, size_t) {
  const std::optional<PartArg> part = part_arg(*y);
  check_internal(part.has_value(), "a part in the user's graph has its mesh");
  const Mesh mesh = Mesh::from_payload(y->payload);
  return part->whole ? part_of(g, mesh, part->axis, part->dim)
                     : whole_of(g, mesh, part->axis, part->dim);
}

// Treats reductions over devices as it does Reduce, within code that each device runs for itself.
UOp collective_rule(const UOp& y, const UOp& g, size_t) {
  const std::optional<CollectiveArg> arg = own_collective_arg(*y);
  check_internal(arg.has_value(), "gradients are taken of the user's graph");
  if (arg->op == CollectiveOp::AllToAll) return sent_back(y, g);

  const UOp& x = y.src(0);
  const Mesh mesh = Mesh::from_payload(y->payload);
  const int axis = arg->mesh_axis;
  const bool on_all = arg->op == CollectiveOp::AllReduce;
  auto reduced = [&](const UOp& v, ReduceOp op) {
    return on_all ? all_reduced(v, mesh, axis, op) : reduce_scattered(v, mesh, axis, op);
  };
  auto sum_of = [&](const UOp& v) { return reduced(v, ReduceOp::Sum); };
  auto spread = [&](const UOp& v) { return on_all ? v : rows_of_all(v, mesh, axis); };
  switch (arg->reduce) {
    case ReduceOp::Sum:
      return spread(g);
    case ReduceOp::Prod:
      return prod_gradient(
          x, spread(g), sum_of, [&](const UOp& v) { return reduced(v, ReduceOp::Prod); }, spread);
    default:
      return shared_gradient(x, y, g, sum_of, spread);
  }
}

UOp named_rule(const UOp& y, const UOp& g, size_t) {
  const SymbolicShape* sizes = symbolic_shape(y);
  if (!sizes) return g;
  for (const auto& size : sizes->dims) {
    if (size)
      fail(
          fmt::format("no gradient goes through a dim of size {}, which is known when a captured "
                      "step runs",
                      size->text));
  }
  return g;
}

// --- the table -----------------------------------------------------------------------------------

using Row = GradientRow;

// clang-format off
constexpr std::array<Row, kOps> kTable = {{
    {Op::Const, Row::Stop},
    {Op::Buffer, Row::Stop},
    {Op::Iota, Row::Stop},
    {Op::Neg, Row::Follow, 0b1, neg_rule},
    {Op::Exp2, Row::Follow, 0b1, exp2_rule},
    {Op::Log2, Row::Follow, 0b1, log2_rule},
    {Op::Sin, Row::Follow, 0b1, sin_rule},
    {Op::Sqrt, Row::Follow, 0b1, sqrt_rule},
    {Op::Recip, Row::Follow, 0b1, recip_rule},
    {Op::Trunc, Row::Stop},
    {Op::Not, Row::Stop},
    {Op::Cast, Row::Follow, 0b1, cast_rule},
    {Op::Bitcast, Row::Refuse},
    {Op::Add, Row::Follow, 0b11, through},
    {Op::Sub, Row::Follow, 0b11, sub_rule},
    {Op::Mul, Row::Follow, 0b11, mul_rule},
    {Op::Div, Row::Follow, 0b11, div_rule},
    {Op::IDiv, Row::Refuse},
    {Op::Mod, Row::Follow, 0b11, mod_rule},
    {Op::Max, Row::Follow, 0b11, max_rule},
    {Op::And, Row::Stop},
    {Op::Or, Row::Follow, 0b11, through},
    {Op::Xor, Row::Stop},
    {Op::Shl, Row::Stop},
    {Op::Shr, Row::Stop},
    {Op::CmpLt, Row::Stop},
    {Op::CmpEq, Row::Stop},
    {Op::CmpNe, Row::Stop},
    {Op::Threefry, Row::Stop},
    {Op::Where, Row::Follow, 0b110, where_rule},
    {Op::Reshape, Row::Follow, 0b1, reshape_rule},
    {Op::Expand, Row::Follow, 0b1, expand_rule},
    {Op::Permute, Row::Follow, 0b1, permute_rule},
    {Op::Pad, Row::Follow, 0b1, pad_rule},
    {Op::Shrink, Row::Follow, 0b1, shrink_rule},
    {Op::Flip, Row::Follow, 0b1, flip_rule},
    {Op::ShardSlice, Row::Follow, 0b1, part_rule},
    {Op::Reduce, Row::Follow, 0b1, reduce_rule},
    {Op::Gather, Row::Follow, 0b1, gather_rule},
    {Op::ScatterAdd, Row::Follow, 0b10, scatter_rule},
    {Op::Sort, Row::Stop},
    {Op::Scan, Row::Follow, 0b1, scan_rule},
    {Op::Decompose, Row::Follow, 0b1, decompose_rule},
    {Op::Dot, Row::Follow, 0b11, dot_rule},
    {Op::Conv, Row::Follow, 0b11, conv_rule},
    {Op::ConvBackwardData, Row::Follow, 0b11, conv_data_rule},
    {Op::ConvBackwardWeight, Row::Follow, 0b11, conv_weight_rule},
    {Op::Attention, Row::Follow, 0b111, attention_or_spelled_rule},
    {Op::AttentionBackward, Row::Follow, 0b111111, spelled_rule},
    {Op::Unfold, Row::Follow, 0b1, unfold_rule},
    {Op::UnfoldBackward, Row::Follow, 0b1, unfold_rule},
    {Op::Contiguous, Row::Follow, 0b1, through},
    {Op::Detach, Row::Stop},
    {Op::ContiguousBackward, Row::Follow, 0b1, contiguous_rule},
    {Op::Checkpoint, Row::Recompute},
    {Op::After, Row::Follow, 0b11, after_rule},
    {Op::Identity, Row::Follow, 0b1, named_rule},
    {Op::Assign, Row::Follow, 0b10, through},
    {Op::Redistribute, Row::Follow, 0b1, redistribute_rule},
    {Op::Collective, Row::Follow, 0b1, collective_rule},
    {Op::CopyIn, Row::Refuse},
    {Op::Range, Row::Refuse},
    {Op::DeviceCoordinate, Row::Refuse},
    {Op::Param, Row::Refuse},
    {Op::Load, Row::Refuse},
    {Op::Store, Row::Refuse},
    {Op::Fold, Row::Refuse},
    {Op::Sink, Row::Refuse},
    {Op::Composite, Row::Follow, 0xff, composite_rule},
}};
// clang-format on

constexpr bool table_is_in_order() {
  for (int i = 0; i < kOps; ++i) {
    if (static_cast<int>(kTable[i].op) != i) return false;
  }
  return true;
}
static_assert(table_is_in_order(), "rows of the gradient table follow the enum");

}  // namespace

const GradientRow& gradient_row(Op op) { return kTable[static_cast<size_t>(op)]; }

UOp add_gradients(const UOp& a, const UOp& b) { return add(a, b); }

UOp add_gradients_at(const UOp& value, const UOp& a, const UOp& b) {
  const std::optional<Mesh> at = mesh_under(value), one = mesh_under(a), other = mesh_under(b);
  const bool meet = !at || at->size() > 1 || !one || !other || *one == *other || one->size() == 1 ||
                    other->size() == 1;
  if (meet) return add(a, b);
  return add(place(a, replicated(*at)), place(b, replicated(*at)));
}

}  // namespace tinyshard
