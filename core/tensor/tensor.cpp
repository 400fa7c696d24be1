// The handle: making it from data, looking at it, storage, types.
#include "core/tensor/tensor.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/sizes.h"
#include "core/exec/capture.h"
#include "core/exec/scopes.h"
#include "core/exec/state.h"
#include "core/tensor/sizes_internal.h"
#include "core/tensor/view_internal.h"

namespace tinyshard {

using value::shape_text;
using value::text_of;
using value::Value;

DType default_float() { return scopes::default_float(); }

void set_default_float(DType dtype) {
  Call call("set_default_float");
  value::check_dtype(dtype);
  if (!is_float(dtype))
    throw UserError(fmt::format("set_default_float: {} is not a float", name(dtype)));
  if (current_capture())
    fail("in a captured step it would be set at the first call alone; set it before the step");
  scopes::set_default_float(dtype);
}

TrainingMode::TrainingMode(bool enabled) {
  const scopes::Training before = scopes::set_training(enabled);
  previous_ = before.on;
  previous_within_trace_ = before.within_trace;
}
TrainingMode::~TrainingMode() { scopes::restore_training({previous_, previous_within_trace_}); }
bool is_training() { return scopes::training(); }

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
  Call call("tensor", rows.size() > 0 ? rows.begin()->caller : Caller::current());
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
        fail(
            fmt::format("{} does not fit i32, the type of whole numbers in braces: "
                        "Tensor(std::vector<int64_t>{{...}}) holds larger ones",
                        leaf.integer));
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

namespace {

// Methods look at bounds where they see to what lies behind a size; a program that computes with one
// would be right for the largest size alone.
void need_plain_size(const Tensor& x, int64_t axis) {
  const SymbolicShape* sizes = symbolic_shape(node_of(x.state()));
  if (!sizes || !sizes->dims[size_t(axis)]) return;
  const SymbolicSize& size = *sizes->dims[size_t(axis)];
  fail(
      fmt::format("dim {} of {} is {} long, from {} to {}, which is known when the step runs: "
                  "size_tensor({}) is that size as a tensor, shape() has the largest",
                  axis, x.describe(), size.text, size.low, size.high, axis));
}

}  // namespace

Dims Tensor::shape() const {
  DimSpan s = node_of(state_).shape();
  return {s.begin(), s.end()};
}

int64_t Tensor::shape(int64_t dim, Caller caller) const {
  const bool is_asked_by_program = running_call() == nullptr;
  Call call("shape", caller);
  DimSpan s = node_of(state_).shape();
  int64_t axis = value::resolve_axis(dim, static_cast<int64_t>(s.size()));
  if (s.empty()) fail(fmt::format("dim {} of {}, which has none", dim, describe()));
  if (is_asked_by_program) need_plain_size(*this, axis);
  return s[axis];
}

int64_t Tensor::ndim() const { return static_cast<int64_t>(node_of(state_).shape().size()); }

int64_t Tensor::numel(Caller caller) const {
  const bool is_asked_by_program = running_call() == nullptr;
  Call call("numel", caller);
  for (int64_t axis = 0; is_asked_by_program && axis < ndim(); ++axis) need_plain_size(*this, axis);
  return node_of(state_)->numel();
}

Tensor Tensor::size_tensor(int64_t dim, Caller caller) const {
  Call call("size_tensor", caller);
  const Value x(*this);
  return value::cast(value::count_along(x, {value::resolve_axis(dim, x.rank())}), DType::I64);
}

Tensor Tensor::numel_tensor(Caller caller) const {
  Call call("numel_tensor", caller);
  const Value x(*this);
  Dims axes(size_t(x.rank()));
  std::iota(axes.begin(), axes.end(), 0);
  return value::cast(value::count_along(x, axes), DType::I64);
}

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

namespace {

Tensor assigned(const Tensor& target, const Value& value, bool is_temporary) {
  const Value v = value.is_number() ? value::constant(target.dtype(), value.number()) : value;
  if (v.dtype() != target.dtype()) {
    fail(fmt::format("the target is {}, the value is {}: cast it to {}", target.describe(),
                     text_of(v), name(target.dtype())));
  }
  const Dims shape = target.shape();
  if (v.rank() > target.ndim() || value::broadcast_shape(shape, v.shape()) != shape)
    fail(fmt::format("the target is {}, the value is {}", target.describe(), text_of(v)));
  value::write(value::way_to(target, is_temporary), value::broadcast_to(v, shape));
  return target;
}

}  // namespace

Tensor Tensor::assign(const Operand& value) const& {
  Call call("assign", value.caller);
  return assigned(*this, value, false);
}
Tensor Tensor::assign(const Operand& value) const&& {
  Call call("assign", value.caller);
  return assigned(*this, value, true);
}
Tensor Tensor::assign(const Tensor& value, Caller caller) const& {
  Call call("assign", caller);
  return assigned(*this, value, false);
}
Tensor Tensor::assign(const Tensor& value, Caller caller) const&& {
  Call call("assign", caller);
  return assigned(*this, value, true);
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
  state_->view_of = nullptr;
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

// With bits that are no bool taken for true, as they are by whoever reads them.
Value bits_of(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  size_t from = itemsize(x.dtype()), to = itemsize(dtype);
  if (x.dtype() == DType::Bool) x = value::cast(x, DType::U8);
  if (dtype == DType::Bool) return value::cast(bits_of(x, DType::U8), DType::Bool);
  if (from == to) return bits_as(x, dtype);
  if (x.rank() == 0)
    fail(
        fmt::format("{} has no dim that could hold {} bytes as {}", text_of(x), from, name(dtype)));
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
    fail(fmt::format("the last dim of {} has {} bytes, not a multiple of the {} of {}", text_of(x),
                     shape.back() * static_cast<int64_t>(from), to, name(dtype)));
  }
  shape.back() /= parts;
  shape.push_back(parts);
  Value pieces = value::cast(value::reshape(bits_as(x, part), shape), whole);
  return bits_as(value::cast(value::sum(shifted(Op::Shl, pieces), {x.rank()}), whole), dtype);
}

}  // namespace

Tensor Tensor::bitcast(DType dtype, Caller caller) const& {
  Call call("bitcast", caller);
  value::check_dtype(dtype);
  auto take = [dtype](const Value& x) { return bits_of(x, dtype); };
  auto put = [dtype](const Value& whole, const Value& part) -> value::Placed {
    const Value shown = bits_of(whole, dtype), given = value::broadcast_to(part, shown.shape());
    if (dtype != DType::Bool) return {bits_of(given, whole.dtype()), {}};
    // Another true than 1 stays what it is.
    const Value bytes = bits_of(whole, DType::U8);
    const Value written = value::where(shown == given, bytes, value::cast(given, DType::U8));
    return {bits_of(written, whole.dtype()), {}};
  };
  return value::view_of(*this, {take, put});
}

}  // namespace tinyshard
