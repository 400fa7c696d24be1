// Reductions and what is made of them.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/sizes.h"
#include "core/tensor/sizes_internal.h"

namespace tinyshard {
namespace {

int64_t count(const value::Value& x, const Dims& axes) {
  int64_t n = 1;
  for (int64_t axis : axes) n *= x.size(axis);
  return n;
}

}  // namespace

namespace value {
namespace {

Value drop_axes(const Value& x, const Dims& axes, bool keepdim) {
  if (keepdim || axes.empty()) return x;
  Dims shape;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (!std::ranges::binary_search(axes, i)) shape.push_back(x.size(i));
  }
  return reshape(x, shape);
}

// Sums of small integers widen; products keep their type.
Value accumulate(ReduceOp op, const Value& x, const Dims& axes, bool keepdim) {
  DType result = op == ReduceOp::Sum ? sum_type(x.dtype()) : x.dtype();
  return cast(reduce(op, cast(x, accumulator(x.dtype())), axes, keepdim), result);
}

}  // namespace

Value reduce(ReduceOp op, const Value& given, const Dims& axes, bool keepdim) {
  Value x = given;
  for (int64_t axis : axes) x = filled(x, axis, identity(op, x.dtype()));
  Dims kept = x.dims();
  bool nothing = false, all_ones = true;
  for (int64_t axis : axes) {
    nothing = nothing || kept[axis] == 0;
    all_ones = all_ones && kept[axis] == 1;
    kept[axis] = 1;
  }
  Value out = x;
  if (all_ones) {
    out = x;
  } else if (nothing && x.dtype() == DType::Bool) {  // integers have another identity
    out = constant(x.dtype(), identity(op, x.dtype()), kept);
  } else if (x.dtype() == DType::Bool) {
    const ReduceOp as_int = info(op).of_truths;
    out = cast(Value(tinyshard::reduce(as_int, cast(x, DType::I32).node(), axes)), DType::Bool);
  } else {
    out = tinyshard::reduce(op, x.node(), axes);
  }
  return drop_axes(out, axes, keepdim);
}

void need_countable(const Value& x, const Dims& axes) {
  if (x.dtype() != DType::Bool) return;
  double count = 1;
  for (int64_t axis : axes) count *= static_cast<double>(x.size(axis));
  if (count > std::numeric_limits<int32_t>::max())
    fail(fmt::format("i32 does not count the elements of {}: give it the type i64", text_of(x)));
}

Value sum(const Value& x, const Dims& axes, bool keepdim) {
  need_countable(x, axes);
  return accumulate(ReduceOp::Sum, x, axes, keepdim);
}
Value prod(const Value& x, const Dims& axes, bool keepdim) {
  return accumulate(ReduceOp::Prod, x, axes, keepdim);
}
Value max(const Value& x, const Dims& axes, bool keepdim) {
  return reduce(ReduceOp::Max, x, axes, keepdim);
}
Value min(const Value& x, const Dims& axes, bool keepdim) {
  return reduce(ReduceOp::Min, x, axes, keepdim);
}

Value mean(const Value& x, const Dims& axes, bool keepdim) {
  return in_floats(x, [&](const Value& v) {
    const Value n = count_along(v, axes);
    if (!n.is_number()) return sum(v, axes, keepdim) / cast(n, v.dtype());
    return sum(v, axes, keepdim) / n.number().real;
  });
}

Value variance(const Value& x, const Dims& axes, bool keepdim, int64_t correction) {
  return in_floats(x, [&](const Value& v) {
    const Value total = sum(square(v - mean(v, axes, true)), axes, keepdim);
    const int64_t fewer = limited(correction);
    if (const Value n = count_along(v, axes); !n.is_number())
      return total / cast(maximum(n - fewer, 0), v.dtype());
    return total / static_cast<double>(std::max<int64_t>(0, add_sizes(count(v, axes), -fewer)));
  });
}

namespace {

// x - max(x), with a maximum of an infinity left out, so that it is never inf - inf.
Value below_maximum(const Value& x, const Dims& axes) { return x - detach(max(x, axes, true)); }

}  // namespace

Value softmax(const Value& x, int64_t axis) {
  if (x.rank() == 0) return reshape(softmax(reshape(x, {1}), 0), {});
  return in_floats(x, [axis](const Value& v) {
    Value e = exp(below_maximum(v, {axis}));
    return e * reciprocal(sum(e, {axis}, true));
  });
}

Value log_softmax(const Value& x, int64_t axis) {
  if (x.rank() == 0) return reshape(log_softmax(reshape(x, {1}), 0), {});
  return in_floats(x, [axis](const Value& v) {
    Value shifted = below_maximum(v, {axis});
    return shifted - log(sum(exp(shifted), {axis}, true));
  });
}

Value logsumexp(const Value& x, const Dims& axes, bool keepdim) {
  return in_floats(x, [&](const Value& v) {
    Value largest = detach(max(v, axes, true));
    Value base = where(isinf(largest), 0.0, largest);
    Value out = log(sum(exp(v - base), axes, true)) + base;
    return drop_axes(out, axes, keepdim);
  });
}

Value holds_maximum(const Value& x, const Value& top) {
  return is_float(x.dtype()) ? (x == top) | isnan(x) : x == top;
}

// The first place that holds the maximum: the largest n - i among those.
Value argmax(const Value& x, int64_t axis, bool keepdim) {
  int64_t n = x.size(axis);
  Value top = max(x, {axis}, true);
  Value from_end = static_cast<int64_t>(n) - iota_along(axis, x.rank(), n, DType::I32);
  Value places = where(holds_maximum(x, top), from_end, 0);
  return n - reduce(ReduceOp::Max, places, {axis}, keepdim);
}

}  // namespace value

using value::text_of;
using value::Value;

namespace {

Value as_given(const Value& x, const std::optional<DType>& dtype) {
  return dtype ? value::cast(x, *dtype) : x;
}

// x, unless a result would be the place of the largest or smallest of no elements at all.
Value not_of_nothing(Value x, const Dims& axes) {
  for (int64_t axis : axes) {
    if (auto size = value::size_along(x, axis); size && size->low < 1)
      fail(fmt::format("{} may be {}: the place of the largest or smallest of no elements",
                       size->text, size->low));
  }
  int64_t of_each = count(x, axes), results = 1;
  for (int64_t i = 0; i < x.rank(); ++i)
    results *= std::ranges::binary_search(axes, i) ? 1 : x.size(i);
  if (of_each == 0 && results > 0)
    fail(fmt::format("{} has no elements along {}", text_of(x), value::shape_text(axes)));
  return x;
}

// A reduction whose accumulator and result the caller chose. Of narrow floats only the result is rounded,
// over the devices of a mesh, too.
Value accumulate_in(ReduceOp op, const Tensor& x, const Axes& axis, bool keepdim,
                    const std::optional<DType>& dtype) {
  Value v(x);
  Dims axes = value::resolve_axes(axis, v.rank());
  if (dtype) v = value::cast(v, *dtype);
  if (dtype && !is_narrow(*dtype)) return value::reduce(op, v, axes, keepdim);
  return op == ReduceOp::Sum ? value::sum(v, axes, keepdim) : value::prod(v, axes, keepdim);
}

}  // namespace

Tensor Tensor::sum(const Axes& axis, bool keepdim, std::optional<DType> dtype,
                   Caller caller) const {
  Call call("sum", caller);
  return accumulate_in(ReduceOp::Sum, *this, axis, keepdim, dtype);
}

Tensor Tensor::prod(const Axes& axis, bool keepdim, std::optional<DType> dtype,
                    Caller caller) const {
  Call call("prod", caller);
  return accumulate_in(ReduceOp::Prod, *this, axis, keepdim, dtype);
}

#define TINYSHARD_REDUCTION(method, expression)                                \
  Tensor Tensor::method(const Axes& axis, bool keepdim, Caller caller) const { \
    Call call(#method, caller);                                                \
    Value x(*this);                                                            \
    Dims axes = value::resolve_axes(axis, x.rank());                           \
    return expression;                                                         \
  }

TINYSHARD_REDUCTION(max, value::max(x, axes, keepdim))
TINYSHARD_REDUCTION(min, value::min(x, axes, keepdim))
TINYSHARD_REDUCTION(any, value::reduce(ReduceOp::Max, value::cast(x, DType::Bool), axes, keepdim))
TINYSHARD_REDUCTION(all, value::reduce(ReduceOp::Min, value::cast(x, DType::Bool), axes, keepdim))
TINYSHARD_REDUCTION(mean, value::mean(x, axes, keepdim))
TINYSHARD_REDUCTION(logsumexp, value::logsumexp(x, axes, keepdim))

#undef TINYSHARD_REDUCTION

Tensor Tensor::var(const Axes& axis, bool keepdim, int64_t correction, Caller caller) const {
  Call call("var", caller);
  Value x(*this);
  return value::variance(x, value::resolve_axes(axis, x.rank()), keepdim, correction);
}

Tensor Tensor::std(const Axes& axis, bool keepdim, int64_t correction, Caller caller) const {
  Call call("std", caller);
  Value x(*this);
  return value::in_floats(x, [&](const Value& v) {
    return value::sqrt(
        value::variance(v, value::resolve_axes(axis, v.rank()), keepdim, correction));
  });
}

std::pair<Tensor, Tensor> Tensor::var_mean(const Axes& axis, bool keepdim, int64_t correction,
                                           Caller caller) const {
  Call call("var_mean", caller);
  return {var(axis, keepdim, correction, caller), mean(axis, keepdim, caller)};
}

std::pair<Tensor, Tensor> Tensor::std_mean(const Axes& axis, bool keepdim, int64_t correction,
                                           Caller caller) const {
  Call call("std_mean", caller);
  return {std(axis, keepdim, correction, caller), mean(axis, keepdim, caller)};
}

Tensor Tensor::softmax(int64_t axis, std::optional<DType> dtype, Caller caller) const {
  Call call("softmax", caller);
  return value::softmax(as_given(*this, dtype), value::resolve_axis(axis, ndim()));
}

Tensor Tensor::log_softmax(int64_t axis, std::optional<DType> dtype, Caller caller) const {
  Call call("log_softmax", caller);
  return value::log_softmax(as_given(*this, dtype), value::resolve_axis(axis, ndim()));
}

Tensor Tensor::softmin(int64_t axis, std::optional<DType> dtype, Caller caller) const {
  Call call("softmin", caller);
  return value::softmax(-as_given(*this, dtype), value::resolve_axis(axis, ndim()));
}

Tensor Tensor::normalize(double p, int64_t dim, double eps, Caller caller) const {
  Call call("normalize", caller);
  Value x(*this);
  need_float(x);
  Dims axes{value::resolve_axis(dim, x.rank())};
  if (x.rank() == 0) axes.clear();
  // The root of no length has no slope, not an infinite one: what is divided by eps has 1 / eps.
  auto root = [](const Value& total, auto of) {
    Value nothing = total == 0;
    return value::where(nothing, 0, Value(of(value::where(nothing, 1, total).tensor())));
  };
  return value::in_floats(x, [&](const Value& v) {
    Value norm = v;
    if (p == 0) {
      norm = value::sum(value::cast(v != 0, v.dtype()), axes, true);
    } else if (p == 1) {
      norm = value::sum(value::abs(v), axes, true);
    } else if (p == 2) {
      norm =
          root(value::sum(value::square(v), axes, true), [](const Tensor& t) { return t.sqrt(); });
    } else {
      norm = root(value::sum(value::abs(v).tensor().pow(p), axes, true),
                  [p](const Tensor& t) { return t.pow(1 / p); });
    }
    return v / value::maximum(norm, eps);
  });
}

Tensor Tensor::argmax(std::optional<int64_t> axis, bool keepdim, Caller caller) const {
  Call call("argmax", caller);
  Value x(*this);
  int64_t rank = x.rank(), along = axis ? value::resolve_axis(*axis, rank) : 0;
  bool flat = !axis || rank == 0;
  if (flat) x = value::reshape(x, {x.node()->numel()});
  not_of_nothing(x, {along});
  x = value::filled(x, along, value::identity(ReduceOp::Max, x.dtype()));
  if (x.size(along) > INT32_MAX)
    fail(fmt::format("i32 does not count the elements of {}", text_of(x)));
  Value out = value::argmax(x, along, keepdim && !flat);
  return flat && keepdim ? value::reshape(out, Dims(rank, 1)) : out;
}

Tensor Tensor::argmin(std::optional<int64_t> axis, bool keepdim, Caller caller) const {
  Call call("argmin", caller);
  Value x(*this);
  if (is_float(x.dtype())) return value::Value(-x).tensor().argmax(axis, keepdim, caller);
  return Value(tinyshard::unary(Op::Not, x.node())).tensor().argmax(axis, keepdim, caller);
}

}  // namespace tinyshard
