// How an attention is spelled out, for q of [B, 4, L, E] and k, v of [B, 2, S, E], where two heads share
// each k and v:
//
//   scores      [B, 2, 2 L, E] x [B, 2, E, S] * scale     rows of heads that share k are rows of one product
//               as [B, 4, L, S]; later columns are -inf where it is causal
//   e           exp2(log2(e) * (scores - largest))        of each row, in f32
//   result      (e / sum of e) as the type of v, x v      grouped in the same way, then by head again
//   statistics  ln(sum of e) + largest
//
// A gradient is that of this result by one operand, made by the rules for all other ops. A library is
// asked for the same op with k and v repeated for each of the 4 heads; gradients of these are summed
// over the heads that share them afterwards.
#include "core/passes/attention.h"

#include <limits>
#include <numbers>

#include "core/dtype/half.h"
#include "core/passes/gradient.h"
#include "core/rewrite/pattern.h"
#include "core/uop/node_map.h"

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

// The shape of a line along one dim of `shape`.
Dims along(DimSpan shape, size_t axis) {
  Dims line(shape.size(), 1);
  line[axis] = shape[axis];
  return line;
}

// Heads that share k and v are rows of one product: [.., heads, L, E] as [.., shared, n L, E].
UOp grouped(const UOp& x, const UOp& k) {
  const size_t rank = x.shape().size();
  if (rank < 3 || x.shape()[rank - 3] == k.shape()[rank - 3]) return x;
  Dims shape(x.shape().begin(), x.shape().end());
  shape[rank - 2] *= shape[rank - 3] / k.shape()[rank - 3];
  shape[rank - 3] = k.shape()[rank - 3];
  return reshape(x, shape);
}
// And back, with the heads and rows of `like`.
UOp by_head(const UOp& x, const UOp& like) {
  Dims shape(like.shape().begin(), like.shape().end());
  shape.back() = x.shape().back();
  return reshape(x, shape);
}

struct Softmax {
  UOp largest, exponentials, sum;  // of each row; the exponentials are those of score - largest
};

// `rows`: up to which column each row looks; empty: up to its own number.
Softmax softmax(const UOp& q, const UOp& k, const UOp& rows, const AttentionArg& arg) {
  UOp scores = by_head(dot(grouped(q, k), swapped(k, 1), accumulator(q.dtype())), q);
  scores = binary(Op::Mul, scores, const_like(scores, arg.scale));
  DimSpan shape = scores.shape();
  size_t row = shape.size() - 2, column = row + 1;
  if (arg.causal) {
    UOp limit = rows ? expand(reshape(rows, along(shape, row)), shape) : iota_along(shape, row);
    UOp later = binary(Op::CmpLt, limit, iota_along(shape, column));
    scores = where(later, const_like(scores, -std::numeric_limits<double>::infinity()), scores);
  }
  Dims columns{int64_t(column)};
  // The result does not depend on what is subtracted, so no gradient goes through it.
  UOp largest = unary(Op::Detach, reduce(ReduceOp::Max, scores, columns));
  UOp shifted = binary(Op::Sub, scores, expand(largest, shape));
  UOp e = unary(Op::Exp2, binary(Op::Mul, shifted, const_like(shifted, std::numbers::log2e)));
  return {largest, e, reduce(ReduceOp::Sum, e, columns)};
}

UOp result(const UOp& q, const UOp& k, const UOp& v, const UOp& rows, const AttentionArg& arg) {
  Softmax s = softmax(q, k, rows, arg);
  UOp inverse = expand(unary(Op::Recip, s.sum), s.exponentials.shape());
  UOp weights = cast(binary(Op::Mul, s.exponentials, inverse), v.dtype());
  return by_head(dot(grouped(weights, v), v, v.dtype()), q);
}

UOp statistics(const UOp& q, const UOp& k, const UOp& rows, const AttentionArg& arg) {
  Softmax s = softmax(q, k, rows, arg);
  UOp log = unary(Op::Log2, s.sum);
  return binary(Op::Add, binary(Op::Mul, log, const_like(log, std::numbers::ln2)), s.largest);
}

// k or v for each head of q.
UOp repeated(const UOp& x, const UOp& q) {
  const size_t heads = q.shape().size() - 3;
  Dims shape(x.shape().begin(), x.shape().end()), whole = shape;
  shape.insert(shape.begin() + int64_t(heads) + 1, 1);
  UOp each = reshape(x, shape);
  shape[heads + 1] = q.shape()[heads] / x.shape()[heads];
  whole[heads] = q.shape()[heads];
  return reshape(expand(each, shape), whole);
}

// The same with k and v repeated, as libraries want them; of their gradients the sum over the heads
// that share them.
UOp with_own_heads(const UOp& x) {
  const UOp &q = x.src(0), &k = x.src(1);
  const size_t rank = q.shape().size();
  if (rank < 3 || q.shape()[rank - 3] == k.shape()[rank - 3]) return x;
  std::vector<UOp> src(x->src().begin(), x->src().end());
  src[1] = repeated(k, q), src[2] = repeated(x.src(2), q);
  UOp own = UOp::make(x.op(), x.dtype(), src, x->arg());
  if (x.op() == Op::Attention || attention_arg(*x).which == 0) return own;
  Dims shape(x.shape().begin(), x.shape().end());
  shape.insert(shape.begin() + int64_t(rank) - 2, q.shape()[rank - 3] / k.shape()[rank - 3]);
  UOp wide = cast(reshape(own, shape), accumulator(x.dtype()));
  return cast(reshape(reduce(ReduceOp::Sum, wide, Dims{int64_t(rank) - 2}), x.shape()), x.dtype());
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
  // Operands may be one node, as in x.scaled_dot_product_attention(x, x), and have gradients of
  // their own: each is stood in for by a node that no other one is.
  std::vector<UOp> src;
  NodeMap<UOp> operand_of;
  for (const UOp& s : x->src()) {
    src.push_back(named(const_like(s, 0)));
    operand_of[src.back()] = unary(Op::Detach, s);
  }
  const size_t operands = x.op() == Op::Attention ? 3 : 6;
  const UOp rows = src.size() > operands ? src[operands] : UOp();
  UOp out;
  if (x.op() == Op::Attention) {
    out = arg.which == 0 ? result(src[0], src[1], src[2], rows, arg)
                         : statistics(src[0], src[1], rows, arg);
  } else {
    UOp forward = result(src[0], src[1], src[2], rows, arg);
    out = gradient(std::span(&forward, 1), std::span(&src[5], 1),
                   std::span(&src[size_t(arg.which)], 1))[0];
  }
  out = substitute(out, operand_of);
  return arg.heads_inside ? swapped(out, 2) : out;
}

std::vector<UOp> lower_attention(const Graph& graph,
                                 const std::function<bool(const LibraryCall&)>& library_supports) {
  return rewrite_once(graph, [&](const UOp& x) {
    if (x.op() != Op::Attention && x.op() != Op::AttentionBackward) return UOp();
    // No library counts rows from elsewhere, or computes in more than 16 bits. Single rows that are
    // found later, spelled out, do not come here (devices/gpu/row_attention.h).
    const bool narrow = is_half(x.src(0).dtype());
    if (!narrow || x->sources > (x.op() == Op::Attention ? 3 : 6)) return spell_attention(x);
    UOp own = with_own_heads(x);
    const bool shared = !(own == x);
    UOp call = own;
    while (call.op() != x.op()) call = call.src(0);
    UOp ordered = shared ? call : in_order_of_operands(call);
    if (!library_supports(row_major_call(ordered))) return spell_attention(x);
    return ordered == call ? own : swapped(ordered, 2);
  });
}

}  // namespace tinyshard
