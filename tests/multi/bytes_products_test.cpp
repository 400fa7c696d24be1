// Bytes that products, attention and convolutions send, against what theory asks for.
#include <algorithm>
#include <map>

#include "multi/collective.h"
#include "multi/rewrite.h"
#include "tests/multi/bytes.h"

namespace tinyshard::test::bytes_products_test {
namespace {

class ProductBytes : public Planned {
 protected:
  static int64_t kinds(const PlanSummary& plan, const std::string& op) {
    return std::ranges::count(plan.collective_items, op, &CollectiveItem::op);
  }
};

TEST_F(ProductBytes, OneWayOfManyIsFree) {
  for (int n : {4, 8, 64}) {
    devices(n);
    const Tensor rows = split({256, 128}, 0), columns = split({128, 192}, 1),
                 whole = split({128, 192}, -1), left = split({256, 128}, -1);
    EXPECT_EQ(sent(rows.matmul(whole)), 0);
    EXPECT_EQ(sent(left.matmul(columns)), 0);
    const Tensor batch = split({64, 16, 8}, 0);
    EXPECT_EQ(sent(batch.matmul(batch.transpose(1, 2))), 0);
    EXPECT_EQ(sent(Tensor::einsum("bij,bkj->bik", {batch, batch})), 0);
  }
}

TEST_F(ProductBytes, OfTwoDividedOperandsTheSmallerTravels) {
  for (int n : {4, 8, 64}) {
    devices(n);
    const double others = double(n - 1) / n;
    // Rows and columns: one is gathered.
    EXPECT_LE(sent(split({4096, 256}, 0).matmul(split({256, 512}, 1))),
              bound(256 * 512 * 4 * others));
    EXPECT_LE(sent(split({128, 256}, 0).matmul(split({256, 4096}, 1))),
              bound(128 * 256 * 4 * others));
    // Both by rows: the right one is gathered, or the left one changes its split.
    EXPECT_LE(sent(split({8192, 256}, 0).matmul(split({256, 512}, 0))),
              bound(256 * 512 * 4 * others));
  }
}

TEST_F(ProductBytes, ASplitInnerDimNextToAWholeOperandChangesTheSplit) {
  devices(8);
  // An all-to-all of one part in place of the sum of the whole result.
  EXPECT_LE(sent(split({2048, 512}, 1).matmul(split({512, 512}, -1))),
            bound(2048.0 / 8 * 512 * 4 * 7 / 8));
  // For a single row the sum is the cheap one.
  EXPECT_LE(sent(split({1, 4096}, 1).matmul(split({4096, 512}, -1))), bound(2 * 512 * 4 * 7.0 / 8));
}

TEST_F(ProductBytes, BothOperandsOverAGrid) {
  for (auto [r, c] : {std::pair{2, 2}, {2, 4}}) {
    devices(r, c);
    const int64_t m = 512, k = 256, n = 1024;
    const Tensor a = stored({m, k}, {Shard(0), Shard(1)}), b = stored({k, n}, {Shard(0), Shard(1)});
    // A panel of each operand travels: the rows of a over c, the columns of b over r.
    const double panels = 4.0 * (double(m) / r * k * (c - 1) / c + double(n) / c * k * (r - 1) / r);
    EXPECT_LE(sent(a.matmul(b)), bound(panels)) << r << " x " << c;
    // A long inner dim and a small result: a pending sum over both axes.
    const Tensor x = stored({64, 8192}, {Shard(1), Shard(1)}),
                 y = stored({8192, 64}, {Shard(0), Shard(0)});
    const double sums = 4.0 * 64 * 64 * 2 * (double(r - 1) / r + double(c - 1) / c);
    EXPECT_LE(sent(x.matmul(y)), bound(sums)) << r << " x " << c;
  }
}

// Tokens [batch, sequence] stay divided by sequence through linear layers and back.
TEST_F(ProductBytes, TokensStayDividedBySequence) {
  for (int n : {4, 8}) {
    devices(n);
    const int64_t width = 256;
    const Tensor x = split({4, 1024, width}, 1), w = split({width, width}, -1);
    const Tensor y = x.matmul(w).gelu().matmul(w) + x;
    EXPECT_EQ(sent(y), 0) << n;
    // The gradient of the weight is one sum; that of x stays where it is.
    const std::vector<Tensor> d = y.square().sum().gradient({x, w});
    EXPECT_LE(sent(d), bound(2.0 * width * width * 4 * (n - 1) / n)) << n;
  }
}

TEST_F(ProductBytes, TokensOverTwoAxes) {
  devices(2, 4);
  const int64_t width = 256;
  const Tensor x = stored({4, 512, width}, {Shard(0), Shard(1)}), w = stored({width, width}, {});
  EXPECT_EQ(sent(x.matmul(w).gelu().matmul(w) + x), 0);
}

// A pair of products divided by columns and by rows: one sum forward, one backward.
TEST_F(ProductBytes, AMegatronPairSumsOnceEachWay) {
  for (int n : {4, 8, 64}) {
    devices(n);
    const int64_t tokens = 512, width = 256;
    const Tensor x = split({2, tokens / 2, width}, -1), up = split({width, 4 * width}, 1),
                 down = split({4 * width, width}, 0);
    const Tensor y = x + x.matmul(up).relu().matmul(down);
    const double sum = 2.0 * tokens * width * 4 * (n - 1) / n;
    PlanSummary plan = summarize(y);
    EXPECT_EQ(plan.collectives, 1);
    EXPECT_LE(plan.collective_bytes, bound(sum));
    std::vector<Tensor> all = (y * y).sum().gradient({x, up, down});
    all.push_back(y);
    plan = summarize(all);
    EXPECT_EQ(plan.collectives, 2) << n;
    EXPECT_LE(plan.collective_bytes, bound(2 * sum)) << n;
  }
}

// A widened value is brought elsewhere as it was before, through views, too.
TEST_F(ProductBytes, WhatIsWidenedTravelsAsItWas) {
  for (int n : {4, 8, 64}) {
    devices(n);
    const double others = double(n - 1) / n, numel = 512 * 256;
    const Tensor x = split({512, 256}, 0, DType::BF16);
    const std::vector<AxisPlacement> columns{{"d", Shard(1)}};
    EXPECT_LE(sent(x.cast(DType::F32).shard(mesh())), bound(2 * numel * others));
    EXPECT_LE(sent(x.cast(DType::F32).shard(mesh(), columns)), bound(2 * numel / n * others));
    EXPECT_LE(sent(x.cast(DType::F32).T().reshape({16, 16, 512}).shard(mesh())),
              bound(2 * numel * others));
    EXPECT_LE(sent((x > 0).cast(DType::F32).shard(mesh())), bound(numel * others));
    EXPECT_LE(sent(split({512}, 0, DType::U8).one_hot(256).shard(mesh())), bound(numel * others));
    // By ops that want it so.
    EXPECT_LE(sent(x.cast(DType::F32).matmul(split({256, 1 << 16}, 1))), bound(2 * numel * others));
  }
}

// A norm in f32 before layers in bf16: back through these a sum of bf16 comes, as forward.
TEST_F(ProductBytes, SumsOfNarrowProductsTravelInTheirType) {
  for (int n : {4, 8, 64}) {
    devices(n);
    const int64_t tokens = 4096, width = 512;
    const Tensor x = split({2, tokens / 2, width}, -1, DType::BF16),
                 weight = split({width}, -1),  // of the norm
        gate = split({width, 4 * width}, 1, DType::BF16),
                 up = split({width, 4 * width}, 1, DType::BF16),
                 down = split({4 * width, width}, 0, DType::BF16);
    auto norm = [&](const Tensor& t) {
      const Tensor wide = t.cast(DType::F32);
      return (wide * (wide.square().mean(-1, true) + 1e-6).rsqrt() * weight).cast(DType::BF16);
    };
    const Tensor h = norm(x);
    const Tensor y = x + (h.matmul(gate).silu() * h.matmul(up)).matmul(down);
    const double sum = 2.0 * tokens * width * 2 * (n - 1) / n;
    EXPECT_LE(sent(y), bound(sum));
    EXPECT_LE(sent(norm((h.matmul(gate).silu() * h.matmul(up)).matmul(down))), bound(sum));
    // A bias is added before the sum is rounded, and does not widen what travels.
    const Tensor bias = split({width}, -1, DType::BF16);
    EXPECT_LE(sent((h.matmul(gate).silu() * h.matmul(up)).linear(down, bias)), bound(sum));
    std::vector<Tensor> all = y.gradient({x, gate, up, down}, x);
    all.push_back(y);
    EXPECT_LE(sent(all), bound(2 * sum)) << n;
    // A sum that is placed in f32 is added up so: gradients for weights that are kept in f32.
    const Tensor master = split({width, 64}, -1);
    const Tensor rows = split({tokens, width}, 0, DType::BF16);
    const Tensor g = rows.matmul(master.cast(DType::BF16)).square().sum().gradient({master})[0];
    EXPECT_LE(sent(g.shard_like(master)), bound(2.0 * width * 64 * 4 * (n - 1) / n));
    EXPECT_GE(sent(g.shard_like(master)), int64_t(2.0 * width * 64 * 4 * (n - 1) / n));
  }
}

// --- attention -----------------------------------------------------------------------------------

struct Attended {
  Tensor q, k, v, y;
  std::vector<Tensor> gradients() const {
    return (y * y).cast(DType::F32).sum().gradient({q, k, v});
  }
};
Attended attend(const Tensor& q, const Tensor& k, const Tensor& v, bool causal = true) {
  return {q, k, v,
          q.scaled_dot_product_attention(k, v, {}, {.is_causal = causal, .enable_gqa = true})};
}

TEST_F(ProductBytes, AttentionByBatchOrHeadsSendsNothing) {
  for (DType type : {DType::F32, DType::BF16}) {
    for (int n : {4, 8}) {
      devices(n);
      for (int dim : {0, 1}) {
        const Tensor q = split({16, 16, 64, 32}, dim, type), k = split({16, 8, 64, 32}, dim, type);
        const Attended a = attend(q, k, k);
        EXPECT_EQ(sent(a.y), 0) << name(type) << " over " << n << " by dim " << dim;
        EXPECT_EQ(sent(a.gradients()), 0) << name(type) << " over " << n << " by dim " << dim;
      }
    }
  }
}

// A device repeats what its heads share with others, where that lies on all devices.
TEST_F(ProductBytes, MaskedAttentionOfFewKeyHeadsSendsNothing) {
  devices(8);
  const Tensor q = split({2, 8, 64, 32}, 1), k = split({2, 2, 64, 32}, -1),
               mask = split({64, 64}, -1, DType::Bool);
  EXPECT_EQ(sent(q.scaled_dot_product_attention(k, k, mask, {.enable_gqa = true})), 0);
}

// Every head is a device's own for as long as it takes: parts of q, k and v, and of the result
// back.
TEST_F(ProductBytes, AttentionBySequenceChangesToHeadsWhereTheyDivide) {
  for (DType type : {DType::F32, DType::BF16}) {
    for (int n : {4, 8}) {
      devices(n);
      const Dims shape{1, 16, 512, 64};
      const double part = double(product(shape)) / n * double(itemsize(type)) * (n - 1) / n;
      const Tensor x = split(shape, 2, type), y = split(shape, 2, type), z = split(shape, 2, type);
      const Attended a = attend(x, y, z);
      const Tensor back = a.y.shard(mesh(), {{"d", Shard(2)}});
      EXPECT_LE(sent(back), bound(4 * part)) << name(type) << " over " << n;
      // Backward: that of the result to the heads, and three gradients back.
      std::vector<Tensor> all = back.gradient({x, y, z}, split(shape, 2, type));
      all.push_back(back);
      EXPECT_LE(sent(all), bound(8 * part)) << name(type) << " over " << n;
    }
  }
}

// k and v travel once as they are, never repeated; their gradients come back as sums.
TEST_F(ProductBytes, AttentionBySequenceGathersFewHeads) {
  for (DType type : {DType::F32, DType::BF16}) {
    for (int n : {4, 8}) {
      devices(n);
      const double few = 2.0 * 512 * 64 * double(itemsize(type)) * (n - 1) / n;
      const Tensor q = split({1, 16, 512, 64}, 2, type), k = split({1, 2, 512, 64}, 2, type),
                   v = split({1, 2, 512, 64}, 2, type);
      for (bool causal : {false, true}) {
        const Attended a = attend(q, k, v, causal);
        EXPECT_LE(sent(a.y), bound(2 * few)) << name(type) << " over " << n;
        std::vector<Tensor> all = a.y.gradient({q, k, v}, split({1, 16, 512, 64}, 2, type));
        for (Tensor& d : all) d = d.shard(mesh(), {{"d", Shard(2)}});
        all.push_back(a.y);
        EXPECT_LE(sent(all), bound(4 * few)) << name(type) << " over " << n;
      }
    }
  }
}

// Heads of q over more devices than k and v have heads. What all devices have of k and v sends
// nothing. From parts of another dim each device gets its head, and the gradients go the way back.
TEST_F(ProductBytes, AttentionByHeadsSendsEachDeviceTheHeadThatItShares) {
  for (DType type : {DType::F32, DType::BF16}) {
    for (int n : {4, 8}) {
      for (int64_t few : {n / 2, n / 4}) {
        devices(n);
        const Dims shape{2, few, 128, 64};
        const double head = 2.0 * 128 * 64 * double(itemsize(type)), sums = double(few) * head;
        const Tensor q = split({2, 16, 128, 64}, 1, type), g = split({2, 16, 128, 64}, 1, type);
        for (int dim : {-1, 2, 3}) {
          const Tensor k = split(shape, dim, type), v = split(shape, dim, type);
          const Tensor y = attend(q, k, v).y;
          EXPECT_EQ(y.sharding().placements[0], Shard(1));
          const double each = dim < 0 ? 0 : 2 * head * (n - 1) / n;
          EXPECT_LE(sent(y), bound(each)) << name(type) << " " << n << " " << few << " " << dim;
          std::vector<Tensor> all = y.gradient({q, k, v}, g);
          all.push_back(y);
          // On all devices the gradients of k and v are sums of terms.
          const double back = dim < 0 ? 2 * 2 * double(n - 1) / n * sums : each;
          EXPECT_LE(sent(all), bound(each + back))
              << name(type) << " " << n << " " << few << " " << dim;
        }
      }
    }
  }
}

// Attention of a tensor-parallel block: two sums of activations, and few heads beside them.
TEST_F(ProductBytes, FewHeadsStayBesideTheSumsOfABlock) {
  for (int n : {4, 8}) {
    devices(n);
    for (int64_t few : {n / 2, n / 4}) {
      for (int dim : {-1, 0}) {
        const int64_t heads = 4 * n, head = 16, width = heads * head;
        const Tensor x = split({2, 512, width}, -1), wq = split({width, width}, 0),
                     wo = split({width, width}, 1), wk = split({few * head, width}, dim),
                     wv = split({few * head, width}, dim);
        auto by_head = [&](const Tensor& w, int64_t count) {
          return x.linear(w.T()).reshape({2, 512, count, head}).transpose(1, 2);
        };
        const Tensor y = attend(by_head(wq, heads), by_head(wk, few), by_head(wv, few)).y;
        const Tensor out = y.transpose(1, 2).reshape(x.shape()).linear(wo.T()) + x;
        std::vector<Tensor> all = out.tanh().sum().gradient({x, wq, wk, wv, wo});
        all.push_back(out);
        const double sum = 2.0 * (n - 1) / n * 2 * 512 * double(width) * 4;
        // Two devices that have parts of a head, or more, exchange them; and the gradients back.
        const double part = 2.0 * 512 * head * 4 * double(few) / n;
        const double heads_sent = dim < 0 ? 0 : 4 * (double(n) / double(few) - 1) * part;
        EXPECT_LE(sent(all), bound(2 * sum + heads_sent)) << n << " " << few << " " << dim;
      }
    }
  }
}

// --- a block of a transformer --------------------------------------------------------------------

// Weights as nn::Linear has them, [out, in]; a norm before each half, heads that share k and v.
struct Block {
  Tensor q, k, v, o, o_bias, up, up_bias, down, down_bias;

  template <class Between>
  Tensor operator()(const Tensor& x, int64_t heads, int64_t shared, const Between& between) const {
    auto by_head = [](const Tensor& t, int64_t n) {
      return t.reshape({t.shape(0), t.shape(1), n, t.shape(2) / n}).transpose(1, 2);
    };
    const Tensor h = x.layernorm();
    const Tensor y = by_head(h.linear(q.T()), heads)
                         .scaled_dot_product_attention(by_head(h.linear(k.T()), shared),
                                                       by_head(h.linear(v.T()), shared), {},
                                                       {.is_causal = true, .enable_gqa = true});
    const Tensor a = between(x + y.transpose(1, 2).reshape(x.shape()).linear(o.T(), o_bias));
    return between(a + a.layernorm().linear(up.T(), up_bias).gelu().linear(down.T(), down_bias));
  }
  std::vector<Tensor> parameters() const {
    return {q, k, v, o, o_bias, up, up_bias, down, down_bias};
  }
};

class BlockBytes : public ProductBytes {
 protected:
  static constexpr int64_t kHeads = 16, kShared = 8, kWidth = 1024, kBatch = 2, kLength = 512;

  Block block(DType type) const {
    const Dims few{kShared * kWidth / kHeads, kWidth};
    auto by = [&](Dims shape, int dim) {
      return stored(std::move(shape), {Replicate, dim < 0 ? Replicate : Shard(dim)}, type);
    };
    return {by({kWidth, kWidth}, 0),
            by(few, 0),
            by(few, 0),
            by({kWidth, kWidth}, 1),
            by({kWidth}, -1),
            by({4 * kWidth, kWidth}, 0),
            by({4 * kWidth}, 0),
            by({kWidth, 4 * kWidth}, 1),
            by({kWidth}, -1)};
  }
  // Collectives over the axis of the model, of activations: by kind.
  static std::map<std::string, int> over_model(const PlanSummary& plan, int64_t at_least) {
    std::map<std::string, int> found;
    for (const CollectiveItem& item : plan.collective_items) {
      if (item.axis == "c" && item.bytes >= at_least) ++found[item.op];
    }
    return found;
  }
  // Where each op chooses alone.
  static std::map<std::string, int> over_model_alone(const std::vector<Tensor>& values) {
    std::vector<UOp> roots;
    for (const Tensor& t : values) roots.push_back(t.uop());
    std::map<std::string, int> found;
    const LocalGraph local = to_local(without_names(roots));
    for (const UOp& x : local.graph.order()) {
      if (x.op() != Op::Collective || collective_arg(*x).mesh_axis != 1) continue;
      ++found[std::string(name(collective_arg(*x).op))];
    }
    return found;
  }
};

// By ops that choose alone. By bytes the plan of the whole sends still less: it divides tokens by
// sequence between the halves.
TEST_F(BlockBytes, AMegatronBlockSumsTwiceEachWay) {
  for (DType type : {DType::F32, DType::BF16}) {
    devices(2, 4);
    const Block b = block(type);
    const Tensor x = stored({kBatch, kLength, kWidth}, {Shard(0), Replicate}, type);
    auto whole = [](const Tensor& t) { return t; };
    const Tensor y = b(x, kHeads, kShared, whole);
    EXPECT_EQ(over_model_alone({y}), (std::map<std::string, int>{{"all_reduce", 2}})) << name(type);
    const double sums = 2 * 2.0 * 3 / 4 * kBatch / 2 * kLength * kWidth * 4;
    EXPECT_LE(sent(y), bound(sums)) << name(type);
    std::vector<Tensor> all = b.parameters();
    all.push_back(x);
    all = y.gradient(all, y);
    all.push_back(y);
    EXPECT_EQ(over_model_alone(all), (std::map<std::string, int>{{"all_reduce", 4}})) << name(type);
  }
}

TEST_F(BlockBytes, WithSequenceParallelismAsManyPairs) {
  devices(2, 4);
  const Block b = block(DType::F32);
  const std::vector<AxisPlacement> place{{"r", Shard(0)}, {"c", Shard(1)}};
  const Tensor x = stored({kBatch, kLength, kWidth}, {Shard(0), Shard(1)});
  auto split = [&](const Tensor& t) { return t.shard(mesh(), place); };
  const Tensor y = b(x, kHeads, kShared, split);
  EXPECT_EQ(over_model(summarize(y), 1),
            (std::map<std::string, int>{{"all_gather", 2}, {"reduce_scatter", 2}}));
  const double pair = 2 * (4.0 * kBatch / 2 * kLength * kWidth * 3 / 4);
  EXPECT_LE(sent(y), bound(2 * pair));
  std::vector<Tensor> all = b.parameters();
  all.push_back(x);
  all = y.gradient(all, y);
  all.back() = split(all.back());
  all.push_back(y);
  // Gradients of biases are small sums over the tokens.
  EXPECT_EQ(over_model(summarize(all), 100 << 10),
            (std::map<std::string, int>{{"all_gather", 4}, {"reduce_scatter", 4}}));
}

// --- convolutions --------------------------------------------------------------------------------

TEST_F(ProductBytes, ConvolutionByInputChannelsSumsItsResult) {
  for (int n : {4, 8}) {
    devices(n);
    const Tensor x = split({2, 64, 16, 16}, 1), w = split({32, 64, 3, 3}, 1);
    const double sum = 2.0 * 2 * 32 * 16 * 16 * 4 * (n - 1) / n;
    const Tensor y = x.conv2d(w, {}, {.padding = 1});
    EXPECT_LE(sent(y), bound(sum)) << n;
    // The gradients of both lie as they do.
    const Tensor g = split({2, 32, 16, 16}, -1);
    EXPECT_EQ(sent(y.gradient({x, w}, g)), 0) << n;
  }
}

TEST_F(ProductBytes, ConvolutionByOutputChannelsSumsTheGradientOfItsInput) {
  for (int n : {4, 8}) {
    devices(n);
    const Tensor x = split({2, 32, 16, 16}, -1), w = split({64, 32, 3, 3}, 0);
    const Tensor y = x.conv2d(w, {}, {.padding = 1});
    EXPECT_EQ(sent(y), 0);
    const std::vector<Tensor> d = y.gradient({x, w}, split({2, 64, 16, 16}, 1));
    EXPECT_EQ(sent(d[1]), 0) << n;
    EXPECT_LE(sent(d[0]), bound(2.0 * 2 * 32 * 16 * 16 * 4 * (n - 1) / n)) << n;
  }
}

TEST_F(ProductBytes, ConvolutionByGroupsSendsNothing) {
  for (int n : {4, 8, 64}) {
    devices(n);
    const Tensor x = split({2, 64, 16, 16}, 1), depthwise = split({64, 1, 3, 3}, 0),
                 whole = split({64, 1, 3, 3}, -1);
    for (const Tensor& w : {depthwise, whole}) {
      const Tensor y = x.conv2d(w, {}, {.groups = 64, .padding = 1});
      EXPECT_EQ(sent(y), 0) << n;
      EXPECT_EQ(sent(y.gradient({x}, split({2, 64, 16, 16}, 1))), 0) << n;
    }
  }
  devices(4);
  const Tensor x = split({2, 16, 8, 8}, 1), w = split({32, 2, 3, 3}, 0);
  const Tensor y = x.conv2d(w, {}, {.groups = 8});
  EXPECT_EQ(sent(y), 0);
  EXPECT_EQ(sent(y.square().sum().gradient({x, w})), 0);
}

TEST_F(ProductBytes, TransposedConvolutionByChannels) {
  devices(4);
  const Tensor x = split({2, 16, 8, 8}, 1), inner = split({16, 8, 3, 3}, 0),
               outer = split({16, 8, 3, 3}, 1), all = split({2, 16, 8, 8}, -1);
  EXPECT_LE(sent(x.conv_transpose2d(inner)), bound(2.0 * 2 * 8 * 10 * 10 * 4 * 3 / 4));
  EXPECT_EQ(sent(all.conv_transpose2d(outer)), 0);
}

}  // namespace
}  // namespace tinyshard::test::bytes_products_test
