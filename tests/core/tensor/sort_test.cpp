// Sorting, and what writes through an index: by the device's own programs and, with
// TS_LIBRARIES=0, by kernels, which give the same bits; at costs that let a million elements pass.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "core/tensor/explain.h"
#include "core/tensor/tensor.h"
#include "tests/devices.h"

namespace tinyshard::sort_test {
namespace {

constexpr DType kTypes[] = {DType::Bool, DType::I8,  DType::I16, DType::I32, DType::I64,
                            DType::U8,   DType::U16, DType::U32, DType::U64, DType::F16,
                            DType::BF16, DType::F32, DType::F64};

// f() with libraries and without.
template <class F>
void both_ways(const F& f) {
  f();
  setenv("TS_LIBRARIES", "0", 1);
  reload_options();
  f();
  unsetenv("TS_LIBRARIES");
  reload_options();
}

// Numbers of both signs where there are two, with ties, and NaN and both zeros where those are.
Tensor data(const Ints& shape, DType dtype) {
  int64_t n = product(shape.values);
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    double v = double(i * 7919 % 203) - (is_unsigned_int(dtype) ? 0 : 100);
    if (is_float(dtype)) {
      if (i % 17 == 3) v = NAN;
      if (i % 19 == 4) v = -0.0;
      if (i % 23 == 5) v = -std::numeric_limits<double>::infinity();
    }
    values.push_back(v);
  }
  return Tensor(values, shape).cast(dtype).realize();
}

void expect_same(const Tensor& actual, const std::vector<double>& want) {
  const std::vector<double> got = actual.to_vector<double>();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE((got[i] == want[i] && std::signbit(got[i]) == std::signbit(want[i])) ||
                (std::isnan(got[i]) && std::isnan(want[i])))
        << name(actual.dtype()) << " " << i << ": " << got[i] << " is not " << want[i];
  }
}

bool before(double a, double b) { return a < b || (!std::isnan(a) && std::isnan(b)); }

void expect_sorted(const Tensor& x, int64_t dim, bool descending) {
  auto [values, order] = x.sort(dim, descending);
  ASSERT_EQ(order.dtype(), DType::I32);
  auto rows = [&](const Tensor& t) { return t.transpose(dim, -1); };
  std::vector<double> given = rows(x).to_vector<double>(), got = rows(values).to_vector<double>();
  std::vector<int64_t> places = rows(order).to_vector<int64_t>();
  int64_t n = x.shape(dim);
  for (int64_t row = 0; row < x.numel() / n; ++row) {
    const double* mine = given.data() + row * n;
    std::vector<int64_t> expected(static_cast<size_t>(n));
    std::iota(expected.begin(), expected.end(), 0);
    std::ranges::stable_sort(expected, [&](int64_t a, int64_t b) {
      return descending ? before(mine[b], mine[a]) : before(mine[a], mine[b]);
    });
    for (int64_t i = 0; i < n; ++i) {
      int64_t at = row * n + i;
      ASSERT_EQ(places[at], expected[i]) << x.describe() << " dim " << dim << " at " << i;
      double value = mine[expected[i]];
      ASSERT_TRUE(got[at] == value || (std::isnan(got[at]) && std::isnan(value)));
      ASSERT_EQ(std::signbit(got[at]), std::signbit(value));
    }
  }
}

TEST(Sort, IsThatOfTheStandardLibrary) {
  both_ways([] {
    for (DType dtype : kTypes) {
      for (bool descending : {false, true}) {
        for (int64_t n : {1, 2, 3, 4, 5, 33, 257, 600}) {
          expect_sorted(data({2, n}, dtype), 1, descending);
          expect_sorted(data({n, 3}, dtype), 0, descending);
        }
        expect_sorted(data({2, 40, 3}, dtype), 1, descending);
      }
    }
  });
}

TEST(Sort, LongRows) {
  for (DType dtype : {DType::F32, DType::I64, DType::BF16}) {
    for (int64_t n : {255, 256, 1000, 65537}) expect_sorted(data({n}, dtype), 0, n % 2 == 0);
  }
}

TEST(Sort, TopkIsTheBeginningOfTheOrder) {
  both_ways([] {
    for (DType dtype : {DType::F32, DType::F64, DType::I8}) {
      Tensor x = data({3, 700}, dtype);
      for (bool largest : {false, true}) {
        auto [values, order] = x.sort(1, largest);
        for (int64_t k : {1, 2, 100, 300, 700}) {
          auto [best, places] = x.topk(k, 1, largest);
          Pairs first{{0, 3}, {0, k}};
          EXPECT_EQ(places.data(), order.shrink(first).data()) << k;
          EXPECT_EQ(best.data(), values.shrink(first).data()) << k;
        }
      }
    }
  });
}

TEST(Sort, RandpermIsTheOrderOfUniformDraws) {
  Tensor::manual_seed(5);
  std::vector<int64_t> places = Tensor::randperm(1000).to_vector<int64_t>();
  Tensor::manual_seed(5);
  EXPECT_EQ(places, Tensor::rand({1000}, DType::F64).argsort().to_vector<int64_t>());
}

// --- scattered reductions ------------------------------------------------------------------------

double reduced(ScatterReduce reduce, double a, double b) {
  switch (reduce) {
    case ScatterReduce::Prod:
      return a * b;
    case ScatterReduce::Amax:
      return std::isnan(a) || b < a ? a : b;
    case ScatterReduce::Amin:
      return std::isnan(a) || a < b ? a : b;
    default:
      return a + b;
  }
}

// Values from -3 to 3 at places of which many are named several times.
TEST(Scatter, ReducesWhatMeetsAtAPlace) {
  both_ways([] {
    for (DType dtype :
         {DType::F32, DType::F64, DType::BF16, DType::I8, DType::I32, DType::U16, DType::I64}) {
      constexpr int64_t kSize = 40, kEntries = 60, kRows = 3;
      std::vector<double> x, src;
      std::vector<int32_t> index;
      int64_t lowest = is_unsigned_int(dtype) ? 0 : -3;
      for (int64_t i = 0; i < kRows * kSize; ++i) x.push_back(double(i * 5 % 7 + lowest));
      for (int64_t i = 0; i < kRows * kEntries; ++i) {
        src.push_back(double(i * 11 % 7 + lowest));
        index.push_back(int32_t(i * 13 % 31 % 30));
      }
      for (auto reduce : {ScatterReduce::Prod, ScatterReduce::Amax, ScatterReduce::Amin}) {
        std::vector<double> expected = x;
        for (int64_t i = 0; i < kRows * kEntries; ++i) {
          double& at = expected[i / kEntries * kSize + index[i]];
          at = reduced(reduce, at, src[i]);
        }
        Tensor t(x, {kRows, kSize}), s(src, {kRows, kEntries}), places(index, {kRows, kEntries});
        Tensor y = t.cast(dtype).scatter_reduce(1, places, s.cast(dtype), reduce);
        // Integers wrap.
        EXPECT_EQ(y.to_vector<double>(), Tensor(expected, {kRows, kSize})
                                             .cast(is_float(dtype) ? dtype : DType::I64)
                                             .cast(dtype)
                                             .to_vector<double>())
            << name(dtype) << " " << int(reduce);
        EXPECT_EQ(t.T()
                      .cast(dtype)
                      .scatter_reduce(0, places.T(), s.T().cast(dtype), reduce)
                      .T()
                      .to_vector<double>(),
                  y.to_vector<double>());
      }
    }
  });
}

// x is larger than the index in the other dim, too: what lies beyond keeps its value, of either sign.
TEST(Scatter, WhatTheIndexDoesNotReachStays) {
  both_ways([] {
    const std::vector<double> values{-3, 5, -7, 2, -4, 6, -1, 9};
    Tensor x(values, {2, 4});
    Tensor index{{1, 0, 1}}, src = Tensor{{-2.0, -8.0, 4.0}};
    for (auto reduce : {ScatterReduce::Sum, ScatterReduce::Prod, ScatterReduce::Mean,
                        ScatterReduce::Amax, ScatterReduce::Amin}) {
      for (bool include_self : {true, false}) {
        std::vector<double> expected = values;
        for (auto [at, from] : {std::pair(4, -2.0), std::pair(1, -8.0), std::pair(6, 4.0)}) {
          double both = reduced(reduce, expected[at], from);
          if (reduce == ScatterReduce::Mean) both /= 2;
          expected[at] = include_self ? both : from;
        }
        EXPECT_EQ(x.scatter_reduce(0, index, src.cast(x.dtype()), reduce, include_self)
                      .to_vector<double>(),
                  expected)
            << int(reduce) << include_self;
      }
    }
    std::vector<double> expected = values;
    expected[4] = -2, expected[1] = -8, expected[6] = 4;
    EXPECT_EQ(x.scatter(0, index, src.cast(x.dtype())).to_vector<double>(), expected);
  });
}

TEST(Scatter, NanAndBools) {
  both_ways([] {
    Tensor index{0, 0, 1, 1, 2};
    Tensor x = Tensor::zeros({4});
    Tensor src(std::vector<float>{1, NAN, NAN, -5, 7}, {5});
    for (auto reduce : {ScatterReduce::Amax, ScatterReduce::Amin}) {
      auto y = x.scatter_reduce(0, index, src, reduce, false).to_vector<double>();
      EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
      EXPECT_EQ(y[2], 7);
      EXPECT_EQ(y[3], 0);
    }
    Tensor bits{true, false, false, false, true}, none = Tensor::zeros({4}, DType::Bool);
    EXPECT_EQ(none.scatter_reduce(0, index, bits, ScatterReduce::Amax).to_vector<bool>(),
              (std::vector<bool>{true, false, true, false}));
    EXPECT_EQ(
        none.logical_not().scatter_reduce(0, index, bits, ScatterReduce::Amin).to_vector<bool>(),
        (std::vector<bool>{false, false, true, true}));
  });
}

// The gradient of an extremum is shared by those that reach it, that of a product is the product of
// the others.
TEST(Scatter, Gradients) {
  both_ways([] {
    Tensor index{0, 0, 0, 1, 1, 2};
    Tensor src = Tensor(std::vector<double>{3, 3, 1, 0, 4, 5}, {6}).realize();
    auto slope = [&](ScatterReduce reduce) {
      Tensor y = Tensor::zeros({3}, DType::F64).scatter_reduce(0, index, src, reduce, false);
      return (y * Tensor(std::vector<double>{1, 10, 100}, {3}))
          .sum()
          .gradient({src})[0]
          .to_vector<double>();
    };
    using Doubles = std::vector<double>;
    EXPECT_EQ(slope(ScatterReduce::Amax), (Doubles{0.5, 0.5, 0, 0, 10, 100}));
    EXPECT_EQ(slope(ScatterReduce::Amin), (Doubles{0, 0, 1, 10, 0, 100}));
    EXPECT_EQ(slope(ScatterReduce::Prod), (Doubles{3, 3, 9, 40, 0, 100}));
  });
}

// Against one write after the other, in every type: entries that meet, negative ones, others that lie
// outside.
TEST(Scatter, WritesOneAfterTheOther) {
  both_ways([] {
    constexpr int64_t kRows = 3, kSize = 50, kEntries = 80;
    std::vector<int32_t> index;
    for (int64_t i = 0; i < kRows * kEntries; ++i)
      index.push_back(int32_t(i * 7919 % 67 - 9));  // from -9 to 57
    Tensor places(index, {kRows, kEntries}), line = places[0];
    auto at = [](const std::vector<double>& values, int64_t i) { return values[size_t(i)]; };
    for (DType dtype : kTypes) {
      Tensor x = data({kRows, kSize}, dtype), src = data({kRows, kEntries}, dtype),
             rows = data({kEntries, 4}, dtype), table = data({kSize, 4}, dtype);
      const auto from = src.to_vector<double>(), given = rows.to_vector<double>();
      auto expected = x.to_vector<double>(), lines = table.to_vector<double>();
      auto first = x[0].to_vector<double>();
      for (int64_t i = 0; i < kRows * kEntries; ++i) {
        const int64_t to = index[size_t(i)];
        if (to >= 0 && to < kSize) expected[size_t(i / kEntries * kSize + to)] = at(from, i);
      }
      for (int64_t i = 0; i < kEntries; ++i) {
        const int64_t to = index[size_t(i)] < 0 ? index[size_t(i)] + kSize : index[size_t(i)];
        if (to >= kSize) continue;
        first[size_t(to)] = at(from, i);
        for (int64_t c = 0; c < 4; ++c) lines[size_t(to * 4 + c)] = at(given, i * 4 + c);
      }
      for (DType wide : {DType::I32, DType::I64, DType::I8}) {
        Tensor here = places.cast(wide);
        expect_same(x.scatter(1, here, src), expected);
        expect_same(x.T().contiguous().scatter(0, here.T(), src.T()).T(), expected);
        Tensor vector = x[0].contiguous().realize(), matrix = (table + 0).realize();
        vector.setitem({here[0]}, src[0]);
        expect_same(vector, first);
        matrix.setitem({here[0]}, rows);
        expect_same(matrix, lines);
        Tensor across = table.T().contiguous().realize();
        across.setitem({Slice(), here[0]}, rows.T());
        expect_same(across.T(), lines);
      }
    }
  });
}

// A write into a storage is done in place, by the storage's own elements, too.
TEST(Scatter, WritesIntoWhatItReads) {
  both_ways([] {
    auto vector = [](const Tensor& x) { return x.to_vector<int>(); };
    auto numbers = [] {
      Tensor x = Tensor::zeros({6}, DType::I32).contiguous().realize();
      return x.assign(Tensor{5, 0, 3, 1, 4, 2}).realize();  // a storage of its own
    };
    using Numbers = std::vector<int>;
    Tensor places = Tensor{1, 2, 1, 5}.realize();
    Tensor x = numbers(), before = x + 0;
    x.setitem({places}, x.shrink({{0, 4}}));
    EXPECT_EQ(vector(x), (Numbers{5, 3, 0, 1, 4, 1})) << "its first elements, as they were";
    Tensor turned = numbers();
    turned.setitem({(Tensor::arange(6) + 1) % 6}, turned);
    EXPECT_EQ(vector(turned), (Numbers{2, 5, 0, 3, 1, 4})) << "all of its elements";
    Tensor named = numbers();
    named.assign(named.scatter(0, named, Tensor::arange(6)));
    EXPECT_EQ(vector(named), (Numbers{1, 3, 5, 2, 4, 0})) << "its elements as an index";
    Tensor y = numbers();
    y.setitem({y}, Tensor::arange(6));
    EXPECT_EQ(vector(y), (Numbers{1, 3, 5, 2, 4, 0})) << "an index that is written over";
    Tensor z = numbers(), old = z * 10;
    z.setitem({places}, Tensor{7, 8, 9, 6});
    Tensor both = old + z;
    EXPECT_EQ(vector(both), (Numbers{55, 9, 38, 11, 44, 26})) << "the old value beside the new one";
    EXPECT_EQ(vector(z), (Numbers{5, 9, 8, 1, 4, 6}));
    EXPECT_EQ(vector(before), (Numbers{5, 0, 3, 1, 4, 2}));
    Tensor w = numbers();
    w.setitem({places}, 7);
    w.setitem({Tensor{0, 0}}, Tensor{1, 2});
    EXPECT_EQ(vector(w), (Numbers{2, 7, 7, 1, 4, 7})) << "one write after the other";
  });
}

TEST(Scatter, TheLastEntryThatNamesAPlaceWins) {
  both_ways([] {
    Tensor index{4, 1, 4, 1, 0};
    Tensor src = Tensor::arange(10, 15).to_float();
    EXPECT_EQ(Tensor::zeros({6}).scatter(0, index, src).to_vector<double>(),
              (std::vector<double>{14, 13, 0, 0, 12, 0}));
    Tensor x = Tensor::zeros({6, 2}).contiguous().realize();
    x.setitem({index}, src.unsqueeze(1).expand({5, 2}));
    EXPECT_EQ(x.to_vector<double>(),
              (std::vector<double>{14, 14, 13, 13, 0, 0, 0, 0, 12, 12, 0, 0}));
  });
}

// --- along rows ----------------------------------------------------------------------------------

TEST(Logcumsumexp, OfRowsOfSeveralChunks) {
  constexpr int64_t kSize = 1000;
  std::vector<double> x, expected, slope(kSize);
  for (int64_t i = 0; i < kSize; ++i) x.push_back(std::sin(double(i)) * 20 + double(i % 300) / 10);
  // A whole chunk, and more, of nothing.
  for (int64_t i = 0; i < 300; ++i) x[i] = -std::numeric_limits<double>::infinity();
  double largest = *std::ranges::max_element(x), sum = 0;
  for (double v : x) expected.push_back(std::log(sum += std::exp(v - largest)) + largest);
  for (int64_t i = 300; i < kSize; ++i) {
    for (int64_t j = i; j < kSize; ++j) slope[i] += std::exp(x[i] - expected[j]);
  }
  Tensor t = Tensor(x, {kSize}).realize(), y = t.logcumsumexp(0);
  std::vector<double> got = y.to_vector<double>();
  for (int64_t i = 0; i < kSize; ++i) {
    if (i < 300)
      EXPECT_EQ(got[i], expected[i]);
    else
      EXPECT_NEAR(got[i], expected[i], 1e-12 * std::abs(expected[i])) << i;
  }
  std::vector<double> gradient =
      t.logcumsumexp(0).shrink({{300, kSize}}).sum().gradient({t})[0].to_vector<double>();
  for (int64_t i = 0; i < kSize; ++i) ASSERT_NEAR(gradient[i], slope[i], 1e-10 * slope[i]) << i;
}

// A running maximum that several elements reach is the first one's, wherever the row is cut: into
// chunks, and into parts on devices.
TEST(Cummax, GivesItsGradientToTheFirstOfEqualOnes) {
  const double inf = std::numeric_limits<double>::infinity();
  for (int64_t n : {4, 7, 300, 1000}) {
    for (double low : {0.0, -inf}) {
      for (bool largest : {true, false}) {
        const double sign = largest ? 1 : -1;
        std::vector<double> x, slope(static_cast<size_t>(n)), weights;
        for (int64_t i = 0; i < n; ++i) {
          const int64_t level = i * 7 % n / (n / 4 + 1);  // few, so that there are ties
          x.push_back(sign * (i < n / 3 ? low : double(level)));
          weights.push_back(double(i % 5) + 1);
        }
        size_t place = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          if (sign * x[i] > sign * x[place]) place = i;
          slope[place] += weights[i];
        }
        for (int devices : {1, 2, 3, 4}) {
          Tensor t = Tensor(x, {n}).cast(DType::F64);
          if (devices > 1) {
            std::vector<std::string> names;
            for (int d = 0; d < devices; ++d) names.push_back("CPU:" + std::to_string(d));
            t = t.shard(names, 0);
          }
          t.realize();
          const Tensor best = largest ? t.cummax(0).first : t.cummin(0).first;
          const Tensor y = best * Tensor(weights, {n}).cast(DType::F64);
          EXPECT_EQ(y.sum().gradient({t})[0].to_vector<double>(), slope)
              << n << " from " << low << " on " << devices << (largest ? "" : ", least");
        }
      }
    }
  }
}

TEST(Multinomial, OfManyWeights) {
  constexpr int64_t kSize = 1000, kDraws = 20000;
  std::vector<double> weights(kSize);
  for (int64_t i = 0; i < kSize; i += 3) weights[i] = double(1 + i % 5);
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  Tensor::manual_seed(1);
  std::vector<double> drawn(kSize);
  Tensor w = Tensor(weights, {kSize}).to_float().reshape({1, kSize}).expand({2, kSize});
  for (int64_t i : w.multinomial(kDraws, true).to_vector<int64_t>()) {
    ASSERT_TRUE(i >= 0 && i < kSize);
    drawn[i] += 1;
  }
  for (int64_t i = 0; i < kSize; ++i) {
    double expected = 2 * kDraws * weights[i] / total;
    EXPECT_NEAR(drawn[i], expected, 6 * std::sqrt(expected)) << i;
  }
}

// A million elements: all pairs of them would take hours.
TEST(Cost, OfAMillionElements) {
  if (options().spec >= 2) GTEST_SKIP() << "checks every kernel by interpreting it";
  constexpr int64_t kSize = 1000000;
  Tensor::manual_seed(2);
  Tensor x = Tensor::rand({kSize}).realize(), places = Tensor::randperm(kSize).realize();
  EXPECT_EQ(places.argsort().argsort().data(), places.data());
  Tensor sorted = x.sort().first;
  std::vector<float> values = sorted.to_vector<float>();
  EXPECT_TRUE(std::ranges::is_sorted(values));
  EXPECT_EQ(x.topk(10).first.data(), sorted.flip({0}).shrink({{0, 10}}).data());
  // Each place is named once, so what is scattered can be gathered again.
  Tensor zeros = Tensor::zeros({kSize});
  EXPECT_EQ(zeros.scatter(0, places, x).gather(0, places).data(), x.data());
  for (auto reduce : {ScatterReduce::Prod, ScatterReduce::Amax, ScatterReduce::Amin}) {
    Tensor y = zeros.scatter_reduce(0, places, x, reduce, false);
    EXPECT_EQ(y.gather(0, places).data(), x.data());
  }
  Tensor written = zeros.contiguous().realize();
  written.setitem({places}, x);
  EXPECT_EQ(written.gather(0, places).data(), x.data());
  EXPECT_NEAR(x.logcumsumexp(0).shrink({{kSize - 1, kSize}}).item<double>(),
              x.logsumexp().item<double>(), 1e-4);
  std::vector<int64_t> drawn = x.multinomial(100000, true).to_vector<int64_t>();
  EXPECT_TRUE(std::ranges::all_of(drawn, [](int64_t i) { return i >= 0 && i < kSize; }));
  std::vector<int64_t> apart = x.multinomial(1000).to_vector<int64_t>();
  EXPECT_EQ(std::set<int64_t>(apart.begin(), apart.end()).size(), 1000u);
}

// Operations for each element of rows of a thousand; in chunks of 32 they are 100 to 430.
TEST(Cost, OfRunningTotals) {
  const Tensor x = Tensor::rand({64, 1000}).realize();
  if (x.device() != "CPU:0") GTEST_SKIP() << "others take fewer kernels instead";
  auto operations = [&](const std::vector<Tensor>& results) {
    return summarize(results).operations / double(x.numel());
  };
  EXPECT_LT(operations({x.cumsum(1)}), 40);
  EXPECT_LT(operations({x.cumprod(1)}), 40);
  EXPECT_LT(operations({x.logcumsumexp(1)}), 120);
  const auto [best, places] = x.cummax(1);
  EXPECT_LT(operations({best, places}), 100);
}

// Infinities and NaN within a chunk, and before and behind one.
TEST(Logcumsumexp, OfWhatIsNoNumber) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const int64_t n : {10, 5000}) {
    const auto last = static_cast<size_t>(n - 1);
    for (const size_t at : {size_t{0}, size_t{3}, last}) {
      std::vector<double> x(static_cast<size_t>(n), -kInfinity);
      EXPECT_EQ(Tensor(x, {n}).logcumsumexp(0).to_vector<double>(), x);
      x[at] = kInfinity;
      std::vector<double> got = Tensor(x, {n}).logcumsumexp(0).to_vector<double>();
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], i < at ? -kInfinity : kInfinity) << i;
      x[at] = std::nan("");
      got = Tensor(x, {n}).logcumsumexp(0).to_vector<double>();
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(std::isnan(got[i]), i >= at) << i;
    }
  }
}

void expect_equal(const Tensor& actual, const Tensor& expected) {
  std::vector<double> got = actual.to_vector<double>(), want = expected.to_vector<double>();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_TRUE(got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i])))
        << i << ": " << got[i] << " is not " << want[i];
}

TEST(Sharded, AlongTheSortedDimAndAnother) {
  TINYSHARD_NEED_DEVICES(3);
  Tensor x = data({64, 7}, DType::F32), index = (Tensor::arange(64 * 7) * 11 % 50).reshape({64, 7});
  for (int dim : {0, 1}) {
    Tensor split = x.shard(device_names(3), dim);
    for (int64_t along : {0, 1}) {
      EXPECT_EQ(split.sort(along).first.data(), x.sort(along).first.data());
      EXPECT_EQ(split.sort(along).second.data(), x.sort(along).second.data());
      EXPECT_EQ(split.topk(3, along).second.data(), x.topk(3, along).second.data());
    }
    for (auto reduce : {ScatterReduce::Amax, ScatterReduce::Amin}) {
      // The values that travel have one NaN, and one zero of two.
      expect_equal(split.scatter_reduce(0, index, split, reduce),
                   x.scatter_reduce(0, index, x, reduce));
    }
    EXPECT_EQ(split.scatter(0, index, split).data(), x.scatter(0, index, x).data());
  }
}

}  // namespace
}  // namespace tinyshard::sort_test
