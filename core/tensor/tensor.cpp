// The handle: making it from data, looking at it, storage, types.
#include "core/tensor/tensor.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/sizes.h"
#include "core/exec/capture.h"
#include "core/exec/state.h"
#include "core/tensor/sizes_internal.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

using value::shape_text;
using value::text_of;
using value::Value;

namespace {

std::atomic<DType> float_default{DType::F32};
thread_local bool training = false;

}  // namespace

DType default_float() { return float_default.load(std::memory_order_relaxed); }

void set_default_float(DType dtype) {
  Call call("set_default_float");
  value::check_dtype(dtype);
  if (!is_float(dtype))
    throw UserError(fmt::format("set_default_float: {} is not a float", name(dtype)));
  float_default.store(dtype, std::memory_order_relaxed);
}

TrainingMode::TrainingMode(bool enabled) : previous_(std::exchange(training, enabled)) {}
TrainingMode::~TrainingMode() { training = previous_; }
bool is_training() { return training; }

Index::Index(const Tensor& t, Caller c) : kind(Kind::Tensor), tensor(t.state()), caller(c) {}

// --- from data -----------------------------------------------------------------------------------

// A float may be differentiated by, and what lies in a storage must not change with another tensor.
Tensor::Tensor(UOp value)
    : state_(make_state(is_float(value.dtype()) || has_storage(under_names(value)) ? named(value)
                                                                                   : value)) {
  if (UOp sized = value::with_sizes(value)) state_ = make_state(std::move(sized));
}

Tensor::Tensor(std::span<const std::byte> bytes, const Ints& shape, DType dtype, Caller caller) {
  Call call("tensor", caller);
  value::check_dtype(dtype);
  check_size(shape.values, dtype);
  size_t needed = static_cast<size_t>(product(shape.values)) * itemsize(dtype);
  if (bytes.size() != needed) {
    fail(fmt::format("{} elements for shape {}", bytes.size() / itemsize(dtype),
                     shape_text(shape.values)));
  }
  state_ = make_state(host_buffer(shape.values, dtype, bytes));
}

namespace {

// Shape and leaves of nested braces; rows must be alike.
void collect(const Nested& x, size_t depth, Dims& shape, std::vector<Scalar>& leaves,
             size_t& leaf_depth) {
  if (x.is_leaf) {
    if (leaf_depth == SIZE_MAX) leaf_depth = depth;
    if (leaf_depth != depth) fail("rows of different depth");
    leaves.push_back(x.leaf);
    return;
  }
  int64_t n = static_cast<int64_t>(x.items.size());
  if (shape.size() == depth) {
    if (leaf_depth != SIZE_MAX) fail("rows of different depth");
    shape.push_back(n);
  }
  if (shape[depth] != n) fail(fmt::format("rows of different length: {} and {}", shape[depth], n));
  for (const Nested& item : x.items) collect(item, depth + 1, shape, leaves, leaf_depth);
}

}  // namespace

Tensor::Tensor(std::initializer_list<Nested> rows) {
  Call call("tensor");
  Dims shape;
  std::vector<Scalar> leaves;
  size_t leaf_depth = SIZE_MAX;
  collect(Nested(rows), 0, shape, leaves, leaf_depth);
  auto kind = Scalar::Kind::Bool;
  for (const Scalar& leaf : leaves) kind = std::max(kind, leaf.kind);
  if (leaves.empty() || kind == Scalar::Kind::Float) {
    std::vector<double> values(leaves.size());
    std::ranges::transform(leaves, values.begin(), &Scalar::real);
    if (default_float() == DType::F64) {
      *this = Tensor(values, shape);
    } else {
      *this = Tensor(std::vector<float>(values.begin(), values.end()), shape);
      if (default_float() != DType::F32) *this = cast(default_float());
    }
  } else if (kind == Scalar::Kind::Int) {
    std::vector<int32_t> values;
    values.reserve(leaves.size());
    for (const Scalar& leaf : leaves) {
      if (leaf.integer != static_cast<int32_t>(leaf.integer))
        fail(fmt::format("{} does not fit i32", leaf.integer));
      values.push_back(static_cast<int32_t>(leaf.integer));
    }
    *this = Tensor(values, shape);
  } else {
    std::vector<bool> values(leaves.size());
    for (size_t i = 0; i < leaves.size(); ++i) values[i] = leaves[i].integer != 0;
    *this = Tensor(values, shape);
  }
}

// --- what it is ----------------------------------------------------------------------------------

const UOp& Tensor::uop() const {
  if (!state_) fail("a tensor that was never given a value");
  const UOp& value = touch(*state_);
  value::meet_operand(value);
  return value;
}

namespace {

// Facts do not make a capture realize anything.
const UOp& node_of(const StatePtr& state) {
  if (!state) fail("a tensor that was never given a value");
  return state->value;
}

}  // namespace

Dims Tensor::shape() const {
  DimSpan s = node_of(state_).shape();
  return {s.begin(), s.end()};
}

int64_t Tensor::shape(int64_t dim, Caller caller) const {
  Call call("shape", caller);
  DimSpan s = node_of(state_).shape();
  int64_t axis = value::resolve_axis(dim, static_cast<int64_t>(s.size()));
  if (s.empty()) fail(fmt::format("dim {} of {}, which has none", dim, describe()));
  return s[axis];
}

int64_t Tensor::ndim() const { return static_cast<int64_t>(node_of(state_).shape().size()); }
int64_t Tensor::numel() const { return node_of(state_)->numel(); }
DType Tensor::dtype() const { return node_of(state_).dtype(); }

// --- storage -------------------------------------------------------------------------------------

Tensor Tensor::realize(Caller caller) const {
  Call call("realize", caller);
  node_of(state_);
  tinyshard::realize(std::span(&state_, 1));
  return *this;
}

void Tensor::realize(const std::vector<Tensor>& tensors) {
  std::vector<StatePtr> states;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) states.push_back(tensor.state_);
  }
  tinyshard::realize(states);
}

Tensor Tensor::contiguous() const {
  Call call("contiguous");
  return value::contiguous(*this);
}

Tensor Tensor::clone() const {
  Call call("clone");
  return Tensor(make_state(with_own_storage(uop())));
}

Tensor Tensor::assign(const Operand& value) const {
  if (value.tensor) return assign(*value.tensor, value.caller);
  Call call("assign", value.caller);
  return assign(value::constant(dtype(), value.scalar, shape()).tensor(), value.caller);
}

Tensor Tensor::assign(const Tensor& value, Caller caller) const {
  Call call("assign", caller);
  const UOp& target = uop();
  Value v(value);
  if (v.dtype() != target.dtype()) {
    fail(fmt::format("the target is {}, the value is {}: cast it to {}", describe(),
                     value::text_of(v), name(target.dtype())));
  }
  if (v.rank() > ndim() || value::broadcast_shape(target.shape(), v.shape()) != shape()) {
    fail(fmt::format("the target is {}, the value is {}", describe(), value::text_of(v)));
  }
  v = value::broadcast_to(v, target.shape());
  if (v.node() == target) return *this;
  // What is neither stored nor to be stored yet gets a storage; the value to come does not need its
  // old contents. So do data that a trace gave to a new tensor: every replay begins with them.
  const Capture* capture = current_capture();
  const bool is_constant =
      capture && target.op() == Op::Buffer && !capture->is_from_before(*state_);
  UOp storage = has_storage(target) && !is_constant
                    ? target
                    : empty_buffer(target.shape(), target.dtype(), sharding_of(target));
  replace_value(*state_, UOp::make(Op::Assign, target.dtype(), {storage, v.node()}));
  return *this;
}

Tensor Tensor::replace(const Tensor& value, Caller caller) const {
  Call call("replace", caller);
  // A captured step is made for the types that it has met.
  const bool same_type = value.dtype() == dtype();
  if (value.shape() != shape() || (!same_type && current_capture()))
    fail(fmt::format("the target is {}, the value is {}", describe(), value.describe()));
  if (is_param() && !is_float(value.dtype()))
    fail(fmt::format("the target is a parameter, and {} is no floating type", name(value.dtype())));
  const UOp node = is_param() ? without_storage_left(value.uop(), uop()) : value.uop();
  // A parameter will be written over.
  if (is_param() && !has_storage(node))
    replace_value(*state_, with_own_storage(node));
  else
    replace_value(*state_, has_storage(node) ? node : named(node));
  return *this;
}

// --- types ---------------------------------------------------------------------------------------

Tensor Tensor::cast(DType dtype) const {
  Call call("cast");
  return value::cast(*this, dtype);
}

namespace {

DType unsigned_of(size_t bytes) {
  return bytes == 1 ? DType::U8 : bytes == 2 ? DType::U16 : bytes == 4 ? DType::U32 : DType::U64;
}

Value bits_as(const Value& x, DType dtype) {
  return x.dtype() == dtype ? x : Value(UOp::make(Op::Bitcast, dtype, {x.node()}));
}

}  // namespace

Tensor Tensor::bitcast(DType dtype, Caller caller) const {
  Call call("bitcast", caller);
  value::check_dtype(dtype);
  Value x(*this);
  if (x.dtype() == dtype) return Tensor(uop());
  size_t from = itemsize(x.dtype()), to = itemsize(dtype);
  if (x.dtype() == DType::Bool) x = value::cast(x, DType::U8);
  // Bits that are no bool are true, as they are to whoever reads them.
  if (dtype == DType::Bool) return value::cast(bitcast(DType::U8, caller), DType::Bool);
  if (from == to) return bits_as(x, dtype);
  if (x.rank() == 0)
    fail(
        fmt::format("{} has no dim that could hold {} bytes as {}", describe(), from, name(dtype)));
  Dims shape = x.dims();
  DType whole = unsigned_of(std::max(from, to)), part = unsigned_of(std::min(from, to));
  int64_t parts = static_cast<int64_t>(std::max(from, to) / std::min(from, to)),
          part_bits = static_cast<int64_t>(8 * std::min(from, to));
  Value shifts = value::iota(parts, whole) * part_bits;  // little end first
  auto shifted = [&](Op op, const Value& v) {
    auto [a, b] = value::match(v, shifts);
    return Value(tinyshard::binary(op, a.node(), b.node()));
  };
  if (to < from) {
    shape.back() = multiply_sizes(shape.back(), parts);
    Value pieces =
        value::cast(shifted(Op::Shr, value::unsqueeze(bits_as(x, whole), x.rank())), part);
    return bits_as(value::reshape(pieces, shape), dtype);
  }
  if (shape.back() % parts != 0) {
    fail(fmt::format("the last dim of {} has {} bytes, not a multiple of the {} of {}", describe(),
                     shape.back() * static_cast<int64_t>(from), to, name(dtype)));
  }
  shape.back() /= parts;
  shape.push_back(parts);
  Value pieces = value::cast(value::reshape(bits_as(x, part), shape), whole);
  return bits_as(value::cast(value::sum(shifted(Op::Shl, pieces), {x.rank()}), whole), dtype);
}

}  // namespace tinyshard
