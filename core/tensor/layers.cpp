// What layers are made of: normalisation, dropout, attention.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/tensor/random.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

using value::text_of;
using value::Value;

namespace {

// Whether attention over these is the op: one 16-bit type, equal batch dims, something to compute.
bool is_one_op(const UOp& q, const UOp& k, const UOp& v) {
  size_t rank = q.shape().size();
  if (k.shape().size() != rank || v.shape().size() != rank) return false;
  for (const UOp& x : {q, k, v}) {
    if (x.dtype() != q.dtype() || x->numel() == 0) return false;
    if (!std::ranges::equal(x.shape().first(rank - 2), q.shape().first(rank - 2))) return false;
  }
  return value::is_half(q.dtype());
}

}  // namespace

Tensor Tensor::layernorm(const Axes& axis, double eps, Caller caller) const {
  Call call("layernorm", caller);
  Value x(*this);
  Dims axes = value::resolve_axes(axis, x.rank());
  value::need_float(x);
  return value::in_floats(x, [&](const Value& v) {
    Value centered = v - value::mean(v, axes, true);
    return centered * value::rsqrt(value::mean(value::square(centered), axes, true) + eps);
  });
}

Tensor Tensor::batchnorm(const Tensor& weight, const Tensor& bias, const Tensor& mean,
                         const Tensor& invstd, const Axes& axis, Caller caller) const {
  Call call("batchnorm", caller);
  Value x(*this);
  Dims axes = value::resolve_axes(axis, x.rank()), shape(x.rank(), 1);
  for (int64_t a : axes) shape[a] = x.size(a);
  // Statistics of the channels, however they are shaped.
  auto along_axes = [&](const char* what, const Tensor& t) -> Value {
    Value v(t);
    if (v.node()->numel() != product(shape))
      fail(fmt::format("{} is {}, x is {}", what, text_of(v), text_of(x)));
    return value::reshape(v, shape);
  };
  value::need_float(x);
  return value::in_floats(x, [&](const Value& v) {
    Value scale = along_axes("invstd", invstd);
    if (weight.defined()) scale = scale * along_axes("weight", weight);
    Value out = (v - along_axes("mean", mean)) * scale;
    return bias.defined() ? out + along_axes("bias", bias) : out;
  });
}

Tensor Tensor::dropout(double p, Caller caller) const {
  Call call("dropout", caller);
  if (!(p >= 0 && p <= 1)) fail(fmt::format("p = {} is not a probability", p));
  if (!is_training() || p == 0) return Tensor(uop());
  if (p == 1) return value::constant_of(*this, 0);
  // The decisions are kept, in one byte each: the gradient needs them too.
  Value bits(random_bits(Value(*this).shape()));
  Value threshold = value::constant(DType::U32, static_cast<int64_t>(std::ldexp(p, 32)));
  Value upper =
      value::cast(Value(tinyshard::binary(Op::Shr, bits.node(),
                                          value::constant(DType::U64, 32, bits.shape()).node())),
                  DType::U32);
  Value keep = value::contiguous(upper >= threshold);
  Value kept = value::in_floats(*this, [p](const Value& v) { return v * (1 / (1 - p)); });
  return value::where(keep, kept, 0);
}

Tensor Tensor::scaled_dot_product_attention(const Tensor& key, const Tensor& values,
                                            const Tensor& mask, const AttentionOptions& options,
                                            Caller caller) const {
  Call call("scaled_dot_product_attention", caller);
  Tensor k = key, v = values;
  if (ndim() < 2 || k.ndim() < 2 || v.ndim() < 2 || shape(-1) != k.shape(-1) ||
      k.shape(-2) != v.shape(-2)) {
    fail(fmt::format(
        "query is {}, key is {}, value is {}: need [.., L, E], [.., S, E] and [.., S, V]",
        describe(), k.describe(), v.describe()));
  }
  if (options.enable_gqa) {
    for (Tensor* shared : {&k, &v}) {
      int64_t heads = ndim() < 3 ? 0 : shape(-3), few = shared->ndim() < 3 ? 0 : shared->shape(-3);
      if (ndim() < 3 || shared->ndim() < 3 || (few == 0 ? heads != 0 : heads % few != 0)) {
        fail(fmt::format("the heads of query {} are no multiple of those of {} {}", describe(),
                         shared == &k ? "key" : "value", shared->describe()));
      }
      if (few > 0) *shared = shared->repeat_interleave(heads / few, -3);
    }
  }
  if (options.is_causal && mask.defined()) fail("a mask and is_causal exclude each other");
  bool drops = is_training() ? options.dropout_p != 0 : !(options.dropout_p >= 0);
  if (!mask.defined() && !drops && is_one_op(uop(), k.uop(), v.uop())) {
    AttentionArg arg{0, options.is_causal, 1 / std::sqrt(double(shape(-1)))};
    return Value(UOp::make(Op::Attention, dtype(), {uop(), k.uop(), v.uop()}, to_ints(arg)));
  }
  DType wide = promote(promote(dtype(), k.dtype()), DType::F32);
  int64_t rows = shape(-2), columns = k.shape(-2);
  Value scores =
      Value(matmul(k.transpose(-2, -1), wide)) * (1 / std::sqrt(static_cast<double>(shape(-1))));
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  if (options.is_causal) {
    Value row = value::iota_along(0, 2, rows, DType::I64),
          column = value::iota_along(1, 2, columns, DType::I64);
    scores = value::where(column <= row, scores, kNever);
  } else if (mask.defined()) {
    scores =
        mask.dtype() == DType::Bool ? value::where(mask, scores, kNever) : scores + Value(mask);
  }
  Tensor weights = value::cast(value::softmax(scores, scores.rank() - 1), dtype());
  return weights.dropout(options.dropout_p).matmul(v);
}

}  // namespace tinyshard
