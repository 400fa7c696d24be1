// "Properties": what a tensor is, its data, and gradients.
#include "tests/seeds/printed.h"

namespace tinyshard::seeds::properties_test {
namespace {

using Floats = std::vector<float>;
using Int32s = std::vector<int32_t>;

TEST(SeedProperties, Basic) {
  EXPECT_EQ((Tensor{{1, 2}, {3, 4}}).ndim(), 2);
  EXPECT_EQ((Tensor{{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}}).numel(), 8);
  EXPECT_EQ((Tensor{5}).cast(DType::I16).element_size(), 2u);
  EXPECT_EQ((Tensor{8, 9}).cast(DType::F32).nbytes(), 8u);
  EXPECT_TRUE((Tensor{8, 9}).cast(DType::F32).is_floating_point());
  Tensor t{{4, 5, 6}, {7, 8, 9}};
  EXPECT_EQ(t.shape(), (Dims{2, 3}));
  EXPECT_EQ(t.size(1), 3);
}

TEST(SeedProperties, DataAccess) {
  Tensor t{1, 2, 3, 4};
  EXPECT_EQ(t.dtype(), DType::I32);
  const std::vector<std::byte> bytes = t.data();
  ASSERT_EQ(bytes.size(), 16u);
  EXPECT_EQ(bytes[4], std::byte{2});
  EXPECT_EQ(t.to_vector<int32_t>(), (Int32s{1, 2, 3, 4}));
  EXPECT_EQ(Tensor(42).item<int>(), 42);
  EXPECT_EQ(Tensor(5).to_vector<int32_t>(), (Int32s{5}));
}

TEST(SeedProperties, Storage) {
  Tensor t{1, 2, 3};
  EXPECT_EQ(t.clone().to_vector<int32_t>(), (Int32s{1, 2, 3}));
  EXPECT_EQ(t.contiguous().realize().to_vector<int32_t>(), (Int32s{1, 2, 3}));
  EXPECT_EQ(t.detach().to_vector<int32_t>(), (Int32s{1, 2, 3}));
  t.assign(Tensor{4, 5, 6});
  EXPECT_EQ(t.to_vector<int32_t>(), (Int32s{4, 5, 6}));
  t.replace(Tensor{7, 8, 9});
  EXPECT_EQ(t.to_vector<int32_t>(), (Int32s{7, 8, 9}));
  t.replace(t.to("CPU:0"));  // to_
  EXPECT_EQ(t.to_vector<int32_t>(), (Int32s{7, 8, 9}));
}

TEST(SeedProperties, Shard) {
  Tensor t = Tensor::arange(8).reshape({2, 4});
  Tensor halves = t.shard(std::vector<std::string>{"CPU:0", "CPU:1"}, 1);
  EXPECT_EQ(halves.sharding().to_string(), "i32[2, 4@data:2]");
  EXPECT_EQ(halves.to_vector<int32_t>(), (Int32s{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(SeedProperties, Gradient) {
  Tensor x = Tensor::eye(3), y{{2.0, 0.0, -2.0}};
  Tensor z = y.matmul(x).sum();
  const std::vector<Tensor> d = z.gradient({x, y});
  prints(d[0], Tensor{{2.0, 2.0, 2.0}, {0.0, 0.0, 0.0}, {-2.0, -2.0, -2.0}});
  prints(d[1], Tensor{{1.0, 1.0, 1.0}});
}

TEST(SeedProperties, Backward) {
  Tensor t{1.0, 2.0, 3.0, 4.0};
  t.is_param_();
  t.sum().backward();
  prints(t.grad(), Tensor{1.0, 1.0, 1.0, 1.0});
}

struct Model {
  nn::Linear l1{12, 16}, l2{16, 3};
  TS_FIELDS(l1, l2)
  Tensor operator()(const Tensor& in) const { return l1(in).relu().sequential(l2); }
};

// The quick reference: lazy operations, a training step and a captured one.
TEST(SeedProperties, QuickReference) {
  Tensor x{1, 2, 3};
  Tensor y = (x + 1).relu().sum();
  EXPECT_EQ(y.realize().item<int>(), 9);
  Model model;
  Tensor::manual_seed(1);
  Tensor samples = Tensor::randn({24, 12}).realize();
  Tensor labels = samples.shrink({{0, 24}, {0, 3}}).argmax(1).realize();
  auto optim = nn::optim::Adam(nn::parameters(model), {.lr = 0.01});
  Jit train_step = [&](Tensor in, Tensor wanted) {
    TrainingMode training;
    optim.zero_grad();
    Tensor loss = model(in).sparse_categorical_crossentropy(wanted).backward();
    optim.step();
    return loss;
  };
  const float first = train_step(samples, labels).item<float>();
  float last = first;
  for (int i = 0; i < 100; ++i) last = train_step(samples, labels).item<float>();
  EXPECT_LT(last, first / 4);
}

}  // namespace
}  // namespace tinyshard::seeds::properties_test
