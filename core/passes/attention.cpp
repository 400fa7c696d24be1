#include "core/passes/attention.h"

#include <limits>
#include <numbers>

#include "core/passes/gradient.h"
#include "core/rewrite/pattern.h"

namespace tinyshard {
namespace {

// With the dim that many places from the end and the one before it in each other's place.
UOp swapped(const UOp& x, size_t from_end) {
  Dims order(x.shape().size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int64_t(i);
  std::swap(order[order.size() - from_end], order[order.size() - from_end - 1]);
  return permute(x, order);
}

UOp dot(const UOp& a, const UOp& b, DType dtype) {
  return UOp::make(Op::Dot, dtype, {a, b}, Dims{int64_t(a.shape().size()) - 2});
}

// 0.. along one of the last two dims of `shape`.
UOp positions(DimSpan shape, size_t axis) {
  Dims line(shape.size(), 1);
  line[axis] = shape[axis];
  return expand(reshape(UOp::make(Op::Iota, DType::I64, {}, Dims{shape[axis]}), line), shape);
}

struct Softmax {
  UOp largest, exponentials, sum;  // of each row; the exponentials are those of score - largest
};

Softmax softmax(const UOp& q, const UOp& k, const AttentionArg& arg) {
  UOp scores = dot(q, swapped(k, 1), accumulator(q.dtype()));
  scores = binary(Op::Mul, scores, const_like(scores, arg.scale));
  DimSpan shape = scores.shape();
  size_t row = shape.size() - 2, column = row + 1;
  if (arg.causal) {
    UOp later = binary(Op::CmpLt, positions(shape, row), positions(shape, column));
    scores = where(later, const_like(scores, -std::numeric_limits<double>::infinity()), scores);
  }
  Dims along{int64_t(column)};
  // The result does not depend on what is subtracted, so no gradient goes through it.
  UOp largest = unary(Op::Detach, reduce(ReduceOp::Max, scores, along));
  UOp shifted = binary(Op::Sub, scores, expand(largest, shape));
  UOp e = unary(Op::Exp2, binary(Op::Mul, shifted, const_like(shifted, std::numbers::log2e)));
  return {largest, e, reduce(ReduceOp::Sum, e, along)};
}

UOp result(const UOp& q, const UOp& k, const UOp& v, const AttentionArg& arg) {
  Softmax s = softmax(q, k, arg);
  UOp inverse = expand(unary(Op::Recip, s.sum), s.exponentials.shape());
  UOp weights = cast(binary(Op::Mul, s.exponentials, inverse), v.dtype());
  return dot(weights, v, v.dtype());
}

UOp statistics(const UOp& q, const UOp& k, const AttentionArg& arg) {
  Softmax s = softmax(q, k, arg);
  UOp log = unary(Op::Log2, s.sum);
  return binary(Op::Add, binary(Op::Mul, log, const_like(log, std::numbers::ln2)), s.largest);
}

UOp in_order_of_operands(const UOp& x) {
  AttentionArg arg = attention_arg(*x);
  bool forward = x.op() == Op::Attention;
  const UOp& like = x.src(forward ? 0 : size_t(arg.which));
  bool inside =
      x->shape().size() > 2 && like.op() == Op::Permute && like == swapped(like.src(0), 2);
  if (!inside || (forward && arg.which != 0)) return x;
  arg.heads_inside = true;
  return UOp::make(x.op(), x.dtype(), x->src(), to_ints(arg));
}

}  // namespace

UOp spell_attention(const UOp& x) {
  AttentionArg arg = attention_arg(*x);
  std::vector<UOp> src;
  for (const UOp& s : x->src()) src.push_back(unary(Op::Detach, s));
  UOp out;
  if (x.op() == Op::Attention) {
    out = arg.which == 0 ? result(src[0], src[1], src[2], arg) : statistics(src[0], src[1], arg);
  } else {
    UOp forward = result(src[0], src[1], src[2], arg);
    out = gradient(std::span(&forward, 1), std::span(&src[5], 1),
                   std::span(&src[size_t(arg.which)], 1))[0];
  }
  return arg.heads_inside ? swapped(out, 2) : out;
}

std::vector<UOp> lower_attention(std::span<const UOp> roots,
                                 const std::function<bool(const LibraryCall&)>& library_supports) {
  return rewrite_once(roots, [&](const UOp& x) {
    if (x.op() != Op::Attention && x.op() != Op::AttentionBackward) return UOp();
    UOp ordered = in_order_of_operands(x);
    if (!library_supports(row_major_call(ordered))) return spell_attention(x);
    return ordered == x ? x : swapped(ordered, 2);
  });
}

}  // namespace tinyshard
