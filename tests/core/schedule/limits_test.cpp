// Limits of one kernel: programs that ask for more get several kernels, and right values.
#include "core/schedule/limits.h"

#include <cmath>
#include <functional>
#include <pthread.h>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

#include "core/exec/explain.h"
#include "core/exec/state.h"
#include "multi/rewrite.h"
#include "tests/sanitized.h"

namespace tinyshard::limits_test {
namespace {

Schedule scheduled(const Tensor& x, bool join) {
  const std::vector<UOp> given{x.uop()}, roots = without_names(given);
  const std::vector<Sharding> shardings(1, replicated(default_mesh()));
  return make_schedule(roots, shardings, {.join_kernels = join});
}

// Values of so many lengths, all of them different.
std::vector<Tensor> lengths(int count) {
  std::vector<Tensor> all;
  for (int i = 0; i < count; ++i) all.push_back(Tensor::full({i + 3}, 0.5f).clone().realize());
  return all;
}

TEST(Limits, SumsOfManyLengths) {
  for (int count : {60, 64, 65, 70, 129, 300}) {
    const std::vector<Tensor> values = lengths(count);
    double want = 0;
    Tensor sum, most;
    for (const Tensor& v : values) {
      const Tensor squares = v.square().sum(), columns = v.reshape({-1, 1}).max(0);
      sum = sum.defined() ? sum + squares : squares;
      most = most.defined() ? most + columns : columns;
      want += 0.25 * double(v.numel());
    }
    EXPECT_NEAR(sum.item<double>(), want, 1e-5 * want) << count;
    EXPECT_NEAR(most.item<double>(), 0.5 * count, 1e-4 * count) << count;
  }
}

TEST(Limits, ClippedNormsOfManyLengths) {
  for (int count : {70, 140}) {
    std::vector<Tensor> parameters = lengths(count);
    for (Tensor& p : parameters) p.is_param_();
    nn::optim::AdamW optimizer(parameters, {.lr = 0.1});
    TrainingMode training;
    Jit step = [&] {
      Tensor loss = Tensor::zeros({});
      for (const Tensor& p : parameters) loss = loss + p.square().sum();
      optimizer.zero_grad();
      loss.backward();
      const Tensor norm = nn::clip_grad_norm(parameters, 1.0);
      optimizer.step();
      return norm;
    };
    double want = 0;  // each gradient is 2 * 0.5
    for (const Tensor& p : parameters) want += double(p.numel());
    EXPECT_NEAR(step().item<double>(), std::sqrt(want), 1e-3) << count;
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(std::isfinite(step().item<double>()));
  }
}

TEST(Limits, NoKernelHoldsMore) {
  for (bool join : {false, true}) {
    Tensor sum;
    for (const Tensor& v : lengths(200)) sum = sum.defined() ? sum + v.exp().sum() : v.exp().sum();
    for (const Item& item : scheduled(sum, join).items) {
      if (item.kind != Item::Kind::Kernel) continue;
      std::vector<UOp> roots{item.kernel.sink};
      EXPECT_LE(ranges_of(toposort(roots)), kMostRanges);
    }
  }
}

// Each part is reduced once, and not by every element of what the parts are stacked to.
TEST(Limits, StackedPartsAreReducedByThemselves) {
  std::vector<Tensor> parts;
  for (int i = 0; i < 12; ++i) parts.push_back(Tensor::randn({96, 40, 5}).realize().sum(-1));
  const Tensor stacked = stack(parts, 1), joined = cat(parts, 0);
  for (const Tensor& x : {stacked, joined}) {
    size_t most = 0;
    for (const Item& item : scheduled(x, false).items) {
      if (item.kind != Item::Kind::Kernel) continue;
      std::vector<UOp> roots{item.kernel.sink};
      size_t folds = 0;
      for (const UOp& node : toposort(roots)) folds += node.op() == Op::Fold;
      most = std::max(most, folds);
    }
    EXPECT_LE(most, 1u);
  }
  const auto got = stacked.to_vector<float>();
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto part = parts[i].to_vector<float>();
    for (size_t k = 0; k < part.size(); ++k)
      ASSERT_EQ(got[(k / 40 * parts.size() + i) * 40 + k % 40], part[k]);
  }
}

// Runs on a thread of so small a stack.
void on_small_stack(size_t bytes, std::function<void()> run) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
  pthread_t thread{};
  auto call = [](void* f) -> void* {
    (*static_cast<std::function<void()>*>(f))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, call, &run), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

// Frames of a sanitizer are thirty times as large; a level for each op would still be too many.
TEST(Limits, LongChainsNeedLittleStack) {
  const Tensor x = Tensor::ones({37}).clone().realize();
  on_small_stack(test::kSanitized ? 8 << 20 : 256 << 10, [&] {
    Tensor sum = x, product = x;
    for (int i = 0; i < 500; ++i) {
      sum = sum + x;
      product = (product * 1.5f).maximum(x * 0.25f) - x;
    }
    EXPECT_EQ(sum.to_vector<float>(), std::vector<float>(37, 501));
    product.realize();
  });
}

}  // namespace
}  // namespace tinyshard::limits_test
