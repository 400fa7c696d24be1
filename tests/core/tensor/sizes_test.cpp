// Places and sizes that change from call to call of a captured step: compared with the same program
// on plain numbers.
#include <cmath>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/codegen/codegen.h"
#include "core/exec/schedule_of.h"
#include "core/schedule/schedule.h"
#include "core/uop/args.h"
#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::sizes_test {
namespace {

// Loads in the kernels of a schedule from buffers of so many elements.
int loads_of(const Schedule& schedule, int64_t numel) {
  int count = 0;
  for (const Item& item : schedule.items) {
    if (item.kind != Item::Kind::Kernel) continue;
    for (const UOp& x : toposort(std::span(&item.kernel.sink, 1))) {
      count +=
          x.op() == Op::Load && item.kernel.params[static_cast<size_t>(slot_of(*x))].numel == numel;
    }
  }
  return count;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && (a == b).all().item<bool>();
}

TEST(Places, SetitemWritesTheRowAlone) {
  constexpr int64_t kRows = 40, kWidth = 6;
  Variable pos("pos", 0, kRows - 1);
  auto fresh = [] {
    return Tensor::arange(3 * kRows * kWidth).cast(DType::F32).reshape({3, kRows, kWidth}).clone();
  };
  const Tensor row = Tensor::full({3, kWidth}, -5.0).contiguous().realize(),
               line = Tensor::full({kWidth}, -7.0).contiguous().realize();
  for (int64_t p : {0, 1, 17, 39}) {
    SCOPED_TRACE(p);
    Tensor in_dim_1 = fresh().realize(), in_both = fresh().realize(), part = fresh().realize();
    Jit step = [&](Variable at) {
      in_dim_1.setitem({Slice(), at}, row);
      in_both.setitem({2, at}, line);
      part.setitem({Slice(1, 3), at, Slice(0, 2)}, 9);
    };
    step(pos.bind(p));
    EXPECT_EQ(loads_of(schedule_of(step.captured_step()), 3 * kRows * kWidth), 0);
    Tensor expected = fresh().realize();
    expected.setitem({Slice(), p}, row);
    EXPECT_TRUE(same(in_dim_1, expected));
    expected = fresh().realize();
    expected.setitem({2, p}, line);
    EXPECT_TRUE(same(in_both, expected));
    expected = fresh().realize();
    expected.setitem({Slice(1, 3), p, Slice(0, 2)}, 9);
    EXPECT_TRUE(same(part, expected));
  }
}

TEST(Places, SetitemAtTwoPlacesAndBeforeTheEnd) {
  Variable a("a", -4, 3), b("b", 0, 4);
  Tensor x = Tensor::zeros({4, 5}).clone().realize();
  Jit step = [&](Tensor v, Variable i, Variable j) { x.setitem({i, j}, v); };
  std::vector<float> expected(20);
  float value = 1;
  for (int64_t i : {0, 3, -1, -4}) {
    for (int64_t j : {0, 2, 4}) {
      step(Tensor({value}).reshape({}), a.bind(i), b.bind(j));
      expected[static_cast<size_t>((i + 4) % 4 * 5 + j)] = value++;
      EXPECT_EQ(x.to_vector<float>(), expected);
    }
  }
}

// The old row is wanted beside the new one.
TEST(Places, SetitemBesideTheOldValues) {
  Variable pos("pos", 0, 7);
  Tensor x = Tensor::zeros({8, 3}).clone().realize();
  Jit step = [&](Variable p) {
    Tensor before = x * 2;
    x.setitem({p}, x[p] + 1);
    return before.sum();
  };
  float sum = 0;
  for (int64_t i : {0, 3, 3, 7}) {
    EXPECT_EQ(step(pos.bind(i)).item<float>(), sum);
    sum += 6;
  }
  EXPECT_EQ(x[3].to_vector<float>(), (std::vector<float>{2, 2, 2}));
}

// --- sizes ---------------------------------------------------------------------------------------

constexpr int64_t kBound = 37;
constexpr int64_t kValues[] = {0, 1, 2, 7, 16, 33, 37};

// f of the first p rows of x, in a step with p as a Variable and with plain slices. What f gives
// may be of a symbolic size: then both sides are compared at the bound, 7 behind what there is.
template <class F>
void expect_as_plain(const Tensor& x, const F& f, int64_t least = 0, double tolerance = 1e-5) {
  Variable n("n", least, kBound);
  int traced = 0;
  Jit step = [&](Variable p) {
    ++traced;
    return f(x[Slice(0, p)]).to_bound(7);
  };
  for (int64_t value : kValues) {
    if (value < least) continue;
    SCOPED_TRACE(value);
    Tensor actual = step(n.bind(value)), expected = f(x[Slice(0, value)].contiguous().realize());
    Pairs behind;
    for (int64_t d = 0; d < actual.ndim(); ++d)
      behind.emplace_back(0, actual.shape(d) - expected.shape(d));
    expected = expected.pad(behind, 7);
    ASSERT_EQ(actual.shape(), expected.shape());
    ASSERT_EQ(actual.dtype(), expected.dtype());
    EXPECT_TRUE(
        actual.cast(DType::F64).allclose(expected.cast(DType::F64), tolerance, tolerance, true))
        << actual << expected;
  }
  EXPECT_EQ(traced, 1);
}

Tensor rows(int64_t width = 5, DType dtype = DType::F32) {
  Tensor::manual_seed(11);
  return Tensor::randn({kBound, width}).cast(dtype).realize();
}

TEST(Sizes, Elementwise) {
  expect_as_plain(rows(), [](const Tensor& x) { return (x.exp() + 1) * x - x.tanh() / 2; });
  expect_as_plain(rows(), [](const Tensor& x) { return (x > 0).where(x, x.square().neg()); });
  expect_as_plain(rows(), [](const Tensor& x) { return x.masked_fill(x < 0, 3).cast(DType::I32); });
  expect_as_plain(rows(5, DType::BF16), [](const Tensor& x) { return x * x + x; });
  expect_as_plain(rows(), [](const Tensor& x) {
    return x.elu() + x.leaky_relu() * x.erf() - x.lerp(x.swish(), 0.25).hardtanh() + x.round();
  });
  expect_as_plain(rows(5, DType::I32), [](const Tensor& x) { return (x << 2) + x.fmod(3); });
  Tensor line = Tensor::randn({1, 5}).realize();
  expect_as_plain(rows(), [&](const Tensor& x) { return (x * line).maximum(line); });
}

TEST(Sizes, Reductions) {
  for (DType dtype : {DType::F32, DType::F64, DType::BF16, DType::I32}) {
    SCOPED_TRACE(name(dtype));
    Tensor x = rows(5, dtype);
    const double near = dtype == DType::BF16 ? 0.02 : 1e-5;
    expect_as_plain(x, [](const Tensor& t) { return t.sum(0); }, 0, near);
    expect_as_plain(x, [](const Tensor& t) { return t.sum(); }, 0, near);
    expect_as_plain(x, [](const Tensor& t) { return t.sum(1); }, 0, near);
    expect_as_plain(x, [](const Tensor& t) { return t.mean(0, true); }, 1, near);
    expect_as_plain(x, [](const Tensor& t) { return t.max(0); }, 1, near);
    expect_as_plain(x, [](const Tensor& t) { return t.min(); }, 1, near);
    expect_as_plain(x, [](const Tensor& t) { return (t * 0 + 2).prod(0); }, 0, near);
  }
  expect_as_plain(rows(), [](const Tensor& x) { return (x > 1).any(0); });
  expect_as_plain(rows(), [](const Tensor& x) { return (x < 1).all(); });
  expect_as_plain(rows(), [](const Tensor& x) { return x.logsumexp(0); }, 1);
  expect_as_plain(rows(), [](const Tensor& x) { return x.layernorm(0); }, 1);
}

TEST(Sizes, Variance) {
  for (DType dtype : {DType::F32, DType::F64, DType::I32}) {
    expect_as_plain(rows(5, dtype), [](const Tensor& x) { return x.var(0); }, 2, 1e-4);
    expect_as_plain(rows(5, dtype), [](const Tensor& x) { return x.std(0, true, 0); }, 1, 1e-4);
    expect_as_plain(
        rows(5, dtype), [](const Tensor& x) { return x.var({0, 1}, false, 3); }, 1, 1e-4);
    expect_as_plain(rows(5, dtype), [](const Tensor& x) { return x.std(1); });
  }
  expect_as_plain(rows(), [](const Tensor& x) { return x.var_mean(0).first; }, 2, 1e-4);
  expect_as_plain(rows(), [](const Tensor& x) { return x.std_mean(0).second; }, 1, 1e-4);
  expect_as_plain(rows(), [](const Tensor& x) { return x.normalize(2, 0); });
  expect_as_plain(rows(), [](const Tensor& x) { return x.normalize(1, 1); });
}

// Values behind the size are larger than all before it, or NaN.
TEST(Sizes, Places) {
  const Tensor up = Tensor::arange(kBound * 3).reshape({kBound, 3}).realize();
  const Tensor nans = cat({rows(3)[Slice(0, 20)], Tensor::full({kBound - 20, 3}, NAN)}).realize();
  for (const Tensor& x : {rows(3), up, up.cast(DType::F32).realize(), nans, (-up).realize()}) {
    expect_as_plain(x, [](const Tensor& t) { return t.argmax(0); }, 1);
    expect_as_plain(x, [](const Tensor& t) { return t.argmin(0, true); }, 1);
    expect_as_plain(x, [](const Tensor& t) { return t.argmax(1); });
    expect_as_plain(x, [](const Tensor& t) { return t[{Slice(), 1}].argmin(); }, 1);
  }
  expect_as_plain(
      Tensor::full({kBound, 2}, -INFINITY).realize(), [](const Tensor& t) { return t.argmax(0); },
      1);
}

TEST(Sizes, RunningTotals) {
  for (DType dtype : {DType::F32, DType::I32}) {
    expect_as_plain(rows(4, dtype), [](const Tensor& x) { return x.cumsum(0); });
    expect_as_plain(rows(4, dtype), [](const Tensor& x) { return x.cumsum(1) + 1; });
    expect_as_plain(rows(4, dtype), [](const Tensor& x) { return x.cumprod(0).sum(0); }, 0, 1e-4);
  }
  const Tensor nans = cat({rows(3)[Slice(0, 20)], Tensor::full({kBound - 20, 3}, NAN)}).realize();
  expect_as_plain(nans, [](const Tensor& x) { return x.cumsum(0); });
}

TEST(Sizes, Backwards) {
  expect_as_plain(rows(4), [](const Tensor& x) { return x.flip(0); });
  expect_as_plain(rows(4), [](const Tensor& x) { return x.flip({0, 1}) * 2; });
  expect_as_plain(rows(4), [](const Tensor& x) { return x.flip(1).sum(0); });
  expect_as_plain(rows(4), [](const Tensor& x) { return (x.flip(0) + x).max(1); });
}

TEST(Sizes, Softmax) {
  expect_as_plain(rows(), [](const Tensor& x) { return x.softmax(0); }, 1);
  expect_as_plain(rows(), [](const Tensor& x) { return x.T().softmax(-1); }, 1);
  expect_as_plain(rows(), [](const Tensor& x) { return x.softmax(1); });
  expect_as_plain(rows(), [](const Tensor& x) { return x.log_softmax(0); }, 1);
  expect_as_plain(rows(5, DType::BF16), [](const Tensor& x) { return x.softmax(0); }, 1, 0.02);
}

TEST(Sizes, Products) {
  Tensor w = Tensor::randn({5, 6}).realize(), q = Tensor::randn({2, 5}).realize();
  expect_as_plain(rows(), [&](const Tensor& x) { return x.matmul(w); });
  expect_as_plain(rows(), [&](const Tensor& x) { return q.matmul(x.T()); });
  expect_as_plain(rows(), [&](const Tensor& x) { return x.T().matmul(x); });
  expect_as_plain(rows(), [&](const Tensor& x) { return x.matmul(x.T()); });
  expect_as_plain(
      rows(), [&](const Tensor& x) { return q.matmul(x.T()).softmax(-1).matmul(x); }, 1);
  expect_as_plain(rows(5, DType::F64), [&](const Tensor& x) { return x.T().matmul(x.exp()); });
  Tensor many = Tensor::randn({5, 20}).realize();
  expect_as_plain(rows(20), [&](const Tensor& x) { return x.T().matmul(x).sum(0); });
  expect_as_plain(rows(), [&](const Tensor& x) { return x.matmul(many).relu().sum(0); });
  expect_as_plain(rows(), [&](const Tensor& x) { return x.linear(many, many.sum(0)).relu(); });
}

TEST(Sizes, Attention) {
  Tensor::manual_seed(2);
  Tensor kv = Tensor::randn({kBound, 2, 8}).realize(), q = Tensor::randn({4, 1, 8}).realize();
  AttentionOptions grouped;
  grouped.enable_gqa = true;
  expect_as_plain(
      kv,
      [&](const Tensor& x) {
        Tensor k = x.permute({1, 0, 2});
        return q.scaled_dot_product_attention(k, k * 2, {}, grouped);
      },
      1);
  Tensor half = q.cast(DType::BF16);
  expect_as_plain(
      kv.cast(DType::BF16).realize(),
      [&](const Tensor& x) {
        Tensor k = x.permute({1, 0, 2});
        return half.scaled_dot_product_attention(k, k, {}, grouped);
      },
      1, 0.03);
}

TEST(Sizes, Movement) {
  expect_as_plain(rows(6), [](const Tensor& x) { return x.unsqueeze(0).transpose(0, 1) + 1; });
  expect_as_plain(
      rows(6), [](const Tensor& x) { return x.reshape({kBound, 2, 3}).sum(1); }, kBound);
  expect_as_plain(rows(1), [](const Tensor& x) { return x.squeeze(1).expand({4, -1}) * 2; });
  expect_as_plain(rows(6), [](const Tensor& x) { return x[{Slice(), Slice(1, 4)}].exp(); });
  expect_as_plain(rows(6), [](const Tensor& x) { return x[{Slice(), 2}] - 1; });
  expect_as_plain(rows(6), [](const Tensor& x) { return x.pad({{0, 0}, {1, 2}}, 3); });
  expect_as_plain(rows(6), [](const Tensor& x) { return x.roll(2, 1); });
  expect_as_plain(rows(6), [](const Tensor& x) { return x.repeat({1, 2}); });
  expect_as_plain(rows(6), [](const Tensor& x) { return x.split(3, 1)[1] - x.chunk(2, 1)[0]; });
  expect_as_plain(rows(6), [](const Tensor& x) { return stack({x, x + 1}, 1); });
  const Tensor table = rows(4);
  expect_as_plain(Tensor::arange(kBound).realize(),
                  [&](const Tensor& x) { return table.embedding(x % 7); });
  expect_as_plain(Tensor::arange(kBound).realize(),
                  [](const Tensor& x) { return (x % 3).one_hot(4); });
}

TEST(Sizes, Cat) {
  Tensor before = Tensor::randn({3, 5}).realize();
  auto cat_both = [&](const Tensor& x) { return cat({before, x, before, x * 2}, 0); };
  expect_as_plain(rows(), cat_both);
  expect_as_plain(rows(), [&](const Tensor& x) { return cat({x, before}, 0).sum(0); });
  expect_as_plain(rows(), [&](const Tensor& x) { return cat({x, x * 2}, 1); });
}

TEST(Sizes, SumsOfVariables) {
  Tensor x = Tensor::arange(100).cast(DType::F32).realize();
  Variable a("a", 0, 20), b("b", 1, 30);
  Jit step = [&](Variable p, Variable q) {
    Tensor line = x[Slice(3, p * 2 + q + 5)];
    EXPECT_EQ(line.describe(), "f32[2 + 2 * a + b <= 72]");
    EXPECT_EQ(Tensor::arange(p + 1).describe(), "i32[1 + a <= 21]");
    return std::tuple(line.sum(), Tensor::arange(q - 1).sum(),
                      (x[Slice(0, p + q)] + x[Slice(0, q + p)]).max());
  };
  for (auto [p, q] : {std::pair{0, 1}, {20, 30}, {7, 13}}) {
    auto [sum, counts, top] = step(a.bind(p), b.bind(q));
    float expected = 0;
    for (int i = 3; i < 2 * p + q + 5; ++i) expected += float(i);
    EXPECT_EQ(sum.item<float>(), expected);
    EXPECT_EQ(counts.item<int>(), (q - 1) * (q - 2) / 2);
    EXPECT_EQ(top.item<float>(), float(2 * (p + q - 1)));
  }
}

// Indices that count as far as the step says.
TEST(Sizes, CountedIndices) {
  const Tensor x = Tensor::arange(32).reshape({8, 4}).realize();
  Variable n("n", 0, 8);
  Jit step = [&](Variable p) {
    const Tensor rows = Tensor::arange(p);
    return x[{rows, rows % 4}].sum();
  };
  for (int value : {3, 8, 0, 5}) {
    int expected = 0;
    for (int i = 0; i < value; ++i) expected += 4 * i + i % 4;
    EXPECT_EQ(step(n.bind(value)).item<int>(), expected) << value;
  }
}

// A variable that is bound outside of a step is a plain number.
TEST(Sizes, ArePlainOutsideOfSteps) {
  Variable n("n", 0, 30);
  Tensor x = Tensor::arange(40).cast(DType::F32);
  EXPECT_EQ(x[Slice(0, n.bind(5))].shape(), (Dims{5}));
  EXPECT_EQ(x[Slice(2, n.bind(5) + 1)].to_vector<float>(), (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ(Tensor::arange(n.bind(3)).to_vector<int>(), (std::vector<int>{0, 1, 2}));
}

TEST(Sizes, SetitemOfSlices) {
  Variable n("n", 0, 8);
  Tensor x = Tensor::zeros({3, 10}).clone().realize(), y = Tensor::ones({3, 10}).realize();
  Jit step = [&](Variable p) {
    x.setitem({Slice(), Slice(1, p + 1)}, y[{Slice(), Slice(0, p)}] * 2);
    x.setitem({2, Slice(0, p)}, 5);
  };
  for (int64_t value : {3, 0, 8}) {
    Tensor expected = x.clone().realize();
    if (value > 0) {
      expected.setitem({Slice(), Slice(1, value + 1)}, 2);
      expected.setitem({2, Slice(0, value)}, 5);
    }
    step(n.bind(value));
    EXPECT_TRUE(same(x, expected)) << value << x << expected;
  }
}

TEST(Sizes, OnSeveralDevices) {
  TINYSHARD_NEED_DEVICES(2);
  Tensor::manual_seed(4);
  Tensor whole = Tensor::randn({4, kBound, 6}).realize(), q = Tensor::randn({4, 1, 6}).realize();
  Variable n("n", 1, kBound);
  for (int axis : {-1, 0, 1, 2}) {
    SCOPED_TRACE(axis);
    auto placed = [&](const Tensor& x, int dim) {
      Tensor on = dim < 0 ? x.shard(device_names(2)) : x.shard(device_names(2), dim);
      return on.realize();
    };
    Tensor x = placed(whole, axis), query = placed(q, axis == 1 ? -1 : axis);
    Jit step = [&](Variable p) {
      Tensor k = x[{Slice(), Slice(0, p)}];
      Tensor out = query.matmul(k.transpose(-1, -2)).softmax(-1).matmul(k);
      // Along the size: weights of each place, so that its order counts.
      const Tensor place = Tensor::arange(p).cast(DType::F32).unsqueeze(1);
      return std::tuple(out, k.exp().sum(1), k.max(), (k.cumsum(1) * place).sum(1),
                        (k.flip(1) * place).sum(1), k.var(1, false, 0), k.argmax(1));
    };
    for (int64_t value : kValues) {
      if (value < 1) continue;
      Tensor k = whole[{Slice(), Slice(0, value)}].contiguous().realize();
      auto [out, sums, top, totals, backwards, variance, best] = step(n.bind(value));
      const Tensor place = Tensor::arange(value).cast(DType::F32).unsqueeze(1);
      Tensor expected = q.matmul(k.transpose(-1, -2)).softmax(-1).matmul(k);
      auto near = [](const Tensor& a, const Tensor& b) {
        std::vector<float> u = a.to_vector<float>(), v = b.to_vector<float>();
        float most = 1;  // terms as large cancel each other
        for (float value : v) most = std::max(most, std::abs(value));
        bool all = u.size() == v.size();
        for (size_t i = 0; all && i < u.size(); ++i)
          all = std::abs(u[i] - v[i]) <= 2e-5f * (1 + most);
        return all;
      };
      EXPECT_TRUE(near(out, expected)) << value;
      EXPECT_TRUE(near(sums, k.exp().sum(1))) << value;
      EXPECT_EQ(top.item<float>(), k.max().item<float>()) << value;
      EXPECT_TRUE(near(totals, (k.cumsum(1) * place).sum(1))) << value;
      EXPECT_TRUE(near(backwards, (k.flip(1) * place).sum(1))) << value;
      EXPECT_TRUE(near(variance, k.var(1, false, 0))) << value;
      EXPECT_EQ(best.to_vector<int>(), k.argmax(1).to_vector<int>()) << value;
    }
  }
}

TEST(Sizes, MistakesAreSentences) {
  Tensor x = Tensor::ones({40, 6}).realize(), other = Tensor::ones({40, 6}).realize();
  Variable n("n", 0, 40), m("m", 0, 40), far("far", 0, 41);
  auto message = [&](auto f) {
    Jit step = [&](Variable p, Variable q, Variable r) { return f(p, q, r); };
    return test::message_of<UserError>([&] { step(n.bind(2), m.bind(2), far.bind(2)); });
  };
  auto expect = [&](auto f, const char* part) {
    const std::string text = message(f);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  using V = const Variable&;
  expect([&](V p, V, V) { return (x[Slice(0, p)] + other).sum(); }, "sizes differ: n <= 40 and 40");
  expect([&](V p, V q, V) { return (x[Slice(0, p)] + x[Slice(0, q)]).sum(); },
         "sizes differ: n <= 40 and m <= 40");
  expect([&](V p, V q, V) { return x[Slice(0, p)].T().matmul(x[Slice(0, q)]); },
         "inner sizes differ");
  expect([&](V p, V, V) { return x[Slice(0, p)].reshape({-1}).sum(); },
         "cannot be divided or joined");
  expect([&](V p, V, V) { return x[Slice(0, p)][Slice(0, 3)].sum(); }, "cannot be cut");
  expect([&](V p, V, V) { return x[Slice(0, p)][3].sum(); }, "cannot be cut");
  expect([&](V p, V, V) { return x[Slice(0, p)].argmax(0); }, "argmax: n may be 0");
  // A method that takes no such size names itself, the size, and the way out.
  struct Refused {
    const char* op;
    Tensor (*call)(const Tensor&);
  };
  for (const auto& [op, call] :
       {Refused{"sort", [](const Tensor& t) { return t.sort(0).first; }},
        Refused{"argsort", [](const Tensor& t) { return t.argsort(0); }},
        Refused{"topk", [](const Tensor& t) { return t.topk(1, 0).first; }},
        Refused{"cummax", [](const Tensor& t) { return t.cummax(0).first; }},
        Refused{"repeat", [](const Tensor& t) { return t.repeat({2, 1}); }},
        Refused{"pad", [](const Tensor& t) { return t.pad({{1, 0}, {0, 0}}); }},
        Refused{"roll", [](const Tensor& t) { return t.roll(1, 0); }},
        Refused{"gather",
                [](const Tensor& t) { return t.gather(0, Tensor::zeros({2, 6}, DType::I32)); }},
        Refused{"unfold", [](const Tensor& t) { return t.unfold(0, 2, 1); }},
        Refused{"conv2d", [](const Tensor& t) {
                  return t.reshape({1, 1, 40, 6}).conv2d(Tensor::ones({1, 1, 2, 2}));
                }}}) {
    const std::string text =
        message([&, call = call](V p, V, V) { return call(x[Slice(0, p)]).sum(); });
    EXPECT_EQ(text.find(std::string(op) + ": "), 0u) << text;
    EXPECT_NE(text.find(" n"), std::string::npos) << text;
    EXPECT_NE(text.find("its size is known when the step runs"), std::string::npos) << text;
  }
  expect([&](V p, V, V) { return x[Slice(0, p)] * 2; },
         "result 0 has a dim of size n, from 0 to 40");
  expect([&](V, V, V r) { return x[Slice(0, r)].sum(); }, "far from 0 to 41 does not lie inside");
  expect([&](V p, V, V) { return x[Slice(0, p - 1)].sum(); }, "from -1 to 39");
  expect([&](V p, V, V) { return x[Slice(0, p * p)].sum(); }, "is no size");
  expect([&](V p, V, V) { return x[Slice(0, x.sum().cast(DType::I64))].sum() + p; }, "is no size");
  expect([&](V p, V, V) { return x[Slice(0, p)].setitem({1}, 0), x.sum(); }, "is no storage");
  expect([&](V p, V, V) { return x.assign(x[Slice(0, p)]); }, "assign");
  Tensor w = Tensor::ones({6}).is_param_();
  expect([&](V p, V, V) { return (x[Slice(0, p)] * w).sum().backward(); },
         "no gradient goes through");
  expect(
      [&](V p, V q, V) {
        x.setitem({Slice(0, p)}, other[Slice(0, q)]);
        return x.sum();
      },
      "m values for n places");
  EXPECT_NE(test::message_of<UserError>([&] { n.bind(41); }).find("41 is outside of \"n\""),
            std::string::npos);
}

// Memory and work of what lies behind the size: nothing there is stored.
TEST(Sizes, WorkEndsAtTheSize) {
  constexpr int64_t kMost = 1 << 16;
  Tensor x = Tensor::ones({4, kMost}).realize();
  Variable n("n", 1, kMost);
  Jit step = [&](Variable p) {
    return x[{Slice(), Slice(0, p)}].exp().contiguous().softmax(-1).sum(1);
  };
  step(n.bind(100));
  int masked = 0;
  for (const Item& item : schedule_of(step.captured_step()).items) {
    for (const UOp& store : item.kernel.sink->src()) {
      const bool large = item.kernel.params[static_cast<size_t>(slot_of(*store))].numel > 4;
      EXPECT_TRUE(!large || store->sources == 4);
      masked += large;
    }
  }
  EXPECT_GT(masked, 0);
}

// The size is known on the mesh, too, of one device or of several: what is longer than it neither
// comes over as a mask, nor goes to a library, nor is stored behind it.
TEST(Sizes, WorkEndsAtTheSizeOnAMesh) {
  TINYSHARD_NEED_DEVICES(2);
  constexpr int64_t kMost = 1 << 12;
  for (int devices : {1, 2}) {
    SCOPED_TRACE(devices);
    auto placed = [&](const std::vector<int64_t>& shape) {
      return Tensor::ones(shape).shard(device_names(devices), 0).contiguous().realize();
    };
    Tensor cache = placed({4, kMost, 64}), query = placed({12, 1, 64});
    Variable n("n", 1, kMost);
    Jit step = [&](Variable p) {
      Tensor k = cache[{Slice(), Slice(0, p)}];
      AttentionOptions grouped;
      grouped.enable_gqa = true;
      return query.scaled_dot_product_attention(k, k, {}, grouped);
    };
    EXPECT_NEAR(step(n.bind(100)).sum().item<float>(), 12 * 64, 1e-3);
    EXPECT_EQ(summarize(step).library_calls, 0);
    for (const Item& item : schedule_of(step.captured_step()).items) {
      if (item.kind == Item::Kind::Copy) {
        EXPECT_LE(product(item.source_shape), 64);
      }
      if (item.kind != Item::Kind::Kernel) continue;
      for (const UOp& store : item.kernel.sink->src()) {
        const bool long_rows =
            item.kernel.params[static_cast<size_t>(slot_of(*store))].numel >= kMost;
        EXPECT_TRUE(!long_rows || store->sources == 4) << item.kernel.name;
      }
    }
  }
}

// Decodes a token at a time over caches, of which as much is read as there is: at every position
// this gives what all tokens at once give.
TEST(Sizes, DecodesWithOneCapture) {
  constexpr int64_t kLength = 70, kWidth = 16, kHeads = 4, kInside = kWidth / kHeads, kBlocks = 2,
                    kWords = 11;
  Tensor::manual_seed(6);
  Tensor table = Tensor::randn({kWords, kWidth}).realize();
  std::vector<Tensor> wq, wk, wv, wo, keys, values;
  for (int64_t i = 0; i < kBlocks; ++i) {
    for (auto* list : {&wq, &wk, &wv, &wo})
      list->push_back((Tensor::randn({kWidth, kWidth}) * 0.4).realize());
    for (auto* list : {&keys, &values})
      list->push_back(Tensor::zeros({kHeads, kLength, kInside}).clone().realize());
  }
  auto heads = [&](const Tensor& x) { return x.reshape({-1, kHeads, kInside}).transpose(0, 1); };
  auto joined = [&](const Tensor& x) { return x.transpose(0, 1).reshape({-1, kWidth}); };
  // All tokens so far, with a causal mask.
  auto whole = [&](const Tensor& tokens) {
    Tensor x = table.embedding(tokens);
    for (size_t i = 0; i < size_t{kBlocks}; ++i) {
      Tensor y = x.layernorm(-1), q = heads(y.matmul(wq[i])), k = heads(y.matmul(wk[i])),
             v = heads(y.matmul(wv[i]));
      AttentionOptions causal;
      causal.is_causal = true;
      x = x + joined(q.scaled_dot_product_attention(k, v, {}, causal)).matmul(wo[i]);
    }
    return x.layernorm(-1).matmul(table.T()).argmax(-1);
  };
  Variable pos("pos", 0, kLength - 1);
  int traced = 0;
  Jit next = [&](Tensor token, Variable p) {
    ++traced;
    Tensor x = table.embedding(token);
    for (size_t i = 0; i < size_t{kBlocks}; ++i) {
      Tensor y = x.layernorm(-1), q = heads(y.matmul(wq[i]));
      keys[i].setitem({Slice(), p}, heads(y.matmul(wk[i])).squeeze(1));
      values[i].setitem({Slice(), p}, heads(y.matmul(wv[i])).squeeze(1));
      Tensor k = keys[i][{Slice(), Slice(0, p + 1)}], v = values[i][{Slice(), Slice(0, p + 1)}];
      x = x + joined(q.scaled_dot_product_attention(k, v)).matmul(wo[i]);
    }
    return x.layernorm(-1).matmul(table.T()).argmax(-1);
  };
  std::vector<int> tokens{3};
  Tensor token({3});
  for (int64_t i = 0; i < kLength; ++i) {
    token = next(token, pos.bind(i));
    const int expected = whole(Tensor(tokens)).to_vector<int>().back();
    ASSERT_EQ(token.item<int>(), expected) << i;
    tokens.push_back(expected);
  }
  EXPECT_EQ(traced, 1);
  // Again, without anything else: no kernel is asked for, no memory is taken.
  token = next(Tensor({3}), pos.bind(0));
  const int64_t kernels = codegen_statistics().requested;
  const DeviceInfo before = Runtime::get().devices()[0];
  for (int64_t i = 1; i < kLength; ++i) token = next(token, pos.bind(i));
  token.realize();
  EXPECT_EQ(codegen_statistics().requested, kernels);
  EXPECT_LE(Runtime::get().devices()[0].bytes, before.bytes);
  EXPECT_EQ(Runtime::get().devices()[0].peak, before.peak);
  EXPECT_EQ(token.item<int>(), tokens.back());
}

// A program that computes with a size gets the size, or is told how.
TEST(Sizes, ANumberOfASizeIsAnError) {
  const Variable n("n", 0, 7);
  const Tensor x = Tensor::arange(24).cast(DType::F32).reshape({8, 3}).realize();
  auto message = [&](auto count) {
    Jit step = [&](Variable v) {
      const Tensor part = x[{Slice(0, v + 1)}];
      return part.sum(0) / double(count(part));
    };
    return test::message_of<UserError>([&] { step(n.bind(2)); });
  };
  for (const std::string& text : {message([](const Tensor& t) { return t.shape(0); }),
                                  message([](const Tensor& t) { return t.size(-2); }),
                                  message([](const Tensor& t) { return t.numel(); }),
                                  message([](const Tensor& t) { return t.nbytes(); })}) {
    EXPECT_NE(text.find("dim 0 of f32[1 + n <= 8, 3] is 1 + n long, from 1 to 8"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("size_tensor(0)"), std::string::npos) << text;
    EXPECT_NE(text.find("sizes_test.cpp:"), std::string::npos) << text;
  }
  Jit mean = [&](Variable v) {
    const Tensor part = x[{Slice(0, v + 1)}];
    EXPECT_EQ(part.shape(1), 3) << "a plain one is a number";
    EXPECT_EQ(part.shape(), (Dims{8, 3}));
    return std::tuple(part.sum(0) / part.size_tensor(0), part.sum() / part.numel_tensor(),
                      part.size_tensor(-1));
  };
  for (int64_t i : {0, 3, 7}) {
    const auto [rows, all, width] = mean(n.bind(i));
    const Tensor part = x[{Slice(0, i + 1)}];
    EXPECT_TRUE(rows.allclose(part.mean(0)));
    EXPECT_TRUE(all.allclose(part.mean()));
    EXPECT_EQ(width.item<int64_t>(), 3);
    EXPECT_EQ(width.dtype(), DType::I64);
    EXPECT_EQ(part.size_tensor(0).item<int64_t>(), i + 1) << "outside of a step";
    EXPECT_EQ(part.numel_tensor().item<int64_t>(), 3 * (i + 1));
  }
}

}  // namespace
}  // namespace tinyshard::sizes_test
