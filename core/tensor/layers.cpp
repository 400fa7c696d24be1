// Layers are made of these functions: normalisation, dropout, attention.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/dtype/half.h"
#include "core/tensor/random.h"
#include "core/tensor/sizes_internal.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

using value::text_of;
using value::Value;

namespace {

// Tells whether these have equal batch dims; heads (dim -3) of q may share those of k and v.
bool equal_batches(const UOp& q, const UOp& k, const UOp& v, bool shares_heads) {
  const size_t rank = q.shape().size();
  if (k.shape().size() != rank || v.shape().size() != rank) return false;
  for (size_t i = 0; i + 2 < rank; ++i) {
    const int64_t heads = k.shape()[i];
    const bool shared = shares_heads && i + 3 == rank && heads > 0 && q.shape()[i] % heads == 0;
    if (heads != v.shape()[i] || (heads != q.shape()[i] && !shared)) return false;
  }
  return true;
}

// Tells whether attention over these is the op: one type, of 16 bits as libraries have it, equal batch
// dims, something to compute. With heads that share k and v it is that in wider types, too: how these
// lie over a mesh is chosen for the whole, and the products are spelled out afterwards.
bool is_one_op(const UOp& q, const UOp& k, const UOp& v, bool shares_heads) {
  for (const UOp& x : {q, k, v}) {
    if (x.dtype() != q.dtype() || x->numel() == 0 || symbolic_shape(x)) return false;
  }
  const bool shared = shares_heads && q.shape().size() > 2 && k.shape().size() > 2 &&
                      q.shape().end()[-3] != k.shape().end()[-3];
  return (is_half(q.dtype()) || (shared && is_float(q.dtype()))) &&
         equal_batches(q, k, v, shares_heads);
}

// Tells whether a dim, counted from the last (1), has a size that is known when the step runs.
bool is_sized_at_run(const UOp& x, size_t from_last) {
  const SymbolicShape* sizes = symbolic_shape(x);
  return sizes != nullptr && from_last <= sizes->dims.size() &&
         sizes->dims[sizes->dims.size() - from_last].has_value();
}

// Tells whether heads that share k and v may be computed as rows of one product: heads and rows of
// q are joined, so their numbers must be plain. The positions of k and v may be those of a cache.
bool groups_heads(const UOp& q, const UOp& k, const UOp& v) {
  for (const UOp& x : {q, k, v}) {
    if (x->numel() == 0 || is_sized_at_run(x, 3)) return false;
  }
  return !is_sized_at_run(q, 2) && equal_batches(q, k, v, true) &&
         q.shape()[q.shape().size() - 3] != k.shape()[k.shape().size() - 3];
}

// Tells whether the heads of q lie in more parts than `few` heads of k and v give: joined with its
// rows they would all move, where k and v can be repeated by each device for its own.
bool heads_lie_finer(const Tensor& q, int64_t few) {
  if (!value::placed_on_several()) return false;
  const Sharding place = q.sharding();
  int64_t parts = 1;
  for (size_t axis = 0; axis < place.placements.size(); ++axis) {
    const Placement& p = place.placements[axis];
    if (p.is_shard() && p.dim == int(q.ndim()) - 3) parts *= place.mesh.axes()[axis].size;
  }
  return few % parts != 0;
}

// Heads are in dim -3; a single one is that of all.
bool heads_differ(const Tensor& q, const Tensor& k) {
  return q.ndim() > 2 && k.ndim() > 2 && q.shape(-3) != k.shape(-3) && q.shape(-3) > 1 &&
         k.shape(-3) > 1;
}

void check_mask(const Tensor& mask, const Tensor& query, const Tensor& key) {
  if (mask.dtype() != DType::Bool && !is_float(mask.dtype())) {
    fail(
        fmt::format("mask is {}: it takes bools, true where a query attends to a key, as "
                    "mask.cast(DType::Bool) "
                    "has them, or floats that are added to the scores",
                    mask.describe()));
  }
  for (const Tensor& x : {mask, query, key}) {
    if (symbolic_shape(x.uop())) return;  // sizes are bounds
  }
  const int64_t rows = query.shape(-2), columns = key.shape(-2), rank = mask.ndim();
  const bool fits = (rank < 2 || mask.shape(-2) == 1 || mask.shape(-2) == rows) &&
                    (rank < 1 || mask.shape(-1) == 1 || mask.shape(-1) == columns);
  if (!fits) {
    fail(fmt::format("mask is {}, query is {}, key is {}: need [.., L, S], here [.., {}, {}]",
                     mask.describe(), query.describe(), key.describe(), rows, columns));
  }
}

// A softmax over the last dim in which rows of minus infinity alone have no weights: 0, and not 0 / 0.
Value softmax_of_seen(const Value& scores) {
  const Dims columns{scores.rank() - 1};
  Value largest = value::detach(value::max(scores, columns, true));
  Value none = largest == -std::numeric_limits<double>::infinity();
  Value e = value::exp(scores - value::where(none, 0, largest));
  return e * value::reciprocal(value::where(none, 1, value::sum(e, columns, true)));
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
  value::need_float(x);
  return value::in_floats(x, [&](const Value& v) {
    // Statistics of the channels, however they are shaped: narrow ones are as wide as x within.
    auto along_axes = [&](const char* what, const Tensor& t) -> Value {
      Value s(t);
      if (s.node()->numel() != product(shape))
        fail(fmt::format("{} is {}, x is {}", what, text_of(s), text_of(x)));
      return value::reshape(is_narrow(s.dtype()) ? value::cast(s, DType::F32) : s, shape);
    };
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
    }
  }
  if (!options.enable_gqa && heads_differ(*this, k)) {
    fail(fmt::format(
        "query {} has {} heads and key {} has {}{}", describe(), shape(-3), k.describe(),
        k.shape(-3),
        shape(-3) % k.shape(-3) == 0 ? ": enable_gqa lets heads share keys and values" : ""));
  }
  if (options.is_causal && mask.defined()) fail("a mask and is_causal exclude each other");
  if (mask.defined()) check_mask(mask, *this, k);
  bool drops = is_training() ? options.dropout_p != 0 : !(options.dropout_p >= 0);
  if (!mask.defined() && !drops && is_one_op(uop(), k.uop(), v.uop(), options.enable_gqa)) {
    AttentionArg arg{0, options.is_causal, 1 / std::sqrt(double(shape(-1)))};
    return Value(UOp::make(Op::Attention, dtype(), {uop(), k.uop(), v.uop()}, to_ints(arg)));
  }
  // [.., heads, L, E] as [.., shared heads, n L, E]: k and v are read as they are.
  const bool grouped = options.enable_gqa && groups_heads(uop(), k.uop(), v.uop()) &&
                       !heads_lie_finer(*this, k.shape(-3));
  auto rows_of_groups = [&](const Tensor& x) {
    if (!grouped) return x;
    Dims all = x.shape();
    const int64_t n = all.end()[-3] / k.shape(-3);
    all.end()[-3] /= n, all.end()[-2] *= n;
    return x.reshape(all);
  };
  auto rows_of_heads = [&](const Tensor& x) {
    if (!grouped) return x;
    Dims all = shape();
    all.back() = x.shape(-1);
    return x.reshape(all);
  };
  if (options.enable_gqa && !grouped) {
    for (Tensor* shared : {&k, &v}) {
      const int64_t few = shared->shape(-3);
      if (few > 0) *shared = shared->repeat_interleave(shape(-3) / few, -3);
    }
  }
  DType wide = promote(promote(dtype(), k.dtype()), DType::F32);
  int64_t rows = shape(-2), columns = k.shape(-2);
  Value scores = Value(rows_of_heads(rows_of_groups(*this).matmul(k.transpose(-2, -1), wide))) *
                 (1 / std::sqrt(static_cast<double>(shape(-1))));
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  if (options.is_causal) {
    Value row = value::iota_along(0, 2, rows, DType::I64),
          column = value::iota_along(1, 2, columns, DType::I64);
    scores = value::where(column <= row, scores, kNever);
  } else if (mask.defined()) {
    scores =
        mask.dtype() == DType::Bool ? value::where(mask, scores, kNever) : scores + Value(mask);
  }
  const Value softmax =
      mask.defined() ? softmax_of_seen(scores) : value::softmax(scores, scores.rank() - 1);
  Tensor weights = value::cast(softmax, dtype());
  return rows_of_heads(rows_of_groups(weights.dropout(options.dropout_p)).matmul(v));
}

}  // namespace tinyshard
