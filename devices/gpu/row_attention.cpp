// Found from the second product up; what has been found is then built again and compared, as nodes
// are interned. For q of [32, 1, 64] whose rows share k and v of [8, 4096, 64], of which n count:
//
//   %1 = dot f32[8, 4, 4096] q (k transposed)           %5 = attention [32, 1, 64] q k v (n - 1)
//   %2 = e and sum over [2] of %1 below n               reshaped to [8, 4, 64]
//   %3 = where(iota < n, cast bf16 (%2 / sum), 0)
//   %4 = dot bf16[8, 4, 64] %3 where(iota < n, v, 0)
#include "devices/gpu/row_attention.h"

#include <limits>
#include <numbers>
#include <optional>

#include "core/dtype/half.h"
#include "core/rewrite/demand.h"
#include "core/rewrite/pattern.h"
#include "core/uop/args.h"
#include "core/uop/product_region.h"

namespace tinyshard::gpu {
namespace {

struct RowAttention {
  UOp q, k, v;   // [.., M, E], [.., E, S] as the product has it, and [.., S, V]
  UOp scores;    // the product
  UOp count;     // of keys that are looked at, one integer
  UOp scale;     // a constant
  Dims by_head;  // the shape in which the softmax is taken
};

bool is_plain_product(const UOp& x) {
  return x.op() == Op::Dot && x->sources == 2 && x.shape().size() > 2;
}

UOp under_reshape(const UOp& x) { return x.op() == Op::Reshape ? x.src(0) : x; }

// The source of x by this way of ops, each the first source of the one before; null where x is
// computed in another way.
UOp along(UOp x, std::initializer_list<Op> ops) {
  for (Op op : ops) {
    if (!x || x.op() != op) return {};
    x = x.src(0);
  }
  return x;
}

// Returns whether the rows of x are read where they lie. With one dim before them x stays as it is;
// several are joined, which takes a copy of the whole cache where they lie apart.
bool lies_in_memory(const UOp& x) {
  UOp base = x;
  auto keeps_rows = [](const UOp& y) {
    return y.op() == Op::Shrink || (y.op() == Op::Permute && y->arg().back() == 2);
  };
  while (x.shape().size() == 3 && keeps_rows(base)) base = base.src(0);
  while (base.op() == Op::Reshape) base = base.src(0);
  return base.op() == Op::Buffer || base.op() == Op::Assign;
}

// The attention that x would be if its nodes are what their places suggest; the caller builds that
// again and compares.
std::optional<RowAttention> parts_of(const UOp& x) {
  if (!is_plain_product(x) || !is_half(x.dtype()) || !is_mask(x.src(0)) || !is_mask(x.src(1)) ||
      x.src(0).op() != Op::Where || x.src(1).op() != Op::Where)
    return std::nullopt;
  RowAttention a;
  a.v = x.src(1).src(1);
  const std::vector<UOp> below = places_below(x.src(1).src(0), true);
  if (below.empty()) return std::nullopt;
  a.count = below[below.size() - 2];
  const UOp exponential = along(under_reshape(x.src(0).src(1)), {Op::Cast, Op::Mul});
  const UOp scaled = exponential ? along(exponential, {Op::Exp2, Op::Mul, Op::Sub}) : UOp();
  if (!a.count || !scaled || scaled.op() != Op::Mul || !is_const(scaled.src(1)))
    return std::nullopt;
  a.scale = scaled.src(1);
  a.by_head = Dims(scaled.shape().begin(), scaled.shape().end());
  a.scores = under_reshape(scaled.src(0));
  if (!is_plain_product(a.scores) || a.scores.shape().size() != x.shape().size() ||
      dot_batch(*a.scores) != dot_batch(*x))
    return std::nullopt;
  a.q = a.scores.src(0);
  a.k = a.scores.src(1);
  // Keys or values that a kernel computes are computed up to the count alone; as operands of a call
  // all of them would be.
  const bool fits = a.q.dtype() == x.dtype() && a.k.dtype() == x.dtype() &&
                    lies_in_memory(swap_last_two(a.k)) && lies_in_memory(a.v);
  return fits ? std::optional(std::move(a)) : std::nullopt;
}

// --- what it is spelled as -----------------------------------------------------------------------

UOp below(const UOp& count, DimSpan shape, size_t dim) {
  Dims line(shape.size(), 1);
  line[dim] = shape[dim];
  const UOp places = reshape(UOp::make(Op::Iota, count.dtype(), {}, Dims{shape[dim]}), line);
  return expand(binary(Op::CmpLt, places, expand(reshape(count, Dims(shape.size(), 1)), line)),
                shape);
}

UOp counted(const UOp& count, const UOp& x, size_t dim, double otherwise = 0) {
  return where(below(count, x.shape(), dim), x, const_like(x, otherwise));
}

UOp spelled(const RowAttention& a) {
  const Dims batch{int64_t(a.q.shape().size()) - 2};
  const size_t last = a.by_head.size() - 1;
  const UOp product = UOp::make(Op::Dot, accumulator(a.q.dtype()), {a.q, a.k}, batch);
  const UOp scores = binary(Op::Mul, reshape(product, a.by_head), a.scale);
  const Dims columns{int64_t(last)};
  const UOp largest =
      reduce(ReduceOp::Max,
             counted(a.count, scores, last, -std::numeric_limits<double>::infinity()), columns);
  const UOp shifted = binary(Op::Sub, scores, expand(largest, a.by_head));
  const UOp e = unary(Op::Exp2, binary(Op::Mul, shifted, const_like(shifted, std::numbers::log2e)));
  const UOp sum = reduce(ReduceOp::Sum, counted(a.count, e, last), columns);
  const UOp weights =
      cast(binary(Op::Mul, e, expand(unary(Op::Recip, sum), a.by_head)), a.v.dtype());
  const size_t rank = a.v.shape().size();
  return UOp::make(Op::Dot, a.v.dtype(),
                   {counted(a.count, reshape(weights, product.shape()), rank - 1),
                    counted(a.count, a.v, rank - 2)},
                   batch);
}

UOp leaf(const UOp& like, int64_t id) {
  Dims arg{id};
  arg.insert(arg.end(), like.shape().begin(), like.shape().end());
  return UOp::make(Op::Buffer, like.dtype(), {}, arg);
}

// Builds on leaves, once for all layers that are alike, so that nothing walks the graph below.
class Spelling {
 public:
  explicit Spelling(const RegionQuery& query) : query_(query) {}

  UOp operator()(const RowAttention& a) {
    RowAttention own = a;
    own.q = leaf(a.q, -1), own.k = leaf(a.k, -2), own.v = leaf(a.v, -3);
    own.count = leaf(a.count, -4);
    const UOp plain = spelled(own);
    const UOp* known = tidied_.find(plain);
    const UOp tidied = known ? *known : tidied_[plain] = query_.tidied(plain);
    NodeMap<UOp> place;
    place[own.q] = a.q, place[own.k] = a.k, place[own.v] = a.v, place[own.count] = a.count;
    return substitute(tidied, place);
  }

 private:
  const RegionQuery& query_;
  NodeMap<UOp> tidied_;
};

// --- what it becomes -----------------------------------------------------------------------------

// n - 1, where n often is 1 + place.
UOp last_below(const UOp& n) {
  for (int side : {0, 1}) {
    if (n.op() == Op::Add && is_const(n.src(side)) && const_bits(*n.src(side)) == 1)
      return n.src(1 - side);
  }
  return binary(Op::Sub, n, const_like(n, 1));
}

// Rows that share keys look at the same ones: each is a head of one row.
UOp as_one_op(const RowAttention& a) {
  const UOp keys = swap_last_two(a.k);
  const DimSpan q = a.q.shape(), k = keys.shape(), v = a.v.shape();
  const size_t rank = q.size();
  const int64_t groups = product(k.first(rank - 2));
  const AttentionArg arg{0, true, const_as_double(a.scale), false};
  return UOp::make(
      Op::Attention, a.v.dtype(),
      {reshape(a.q, Dims{groups * q[rank - 2], 1, q[rank - 1]}),
       reshape(keys, Dims{groups, k[rank - 2], k[rank - 1]}),
       reshape(a.v, Dims{groups, v[rank - 2], v[rank - 1]}), reshape(last_below(a.count), Dims{1})},
      to_ints(arg));
}

}  // namespace

std::vector<Replacement> find_row_attention(const RegionQuery& query) {
  std::vector<Replacement> found;
  Spelling spelling(query);
  auto read_elsewhere = [&](const UOp& x) { return query.uses().at(x) > 1; };
  for (const UOp& x : query.graph().order()) {
    const std::optional<RowAttention> a = parts_of(x);
    if (!a || read_elsewhere(a->scores) || read_elsewhere(x.src(0)) || !(spelling(*a) == x))
      continue;
    const UOp op = as_one_op(*a);
    if (query.supports(row_major_call(op))) found.push_back({x, reshape(op, x.shape())});
  }
  return found;
}

}  // namespace tinyshard::gpu
