// Attention of rows that look at keys up to one number is found as scaled_dot_product_attention
// spells it, is one call where the device has a kernel for it, and computes the same.
#include "devices/gpu/row_attention.h"

#include <limits>
#include <numbers>
#include <tinyshard/tinyshard.h>

#include "core/dtype/half.h"
#include "core/exec/schedule_of.h"
#include "core/passes/attention.h"
#include "core/passes/replaced.h"
#include "core/passes/tidy.h"
#include "core/rewrite/pattern.h"
#include "tests/core/passes/same_values.h"

namespace tinyshard::row_attention_test {
namespace {

using test::buffer;
using test::expect_same;

struct Token {
  int64_t heads = 8, shared = 2, rows = 1, positions = 128, width = 64;
  DType dtype = DType::BF16;
  std::string device = "NULL_H200";
  enum class Keys : uint8_t {
    Cached,
    HeadsInside,  // the cache is [positions, heads, width]
    OfTexts,      // of three texts at once
    Larger,       // the cache has room for more positions
    Repeated,     // for each head
    Computed,     // anew for each token
  } keys = Keys::Cached;
};

// How many calls and kernels a plan has for the attention of a token behind p others.
struct Counts {
  int calls = 0, kernels = 0;
  friend bool operator==(const Counts&, const Counts&) = default;
};
void PrintTo(const Counts& c, std::ostream* out) {
  *out << c.calls << " calls, " << c.kernels << " kernels";
}

Counts counts_of(const Token& t) {
  Runtime::shutdown();
  Runtime::configure({.devices = {t.device}});
  auto stored = [&](const Dims& sizes) { return Tensor::zeros(sizes, t.dtype).clone().realize(); };
  using Keys = Token::Keys;
  Dims shape{t.shared, t.positions, t.width}, rows{t.heads, t.rows, t.width};
  if (t.keys == Keys::HeadsInside) shape = {t.positions, t.shared, t.width};
  if (t.keys == Keys::Larger) shape[1] *= 2;
  if (t.keys == Keys::OfTexts) shape.insert(shape.begin(), 3), rows.insert(rows.begin(), 3);
  const Tensor keys = stored(shape), values = stored(shape), query = stored(rows);
  Variable pos("pos", 0, t.positions - 1);
  Jit step = [&](Tensor q, Variable p) {
    auto so_far = [&](Tensor x) {
      if (t.keys == Keys::HeadsInside) x = x.transpose(0, 1);
      x = x[{kEllipsis, Slice(0, p + 1), Slice()}];
      return t.keys == Keys::Repeated ? x.repeat_interleave(t.heads / t.shared, 0) : x;
    };
    Tensor k = so_far(keys), v = so_far(values);
    if (t.keys == Keys::Computed) k = k * k;
    return q.scaled_dot_product_attention(k, v, {}, {.enable_gqa = true});
  };
  step(query, pos.bind(3));
  Counts counts;
  for (const Item& item : schedule_of(step.captured_step()).items) {
    counts.calls += item.kind == Item::Kind::Library && item.call.node.op() == Op::Attention;
    counts.kernels += item.kind == Item::Kind::Kernel;
  }
  Runtime::shutdown();
  return counts;
}

TEST(RowAttention, OfATokenIsOneCall) {
  const Counts one{1, 0}, spelled{0, 3};
  EXPECT_EQ(counts_of({}), one);
  EXPECT_EQ(counts_of({.heads = 2}), one) << "no heads share keys";
  EXPECT_EQ(counts_of({.width = 128}), one);
  EXPECT_EQ(counts_of({.dtype = DType::F16}), one);
  EXPECT_EQ(counts_of({.rows = 2}), one) << "two tokens that look at the same keys";
  EXPECT_EQ(counts_of({.rows = 3}).calls, 0) << "more rows than a product has room for";
  EXPECT_EQ(counts_of({.width = 80}), spelled);
  EXPECT_EQ(counts_of({.dtype = DType::F32}), spelled);
  EXPECT_EQ(counts_of({.device = "NULL"}), spelled) << "a CPU's";
}

TEST(RowAttention, ReadsKeysWhereTheyLie) {
  using Keys = Token::Keys;
  for (Keys keys : {Keys::HeadsInside, Keys::OfTexts, Keys::Larger})
    EXPECT_EQ(counts_of({.keys = keys}), (Counts{1, 0})) << int(keys);
  EXPECT_EQ(counts_of({.keys = Keys::Repeated}).calls, 0) << "a copy of the cache";
  EXPECT_EQ(counts_of({.keys = Keys::Computed}).calls, 0) << "computed up to the size alone";
}

// The graph of scaled_dot_product_attention over n keys of S, for heads of which `rows` share their
// keys.
struct Spelled {
  UOp q = buffer(1, Dims{2, 4, 32}, DType::BF16), k = buffer(2, Dims{2, 9, 32}, DType::BF16),
      v = buffer(3, Dims{2, 9, 64}, DType::BF16), n = buffer(4, Dims{}, DType::I64);
  double scale = 0.25;

  // Compared along the one dim, as for any rank of what is masked.
  static UOp below(const UOp& count, DimSpan shape, size_t dim) {
    Dims line(shape.size(), 1);
    line[dim] = shape[dim];
    const UOp limit = expand(reshape(count, Dims(shape.size(), 1)), line);
    return expand(binary(Op::CmpLt, iota_along(line, dim), limit), shape);
  }
  UOp below(DimSpan shape, size_t dim) const { return below(n, shape, dim); }
  UOp result(const UOp& count_of_weights) const {
    const UOp product = UOp::make(Op::Dot, DType::F32, {q, permute(k, Dims{0, 2, 1})}, Dims{1});
    const UOp scores = reshape(product, Dims{8, 1, 9});
    const UOp scaled = binary(Op::Mul, scores, const_like(scores, scale));
    const UOp mask = below(scaled.shape(), 2);
    const UOp largest = reduce(
        ReduceOp::Max,
        where(mask, scaled, const_like(scaled, -std::numeric_limits<double>::infinity())), Dims{2});
    const UOp shifted = binary(Op::Sub, scaled, expand(largest, scaled.shape()));
    const UOp e =
        unary(Op::Exp2, binary(Op::Mul, shifted, const_like(shifted, std::numbers::log2e)));
    const UOp sum = reduce(ReduceOp::Sum, where(mask, e, const_like(e, 0)), Dims{2});
    const UOp weights =
        cast(binary(Op::Mul, e, expand(unary(Op::Recip, sum), e.shape())), DType::BF16);
    const UOp grouped = reshape(weights, product.shape());
    return UOp::make(Op::Dot, DType::BF16,
                     {where(count_of_weights, grouped, const_like(grouped, 0)),
                      where(below(v.shape(), 1), v, const_like(v, 0))},
                     Dims{1});
  }
};

std::vector<UOp> found_in(const std::vector<UOp>& roots, bool supported = true) {
  const std::vector<UOp> tidied = tidy(Graph(roots));
  const Graph graph(tidied);
  auto supports = [&](const LibraryCall&) { return supported; };
  return replaced(graph, gpu::find_row_attention({graph, supports, tidy}));
}

int attentions(const std::vector<UOp>& roots) {
  int n = 0;
  for (const UOp& x : toposort(roots)) n += x.op() == Op::Attention;
  return n;
}

TEST(RowAttention, ComputesTheSame) {
  const Spelled s;
  const UOp result = s.result(s.below(Dims{2, 4, 9}, 2));
  const std::vector<UOp> before = tidy(Graph(std::vector{result})), after = found_in({result});
  ASSERT_EQ(attentions(after), 1) << print(after);
  EXPECT_EQ(attentions(found_in({result}, false)), 0);
  const std::vector<UOp> spelled = rewrite_once(Graph(after), [](const UOp& x) {
    return x.op() == Op::Attention ? spell_attention(x) : UOp();
  });
  for (int64_t n : {1, 4, 9}) {
    NodeMap<UOp> count;
    count[s.n] = const_int(DType::I64, n);
    expect_same({substitute(before[0], count)}, {substitute(spelled[0], count)}, {s.q, s.k, s.v});
  }
}

// Another number of weights, and results that others read halfway.
TEST(RowAttention, OthersStayAsTheyAre) {
  const Spelled s;
  const UOp more = binary(Op::Add, s.n, const_like(s.n, 1));
  EXPECT_EQ(attentions(found_in({s.result(Spelled::below(more, Dims{2, 4, 9}, 2))})), 0);
  const UOp result = s.result(s.below(Dims{2, 4, 9}, 2));
  EXPECT_EQ(attentions(found_in({result, result.src(0)})), 0);
}

}  // namespace
}  // namespace tinyshard::row_attention_test
