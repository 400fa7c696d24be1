// Variables: numbers that change from call to call of a captured step.
#include <limits>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::variable_test {
namespace {

TEST(Variable, ChangesWithoutAnotherCapture) {
  Variable pos("pos", 0, 7);
  Tensor table = Tensor::arange(8).square().realize();
  int traced = 0;
  Jit step = [&](Tensor x, Variable p) {
    ++traced;
    Tensor seen = (Tensor::arange(8) <= p).cast(DType::F32);
    return std::tuple(x * p + 1, table[p], seen.sum());
  };
  Tensor x({1.f, 2.f});
  for (int64_t i : {3, 0, 7, 7, 2}) {
    auto [line, square, count] = step(x, pos.bind(i));
    float f = float(i);
    EXPECT_EQ(line.to_vector<float>(), (std::vector<float>{f + 1, 2 * f + 1})) << i;
    EXPECT_EQ(square.item<int64_t>(), i * i);
    EXPECT_EQ(count.item<float>(), f + 1);
  }
  EXPECT_EQ(traced, 1);
}

TEST(Variable, ManyCallsMayBeUnderWay) {
  Variable i("i", 0, 1000);
  Tensor total = Tensor::zeros({1}, DType::I64).clone().realize();
  Jit add = [&](Variable n) { total.assign(total * 3 % 1009 + n); };
  int64_t expected = 0;
  for (int64_t n = 0; n <= 1000; ++n) {
    add(i.bind(n));  // nothing waits for its result
    expected = expected * 3 % 1009 + n;
  }
  EXPECT_EQ(total.item<int64_t>(), expected);
}

// Tokens that come singly over a cache of keys and values give what all at once give.
TEST(Variable, DecodesWithACache) {
  constexpr int64_t kLength = 6, kWidth = 4;
  Tensor::manual_seed(3);
  Tensor q = Tensor::randn({kLength, kWidth}).realize(),
         k = Tensor::randn({kLength, kWidth}).realize(),
         v = Tensor::randn({kLength, kWidth}).realize();
  auto attend = [](const Tensor& rows, const Tensor& keys, const Tensor& values,
                   const Tensor& seen) {
    Tensor scores = rows.matmul(keys.T());
    return scores.masked_fill(!seen, -std::numeric_limits<float>::infinity())
        .softmax()
        .matmul(values);
  };
  Tensor all = attend(q, k, v, Tensor::ones({kLength, kLength}, DType::Bool).tril());

  Tensor keys = Tensor::zeros({kLength, kWidth}).clone().realize(),
         values = Tensor::zeros({kLength, kWidth}).clone().realize();
  Variable pos("pos", 0, kLength - 1);
  Jit next = [&](Tensor row, Tensor key, Tensor value, Variable p) {
    keys.setitem({p}, key[0]);
    values.setitem({p}, value[0]);
    return attend(row, keys, values, (Tensor::arange(kLength) <= p).reshape({1, kLength}));
  };
  for (int64_t i = 0; i < kLength; ++i) {
    auto row = [i](const Tensor& x) { return x[Slice(i, i + 1)].contiguous().realize(); };
    Tensor y = next(row(q), row(k), row(v), pos.bind(i));
    EXPECT_TRUE(y.allclose(all[Slice(i, i + 1)], 1e-5, 1e-6)) << i;
  }
}

TEST(Variable, IsAConstantOutsideOfSteps) {
  Variable n("n", -5, 5);
  EXPECT_EQ((n.bind(-3) * Tensor({1.f, 2.f})).to_vector<float>(), (std::vector<float>{-3, -6}));
  EXPECT_EQ(n.bind(4).tensor().item<int64_t>(), 4);
  EXPECT_EQ(n.bind(4).value(), 4);
  EXPECT_EQ(n.name(), "n");
  EXPECT_EQ(n.min(), -5);
  EXPECT_EQ(n.max(), 5);
}

TEST(Variable, MeetsNumbersAndVariablesInOperators) {
  Variable p("p", 0, 9), q("q", 0, 9);
  Jit step = [](Variable a, Variable b) {
    return std::vector<Tensor>{a + 1, 10 - a, a * b, a % 3, (a < b), (a == 4), (a | 3)};
  };
  const std::vector<Tensor> r = step(p.bind(4), q.bind(5));
  std::vector<int> values;
  for (const Tensor& t : r) values.push_back(t.item<int>());
  EXPECT_EQ(values, (std::vector<int>{5, 6, 20, 1, 1, 1, 7}));
}

TEST(Variable, StepsMayShareOne) {
  Variable n("n", 0, 9);
  Jit twice = [](Tensor x, Variable v) { return x * v * 2; };
  Jit plus = [](Tensor x, Tensor v) { return x + v; };  // as a tensor
  Tensor x({1.f});
  for (int64_t i : {1, 5, 9}) {
    EXPECT_EQ(twice(x, n.bind(i)).item<float>(), float(2 * i));
    EXPECT_EQ(plus(x, n.bind(9 - i)).item<float>(), float(10 - i));
  }
}

TEST(Variable, HasItsValueThoughAStepWroteOverIt) {
  Variable n("n", 0, 9);
  Jit step = [](Variable v) {
    Tensor before = v.tensor() * 1;
    v.tensor() += 100;
    return before;
  };
  for (int64_t i : {4, 4, 4, 7}) EXPECT_EQ(step(n.bind(i)).item<int64_t>(), i);
}

TEST(Variable, MeetsShardedTensors) {
  TINYSHARD_NEED_DEVICES(2);
  Tensor x = Tensor::arange(8).cast(DType::F32).shard(device_names(2), 0).realize();
  Variable n("n", 0, 7);
  Jit step = [&](Variable v) { return (x * v).sum() + x[v]; };
  for (int64_t i : {0, 6, 3}) EXPECT_EQ(step(n.bind(i)).item<float>(), float(28 * i + i));
}

// A flip of a slice is a view of it, whether the slice has a name or not.
TEST(Variable, SlicesThatEndThereAreReadAndWrittenBackwards) {
  using Floats = std::vector<float>;
  Variable n("n", 1, 6);
  Tensor line = Tensor::arange(8).cast(DType::F32).clone().realize();
  Jit reads = [&](Variable v) { return line[Slice(0, v)].flip({0}).to_bound(-1); };
  EXPECT_EQ(reads(n.bind(3)).to_vector<float>(), (Floats{2, 1, 0, -1, -1, -1}));
  EXPECT_EQ(reads(n.bind(6)).to_vector<float>(), (Floats{5, 4, 3, 2, 1, 0}));
  Jit unnamed = [&](Variable v) { line[Slice(0, v)].flip({0}) += Tensor::arange(v) * 10; };
  unnamed(n.bind(3));
  EXPECT_EQ(line.to_vector<float>(), (Floats{20, 11, 2, 3, 4, 5, 6, 7}));
  unnamed(n.bind(2));
  EXPECT_EQ(line.to_vector<float>(), (Floats{30, 11, 2, 3, 4, 5, 6, 7}));
  Jit named = [&](Variable v) {
    Tensor back = line[Slice(0, v)].flip({0});
    back += 1;
    return back.sum();
  };
  EXPECT_EQ(named(n.bind(2)).item<float>(), 43);
  EXPECT_EQ(line.to_vector<float>(), (Floats{31, 12, 2, 3, 4, 5, 6, 7}));
  Tensor rows = Tensor::zeros({6, 2}).clone().realize();
  Jit column = [&](Variable v) {
    rows[Slice(0, v)].flip({0, 1})[{Slice(), 0}] = Tensor::arange(v) + 1;
  };
  column(n.bind(3));
  EXPECT_EQ(rows.to_vector<float>(), (Floats{0, 3, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0}));
}

TEST(Variable, MistakesAreSentences) {
  Variable pos("pos", 0, 4095);
  EXPECT_NE(test::message_of<UserError>([&] {
              pos.bind(4096);
            }).find("bind: 4096 is outside of \"pos\", which goes from 0 to 4095"),
            std::string::npos);
  EXPECT_NE(test::message_of<UserError>([&] { pos.bind(-1); }).find("-1 is outside"),
            std::string::npos);
  EXPECT_NE(test::message_of<UserError>([&] { pos.value(); }).find("\"pos\" is bound to no value"),
            std::string::npos);
  EXPECT_NE(test::message_of<UserError>([&] {
              Variable("k", 3, 2);
            }).find("\"k\" has no values from 3 to 2"),
            std::string::npos);
  Jit step = [](Tensor x, Variable p) { return x + p; };
  EXPECT_NE(test::message_of<UserError>([&] {
              step(Tensor({1.f}), pos);
            }).find("\"pos\" is bound to no value"),
            std::string::npos);
  Jit reads = [](Tensor x, Variable p) { return x + double(p.value()); };
  EXPECT_NE(test::message_of<UserError>([&] {
              reads(Tensor({1.f}), pos.bind(1));
            }).find("use it as a tensor"),
            std::string::npos);
  EXPECT_EQ(step(Tensor({1.f}), pos.bind(2)).item<float>(), 3);
}

}  // namespace
}  // namespace tinyshard::variable_test
