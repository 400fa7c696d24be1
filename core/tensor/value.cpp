// Types, shapes and movement of nodes under construction.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/sizes.h"
#include "core/rewrite/fold.h"
#include "core/tensor/sizes_internal.h"
#include "core/uop/args.h"

namespace tinyshard::value {

std::string shape_text(DimSpan shape) { return to_string(shape); }

std::string text_of(const Value& x) {
  if (!x.is_number()) return Tensor(x.node()).describe();
  switch (x.number().kind) {
    case Scalar::Kind::Bool:
      return x.number().integer ? "true" : "false";
    case Scalar::Kind::Int:
      return x.number().is_beyond_i64() ? std::to_string(static_cast<uint64_t>(x.number().integer))
                                        : std::to_string(x.number().integer);
    default:
      return fmt::format("{}", x.number().real);
  }
}

// --- types ---------------------------------------------------------------------------------------

DType float_type(DType dtype) { return is_float(dtype) ? dtype : promote(dtype, default_float()); }

namespace {

// The type a number takes on beside a tensor of type `beside`.
DType number_type(const Scalar& number, DType beside) {
  switch (number.kind) {
    case Scalar::Kind::Bool:
      return beside;
    case Scalar::Kind::Int:
      return beside == DType::Bool ? DType::I32 : beside;
    default:
      return float_type(beside);
  }
}

DType own_type(const Scalar& number) {
  switch (number.kind) {
    case Scalar::Kind::Bool:
      return DType::Bool;
    case Scalar::Kind::Int:
      return DType::I32;
    default:
      return default_float();
  }
}

}  // namespace

DType type_of(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return promote(own_type(a.number()), own_type(b.number()));
  if (a.is_number()) return number_type(a.number(), b.dtype());
  if (b.is_number()) return number_type(b.number(), a.dtype());
  return promote(a.dtype(), b.dtype());
}

void check_dtype(DType dtype) {
  int number = static_cast<int>(dtype);
  if (number >= kDTypes) fail(fmt::format("{} is not a dtype", number));
  if (dtype == DType::Index) fail("index is the type of offsets inside kernels, not of tensors");
}

bool fits(const Scalar& number, DType dtype) {
  if (is_float(dtype) || dtype == DType::Bool) return true;
  int bits = 8 * static_cast<int>(itemsize(dtype));
  if (number.is_float()) {
    bool is_signed = is_signed_int(dtype);
    double end = std::ldexp(1.0, is_signed ? bits - 1 : bits), whole = std::trunc(number.real);
    return whole >= (is_signed ? -end : 0) && whole < end;  // never of NaN
  }
  if (is_unsigned_int(dtype)) {
    if (number.integer < 0 && !number.is_beyond_i64()) return false;
    return bits == 64 || static_cast<uint64_t>(number.integer) >> bits == 0;
  }
  return !number.is_beyond_i64() && number.integer >= INT64_MIN >> (64 - bits) &&
         number.integer <= INT64_MAX >> (64 - bits);
}

Value constant(DType dtype, Scalar value, DimSpan shape) {
  check_dtype(dtype);
  if (!fits(value, dtype)) fail(fmt::format("{} does not fit {}", text_of(value), name(dtype)));
  if (is_float(dtype)) return const_float(dtype, value.real, shape);
  if (dtype == DType::Bool)
    return const_int(dtype, value.is_float() ? value.real != 0 : value.integer != 0, shape);
  bool beyond_i64 = value.is_float() && value.real >= 0x1p63;
  return const_int(
      dtype, beyond_i64 ? static_cast<int64_t>(static_cast<uint64_t>(value.real)) : value.integer,
      shape);
}

Value constant_of(const Value& x, Scalar value) {
  return where(constant(DType::Bool, false, x.shape()), x, constant(x.dtype(), value, x.shape()));
}

Scalar identity(ReduceOp op, DType dtype) {
  const UOp scalar = identity_of(op, dtype);
  if (is_float(dtype)) return const_as_double(scalar);
  const int64_t bits = const_bits(*scalar);
  if (dtype == DType::Bool) return bits != 0;
  if (is_signed_int(dtype)) return bits;
  return static_cast<uint64_t>(bits);
}

Value cast(const Value& x, DType dtype) {
  check_dtype(dtype);
  if (x.is_number()) return constant(dtype, x.number());
  if (x.dtype() == dtype) return x;
  if (const UOp& c = x.node(); is_const(c)) {
    if (is_float(c.dtype())) {
      double number = const_as_double(c);
      // Out of range is the kernel's business: the same conversion as for any other value.
      if (fits(number, dtype)) return constant(dtype, number, c.shape());
    } else if (!is_float(dtype) && dtype != DType::Bool) {
      return const_int(dtype, const_as_int(c), c.shape());
    }
  }
  if (dtype == DType::Bool) return x != 0;
  return tinyshard::cast(x.node(), dtype);
}

void need_float(const Value& x) {
  if (!x.is_number() && !is_float(x.dtype())) {
    fail(fmt::format("needs a tensor of floats, not {}; cast it first", text_of(x)));
  }
}

void need_int(const Value& x, const char* what) {
  if (!is_int(x.dtype())) fail(fmt::format("{} must hold integers, not {}", what, text_of(x)));
}

// --- shapes --------------------------------------------------------------------------------------

Dims broadcast_shape(DimSpan a, DimSpan b) {
  size_t rank = std::max(a.size(), b.size());
  Dims out(rank);
  for (size_t i = 0; i < rank; ++i) {
    int64_t m = i + a.size() < rank ? 1 : a[i + a.size() - rank];
    int64_t n = i + b.size() < rank ? 1 : b[i + b.size() - rank];
    if (m != n && m != 1 && n != 1) {
      fail(fmt::format("shapes {} and {} do not broadcast: {} against {} in dim {}", shape_text(a),
                       shape_text(b), m, n, static_cast<int64_t>(i) - static_cast<int64_t>(rank)));
    }
    out[i] = m == 1 ? n : m;
  }
  return out;
}

Value broadcast_to(const Value& x, DimSpan shape) {
  DimSpan from = x.shape();
  if (std::ranges::equal(from, shape)) return x;
  bool fits = from.size() <= shape.size();
  for (size_t i = 0; fits && i < from.size(); ++i) {
    int64_t want = shape[i + shape.size() - from.size()];
    fits = from[i] == want || from[i] == 1;
  }
  if (!fits) fail(fmt::format("{} does not expand to shape {}", text_of(x), shape_text(shape)));
  Dims aligned(shape.size() - from.size(), 1);
  aligned.insert(aligned.end(), from.begin(), from.end());
  return tinyshard::expand(tinyshard::reshape(x.node(), aligned), shape);
}

std::pair<Value, Value> match(const Value& a, const Value& b) {
  DType dtype = type_of(a, b);
  if (a.is_number() && b.is_number())
    return {constant(dtype, a.number()), constant(dtype, b.number())};
  if (a.is_number()) return {constant(dtype, a.number(), b.shape()), cast(b, dtype)};
  if (b.is_number()) return {cast(a, dtype), constant(dtype, b.number(), a.shape())};
  if (std::ranges::equal(a.shape(), b.shape())) return {cast(a, dtype), cast(b, dtype)};
  Dims shape = broadcast_shape(a.shape(), b.shape());
  return {broadcast_to(cast(a, dtype), shape), broadcast_to(cast(b, dtype), shape)};
}

int64_t resolve_axis(int64_t axis, int64_t rank) {
  int64_t limit = std::max<int64_t>(rank, 1);  // a scalar has an axis 0 to reduce over
  if (axis < -limit || axis >= limit) {
    fail(fmt::format("axis {} is out of range for a tensor of {} dims; it goes from {} to {}", axis,
                     rank, -limit, limit - 1));
  }
  return axis < 0 ? axis + limit : axis;
}

int64_t resolve_dim(int64_t dim, const Value& x) {
  int64_t axis = resolve_axis(dim, x.rank());
  if (x.rank() == 0) fail(fmt::format("{} has no dim {}", text_of(x), dim));
  return axis;
}

Dims resolve_axes(const Axes& axes, int64_t rank) {
  Dims out;
  if (axes.all) {
    out.resize(rank);
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  for (int64_t axis : axes.values) out.push_back(resolve_axis(axis, rank));
  std::sort(out.begin(), out.end());
  auto twice = std::adjacent_find(out.begin(), out.end());
  if (twice != out.end()) fail(fmt::format("axis {} is given twice", *twice));
  if (rank == 0) out.clear();
  return out;
}

// --- movement ------------------------------------------------------------------------------------

Value reshape(const Value& x, const Dims& shape) { return tinyshard::reshape(x.node(), shape); }
Value permute(const Value& x, const Dims& order) { return tinyshard::permute(x.node(), order); }
Value flip(const Value& x, const Dims& axes) { return tinyshard::flip(x.node(), axes); }

namespace {

Dims flatten_pairs(const Pairs& pairs) {
  Dims out;
  for (auto [low, high] : pairs) out.insert(out.end(), {low, high});
  return out;
}

}  // namespace

Value shrink(const Value& x, const Pairs& bounds) {
  return tinyshard::shrink(x.node(), flatten_pairs(bounds));
}
Value pad(const Value& x, const Pairs& padding) {
  return tinyshard::pad(x.node(), flatten_pairs(padding));
}

Value pad(const Value& x, const Pairs& padding, const Scalar& value) {
  Value padded = pad(x, padding);
  if ((value.is_float() ? value.real : static_cast<double>(value.integer)) == 0) return padded;
  Value inside = pad(constant(DType::Bool, true, x.shape()), padding);
  return where(inside, padded, constant(x.dtype(), value, padded.shape()));
}

Value shrink_axis(const Value& x, int64_t axis, int64_t low, int64_t high) {
  Pairs bounds;
  for (int64_t d : x.shape()) bounds.emplace_back(0, d);
  bounds[axis] = {low, high};
  return shrink(x, bounds);
}

Value move_axis(const Value& x, int64_t from, int64_t to) {
  Dims order(x.rank());
  std::iota(order.begin(), order.end(), 0);
  order.erase(order.begin() + from);
  order.insert(order.begin() + to, from);
  return permute(x, order);
}

Value unsqueeze(const Value& x, int64_t axis) {
  Dims shape = x.dims();
  shape.insert(shape.begin() + axis, 1);
  return reshape(x, shape);
}

Value squeeze(const Value& x, int64_t axis) {
  Dims shape = x.dims();
  shape.erase(shape.begin() + axis);
  return reshape(x, shape);
}

namespace {

// Two parts of which some size is known when the step runs: what comes second starts where the
// first one ends.
Value joined(const Value& a, const Value& b, int64_t axis) {
  auto size_of_part = [&](const Value& x) {
    return size_along(x, axis).value_or(plain_size(x.size(axis)));
  };
  const SymbolicSize first = size_of_part(a), second = size_of_part(b);
  const int64_t total = add_sizes(a.size(axis), b.size(axis));
  Pairs behind(a.rank(), {0, 0});
  behind[axis] = {0, total - a.size(axis)};
  Value places = iota_along(axis, a.rank(), total, DType::I64), start = first.node;
  Dims shape = b.dims();
  shape[axis] = total;
  Value moved = gather(at_bound(b), axis, broadcast_to(places - start, shape));
  Value out = where(places < start, pad(at_bound(a), behind), moved);
  for (int64_t d = 0; d < a.rank(); ++d) {
    if (d == axis) continue;
    auto one = size_along(a, d), other = size_along(b, d);
    if (one.has_value() != other.has_value() || (one && !(one->node == other->node)))
      fail(fmt::format("shapes differ outside of dim {}: {} and {}", axis, text_of(a), text_of(b)));
    if (one) out = limited_to(out, d, *one);
  }
  return limited_to(out, axis, add(first, second));
}

}  // namespace

// The parts, each padded with zeros to its place, joined by their bits: also a zero keeps its sign.
Value cat(const std::vector<Value>& parts, int64_t axis) {
  auto is_symbolic = [&](const Value& part) { return size_along(part, axis).has_value(); };
  if (std::ranges::any_of(parts, is_symbolic)) {
    Value all = parts[0];
    for (const Value& part : std::span(parts).subspan(1)) all = joined(all, part, axis);
    return all;
  }
  int64_t total = 0, before = 0;
  for (const Value& part : parts) total = add_sizes(total, part.size(axis));
  Value out = parts[0];
  for (size_t i = 0; i < parts.size(); ++i) {
    int64_t n = parts[i].size(axis);
    Pairs padding(parts[i].rank(), {0, 0});
    padding[axis] = {before, total - before - n};
    Value placed = pad(parts[i], padding);
    if (i == 0) {
      out = placed;
    } else if (n > 0) {
      out = is_float(out.dtype()) ? Value(tinyshard::binary(Op::Or, out.node(), placed.node()))
                                  : out + placed;
    }
    before += n;
  }
  return out;
}

}  // namespace tinyshard::value
