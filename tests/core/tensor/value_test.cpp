// Values: made from data, written, printed, placed, differentiated, captured.
#include <cmath>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "tests/devices.h"

namespace tinyshard::value_test {
namespace {

using Floats = std::vector<float>;
using Int64s = std::vector<int64_t>;

std::string print(const Tensor& x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

TEST(Data, ComesFromBracesVectorsAndSpans) {
  EXPECT_EQ((Tensor{{1, 2}, {3, 4}}).shape(), (Dims{2, 2}));
  EXPECT_EQ((Tensor{{1, 2}, {3, 4}}).dtype(), DType::I32);
  EXPECT_EQ((Tensor{1, 2.5}).dtype(), DType::F32);
  EXPECT_EQ((Tensor{true, false}).dtype(), DType::Bool);
  EXPECT_EQ((Tensor{{{1}, {2}}}).shape(), (Dims{1, 2, 1}));
  EXPECT_EQ(Tensor(std::vector<double>{1, 2}).dtype(), DType::F64);
  EXPECT_EQ(Tensor(std::vector<bool>{true, false}).to_vector<int>(), (std::vector<int>{1, 0}));
  int16_t raw[] = {1, -2, 3, 4};
  Tensor spanned(std::span<const int16_t>(raw), {2, 2});
  raw[0] = 9;
  EXPECT_EQ(spanned.to_vector<int64_t>(), (Int64s{1, -2, 3, 4})) << "the data is copied";
  EXPECT_EQ(Tensor(3.5).item<double>(), 3.5);
  EXPECT_EQ(Tensor(7).dtype(), DType::I32);
}

TEST(Data, IsReadAsAnyType) {
  Tensor x = (Tensor{1.5, -2.25, 3.0}).to_half();
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{1.5, -2.25, 3}));
  EXPECT_EQ(x.to_bfloat16().to_vector<float>(), (Floats{1.5, -2.25, 3}));
  EXPECT_EQ(x.to_vector<int>(), (std::vector<int>{1, -2, 3}));
  EXPECT_EQ(x.data().size(), 6u);
  EXPECT_EQ(x.sum().item<double>(), 2.25);
}

TEST(Printing, LooksLikeNestedLists) {
  EXPECT_EQ(print(Tensor{{1, 2}, {30, 4}}), "[[ 1,  2],\n [30,  4]]  i32[2, 2]");
  EXPECT_EQ(print(Tensor{0.5, -1.25}), "[ 0.5000, -1.2500]  f32[2]");
  EXPECT_EQ(print(Tensor{1.0, 2.0}), "[1., 2.]  f32[2]");
  EXPECT_EQ(print(Tensor(2.5)), "2.5000  f32[]");
  EXPECT_EQ(print(Tensor{true, false}), "[ true, false]  bool[2]");
  EXPECT_EQ(print(Tensor::zeros({2, 0})), "[[],\n []]  f32[2, 0]");
  EXPECT_EQ(print(Tensor{1e-9, 1.0}), "[1.0000e-09, 1.0000e+00]  f32[2]");
  EXPECT_EQ(print(Tensor{{0.1, INFINITY}, {-INFINITY, NAN}}),
            "[[0.1000,    inf],\n [  -inf,    nan]]  f32[2, 2]");
  EXPECT_EQ(print((Tensor{0.0} / 0.0).copysign(-1)), "[nan]  f32[1]");
  std::string large = print(Tensor::arange(2000));
  EXPECT_EQ(large, "[   0,    1,    2, ..., 1997, 1998, 1999]  i32[2000]");
  EXPECT_EQ(print(Tensor()), "no tensor");
}

TEST(Printing, ComputesOnlyWhatItShows) {
  // 256 GiB, of which 36 numbers are computed.
  Tensor rows = Tensor::arange(int64_t{1} << 35, DType::I64).reshape({1 << 20, 1 << 15}) * 2;
  EXPECT_EQ(print(rows[{Slice(0, 2)}]),
            "[[     0,      2,      4, ...,  65530,  65532,  65534],\n"
            " [ 65536,  65538,  65540, ..., 131066, 131068, 131070]]  i64[2, 32768]");
  std::string text = print(rows);
  EXPECT_EQ(text.substr(0, 78),
            "[[          0,           2,           4, ...,       65530,       65532,       ");
  EXPECT_NE(text.find("..., 68719476730, 68719476732, 68719476734]]  i64[1048576, 32768]"),
            text.npos)
      << text;
  EXPECT_EQ(print(Tensor::zeros({int64_t{1} << 40, 0})),
            "[[],\n [],\n [],\n ...,\n [],\n [],\n []]  f32[1099511627776, 0]");
  EXPECT_LT(print(Tensor::ones(Ints(Dims(60, 2)), DType::U8)).size(), size_t{400000});
}

TEST(Constants, AreReducedWithoutCounting) {
  int64_t many = int64_t{1} << 59;
  EXPECT_EQ(Tensor::ones({many}).sum().item<double>(), std::ldexp(1, 59));
  EXPECT_EQ(Tensor::full({1 << 13, 1 << 12}, 3.0, DType::F32).sum(0).shape(), (Dims{1 << 12}));
  EXPECT_EQ(Tensor::ones({1 << 25}).sum().item<float>(), 33554432)
      << "not where f32 stops counting";
  EXPECT_EQ(Tensor::full({many}, 3, DType::I32).sum().item<int32_t>(), 0) << "mod 2^32";
  EXPECT_EQ(Tensor::full({5}, 3, DType::I64).prod().item<int64_t>(), 243);
  EXPECT_EQ(Tensor::full({many - 1}, -1.0).prod().item<float>(), -1);
  EXPECT_EQ(Tensor::full({many}, 0.5).prod().item<float>(), 0);
  EXPECT_EQ(Tensor::full({many}, 7).max().item<int>(), 7);
  EXPECT_EQ((Tensor::ones({many}) * 2).mean().item<float>(), 2);
}

TEST(Variance, TakesAnyCorrection) {
  Tensor x{1.0, 3.0};
  EXPECT_EQ(x.var({}, false, 0).item<float>(), 1);
  EXPECT_EQ(x.var({}, false, INT64_MAX).item<float>(), INFINITY) << "two over nothing";
  EXPECT_EQ(x.var({}, false, INT64_MIN).item<float>(), 2 / std::ldexp(1.0f, 62));
}

TEST(Writing, IsSeenByAllCopies) {
  Tensor x = Tensor::zeros({2, 2});
  const Tensor same = x;  // NOLINT(performance-unnecessary-copy-initialization): the point
  x.assign(Tensor{{1.0, 2.0}, {3.0, 4.0}});
  EXPECT_EQ(same.to_vector<float>(), (Floats{1, 2, 3, 4}));
  x += 1;
  EXPECT_EQ(same.to_vector<float>(), (Floats{2, 3, 4, 5}));
  x *= x;
  x -= 1;
  EXPECT_EQ(same.to_vector<float>(), (Floats{3, 8, 15, 24}));
  x.assign(7);
  EXPECT_EQ(same.to_vector<float>(), (Floats{7, 7, 7, 7}));
  x.assign(Tensor{1.0, 2.0});
  EXPECT_EQ(same.to_vector<float>(), (Floats{1, 2, 1, 2})) << "the value is broadcast";
}

TEST(Writing, KeepsValuesTakenBefore) {
  Tensor x = Tensor{1.0, 2.0}.realize();
  Tensor before = x * 10;
  Tensor kept = x.clone();
  x.assign(x + 5);
  Tensor after = x * 10;
  EXPECT_EQ(after.to_vector<float>(), (Floats{60, 70}));
  EXPECT_EQ(before.to_vector<float>(), (Floats{10, 20}));
  EXPECT_EQ(kept.to_vector<float>(), (Floats{1, 2}));
}

TEST(Writing, SwapsThroughEachOther) {
  Tensor a = Tensor{1.0, 2.0}.realize(), b = Tensor{3.0, 4.0}.realize();
  Tensor old_a = a + 0.0;
  a.assign(b);
  b.assign(old_a);
  Tensor::realize({a, b});
  EXPECT_EQ(a.to_vector<float>(), (Floats{3, 4}));
  EXPECT_EQ(b.to_vector<float>(), (Floats{1, 2}));
}

// A value that reads an old value and the new one is computed beside the old value, and the new one
// with it.
TEST(Writing, HappensOnceWhoeverIsReadFirst) {
  Tensor x = Tensor{6}.realize(), old = x.clone();
  x += 2;
  Tensor both = x * 10 + old;
  EXPECT_EQ(old.item<int>(), 6);
  EXPECT_EQ(both.item<int>(), 86);
  EXPECT_EQ(x.item<int>(), 8);
}

TEST(Writing, ThroughOwnViews) {
  Tensor x = Tensor{{1.0, 2.0, 3.0}, {4.0, 5.0, 6.0}, {7.0, 8.0, 9.0}}.realize();
  x.assign(x.T());
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 4, 7, 2, 5, 8, 3, 6, 9}));
  x.assign(x.flip(0) + x);
  EXPECT_EQ(x.to_vector<float>(), (Floats{4, 10, 16, 4, 10, 16, 4, 10, 16}));
}

TEST(Writing, ManyTimesBeforeReading) {
  Tensor x = Tensor::zeros({3}).realize();
  for (int i = 1; i <= 10; ++i) x.assign(x * 2 + i);
  float expected = 0;
  for (int i = 1; i <= 10; ++i) expected = expected * 2 + static_cast<float>(i);
  EXPECT_EQ(x.to_vector<float>(), Floats(3, expected));
}

TEST(Writing, ItemsByEveryKindOfIndex) {
  Tensor x = Tensor::arange(12).reshape({3, 4}).clone();
  x.setitem({1}, 0);
  EXPECT_EQ(x.to_vector<int>(), (std::vector<int>{0, 1, 2, 3, 0, 0, 0, 0, 8, 9, 10, 11}));
  x.setitem({Slice({}, {}, 2), Slice(3, 0, -2)}, Tensor{{-1, -2}, {-3, -4}});
  EXPECT_EQ(x.to_vector<int>(), (std::vector<int>{0, -2, 2, -1, 0, 0, 0, 0, 8, -4, 10, -3}));
  x.setitem({kEllipsis, -1}, Tensor{5, 6, 7});
  EXPECT_EQ(x.to_vector<int>(), (std::vector<int>{0, -2, 2, 5, 0, 0, 0, 6, 8, -4, 10, 7}));
  x.setitem({Tensor{2, 0}, Tensor{1, -4}}, Tensor{100, 200});
  EXPECT_EQ(x.to_vector<int>(), (std::vector<int>{200, -2, 2, 5, 0, 0, 0, 6, 8, 100, 10, 7}));
  x.setitem({Slice(1, {}), Tensor{0, 2, 0}}, Tensor{1, 2, 3});
  EXPECT_EQ(x.to_vector<int>(), (std::vector<int>{200, -2, 2, 5, 3, 0, 2, 6, 3, 100, 2, 7}))
      << "the last of equal indices wins";
}

TEST(Indexing, FollowsNumpy) {
  Tensor x = Tensor::arange(24).reshape({2, 3, 4});
  EXPECT_EQ((x[{1, 2, 3}].item<int>()), 23);
  EXPECT_EQ((x[{-1, Slice(2, 0, -1), Slice(0, 4, 3)}].to_vector<int>()),
            (std::vector<int>{20, 23, 16, 19}));
  Tensor rows{1, 0}, columns{-1, 2};
  EXPECT_EQ((x[{rows, columns}].shape()), (Dims{2, 4}));
  EXPECT_EQ((x[{rows, columns, 0}].to_vector<int>()), (std::vector<int>{20, 8}));
  EXPECT_EQ((x[{rows, Slice(), columns}].to_vector<int>()),
            (std::vector<int>{15, 19, 23, 2, 6, 10}));
  EXPECT_EQ((x[{Slice(), Tensor{{0}, {2}}, Tensor{1, 3}}].shape()), (Dims{2, 2, 2}));
  EXPECT_EQ((x[{0, Tensor{0, 9}, 1}].to_vector<int>()), (std::vector<int>{1, 0}))
      << "past the end is zero";
}

// A number is no index tensor, wherever it stands: it takes its dim away, and the others see what is
// left. Reading and writing agree.
TEST(Indexing, NumbersTakeTheirDimsAwayFirst) {
  const Tensor x = Tensor::arange(48).reshape({3, 2, 2, 4}).realize();
  const Tensor rows{1, 0, 1}, columns{3, 0, 2};
  struct Case {
    std::vector<Index> index;
    Tensor expected;
  };
  const std::vector<Case> cases = {
      {{-1, Slice(), rows}, x[-1][{Slice(), rows}]},
      {{Slice(), rows, Slice(), 1}, x[{kEllipsis, 1}][{Slice(), rows}]},
      {{0, kNewAxis, rows}, x[0][{kNewAxis, rows}]},
      {{2, Slice(), rows, columns}, x[2][{Slice(), rows, columns}]},
      {{Slice(), rows, 1, columns}, x[{Slice(), Slice(), 1}][{Slice(), rows, columns}]},
      {{1, rows, Slice(), columns}, x[1][{rows, Slice(), columns}]},
  };
  const std::vector<Dims> shapes = {{2, 3, 4}, {3, 3, 2}, {1, 3, 2, 4}, {2, 3}, {3, 3}, {3, 2}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [index, expected] = cases[i];
    EXPECT_EQ(x.at(index).shape(), shapes[i]) << i;
    EXPECT_EQ(x.at(index).to_vector<int>(), expected.to_vector<int>()) << i;
    // Writing a part back to where it was read changes nothing, and a change comes back.
    Tensor y = x.clone();
    y.setitem(index, x.at(index));
    EXPECT_EQ(y.to_vector<int>(), x.to_vector<int>()) << i;
    y.setitem(index, x.at(index) + 100);
    EXPECT_EQ(y.at(index).to_vector<int>(), (expected + 100).to_vector<int>()) << i;
  }
}

// Reads give 0 and writes are dropped, forwards and backwards, for every kind of index.
TEST(Indexing, OutOfRangeReadsZeroAndWritesNothing) {
  Tensor x = Tensor{1.0, 2.0, 3.0}.realize(), src = Tensor{7.0, 8.0, 9.0}.realize();
  Tensor table = Tensor{{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}}.realize();
  for (DType type : {DType::I32, DType::I64, DType::I8}) {
    Tensor index = Tensor{0, 3, -1}.cast(type).realize(), one = Tensor{1, 3, -1}.cast(type);
    EXPECT_EQ(x.gather(0, index).to_vector<float>(), (Floats{1, 0, 0}));
    EXPECT_EQ(x.gather(0, index).sum().gradient({x})[0].to_vector<float>(), (Floats{1, 0, 0}));
    EXPECT_EQ(table.embedding(index).to_vector<float>(), (Floats{1, 2, 0, 0, 0, 0}));
    EXPECT_EQ(table.embedding(index).sum().gradient({table})[0].to_vector<float>(),
              (Floats{1, 1, 0, 0, 0, 0}));
    EXPECT_EQ(x.scatter(0, one, src).to_vector<float>(), (Floats{1, 7, 3}));
    EXPECT_EQ(x.scatter_reduce(0, one, src, ScatterReduce::Sum).to_vector<float>(),
              (Floats{1, 9, 3}));
    EXPECT_EQ(x.scatter_reduce(0, one, src, ScatterReduce::Mean, false).to_vector<float>(),
              (Floats{1, 7, 3}));
    EXPECT_EQ(x.scatter_reduce(0, one, src, ScatterReduce::Amax).to_vector<float>(),
              (Floats{1, 7, 3}));
    EXPECT_EQ(one.one_hot(3).to_vector<int>(), (std::vector<int>{0, 1, 0, 0, 0, 0, 0, 0, 0}));
  }
  // Here, and here alone, -1 is the last.
  Tensor places = Tensor{0, 3, -1, -4};
  EXPECT_EQ(x[places].to_vector<float>(), (Floats{1, 0, 3, 0}));
  EXPECT_EQ(x[places].sum().gradient({x})[0].to_vector<float>(), (Floats{1, 0, 1}));
  Tensor y = x.clone();
  y.setitem({places}, Tensor{5.0, 6.0, 7.0, 8.0});
  EXPECT_EQ(y.to_vector<float>(), (Floats{5, 2, 7}));
  EXPECT_EQ((table[{places, Tensor{5, 0, 1, 0}}].to_vector<float>()), (Floats{0, 0, 6, 0}));
  // A label that names no class picks nothing.
  Tensor log_p = Tensor{{-1.0, -2.0}, {-3.0, -4.0}, {-5.0, -6.0}}.realize(), labels{1, 2, -7};
  // But for labels, which would be losses of 0: those of no class are told.
  const Floats losses = log_p.nll_loss(labels, {}, {}, Reduction::None).to_vector<float>();
  EXPECT_EQ(losses[0], 2);
  EXPECT_TRUE(std::isnan(losses[1]) && std::isnan(losses[2]));
  for (Reduction reduction : {Reduction::Mean, Reduction::Sum}) {
    EXPECT_TRUE(std::isnan(log_p.nll_loss(labels, {}, {}, reduction).item<float>()));
    EXPECT_TRUE(std::isnan(log_p.cross_entropy(labels, {.reduction = reduction}).item<float>()));
  }
  EXPECT_EQ(log_p.nll_loss(labels, {}, {}, Reduction::Sum).gradient({log_p})[0].to_vector<float>(),
            (Floats{0, -1, 0, 0, 0, 0}));
  Tensor pooled = Tensor{5.0, 6.0}.reshape({1, 1, 1, 2});
  EXPECT_EQ(pooled.max_unpool2d(Tensor{3, 99}.reshape({1, 1, 1, 2}), {1, 2}).to_vector<float>(),
            (Floats{0, 0, 0, 5}));
}

TEST(Indices, HoldTheTensorsThatTheyAreMadeOf) {
  std::vector<Index> index;
  index.push_back(Tensor{1, 2});
  index.emplace_back(Tensor{0, 1} + 1);
  std::vector<Tensor> others;
  for (int i = 0; i < 20; ++i) others.push_back(Tensor{0, 0});  // would lie where those were
  Tensor x = Tensor::arange(9).reshape({3, 3});
  EXPECT_EQ(x.at(index).to_vector<int>(), (std::vector<int>{4, 8}));
}

TEST(Joining, BeginsWithTheTensorItself) {
  Tensor x{1, 2}, y{3, 4}, z{5, 6};
  using Ints = std::vector<int>;
  EXPECT_EQ(x.cat({y}).to_vector<int>(), (Ints{1, 2, 3, 4}));
  EXPECT_EQ(x.cat(y).to_vector<int>(), (Ints{1, 2, 3, 4}));
  EXPECT_EQ(x.cat({y, z}).to_vector<int>(), (Ints{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(x.stack({y, z}, 1).to_vector<int>(), (Ints{1, 3, 5, 2, 4, 6}));
  EXPECT_EQ(x.stack(y).to_vector<int>(), (Ints{1, 2, 3, 4}));
  EXPECT_EQ(cat({x}).to_vector<int>(), (Ints{1, 2}));
  EXPECT_EQ(cat({x, y}, -1).to_vector<int>(), (Ints{1, 2, 3, 4}));
}

TEST(Gradients, AddUpOnParameters) {
  Tensor w = Tensor{1.0, 2.0}.is_param_();
  EXPECT_FALSE(w.grad().defined());
  (w * w).sum().backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{2, 4}));
  (w * 3).sum().backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{5, 7}));
  w.set_grad({});
  EXPECT_FALSE(w.grad().defined());
  Tensor other = Tensor{1.0, 1.0}.is_param_();
  (w.detach() * other).sum().backward();
  EXPECT_FALSE(w.grad().defined()) << "detach stops it";
  EXPECT_EQ(other.grad().to_vector<float>(), (Floats{1, 2}));
  Tensor y = w * 2;
  y.backward(Tensor{10.0, 100.0});
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{20, 200}));
}

TEST(Gradients, OfParametersNotYetComputed) {
  Tensor w = Tensor::full({3}, 2.0).is_param_();
  EXPECT_EQ((w * w).sum().backward().item<float>(), 12);
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{4, 4, 4}));
  Tensor a = Tensor::zeros({2}).is_param_(), b = Tensor::zeros({2}).is_param_();
  (a + b * 2).sum().backward();
  EXPECT_EQ(a.grad().to_vector<float>(), (Floats{1, 1})) << "equal parameters are two";
  EXPECT_EQ(b.grad().to_vector<float>(), (Floats{2, 2}));
}

TEST(Gradients, ThatAreZeroAreGiven) {
  Tensor x{0.3, 1.7};
  EXPECT_EQ((x.floor() * 2).sum().gradient({x})[0].to_vector<float>(), (Floats{0, 0}));
}

TEST(Capture, RepeatsAStepWithNewInputs) {
  Tensor total = Tensor::zeros({2}).realize();
  Jit step = [&](const Tensor& x) {
    total.assign(total + x);
    return total * 10;
  };
  for (float i = 1; i <= 4; ++i) {
    Tensor out = step(Tensor(Floats{i, 2 * i}));
    float sum = i * (i + 1) / 2;
    EXPECT_EQ(out.to_vector<float>(), (Floats{10 * sum, 20 * sum}));
  }
  EXPECT_EQ(total.to_vector<float>(), (Floats{10, 20}));
}

class Sharded : public ::testing::TestWithParam<int> {};

TEST_P(Sharded, ValuesAreTheSame) {
  int64_t n = GetParam();
  TINYSHARD_NEED_DEVICES(n);
  Mesh mesh = Mesh::of(device_names(int(n)));
  Floats data;
  for (int i = 0; i < 24; ++i) data.push_back(static_cast<float>(i % 7) - 2);
  Tensor x(data, {6, 4}), w(Floats(data.begin(), data.begin() + 12), {4, 3});
  // The default device may be none of the mesh.
  Tensor expected = (x.matmul(w) + 1).relu().softmax().shard(mesh),
         gradient = x.matmul(w).square().mean().gradient({w})[0].shard(mesh);
  for (int dim : {0, 1}) {
    Tensor xs = x.shard(mesh, {{"data", Shard(dim)}}), ws = w.shard(mesh);
    EXPECT_EQ(xs.to_vector<float>(), data) << dim;
    EXPECT_TRUE((xs.matmul(ws) + 1).relu().softmax().allclose(expected)) << dim;
    EXPECT_EQ(xs.sum().item<float>(), x.sum().item<float>());
    EXPECT_EQ((xs[{Slice(1, 5), 2}].to_vector<float>()), (x[{Slice(1, 5), 2}].to_vector<float>()));
    EXPECT_EQ(xs.flip({0, 1}).to_vector<float>(), x.flip({0, 1}).to_vector<float>());
    EXPECT_EQ(cat({xs, xs}, 0).to_vector<float>(), cat({x, x}, 0).to_vector<float>());
    EXPECT_EQ(xs.cumsum(0).to_vector<float>(), x.cumsum(0).to_vector<float>());
    EXPECT_EQ(xs.sort(0).first.to_vector<float>(), x.sort(0).first.to_vector<float>());
    Tensor loss = xs.matmul(ws).square().mean();
    EXPECT_TRUE(loss.gradient({ws})[0].allclose(gradient, 1e-4));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Sharded, ::testing::Values(1, 2, 3, 4));

// There are more CPU devices than cores, and one that nobody configured is as good as the others.
TEST(Placement, OnAnyCpuDevice) {
  Tensor x = Tensor({1.f, 2.f, 3.f});
  for (const char* name : {"CPU:7", "CPU:1023"}) {
    Tensor y = (x.to(name) * 2).realize();
    EXPECT_EQ(y.sharding().mesh.devices()[0].to_string(), name);
    EXPECT_EQ(y.to_vector<float>(), (Floats{2, 4, 6}));
    EXPECT_EQ((y.to("CPU:0") + 1).to_vector<float>(), (Floats{3, 5, 7}));
  }
  try {
    x.to("CPU:1024").realize();
    ADD_FAILURE() << "CPU:1024 is beyond the last";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("no device \"CPU:1024\": there are 1024 of kind CPU"),
              std::string::npos)
        << e.what();
  }
}

TEST(Placement, IsTold) {
  TINYSHARD_NEED_DEVICES(4);
  Mesh mesh({{"data", 2}, {"model", 2}}, {{device_kind(), DeviceRef::kHere, 0},
                                          {device_kind(), DeviceRef::kHere, 1},
                                          {device_kind(), DeviceRef::kHere, 2},
                                          {device_kind(), DeviceRef::kHere, 3}});
  Tensor a = Tensor::zeros({8, 6}).shard(mesh, {{"data", Shard(0)}, {"model", Shard(1)}});
  Tensor b = Tensor::zeros({6, 4}).shard(mesh, {{"model", Shard(0)}});
  EXPECT_EQ(a.sharding().to_string(), "f32[8@data:2, 6@model:2]");
  EXPECT_EQ(a.matmul(b).sharding().to_string(), "f32[8@data:2, 4]  Partial(sum) over model:2");
  EXPECT_EQ(a.zeros_like().sharding().to_string(), "f32[8@data:2, 6@model:2]");
  for (const Tensor& like : {a.ones_like(), a.full_like(2), a.rand_like(), a.randn_like()})
    EXPECT_EQ(like.sharding().to_string(), "f32[8@data:2, 6@model:2]");
  EXPECT_EQ((a.to_int() < 1e30).sharding().to_string(), "bool[8@data:2, 6@model:2]");
  Tensor::manual_seed(5);
  std::vector<float> drawn = a.rand_like().to_vector<float>();
  Tensor::manual_seed(5);
  EXPECT_EQ(drawn, Tensor::rand({8, 6}).to_vector<float>()) << "the same numbers anywhere";
  EXPECT_EQ(b.shard_like(a).sharding().to_string(), "f32[6@data:2, 4@model:2]");
  std::ostringstream out;
  out << b.sharding();
  EXPECT_EQ(out.str(), "f32[6@model:2, 4]");
  EXPECT_EQ(a.to(device_name(1)).sharding().mesh.devices()[0].to_string(), device_name(1));
}

TEST(Threads, UseDifferentTensorsAtOnce) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::vector<float> results(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &results] {
      Tensor x = Tensor::full({64, 64}, t + 1.0);
      results[t] = (x.matmul(x) * 0.5).sum().item<float>();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < 4; ++t)
    EXPECT_EQ(results[t], 64.f * 64 * 64 * static_cast<float>((t + 1) * (t + 1)) / 2);
}

TEST(Writing, ToWhatWasComputedFromATensorLeavesIt) {
  Tensor x = Tensor::zeros({3, 2}).clone().realize(), row = x[1].clone(), flat = x.reshape({6}) + 0;
  row.setitem({0}, 7);
  flat.assign(Tensor::ones({6}));
  EXPECT_EQ(row.to_vector<float>(), (Floats{7, 0}));
  EXPECT_EQ(flat.to_vector<float>(), Floats(6, 1));
  EXPECT_EQ(x.to_vector<float>(), Floats(6, 0));
}

TEST(Indexing, StepsAndDiagonalsAtTheEnds) {
  const Tensor x{1, 2, 3}, y{{1, 2}, {3, 4}};
  EXPECT_EQ(x[Slice({}, {}, INT64_MAX)].to_vector<int>(), (std::vector<int>{1}));
  EXPECT_EQ(x[Slice({}, {}, INT64_MIN)].to_vector<int>(), (std::vector<int>{3}));
  EXPECT_EQ(y.diagonal(INT64_MIN).shape(), (Dims{0}));
  EXPECT_EQ(y.diagonal(INT64_MAX).shape(), (Dims{0}));
}

}  // namespace
}  // namespace tinyshard::value_test
