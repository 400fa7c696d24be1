// Plans of fully sharded training, their transfers and memory: an 8B Llama on 8 and on 64 devices.
#include <gtest/gtest.h>

#include "core/base/stopwatch.h"
#include "tests/core/nn/llama.h"
#include "tests/multi/bytes.h"
#include "tests/sanitized.h"

namespace tinyshard::fully_shard_plan_test {
namespace {

using test::Llama;
using test::LlamaConfig;

constexpr LlamaConfig k8B{.layers = 32,
                          .width = 4096,
                          .heads = 32,
                          .groups = 8,
                          .hidden = 14336,
                          .vocabulary = 128256,
                          .type = DType::BF16,
                          .checkpoint = true};

// Seconds of processor time. A sanitizer's checks take some four times as long, and do not count.
constexpr double kPlanningSeconds = test::kSanitized ? 10 : 2;

struct Plan {
  PlanSummary summary;
  double seconds = 0;
};

class FullyShardPlan : public test::Planned {
 protected:
  Tensor tokens(int64_t each) const { return split({mesh().size(), each}, 0, DType::I32); }

  // A step of AdamW.
  Plan plan(const LlamaConfig& config, int64_t each, const nn::FullyShardOptions& options = {}) {
    Tensor::manual_seed(1);
    Llama model(config);
    nn::fully_shard(model, mesh(), "d", options);
    std::vector<Tensor> params = nn::parameters(model);
    Tensor::realize(params);
    nn::optim::AdamW optim(params, {});
    Tensor::realize(nn::parameters(optim));
    Tensor x = tokens(each);
    ProcessorStopwatch watch;
    Jit step = [&](Tensor in) {
      TrainingMode on;
      optim.zero_grad();
      Tensor loss = model.loss(in, in).backward();
      optim.step();
      return loss;
    };
    step(x);
    const double seconds = watch.ms() / 1000;
    return {summarize(step), seconds};
  }

  // The bytes of forward and backward pass without gathers and without the gradients of weights,
  // but for that of one vector.
  int64_t activations(const LlamaConfig& config, int64_t each) {
    Llama model(config);
    nn::data_parallel(model, mesh(), "d");
    Tensor::realize(nn::parameters(model));
    Tensor x = tokens(each);
    return summarize(model.loss(x, x).gradient({model.h[0].attention_norm.weight})).arena_bytes;
  }
};

// Bytes of parameters that are gathered in one turn, and of all.
struct Sizes {
  double all = 0, block = 0, head = 0;
};
Sizes sizes_of(const LlamaConfig& c) {
  const double item = double(itemsize(c.type)), width = double(c.width);
  Sizes s;
  s.block = item * width * (2 * width + 2 * double(c.groups * c.head()) + 3 * double(c.hidden)) +
            2 * 4 * width;
  s.head = item * width * double(c.vocabulary) + 4 * width;
  s.all = double(c.layers) * s.block + s.head + item * width * double(c.vocabulary);
  return s;
}

// Parameters and gradients, and two moments of four bytes for each element, in n parts; the blocks
// in flight; activations, and a twentieth.
TEST_F(FullyShardPlan, A8BLlamaSendsEachParameterThreeTimesAndHoldsItsPart) {
  const Sizes size = sizes_of(k8B);
  const double state = 2 * size.all + 8 * size.all / double(itemsize(k8B.type));
  for (int n : {8, 64}) {
    devices(n);
    const auto activation = double(activations(k8B, 512));
    const Plan p = plan(k8B, 512);
    EXPECT_LE(double(p.summary.collective_bytes), 1.02 * 3 * size.all * (n - 1) / n);
    // Two blocks, and the gradient of the head on its way: it is larger than two blocks.
    const double bound = 1.05 * (state / n) + 2 * size.block + size.head + activation;
    EXPECT_LE(double(p.summary.peak_bytes()), bound);
    EXPECT_LT(p.seconds, kPlanningSeconds);
    // Where parts are larger than that gradient, it does not count.
    if (n == 8) {
      EXPECT_LE(double(p.summary.peak_bytes()), bound - size.head);
    }
  }
}

TEST_F(FullyShardPlan, PrefetchAndKeepingTakeTheirBlocks) {
  LlamaConfig config = k8B;
  config.layers = 8;
  config.vocabulary = 1024;
  config.checkpoint = false;
  devices(8);
  const Sizes size = sizes_of(config);
  auto arena = [&](const nn::FullyShardOptions& o) {
    return double(plan(config, 512, o).summary.arena_bytes);
  };
  auto sent = [&](const nn::FullyShardOptions& o) {
    return double(plan(config, 512, o).summary.collective_bytes);
  };
  const double none = arena({.prefetch = 0}), one = arena({}), two = arena({.prefetch = 2});
  EXPECT_GT(one, none + 0.5 * size.block);
  EXPECT_LT(one, none + 1.1 * size.block);
  EXPECT_GT(two, one + 0.5 * size.block);
  EXPECT_LT(two, one + 1.1 * size.block);
  const nn::FullyShardOptions kept{.blocks = "h.*", .keep = true};
  EXPECT_GT(arena(kept), 7 * size.block);
  EXPECT_NEAR(sent(kept), 2 * size.all * 7 / 8, 0.02 * size.all);
  // The head is small here, so the last block is still whole when the backward pass begins.
  EXPECT_NEAR(sent({}), (3 * size.all - size.block) * 7 / 8, 0.02 * size.all);
}

// Whole matrices are dealt out, worked on and come back as parts; one that is alone goes to all devices.
TEST_F(FullyShardPlan, MuonSendsAMatrixThereAndBack) {
  constexpr int64_t kSide = 256, kBytes = kSide * kSide * 4;
  auto sent_by_step = [&](const std::vector<Dims>& shapes, int dim) {
    std::vector<Tensor> params;
    for (const Dims& shape : shapes) {
      params.push_back(split(shape, dim).clone().is_param_());
      params.back().set_grad(split(shape, dim));
    }
    nn::optim::Muon muon(params);
    Tensor::realize(nn::parameters(muon));
    const TrainingMode on;
    return sent(muon.schedule_step());
  };
  devices(4);
  const Dims square{kSide, kSide}, wide{kSide, 2 * kSide};
  for (int dim : {0, 1}) {
    EXPECT_LE(sent_by_step(std::vector(8, square), dim), bound(2.0 * 8 * kBytes / 4 * 3 / 4));
    EXPECT_LE(sent_by_step({square, wide, square, wide, square, wide, square, wide}, dim),
              bound(2.0 * 3 * 4 * kBytes / 4 * 3 / 4));
    EXPECT_LE(sent_by_step({square}, dim), bound(1.0 * kBytes * 3 / 4));
  }
  EXPECT_EQ(sent_by_step(std::vector(8, square), -1), 0);
}

// Weights in f32 that are cast before they travel, and a norm.
struct WideBlock {
  static constexpr int64_t kWidth = 4096, kHidden = 14336, kTokens = 4096;
  nn::RMSNorm norm{kWidth};
  nn::Linear up{kWidth, kHidden, {.bias = false}}, down{kHidden, kWidth, {.bias = false}};
  TS_FIELDS(norm, up, down)
  Tensor operator()(const Tensor& x) const { return x + down(up(norm(x)).silu()); }
};

// Returns what each block adds to the temporary memory of a step, on GPUs in rows of `columns`,
// over which layers are divided as well, and sequences between them.
double bytes_of_a_block(int64_t rows, int64_t columns, bool sequence) {
  auto arena = [&](int64_t layers) {
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL_H200"}, .devices_per_rank = int(rows * columns)});
    const Mesh mesh({{"d", rows}, {"m", columns}});
    const auto blocks = nn::layers<WideBlock>(layers);
    if (columns > 1) nn::tensor_parallel(blocks, mesh, "m", {{"*.up", Column}, {"*.down", Row}});
    nn::fully_shard(blocks, mesh, "d");
    const std::vector<Tensor> params = nn::parameters(blocks);
    Tensor::realize(params);
    nn::optim::AdamW optim(params, {});
    Tensor::realize(nn::parameters(optim));
    const Tensor x = Tensor::zeros({rows, WideBlock::kTokens, WideBlock::kWidth}, DType::BF16)
                         .contiguous()
                         .shard(mesh, {{"d", Shard(0)}})
                         .realize();
    Jit step = [&](Tensor in) {
      TrainingMode on;
      optim.zero_grad();
      Tensor y = sequence ? nn::sequence_parallel(in, mesh, "m") : in;
      for (const WideBlock& block : blocks) y = nn::checkpoint_activations(block, y);
      Tensor loss = y.cast(DType::F32).square().mean().backward();
      nn::clip_grad_norm(params, 1.0);
      optim.step();
      return loss;
    };
    step(x);
    return double(summarize(step).arena_bytes);
  };
  return (arena(24) - arena(8)) / 16;
}

// Clipping asks for the sums of all gradients at the end, in one kernel where parts are small. What
// was sent of a block is gone as soon as a collective that was started later is done.
TEST_F(FullyShardPlan, WhatWasSentIsNotKeptForTheNorm) {
  auto arena = [&](int64_t layers) {
    LlamaConfig config = k8B;
    config.layers = layers;
    Llama model(config);
    nn::fully_shard(model, mesh(), "d");
    nn::optim::AdamW optim(nn::parameters(model), {});
    Jit step = [&](Tensor in) {
      TrainingMode on;
      optim.zero_grad();
      Tensor loss = model.loss(in, in).backward();
      optim.place_grad();
      nn::clip_grad_norm(optim.params(), 1);
      optim.step();
      return loss;
    };
    step(tokens(256));
    return summarize(step).arena_bytes;
  };
  for (int n : {64, 1024}) {
    devices(n);
    const double activation = 2.0 * 256 * double(k8B.width);
    EXPECT_LE(double(arena(12) - arena(4)) / 8, sizes_of(k8B).block * 2 / n + activation) << n;
  }
}

// The gradients of a block in parts, and what enters it; nothing that is cast, gathered, copied into
// another order, or on its way to be reduced, lives on until another block has its turn.
TEST_F(FullyShardPlan, OfABlockOnlyItsPartsLiveOn) {
  struct Case {
    int64_t rows, columns;
    bool sequence;
  };
  for (const Case& c : {Case{8, 1, false}, Case{4, 2, false}, Case{4, 2, true}}) {
    const double parameters = 2.0 * WideBlock::kWidth * WideBlock::kHidden + WideBlock::kWidth;
    const double gradients = 4 * parameters / double(c.rows * c.columns),
                 activation = 2.0 * WideBlock::kTokens * WideBlock::kWidth / (c.sequence ? 2 : 1);
    const double grown = bytes_of_a_block(c.rows, c.columns, c.sequence);
    EXPECT_LE(grown, gradients + activation)
        << c.rows << " x " << c.columns << (c.sequence ? ", sequences divided" : "");
  }
}

}  // namespace
}  // namespace tinyshard::fully_shard_plan_test
