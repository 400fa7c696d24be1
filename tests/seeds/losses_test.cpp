// "Neural Network (functional)".
#include "tests/seeds/printed.h"

namespace tinyshard::seeds::losses_test {
namespace {

TEST(SeedFunctional, LinearAndSequential) {
  Tensor t{{1, 2}, {3, 4}}, weight{{1, 2}, {3, 4}}, bias{1, 2};
  prints(t.linear(weight, bias), Tensor{{8, 12}, {16, 24}});
  prints(Tensor{1, 2, 3}.sequential([](const Tensor& x) { return x * 2; },
                                    [](const Tensor& x) { return x + 1; }),
         Tensor{3, 5, 7});
}

TEST(SeedFunctional, Norms) {
  Tensor::manual_seed(42);
  Tensor t = Tensor::randn({8, 10, 16}) * 2 + 8;
  EXPECT_NEAR(t.mean().item<float>(), 8, 0.3);
  EXPECT_NEAR(t.std().item<float>(), 2, 0.2);
  t = t.layernorm();
  EXPECT_NEAR(t.mean().item<float>(), 0, 1e-5);
  EXPECT_NEAR(t.std().item<float>(), 1.0003889, 1e-4);
  t = Tensor::randn({8, 4, 16, 16}) * 2 + 8;
  t = t.batchnorm({}, {}, t.mean({0, 2, 3}), t.var({0, 2, 3}).add(1e-5).rsqrt());
  EXPECT_NEAR(t.mean().item<float>(), 0, 1e-4);
  EXPECT_NEAR(t.std().item<float>(), 0.9998151, 1e-3);
}

TEST(SeedFunctional, Dropout) {
  Tensor t = Tensor::ones({64, 64});
  prints(t.dropout().sum(), 4096);  // not in training
  TrainingMode training;
  Tensor::manual_seed(42);
  Tensor kept = t.dropout();
  EXPECT_EQ(((kept == 0) | (kept == 2)).all().item<bool>(), true);
  EXPECT_NEAR(kept.mean().item<float>(), 1, 0.1);
}

TEST(SeedFunctional, OneHot) {
  prints(
      Tensor{0, 1, 3, 3, 4}.one_hot(5),
      Tensor{{1, 0, 0, 0, 0}, {0, 1, 0, 0, 0}, {0, 0, 0, 1, 0}, {0, 0, 0, 1, 0}, {0, 0, 0, 0, 1}});
}

TEST(SeedFunctional, Attention) {
  Tensor q = Tensor::randn({2, 4, 8}), k = Tensor::randn({2, 4, 8}), v = Tensor::randn({2, 4, 8});
  Tensor by_hand = (q.matmul(k.transpose(-2, -1)) / std::sqrt(8.0)).softmax().matmul(v);
  EXPECT_TRUE(q.scaled_dot_product_attention(k, v).allclose(by_hand, 1e-4, 1e-5));
}

TEST(SeedFunctional, BinaryCrossEntropy) {
  prints(Tensor{0.1, 0.9, 0.2}.binary_crossentropy(Tensor{0, 1, 0}), 0.14462155103683472);
  prints(Tensor{-1, 2, -3}.binary_crossentropy_logits(Tensor{0, 1, 0}), 0.16292566061019897);
}

TEST(SeedFunctional, CrossEntropy) {
  Tensor t{{-1, 2, -3}, {1, -2, 3}}, labels{1, 2};
  prints(t.sparse_categorical_crossentropy(labels), 0.09391524642705917);
  prints(t.cross_entropy(labels), 0.09391524642705917);
  prints(t.cross_entropy(labels, {.reduction = Reduction::None}), Tensor{0.055, 0.1328});
  prints(t.log_softmax().nll_loss(labels), 0.09391524642705917);
  prints(t.log_softmax().nll_loss(labels, {}, {}, Reduction::None), Tensor{0.055, 0.1328});
}

}  // namespace
}  // namespace tinyshard::seeds::losses_test
