// Constants, builders and arguments of nodes.
#include "core/uop/uop.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/dtype/half.h"
#include "core/uop/args.h"
#include "core/uop/shape.h"

namespace tinyshard {

int64_t product(DimSpan dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

std::string to_string(DimSpan dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

void set_about(const UOp& x, std::string_view about) {
  x->origin.store(with_about(origin_id(x), about), std::memory_order_relaxed);
}

UOp UOp::with_src(std::span<const UOp> src) const {
  if (std::ranges::equal(src, node_->src())) return *this;
  DType dtype = node_->dtype;
  switch (info(node_->op).type_rule) {
    case TypeRule::SameAsFirst:
      dtype = src[0].dtype();
      break;
    case TypeRule::SameAsSecond:
      dtype = src[1].dtype();
      break;
    default:
      break;
  }
  OriginScope scope(origin_id(*this));
  return make(node_->op, dtype, src, node_->arg(), node_->payload);
}

// --- constants -----------------------------------------------------------------------------------

static UOp const_bits(DType dtype, int64_t bits, DimSpan shape,
                      std::shared_ptr<const void> mesh = nullptr) {
  std::array<int64_t, 8> few{bits};
  Dims many;
  if (shape.size() >= few.size()) many.resize(shape.size() + 1, bits);
  const std::span<int64_t> arg =
      many.empty() ? std::span(few).first(shape.size() + 1) : std::span(many);
  std::ranges::copy(shape, arg.begin() + 1);
  return UOp::make(Op::Const, dtype, {}, arg, std::move(mesh));
}

UOp const_float(DType dtype, double value, DimSpan shape) {
  if (!is_float(dtype)) return const_int(dtype, static_cast<int64_t>(value), shape);
  return const_bits(dtype, std::bit_cast<int64_t>(rounded_to(dtype, value)), shape);
}

UOp const_int(DType dtype, int64_t value, DimSpan shape) {
  if (is_float(dtype)) return const_float(dtype, rounded_integer(dtype, value), shape);
  switch (
      dtype) {  // the bits of a narrow integer are those of its value, so that equal means equal
    case DType::Bool:
      value = value != 0;
      break;
    case DType::I8:
      value = int64_t{static_cast<int8_t>(value)};
      break;
    case DType::U8:
      value = static_cast<uint8_t>(value);
      break;
    case DType::I16:
      value = static_cast<int16_t>(value);
      break;
    case DType::U16:
      value = static_cast<uint16_t>(value);
      break;
    case DType::I32:
      value = static_cast<int32_t>(value);
      break;
    case DType::U32:
      value = static_cast<uint32_t>(value);
      break;
    default:
      break;
  }
  return const_bits(dtype, value, shape);
}

UOp const_like(const UOp& x, double value) { return const_float(x.dtype(), value, x.shape()); }
UOp reshaped_const(const UOp& x, DimSpan shape) {
  return const_bits(x.dtype(), const_bits(*x), shape, x->payload);  // for the mesh of x
}

UOp index_const(int64_t value) { return const_bits(DType::Index, value, {}); }
bool is_const(const UOp& x) { return x.op() == Op::Const; }
bool is_const(const UOp& x, double value) { return is_const(x) && const_as_double(x) == value; }

double const_as_double(const UOp& x) {
  if (is_float(x.dtype())) return std::bit_cast<double>(const_bits(*x));
  if (x.dtype() == DType::U64) return static_cast<double>(static_cast<uint64_t>(const_bits(*x)));
  return static_cast<double>(const_bits(*x));
}

int64_t const_as_int(const UOp& x) {
  return is_float(x.dtype()) ? static_cast<int64_t>(const_as_double(x)) : const_bits(*x);
}

// --- builders ------------------------------------------------------------------------------------

UOp unary(Op op, const UOp& x) { return UOp::make(op, x.dtype(), {x}); }

UOp binary(Op op, const UOp& a, const UOp& b) {
  check_internal(a.dtype() == b.dtype(), "both sides of a binary op have one element type");
  return UOp::make(op, info(op).type_rule == TypeRule::Bool ? DType::Bool : a.dtype(), {a, b});
}

UOp where(const UOp& condition, const UOp& a, const UOp& b) {
  check_internal(a.dtype() == b.dtype() && condition.dtype() == DType::Bool,
                 "where takes a bool and two values of one type");
  return UOp::make(Op::Where, a.dtype(), {condition, a, b});
}

UOp cast(const UOp& x, DType dtype) {
  return x.dtype() == dtype ? x : UOp::make(Op::Cast, dtype, {x});
}

static bool same(DimSpan a, DimSpan b) { return std::ranges::equal(a, b); }

UOp reshape(const UOp& x, DimSpan shape) {
  if (same(x.shape(), shape)) return x;
  if (is_const(x)) return reshaped_const(x, shape);
  if (x.op() == Op::Reshape) return reshape(x.src(0), shape);
  return UOp::make(Op::Reshape, x.dtype(), {x}, shape);
}

UOp expand(const UOp& x, DimSpan shape) {
  if (same(x.shape(), shape)) return x;
  if (is_const(x)) return reshaped_const(x, shape);
  if (x.op() == Op::Expand) return expand(x.src(0), shape);
  return UOp::make(Op::Expand, x.dtype(), {x}, shape);
}

UOp permute(const UOp& x, DimSpan order) {
  bool identity = true;
  for (size_t i = 0; i < order.size(); ++i) identity = identity && order[i] == int64_t(i);
  if (identity) return x;
  if (x.op() == Op::Permute) {
    Dims combined;
    for (int64_t axis : order) combined.push_back(x->arg()[size_t(axis)]);
    return permute(x.src(0), combined);
  }
  UOp out = UOp::make(Op::Permute, x.dtype(), {x}, order);
  return is_const(x) ? reshaped_const(x, out.shape()) : out;
}

UOp swap_last_two(const UOp& x) {
  Dims order(x.shape().size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int64_t(i);
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return permute(x, order);
}

UOp under_views(UOp x) {
  while (is_movement(x.op()) || x.op() == Op::Identity) x = x.src(0);
  return x;
}

UOp pad(const UOp& x, DimSpan lo_hi) {
  if (std::ranges::all_of(lo_hi, [](int64_t v) { return v == 0; })) return x;
  return UOp::make(Op::Pad, x.dtype(), {x}, lo_hi);
}

UOp shrink(const UOp& x, DimSpan lo_hi) {
  bool whole = true;
  for (size_t i = 0; i < x.shape().size(); ++i)
    whole = whole && lo_hi[2 * i] == 0 && lo_hi[2 * i + 1] == x.shape()[i];
  if (whole) return x;
  UOp out = UOp::make(Op::Shrink, x.dtype(), {x}, lo_hi);
  return is_const(x) ? reshaped_const(x, out.shape()) : out;
}

UOp flip(const UOp& x, DimSpan axes) {
  if (axes.empty() || is_const(x)) return x;
  return UOp::make(Op::Flip, x.dtype(), {x}, axes);
}

UOp iota_along(DimSpan shape, size_t dim, DType dtype) {
  Dims line(shape.size(), 1);
  line[dim] = shape[dim];
  UOp iota = UOp::make(Op::Iota, DType::I64, {}, Dims{shape[dim]});
  return expand(reshape(cast(iota, dtype), line), shape);
}

UOp reduce(ReduceOp op, const UOp& x, DimSpan axes) {
  Dims arg{int64_t(op)};
  arg.insert(arg.end(), axes.begin(), axes.end());
  std::sort(arg.begin() + 1, arg.end());
  return axes.empty() ? x : UOp::make(Op::Reduce, x.dtype(), {x}, arg);
}

UOp range(int64_t id, int64_t size, RangeKind kind) {
  return UOp::make(Op::Range, DType::Index, {}, Dims{id, size, int64_t(kind)});
}

ConvArg conv_arg(const Node& node) {
  ConvArg arg;
  std::memcpy(&arg, node.arg().data(), sizeof(arg));
  return arg;
}

Dims to_ints(const ConvArg& arg) {
  static_assert(sizeof(ConvArg) == ConvArg::kInts * sizeof(int64_t));
  Dims ints(ConvArg::kInts);
  std::memcpy(ints.data(), &arg, sizeof(arg));
  return ints;
}

AttentionArg attention_arg(const Node& node) {
  DimSpan ints = node.arg();
  return {ints[0], ints[1] != 0, std::bit_cast<double>(ints[2]), ints[3] != 0};
}

Dims to_ints(const AttentionArg& arg) {
  return {arg.which, arg.causal, std::bit_cast<int64_t>(arg.scale), arg.heads_inside};
}

DecomposeArg decompose_arg(const Node& node) { return {Factor(node.arg()[0]), node.arg()[1] != 0}; }

Dims to_ints(const DecomposeArg& arg) { return {int64_t(arg.factor), arg.full}; }

}  // namespace tinyshard
