// The rules of tidy() are one table: an op, which ops have to be among its sources, and what it becomes.
// The rewriter applies them from the leaves up until none matches.
//
// split_reductions() makes two steps of a sum that is long and has few results, so that threads share
// it, and of one that is so long that adding in turn loses digits:
//
//   sum over 0 of x[65536]      y = sum over 1 of x[64, 1024], stored      sum over 0 of y[64]
#include "core/passes/tidy.h"

#include <algorithm>
#include <cmath>

#include "core/dtype/half.h"
#include "core/passes/picks.h"
#include "core/rewrite/demand.h"
#include "core/rewrite/fold.h"
#include "core/rewrite/pattern.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

constexpr int64_t kLongReduction = 1 << 15;

// A constant of any shape computed from scalar ones.
UOp fold_shaped(const UOp& x) {
  auto constant = [](const UOp& s) { return is_const(s); };
  if (!std::ranges::all_of(x->src(), constant)) return UOp();
  std::vector<UOp> scalars;
  for (const UOp& s : x->src()) scalars.push_back(reshaped_const(s, {}));
  UOp value = fold_constants(x.op(), x.dtype(), scalars);
  return value ? reshaped_const(value, x.shape()) : UOp();
}

bool holds_all_of(DType wide, DType narrow) {
  return (is_narrow(narrow) && (wide == DType::F32 || wide == DType::F64)) ||
         (narrow == DType::F32 && wide == DType::F64);
}

// x without two casts that cancel out, whatever is moved between them: the gradient of a 16-bit
// linear layer is widened for the bias and narrowed again, in another shape, for the product.
UOp without_cast_back(const UOp& x) {
  UOp wide = x.src(0);
  while (is_movement(wide.op())) wide = wide.src(0);
  if (wide.op() != Op::Cast) return UOp();
  const UOp& narrow = wide.src(0);
  if (narrow.dtype() != x.dtype() || !holds_all_of(wide.dtype(), x.dtype())) return UOp();
  auto moved = [&](auto&& self, const UOp& y) -> UOp {
    return y == wide ? narrow : y.with_src(std::vector<UOp>{self(self, y.src(0))});
  };
  return moved(moved, x.src(0));
}

// Zero, of a float -0: -0 + 0 is 0.
bool adds_nothing(const UOp& x) {
  return is_const(x, 0) && (!is_float(x.dtype()) || std::signbit(const_as_double(x)));
}

// The constant that is copied, of no mesh: whoever reads it makes it. Its own mesh need not be known, as
// folding forgets it.
UOp copied_constant(const UOp& x) {
  const UOp& sent = x.src(0).op() == Op::Contiguous ? x.src(0).src(0) : x.src(0);
  if (!is_const(sent)) return UOp();
  return UOp::make(Op::Const, x.dtype(), {}, reshaped_const(sent, x.shape())->arg());
}

RuleSet tidy_rules() {
  std::vector<Rule> rules = {
      {"detach", Op::Detach, {}, [](const UOp& x) { return x.src(0); }},
      {"contiguous_backward", Op::ContiguousBackward, {}, [](const UOp& x) { return x.src(0); }},
      {"checkpoint", Op::Checkpoint, {}, [](const UOp& x) { return x.src(0); }},
      {"contiguous_twice", Op::Contiguous, op_set(Op::Contiguous),
       [](const UOp& x) { return x.src(0); }},
      {"neg_neg", Op::Neg, op_set(Op::Neg), [](const UOp& x) { return x.src(0).src(0); }},
      {"not_not", Op::Not, op_set(Op::Not), [](const UOp& x) { return x.src(0).src(0); }},
      {"mul_one", Op::Mul, op_set(Op::Const),
       [](const UOp& x) {
         return is_const(x.src(1), 1) ? x.src(0) : is_const(x.src(0), 1) ? x.src(1) : UOp();
       }},
      {"add_zero", Op::Add, op_set(Op::Const),
       [](const UOp& x) {
         return adds_nothing(x.src(1)) ? x.src(0) : adds_nothing(x.src(0)) ? x.src(1) : UOp();
       }},
      {"sub_zero", Op::Sub, op_set(Op::Const),
       [](const UOp& x) {
         return is_const(x.src(1), 0) && const_bits(*x.src(1)) == 0 ? x.src(0) : UOp();
       }},
      {"div_one", Op::Div, op_set(Op::Const),
       [](const UOp& x) { return is_const(x.src(1), 1) ? x.src(0) : UOp(); }},
      {"same_cast", Op::Cast, op_set(),
       [](const UOp& x) { return x.dtype() == x.src(0).dtype() ? x.src(0) : UOp(); }},
      {"cast_back", Op::Cast, {}, without_cast_back},
      {"where_const", Op::Where, op_set(Op::Const),
       [](const UOp& x) {
         return is_const(x.src(0)) ? x.src(is_const(x.src(0), 0) ? 2 : 1) : UOp();
       }},
      {"where_same", Op::Where, op_set(),
       [](const UOp& x) { return x.src(1) == x.src(2) ? x.src(1) : UOp(); }},
      {"pick_first", Op::Gather, {}, pick_first},
      {"sum_of_pick", Op::Reduce, {}, sum_of_pick},
      {"reduced_constant", Op::Reduce, op_set(Op::Const),
       [](const UOp& x) {
         if (x.src(0)->numel() == 0) return UOp();
         int64_t count = x.src(0)->numel() / x->numel();
         return reshaped_const(fold_reduction(reduce_arg(*x).op, x.src(0), count), x.shape());
       }},
      // Every part of what is the same along an axis is the same: a bias beside sharded rows.
      {"slice_of_copies", Op::ShardSlice, op_set(Op::Expand),
       [](const UOp& x) {
         const UOp& one = x.src(0).src(0);
         const ShardSliceArg part = shard_slice_arg(*x);  // of what is no part: multi/per_device.h
         const bool same = part.parts > 0 && one.shape()[size_t(part.dim)] == 1;
         return same ? expand(one, x.shape()) : UOp();
       }},
      {"slice_of_constant", Op::ShardSlice, op_set(Op::Const),
       [](const UOp& x) { return reshaped_const(x.src(0), x.shape()); }},
      // Nor does a constant travel, from one device or from each.
      {"copy_of_constant", Op::CopyIn, {}, copied_constant},
  };
  for (int i = 0; i < kOps; ++i) {
    if (is_elementwise(Op(i)))
      rules.push_back({"constants", Op(i), op_set(Op::Const), fold_shaped});
  }
  return RuleSet(std::move(rules));
}

// Tells whether the loop over what is reduced ends at a size that is known when it runs: parts of
// it would not. A product of products of shared parts is asked about for so many steps only.
bool ends_early(const UOp& x, int& steps) {
  if (--steps < 0) return false;
  if (is_movement(x.op()) || x.op() == Op::Cast) return ends_early(x.src(0), steps);
  if (x.op() == Op::Mul) return ends_early(x.src(0), steps) && ends_early(x.src(1), steps);
  return is_mask(x);
}

bool ends_early(const UOp& x) {
  int steps = 64;
  return ends_early(x, steps);
}

// A sum in f32 that is added up in turn is off by about as many roundings as a lane adds: the mean of
// ten million numbers around 1000 would be 1001. Longer sums are made of sums of so many elements.
constexpr int64_t kLongestSum = int64_t{1} << 18, kSumInTurn = int64_t{1} << 12;

// [.., n, ..] summed over n and inner dims: [.., parts, n / parts, ..] where that is so many parts of
// one size, with zeros behind the last elements otherwise.
UOp sum_of_sums(const UOp& x) {
  const UOp& in = x.src(0);
  const int64_t count = x->numel() == 0 ? 0 : in->numel() / x->numel();
  const ReduceArg arg = reduce_arg(*x);
  if (arg.op != ReduceOp::Sum || !is_float(x.dtype()) || count <= kLongestSum) return UOp();
  for (const int64_t axis : arg.axes) {
    const int64_t size = in.shape()[size_t(axis)];
    const int64_t piece = std::max<int64_t>(1, kSumInTurn / (count / size));
    int64_t parts = (size + piece - 1) / piece;
    if (parts < 2) continue;
    const int64_t least = parts;
    while (parts < 2 * least && size % parts != 0) ++parts;
    if (size % parts != 0) parts = least;
    const int64_t each = (size + parts - 1) / parts;
    Dims around(2 * in.shape().size(), 0), wide(in.shape().begin(), in.shape().end()), axes;
    around[size_t(2 * axis + 1)] = parts * each - size;
    wide[size_t(axis)] = each;
    wide.insert(wide.begin() + axis, parts);
    for (const int64_t a : arg.axes) axes.push_back(a >= axis ? a + 1 : a);
    UOp first = reduce(ReduceOp::Sum, reshape(pad(in, around), wide), axes);
    if (const UOp again = sum_of_sums(first)) first = again;
    first = UOp::make(Op::Contiguous, first.dtype(), {first});
    const UOp second = reduce(ReduceOp::Sum, first, Dims{axis});
    const UOp shorter = sum_of_sums(second);
    return reshape(shorter ? shorter : second, x.shape());
  }
  return UOp();
}

// So that threads share it.
UOp split_in_parts(const UOp& x, const SplitLimits& limits) {
  if (x.op() != Op::Reduce) return UOp();
  const UOp& in = x.src(0);
  int64_t results = x->numel();
  if (results == 0 || in->numel() / results < kLongReduction || ends_early(in)) return UOp();
  bool columns =
      x.shape().back() == in.shape().back();  // rows stay whole: a kernel has one at once
  if (results >
      (columns ? std::max(limits.columns, SplitLimits::kFewResults) : SplitLimits::kFewResults))
    return UOp();
  int64_t most = limits.parts / std::max<int64_t>(1, results / SplitLimits::kFewResults);
  ReduceOp op = reduce_arg(*x).op;
  // The outermost long axis, in as many parts as divide it.
  for (int64_t axis : reduce_arg(*x).axes) {
    int64_t size = in.shape()[axis], parts = 1;
    for (int64_t p = 2; p <= most; ++p) {
      if (size % p == 0) parts = p;
    }
    if (parts < 4) continue;
    Dims wide(in.shape().begin(), in.shape().end());
    wide[axis] = size / parts;
    wide.insert(wide.begin() + axis, parts);
    Dims axes;
    for (int64_t a : reduce_arg(*x).axes) axes.push_back(a >= axis ? a + 1 : a);
    UOp first = reduce(op, reshape(in, wide), axes);
    first = UOp::make(Op::Contiguous, first.dtype(), {first});
    return reshape(reduce(op, first, Dims{axis}), x.shape());
  }
  return UOp();
}

// Takes one step of split_reductions.
UOp split(const UOp& x, const SplitLimits& limits) {
  if (x.op() != Op::Reduce || x->numel() == 0 || ends_early(x.src(0))) return UOp();
  UOp shared = split_in_parts(x, limits);
  // The first step is below a reshape, the second step and what stores its results.
  const UOp first = shared ? shared.src(0).src(0).src(0) : x;
  if (first.src(0)->numel() / first->numel() <= kLongestSum) return shared;
  UOp sums = sum_of_sums(x);
  return sums ? sums : shared;
}

}  // namespace

std::vector<UOp> transpose_products(const Graph& graph) {
  const NodeMap<int> uses = count_uses(graph.order(), graph.roots());
  return rewrite_once(graph, [&](const UOp& x) {
    if (x.op() != Op::Permute || x.src(0).op() != Op::Dot) return UOp();
    const UOp& product = x.src(0);
    const int* count = uses.find(product);
    if (!count || *count != 1 || !(x == swap_last_two(product))) return UOp();
    UOp a = swap_last_two(product.src(0)), b = swap_last_two(product.src(1));
    return UOp::make(Op::Dot, product.dtype(), {b, a}, product->arg());
  });
}

std::vector<UOp> tidy(const Graph& graph) {
  static const RuleSet& kRules = *new RuleSet(tidy_rules());  // outlives every static user
  return rewrite(graph, kRules);
}

std::vector<UOp> split_reductions(const Graph& graph, const SplitLimits& limits) {
  return rewrite_once(graph, [&](const UOp& x) { return split(x, limits); });
}

}  // namespace tinyshard
