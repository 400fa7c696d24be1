// A value has one set of bits, in however many kernels and parts of kernels it is computed; and a
// 16-bit op computes in f32 and rounds once. Both are seen by comparing programs that are computed
// at once with the same programs computed op by op.
#include <functional>

#include <gtest/gtest.h>

#include "core/nn/nn.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "tests/devices.h"

namespace tinyshard::bits_test {
namespace {

using Function = std::function<Tensor(const Tensor&)>;
struct Named {
  const char* name;
  Function f;
};
void PrintTo(const Named& n, std::ostream* out) { *out << n.name; }

// Values from -2 to 2 without a pattern, none of them twice in a row.
Tensor data(const Ints& shape, DType dtype = DType::F32, double phase = 0) {
  Tensor x = Tensor::arange(product(shape.values)).cast(DType::F64) * 1.7 + phase;
  return (x.sin() + (x * 0.37).cos()).cast(dtype).reshape(shape).contiguous().realize();
}

void expect_same_bits(const Tensor& actual, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.dtype(), expected.dtype()) << what;
  ASSERT_EQ(actual.shape(), expected.shape()) << what;
  EXPECT_TRUE(actual.data() == expected.data())
      << what << ": got " << actual << ", expected " << expected;
}

Tensor stored(const Tensor& x) { return x.contiguous().realize(); }

// --- values that are compared with themselves ----------------------------------------------------

// Normalised values, whose sums have many orders to be added up in.
const Named kNorms[] = {
    {"softmax of rows", [](const Tensor& x) { return x.softmax(1); }},
    {"softmax of columns", [](const Tensor& x) { return x.softmax(0); }},
    {"log_softmax", [](const Tensor& x) { return x.log_softmax(1); }},
    {"layernorm", [](const Tensor& x) { return x.layernorm(-1); }},
    {"layernorm of columns", [](const Tensor& x) { return x.layernorm(0); }},
    // Positive numbers: a sum near 0 would show the order of its terms in every digit.
    {"x / sum", [](const Tensor& x) { return x / x.abs().sum(1, true); }},
    {"x / sum of all", [](const Tensor& x) { return x / x.abs().sum(); }},
    {"gelu", [](const Tensor& x) { return x.gelu(); }},
    {"x * y + z", [](const Tensor& x) { return x * x.flip(0) + x.flip(1); }},
    {"cumsum", [](const Tensor& x) { return x.cumsum(0); }},
    {"logsumexp", [](const Tensor& x) { return x - x.logsumexp(1, true); }},
    {"std", [](const Tensor& x) { return x / x.std(1, true); }},
};

// Ops that ask whether a value equals another copy of itself, or which is larger.
const Named kChoices[] = {
    {"argmax", [](const Tensor& y) { return y.argmax(0); }},
    {"topk", [](const Tensor& y) { return y.topk(2, 0).second; }},
    {"sort", [](const Tensor& y) { return y.sort(0).first; }},
    {"argsort of rows", [](const Tensor& y) { return y.sort(1).second; }},
    {"ties", [](const Tensor& y) { return (y == y.max(0, true)).cast(DType::I32).sum(0); }},
    {"below itself", [](const Tensor& y) { return (y < y.min(1, true)).cast(DType::I32).sum(); }},
    {"scatter amax",
     [](const Tensor& y) {
       Tensor index = Tensor::zeros(y.shape(), DType::I32);
       return y.zeros_like().scatter_reduce(0, index, y, ScatterReduce::Amax);
     }},
};

const std::vector<Ints> kShapes = {{4, 3}, {8, 7}, {128, 10}, {17, 33}, {64, 64}, {5, 300}};

class Chosen : public ::testing::TestWithParam<Named> {};

TEST_P(Chosen, AsOfTheStoredValue) {
  for (const Ints& shape : kShapes) {
    Tensor x = data(shape);
    for (const Named& choice : kChoices) {
      std::string what = std::string(choice.name) + " of " + GetParam().name;
      Tensor fused = choice.f(GetParam().f(x)), of_stored = choice.f(stored(GetParam().f(x)));
      if (is_float(fused.dtype())) {  // their sums may be added up in two orders
        EXPECT_TRUE(fused.allclose(of_stored, 1e-5, 1e-6)) << what << " of " << x.describe();
      } else {
        expect_same_bits(fused, of_stored, what);
      }
    }
  }
}

TEST_P(Chosen, GradientsOfMaximaGoWhereTheMaximaAre) {
  for (const Ints& shape : kShapes) {
    for (int64_t axis : {0, 1}) {
      Tensor x = data(shape), y = GetParam().f(x);
      Tensor fused = y.max(axis).sum().gradient({x})[0];
      Tensor cut = GetParam().f(x).contiguous();
      Tensor expected = cut.max(axis).sum().gradient({x})[0];
      // Which elements are reached, and by how much but for the order of sums.
      double largest = (fused - expected).abs().max().item<double>();
      EXPECT_LT(largest, 2e-5) << GetParam().name << " axis " << axis << " of " << x.describe();
    }
  }
}

// Ops that pick elements by their values, as their gradients have to find them again.
const Named kPicks[] = {
    {"min of columns", [](const Tensor& y) { return y.min(0); }},
    {"min of rows", [](const Tensor& y) { return y.min(1); }},
    {"max_pool2d", [](const Tensor& y) { return y.unsqueeze(0).max_pool2d({2, 2}); }},
    {"topk", [](const Tensor& y) { return y.topk(2, 0).first; }},
    {"sort", [](const Tensor& y) { return y.sort(0).first[0]; }},
    {"scatter amin",
     [](const Tensor& y) {
       Tensor index = Tensor::zeros(y.shape(), DType::I32);
       return y.zeros_like().scatter_reduce(0, index, y, ScatterReduce::Amin, false);
     }},
};

TEST_P(Chosen, GradientsGoToWhatWasPicked) {
  for (const Ints& shape : kShapes) {
    Tensor x = data(shape);
    for (const Named& pick : kPicks) {
      Tensor fused = pick.f(GetParam().f(x)).sum().gradient({x})[0];
      Tensor expected = pick.f(GetParam().f(x).contiguous()).sum().gradient({x})[0];
      EXPECT_LT((fused - expected).abs().max().item<double>(), 2e-5)
          << pick.name << " of " << GetParam().name << " of " << x.describe();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Norms, Chosen, ::testing::ValuesIn(kNorms));

// The kernel of the gradient is made again once the maximum has memory, and then wants the count of
// ties in memory, which is computed after the maximum.
TEST(Maxima, OfWindowsAndTheirGradientsInOneRun) {
  Tensor x(std::vector<float>{-1.75, -0.25, -0.75, 0.875}, {1, 2, 2});
  Tensor y = cat({x, x, x}, 0).max_pool2d({2, 2});
  Tensor scale(std::vector<float>{0.5, 0.25, 2}, {3, 1, 1});
  Tensor g = (y * scale).sum().gradient({x})[0];
  Tensor::realize({y, g});
  EXPECT_EQ(g.to_vector<float>(), (std::vector<float>{0, 0, 0, 2.75}));
}

// Sums quotients of which a constant mask leaves out 0 / 0 in three of four lanes.
TEST(Maxima, OfWindowsThatOverlapThePadding) {
  std::vector<double> values{1.25, 1.75, -0.25, 0.125, 1.5, 1.875, -0.5, -1, 0.5};
  Tensor x(values, {1, 3, 1, 3});
  auto loss = [](const Tensor& v) {
    Tensor running = v.logaddexp(v).cumprod(1);
    Tensor top = running.max_pool2d({3, 2}, {.stride = 2, .padding = 1});
    Tensor of_top(std::vector<double>{0.7, 0.8, 0.9, 1.1, 1.2, 1.3}, {1, 3, 1, 2}),
        of_all(std::vector<double>{0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 0.5, 0.6, 0.55}, {1, 3, 1, 3});
    return std::vector<Tensor>{top, running, (top * of_top).sum() + (running * of_all).sum()};
  };
  std::vector<Tensor> results = loss(x);
  Tensor g = results[2].gradient({x})[0];
  Tensor::realize({results[0], results[1], g});
  std::vector<double> slopes = g.to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    auto at = [&](double step) {
      std::vector<double> moved = values;
      moved[i] += step;
      return loss(Tensor(moved, {1, 3, 1, 3}))[2].item<double>();
    };
    EXPECT_NEAR(slopes[i], (at(1e-6) - at(-1e-6)) / 2e-6, 1e-6) << "element " << i;
  }
}

// --- values that are written over what they are computed from ------------------------------------

// The logarithms take the memory of the differences that they are made of, whose sums along the
// first dim are complete by then: in loops of their own, not once for each element that is stored.
TEST(Replaced, WhatIsSummedAlongAnOuterDim) {
  Tensor x = data({2, 3, 2, 6}).shrink({{0, 2}, {0, 3}, {0, 2}, {0, 5}}).repeat({1, 1, 2, 1});
  Tensor logs = x.log_softmax(0), rest = x.fmod(logs), norm = logs.layernorm(1);
  Tensor expected = stored(stored(stored(x).log_softmax(0)).layernorm(1));
  Tensor::realize({norm, rest});
  EXPECT_LT((norm - expected).abs().max().item<float>(), 1e-5F);
}

// --- products and sums ---------------------------------------------------------------------------

// An expression that is too long for one kernel is cut, and what was read by both of its ends alone
// is then wanted by two kernels: one of them would add the rows' terms up in another order.
TEST(Sums, ThatBothPartsOfACutExpressionReadAreComputedOnce) {
  for (const Ints& shape : {Ints{5, 300}, Ints{40, 1000}, Ints{64, 64}}) {
    Tensor sums = data(shape).sum(1), same = sums;
    for (int i = 0; i < 250; ++i) same = (sums < -1000.0 - i).where(sums * 0.5 + i, same);
    EXPECT_EQ((same - sums).abs().max().item<float>(), 0) << shape.values[0];
    const int64_t half = shape.values[0] / 2;
    auto low = [&](const Tensor& x) { return x.shrink({{0, half}}); };
    for (float difference : (low(same) - low(sums)).to_vector<float>())
      EXPECT_EQ(difference, 0) << shape.values[0];
  }
}

TEST(Rounding, OfAProductIsKeptWhereItMeetsASum) {
  for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
    for (int64_t n : {1, 3, 8, 17, 1000}) {
      Tensor a = data({n}, type), b = data({n}, type, 1), c = data({n}, type, 2);
      expect_same_bits(a * b + c, stored(a * b) + c, "a * b + c");
      expect_same_bits(c - a * b, c - stored(a * b), "c - a * b");
    }
  }
}

TEST(Rounding, OfAProductThatOthersReadIsKeptInItsSum) {
  Tensor a = data({64}), b = data({64}, DType::F32, 1);
  Tensor p = a.reshape({64, 1}) * stack({b, -b}, 1);
  Tensor sums = p.sum(1) + (p * 0).max(1);
  for (float s : sums.to_vector<float>()) EXPECT_EQ(s, 0);
}

// Rows and columns that are masked at once, by a number of the loop and by known lanes: registers of
// a vector that are off for certain read nothing of what lies there.
TEST(Movement, OfPartsThatMeetTwiceKeepsTheirBits) {
  for (DType dtype : {DType::F32, DType::F64, DType::I32, DType::F16}) {
    for (int64_t first : {1, 3, 7, 9, 17}) {
      std::vector<double> a(static_cast<size_t>(first)), b{-0.125, 0.75};
      for (size_t i = 0; i < a.size(); ++i) a[i] = double(i % 5) - 2.5;
      Tensor x = Tensor(a).reshape({1, first}).cast(dtype).realize(),
             y = Tensor(b).reshape({1, 2}).cast(dtype).realize();
      Tensor row = cat({x, y, x, y}, 1), both = cat({row, row}, 0);
      std::vector<double> xs = x.to_vector<double>(), ys = y.to_vector<double>(), expected;
      for (int i = 0; i < 4; ++i) {
        expected.insert(expected.end(), xs.begin(), xs.end());
        expected.insert(expected.end(), ys.begin(), ys.end());
      }
      EXPECT_EQ(both.to_vector<double>(), expected) << name(dtype) << " " << first;
    }
  }
}

TEST(Movement, KeepsTheSignOfZero) {
  for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
    Tensor minus = -Tensor::zeros({3}, type).contiguous().realize(), one = Tensor::ones({2}, type);
    auto negative = [](const Tensor& x) {
      return int((1 / x.cast(DType::F64)).to_vector<double>()[0] < 0);
    };
    EXPECT_EQ(negative(cat({minus, one})), 1);
    EXPECT_EQ(negative(cat({one, minus}).shrink({{2, 5}})), 1);
    EXPECT_EQ(negative(stack({minus, minus + 1, minus})[0]), 1);
    EXPECT_EQ(negative(minus.roll(1)), 1);
    EXPECT_EQ(negative(minus.repeat({3})), 1);
    EXPECT_EQ(negative(minus.pad({{0, 2}})), 1);
    EXPECT_EQ(negative(minus.flip(0)), 1);
    EXPECT_EQ(negative(minus.gather(0, Tensor{2, 1})), 1);
    EXPECT_EQ(negative(minus.masked_fill(Tensor{false, true, true}, 1)), 1);
  }
}

// --- 16-bit ops ----------------------------------------------------------------------------------

// Several rows of x meet in each of its first four.
Tensor scattered(const Tensor& x, ScatterReduce reduce) {
  Tensor index = (Tensor::arange(x.numel()) % 4).reshape(x.shape());
  return x.scatter_reduce(0, index, x.flip(0), reduce);
}

const Named kOps[] = {
    {"gelu", [](const Tensor& x) { return x.gelu(); }},
    {"gelu by erf", [](const Tensor& x) { return x.gelu(true); }},
    {"softmax", [](const Tensor& x) { return x.softmax(1); }},
    {"log_softmax", [](const Tensor& x) { return x.log_softmax(1); }},
    {"layernorm", [](const Tensor& x) { return x.layernorm(-1); }},
    {"silu", [](const Tensor& x) { return x.silu(); }},
    {"tanh", [](const Tensor& x) { return x.tanh(); }},
    {"rsqrt", [](const Tensor& x) { return x.abs().rsqrt(); }},
    {"pow", [](const Tensor& x) { return x.pow(5); }},
    {"pow by -3", [](const Tensor& x) { return x.pow(-3); }},
    {"mod", [](const Tensor& x) { return x.mod(0.75); }},
    {"fmod", [](const Tensor& x) { return x.fmod(0.75); }},
    {"floor_div", [](const Tensor& x) { return x.div(0.3125, Rounding::Floor); }},
    {"logaddexp", [](const Tensor& x) { return x.logaddexp(x.flip(0)); }},
    {"lerp", [](const Tensor& x) { return x.lerp(x.flip(0), 0.25); }},
    {"mean", [](const Tensor& x) { return x.mean(1); }},
    {"std", [](const Tensor& x) { return x.std(1); }},
    {"normalize", [](const Tensor& x) { return x.normalize(2, 1); }},
    {"avg_pool2d", [](const Tensor& x) { return x.unsqueeze(0).avg_pool2d({3, 3}); }},
    {"leaky_relu", [](const Tensor& x) { return x.leaky_relu(); }},
    {"nll_loss",
     [](const Tensor& x) {
       return x.nll_loss(Tensor::arange(x.shape(0)) % x.shape(1), x[0].abs() + 0.5);
     }},
    {"batchnorm", [](const Tensor& x) { return x.batchnorm(x[0], x[1], x[2], x[3].abs()); }},
    {"sums and a product", [](const Tensor& x) { return x.cumsum(1); }},
    {"einsum of sums", [](const Tensor& x) { return Tensor::einsum("ij,jk->k", {x, x.T()}); }},
    {"einsum of three",
     [](const Tensor& x) { return Tensor::einsum("ij,ij,ij->j", {x, x.flip(0), x}); }},
    {"cross_entropy",
     [](const Tensor& x) {
       return x.sparse_categorical_crossentropy(Tensor::arange(x.shape(0)) % x.shape(1));
     }},
    {"binary_crossentropy_logits",
     [](const Tensor& x) { return x.binary_crossentropy_logits(x.sigmoid().round()); }},
    {"scatter_reduce by sum", [](const Tensor& x) { return scattered(x, ScatterReduce::Sum); }},
    {"scatter_reduce by product",
     [](const Tensor& x) { return scattered(x, ScatterReduce::Prod); }},
    {"scatter_reduce by mean", [](const Tensor& x) { return scattered(x, ScatterReduce::Mean); }},
};

class Narrow : public ::testing::TestWithParam<Named> {};

TEST_P(Narrow, ComputesInF32AndRoundsOnce) {
  for (DType type : {DType::F16, DType::BF16}) {
    Tensor x = data({9, 33}, type);
    expect_same_bits(GetParam().f(x), GetParam().f(x.cast(DType::F32)).cast(type), GetParam().name);
  }
}

// A chain of 16-bit ops computed at once rounds after each, as op by op.
TEST_P(Narrow, IsTheSameFusedAndStepByStep) {
  for (DType type : {DType::F16, DType::BF16}) {
    Tensor x = data({9, 33}, type), y = data({9, 33}, type, 3);
    Tensor fused = GetParam().f(x * y + 0.03) * 3 - 1;
    Tensor steps = stored(stored(GetParam().f(stored(stored(x * y) + 0.03))) * 3) - 1;
    expect_same_bits(fused, steps, GetParam().name);
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, Narrow, ::testing::ValuesIn(kOps));

// Products of matrices one after the other are those that calls of matmul make; in f32 where it is asked for.
TEST(NarrowEinsum, RoundsWhatAProductOfMatricesReads) {
  // Sums of whole numbers have the same bits in any order, so that each library may take its own.
  auto data = [](const Ints& shape, DType type, double phase = 0) {
    return (bits_test::data(shape, DType::F64, phase) * 3.5).round().cast(type).realize();
  };
  for (DType type : {DType::F16, DType::BF16}) {
    Tensor a = data({5, 24}, type), b = data({24, 7}, type, 1), c = data({7, 9}, type, 2);
    expect_same_bits(Tensor::einsum("ij,jk,kl->il", {a, b, c}), a.matmul(b).matmul(c), "einsum");
    Tensor x = data({24, 5}, type), y = data({24, 7}, type, 1), z = data({24, 9}, type, 2);
    Tensor pairs = (x.unsqueeze(2) * y.unsqueeze(1)).reshape({24, 35});
    expect_same_bits(Tensor::einsum("bi,bj,bk->ijk", {x, y, z}),
                     pairs.transpose(0, 1).matmul(z).reshape({5, 7, 9}), "einsum of pairs");
    auto wide = [](const Tensor& t) { return t.cast(DType::F32); };
    expect_same_bits(Tensor::einsum("ij,jk,kl->il", {a, b, c}, DType::F32),
                     Tensor::einsum("ij,jk,kl->il", {wide(a), wide(b), wide(c)}), "einsum in f32");
  }
}

TEST(NarrowLinear, RoundsOnceAfterTheBias) {
  for (DType type : {DType::F16, DType::BF16}) {
    Tensor x = data({5, 24}, type), w = data({24, 7}, type, 1), b = data({7}, type, 2);
    Tensor expected = (x.matmul(w, DType::F32) + b.cast(DType::F32)).cast(type);
    expect_same_bits(x.linear(w, b), expected, "linear");
  }
}

// A score gathered through the arithmetic that made it is the score that was stored.
TEST(NarrowLoss, OfACertainClassIsNotNegative) {
  Tensor a = Tensor(std::vector<double>{13.0, 1.0, 2.0, 0.5}, {1, 4}).cast(DType::BF16).realize(),
         b = Tensor::full({4}, 0.03, DType::BF16).realize();
  Tensor w = Tensor::ones({4}, DType::BF16).is_param_(), y{0};
  Jit loss = [&](Tensor x) {
    Tensor z = x * w + b;
    Tensor l = z.cast(DType::F32).sparse_categorical_crossentropy(y);
    return std::vector<Tensor>{l, l.gradient({w})[0]};
  };
  EXPECT_NEAR(loss(a)[0].item<double>(), 2.7418e-05, 1e-8);
}

}  // namespace
}  // namespace tinyshard::bits_test
