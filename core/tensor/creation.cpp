// Tensors out of nothing: constants, ranges, identity.
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/sizes.h"
#include "core/exec/state.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

using value::Value;

namespace {

DType type_of_number(const Scalar& number) {
  switch (number.kind) {
    case Scalar::Kind::Bool:
      return DType::Bool;
    case Scalar::Kind::Int:
      return DType::I32;
    default:
      return default_float();
  }
}

bool any_float(std::initializer_list<Scalar> numbers) {
  for (const Scalar& n : numbers) {
    if (n.is_float()) return true;
  }
  return false;
}

Tensor filled(const char* op, const Dims& shape, const Scalar& value, DType dtype,
              const Caller& caller) {
  Call call(op, caller);
  return value::constant(dtype, value, shape);
}

// The type must hold both ends of a line; nothing else of it lies outside of them.
void check_line(const Scalar& first, const Scalar& last, DType dtype) {
  for (const Scalar& end : {first, last}) {
    if (!value::fits(end, dtype))
      fail(fmt::format("{} does not fit {}", value::text_of(end), name(dtype)));
  }
}

// Holds the distance of any two integers.
using Wide = __int128;

Wide wide(const Scalar& n) {
  return n.is_beyond_i64() ? Wide{static_cast<uint64_t>(n.integer)} : Wide{n.integer};
}
Scalar narrow(Wide n) {
  return n > INT64_MAX ? Scalar(static_cast<uint64_t>(n)) : Scalar(static_cast<int64_t>(n));
}

// start + i * step, in a type wide enough for the whole range before it is cast.
Value line(const Scalar& start, const Scalar& step, int64_t n, DType dtype) {
  if (!is_float(dtype)) {
    Value i = value::iota(n, DType::I64);
    if (step.integer != 1) i = i * step.integer;
    if (start.integer != 0) i = i + start.integer;
    return value::cast(i, dtype);
  }
  Value i = value::iota(n, DType::F64);
  if (step.real != 1) i = i * step.real;
  if (start.real != 0) i = i + start.real;
  return value::cast(i, dtype);
}

}  // namespace

Tensor::Tensor(Scalar value) {
  Call call("tensor");
  *this = value::constant(type_of_number(value), value);
}

Tensor Tensor::full(const Ints& shape, Scalar value, Caller caller) {
  return filled("full", shape.values, value, type_of_number(value), caller);
}
Tensor Tensor::full(const Ints& shape, Scalar value, DType dtype, Caller caller) {
  return filled("full", shape.values, value, dtype, caller);
}
Tensor Tensor::zeros(const Ints& shape, DType dtype, Caller caller) {
  return filled("zeros", shape.values, 0, dtype, caller);
}
Tensor Tensor::ones(const Ints& shape, DType dtype, Caller caller) {
  return filled("ones", shape.values, 1, dtype, caller);
}

Tensor Tensor::empty(const Ints& shape, DType dtype, Caller caller) {
  Call call("empty", caller);
  value::check_dtype(dtype);
  check_size(shape.values, dtype);
  return Tensor(make_state(empty_buffer(shape.values, dtype, replicated(default_mesh()))));
}

Tensor Tensor::full_like(Scalar value, std::optional<DType> dtype) const {
  Call call("full_like");
  return value::constant(dtype.value_or(this->dtype()), value, Value(*this).shape())
      .tensor()
      .shard_like(*this);
}
Tensor Tensor::empty_like(std::optional<DType> dtype) const {
  Call call("empty_like");
  const Value like(*this);
  const DType type = dtype.value_or(this->dtype());
  value::check_dtype(type);
  Sharding where = sharding();
  for (Placement& p : where.placements) p = p.is_partial() ? Replicate : p;
  return Tensor(make_state(empty_buffer(like.shape(), type, where)));
}
Tensor Tensor::zeros_like(std::optional<DType> dtype) const { return full_like(0, dtype); }
Tensor Tensor::ones_like(std::optional<DType> dtype) const { return full_like(1, dtype); }

Tensor Tensor::arange(Scalar stop, std::optional<DType> dtype, Caller caller) {
  return arange(0, stop, 1, dtype, caller);
}

Tensor Tensor::arange(Scalar start, Scalar stop, Scalar step, std::optional<DType> dtype,
                      Caller caller) {
  Call call("arange", caller);
  DType type = dtype.value_or(any_float({start, stop, step}) ? default_float() : DType::I32);
  value::check_dtype(type);
  if (step.real == 0) fail("step is zero");
  int64_t n = 0;
  if (any_float({start, stop, step})) {
    double count = std::ceil((stop.real - start.real) / step.real);
    if (!(count < 1e15))
      fail(fmt::format("from {} to {} by {} never ends", start.real, stop.real, step.real));
    n = count > 0 ? static_cast<int64_t>(count) : 0;
    if (!is_float(type)) {
      if (n > 0) check_line(start, start.real + static_cast<double>(n - 1) * step.real, type);
      return value::cast(line(start.real, step.real, n, DType::F64), type);
    }
    return line(start.real, step.real, n, type);
  }
  Wide by = wide(step), span = wide(stop) - wide(start);
  Wide count = std::max<Wide>(0, (span + by + (by > 0 ? -1 : 1)) / by);
  n = limited(count);
  check_size(Dims{n}, type);
  if (n > 0) check_line(start, narrow(wide(start) + (count - 1) * by), type);
  return line(start, step, n, type);
}

Tensor Tensor::linspace(Scalar start, Scalar stop, int64_t steps, std::optional<DType> dtype,
                        Caller caller) {
  Call call("linspace", caller);
  if (steps < 0) fail(fmt::format("{} steps", steps));
  DType type = dtype.value_or(default_float());
  value::check_dtype(type);
  if (type == DType::Bool) fail("a line of bools");
  check_line(start, stop, type);
  if (steps == 1) return value::constant(type, start, Dims{1});
  // From both ends to the middle, so that both are exact.
  double step = (stop.real - start.real) / static_cast<double>(std::max<int64_t>(1, steps - 1));
  Value i = value::cast(value::iota(steps, DType::I64), DType::F64);
  Value from_start = i * step + start.real;
  Value from_stop = stop.real - (static_cast<double>(steps - 1) - i) * step;
  return value::cast(value::where(i < static_cast<double>(steps) / 2, from_start, from_stop), type);
}

Tensor Tensor::eye(int64_t n, std::optional<int64_t> m, DType dtype, Caller caller) {
  Call call("eye", caller);
  value::check_dtype(dtype);
  int64_t columns = m.value_or(n);
  if (n < 0 || columns < 0) fail(fmt::format("sizes {} and {} are negative", n, columns));
  Value row = value::iota_along(0, 2, n, DType::I64),
        column = value::iota_along(1, 2, columns, DType::I64);
  return value::cast(row == column, dtype);
}

}  // namespace tinyshard
