// Writing through an index, and selections whose size depends on values.
#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/dtype/half.h"
#include "core/exec/capture.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

using value::text_of;
using value::Value;

namespace {

// The operands of a scatter; src has index's shape.
struct Scatter {
  int64_t axis, size;  // of x
  Value x, index, src;
};

Scatter check(const Tensor& self, int64_t dim, const Tensor& index, const Operand& src) {
  Value x(self), places(index);
  need_int(places, "index");
  int64_t axis = value::resolve_axis(dim, x.rank());
  Value values =
      src.tensor ? Value(*src.tensor) : value::constant(x.dtype(), src.scalar, places.shape());
  bool fits = x.rank() > 0 && places.rank() == x.rank() && values.rank() == x.rank();
  for (int64_t i = 0; fits && i < x.rank(); ++i) {
    fits = places.size(i) <= values.size(i) && (i == axis || places.size(i) <= x.size(i));
  }
  if (!fits) {
    fail(fmt::format("index {} does not fit src {} and x {} (dim {} of x may be smaller)",
                     text_of(places), text_of(values), text_of(x), axis));
  }
  if (values.dtype() != x.dtype())
    fail(fmt::format("src is {}, x is {}: cast one of them", text_of(values), text_of(x)));
  Pairs bounds;
  for (int64_t d : places.shape()) bounds.emplace_back(0, d);
  return {axis, x.size(axis), x, value::index_type(places), value::shrink(values, bounds)};
}

// `value` has index's shape except along the axis: zeros where the index does not reach.
Value widen(const Value& v, const Scatter& s) {
  Pairs padding;
  for (int64_t i = 0; i < v.rank(); ++i) padding.emplace_back(0, s.x.size(i) - v.size(i));
  return value::pad(v, padding);
}

// Each place of the result reduces the entries that name it; the identity of the reduction where none
// does.
Value reduced(const Scatter& s, ReduceOp op) {
  Value made = value::scatter_reduce(op, s.index, s.src, s.axis, s.size);
  if (std::ranges::equal(made.shape(), s.x.shape())) return made;
  Value reached = widen(value::constant(DType::Bool, true, made.shape()), s);
  return value::where(reached, widen(made, s), value::identity(op, made.dtype()));
}

Value hits(const Scatter& s) {
  return value::scatter_add(s.index, value::constant(DType::I32, 1, s.index.shape()), s.axis,
                            s.size);
}

}  // namespace

Tensor Tensor::scatter(int64_t dim, const Tensor& index, const Operand& src) const {
  Call call("scatter", src.caller);
  Scatter s = check(*this, dim, index, src);
  if (s.index.node()->numel() == 0) return s.x;
  // The last entry that names a place wins.
  Value last = value::last_entries(s.index, s.axis, s.size);
  Value picked = value::gather(s.src, s.axis, value::maximum(last - 1, 0));
  return value::where(widen(last, s) > 0, widen(picked, s), s.x);
}

Tensor Tensor::scatter(int64_t dim, const Tensor& index, Scalar src, ScatterReduce reduce,
                       Caller caller) const {
  Call call("scatter", caller);
  if (reduce != ScatterReduce::Sum && reduce != ScatterReduce::Prod)
    fail("adds or multiplies; scatter_reduce takes means, maxima and minima");
  return scatter_reduce(dim, index, src, reduce);
}

namespace {

// The largest or smallest of what meets at a place. A place that nothing reaches, or nothing but
// what is worse than anything, keeps its own: that needs no count of what came.
Value scattered_best(const Scatter& s, ReduceOp op, bool include_self) {
  Value best = reduced(s, op);
  if (!include_self) return value::where(widen(hits(s), s) > 0, best, s.x);
  Value both = op == ReduceOp::Max ? value::maximum(s.x, best) : value::minimum(s.x, best);
  return value::where(best == value::identity(op, s.x.dtype()), s.x, both);
}

Value scatter_reduced(const Scatter& s, ScatterReduce reduce, bool include_self) {
  if (reduce == ScatterReduce::Amax || reduce == ScatterReduce::Amin)
    return scattered_best(s, reduce == ScatterReduce::Amax ? ReduceOp::Max : ReduceOp::Min,
                          include_self);
  Value count = widen(hits(s), s), touched = count > 0;
  auto base = [&](Scalar identity) {
    return include_self ? s.x : value::where(touched, identity, s.x);
  };
  switch (reduce) {
    case ScatterReduce::Sum:
      return base(0) + widen(value::scatter_add(s.index, s.src, s.axis, s.size), s);
    case ScatterReduce::Mean: {
      Value total = base(0) + widen(value::scatter_add(s.index, s.src, s.axis, s.size), s);
      Value n = include_self ? count + 1 : value::where(touched, count, 1);
      return is_float(s.x.dtype()) ? value::cast(total / n, s.x.dtype()) : total / n;
    }
    case ScatterReduce::Prod: {
      Value product = reduced(s, ReduceOp::Prod);  // 1 where nothing comes
      return include_self ? s.x * product : value::where(touched, product, s.x);
    }
    default:
      throw InternalError("maxima and minima have a way of their own");
  }
}

}  // namespace

Tensor Tensor::scatter_reduce(int64_t dim, const Tensor& index, const Operand& src,
                              ScatterReduce reduce, bool include_self) const {
  Call call("scatter_reduce", src.caller);
  Scatter s = check(*this, dim, index, src);
  if (s.index.node()->numel() == 0) return *this;
  const bool chooses = reduce == ScatterReduce::Amax || reduce == ScatterReduce::Amin;
  if (!is_narrow(dtype()) || chooses) return scatter_reduced(s, reduce, include_self);
  // Elements that meet at a place are summed or multiplied in f32, together with what was there.
  s.x = value::cast(s.x, DType::F32), s.src = value::cast(s.src, DType::F32);
  return value::cast(scatter_reduced(s, reduce, include_self), dtype());
}

namespace {

// Indices of the set bits of a flat mask, in order, `size` of them; -1 where there are fewer.
Value set_positions(const Value& mask, int64_t size) {
  int64_t n = mask.size(0);
  Value rank = value::cast(mask, DType::I32).tensor().cumsum(0);  // of a set element, from one
  // A further place takes what is not wanted.
  Value place = value::where(mask & (rank <= size), rank - 1, size);
  Value found = value::scatter_add(place, value::iota(n, DType::I32) + 1, 0, size + 1);
  return value::shrink(found, {{0, size}}) - 1;
}

Value select_positions(const Value& flat, const Value& positions, const Scalar& otherwise) {
  return value::where(positions >= 0, value::gather(flat, 0, value::maximum(positions, 0)),
                      value::constant(flat.dtype(), otherwise));
}

}  // namespace

namespace {

void need_values(const char* with_size) {
  if (!current_capture()) return;
  fail(
      fmt::format("its shape depends on values, which do not exist while a captured step is "
                  "recorded: {} has as many rows as you say, whatever the values are",
                  with_size));
}

}  // namespace

Tensor Tensor::masked_select(const Tensor& mask, int64_t size, Scalar fill_value,
                             Caller caller) const {
  Call call("masked_select", caller);
  if (mask.dtype() != DType::Bool)
    fail(fmt::format("mask must hold bools, not {}", mask.describe()));
  Dims shape = value::broadcast_shape(Value(*this).shape(), Value(mask).shape());
  check_size(shape, dtype());
  int64_t n = product(shape);
  Value flat = value::reshape(value::broadcast_to(*this, shape), {n}),
        bits = value::reshape(value::broadcast_to(mask, shape), {n});
  check_size(Dims{size}, dtype());
  if (size == 0 || n == 0) return value::constant(dtype(), fill_value, Dims{size});
  return select_positions(flat, set_positions(bits, size), fill_value);
}

Tensor Tensor::masked_select(const Tensor& mask, Caller caller) const {
  Call call("masked_select", caller);
  if (mask.dtype() != DType::Bool)
    fail(fmt::format("mask must hold bools, not {}", mask.describe()));
  need_values("masked_select(mask, size)");
  Dims shape = value::broadcast_shape(Value(*this).shape(), Value(mask).shape());
  int64_t size = value::broadcast_to(mask, shape).tensor().sum().item<int64_t>();
  return masked_select(mask, size, 0, caller);
}

Tensor Tensor::nonzero(int64_t size, Scalar fill_value, Caller caller) const {
  Call call("nonzero", caller);
  Value x(*this);
  check_size(Dims{size, x.rank()}, DType::I32);
  if (x.rank() == 0) return value::constant(DType::I32, 0, Dims{size, 0});
  int64_t n = x.node()->numel();
  if (size == 0 || n == 0) return value::constant(DType::I32, fill_value, Dims{size, x.rank()});
  Value places = set_positions(value::reshape(x, {n}) != 0, size);
  Dims strides(x.rank(), 1), sizes = x.dims();
  for (int64_t i = x.rank() - 2; i >= 0; --i) strides[i] = strides[i + 1] * sizes[i + 1];
  std::vector<Value> columns;
  for (int64_t i = 0; i < x.rank(); ++i) {
    Value here = value::mod(value::floor_div(places, strides[i]), sizes[i]);
    columns.push_back(value::unsqueeze(value::where(places >= 0, here, fill_value), 1));
  }
  return value::cat(columns, 1);
}

Tensor Tensor::nonzero(Caller caller) const {
  Call call("nonzero", caller);
  need_values("nonzero(size)");
  return nonzero(ne(0).sum().item<int64_t>(), 0, caller);
}

}  // namespace tinyshard
