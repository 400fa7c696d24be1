// Each form of a call: one number or several, numbers on the left, every option
// with and without the others. Oracles are loops.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/tensor/tensor.h"
#include "tests/message_of.h"

namespace tinyshard::forms_test {
namespace {

using Doubles = std::vector<double>;
using Int64s = std::vector<int64_t>;
constexpr double kInf = std::numeric_limits<double>::infinity(),
                 kNan = std::numeric_limits<double>::quiet_NaN();

template <class F>
std::string message_of(F&& call) {
  return test::message_of<UserError>(call);
}

// Whole numbers without an order, so that every place of a window matters.
Tensor image(const Dims& shape) {
  Doubles values(size_t(product(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = double(i * 37 % 101) - 50;
  return Tensor(values, Ints(shape));
}

// --- pools ---------------------------------------------------------------------------------------

// A window over one [h, w] image; all numbers are those of rows and columns.
struct Window {
  std::array<int64_t, 2> kernel, stride, dilation, low, high;
  bool ceil = false, count_padding = true;
};

struct Pooled {
  Dims shape;
  Doubles max, mean;
  Int64s place;
};

int64_t windows(int64_t size, const Window& w, int i) {
  int64_t reach = w.dilation[i] * (w.kernel[i] - 1) + 1, room = size + w.low[i] + w.high[i] - reach;
  int64_t count = room / w.stride[i] + 1;
  bool hangs_over = w.ceil && room % w.stride[i] != 0 && count * w.stride[i] < size + w.low[i];
  return count + (hangs_over ? 1 : 0);
}

Pooled pooled(const Doubles& x, int64_t h, int64_t w, const Window& o) {
  Pooled out{{windows(h, o, 0), windows(w, o, 1)}, {}, {}, {}};
  for (int64_t r = 0; r < out.shape[0]; ++r) {
    for (int64_t c = 0; c < out.shape[1]; ++c) {
      double best = -kInf, sum = 0, inside = 0;
      int64_t place = -1;
      for (int64_t i = 0; i < o.kernel[0]; ++i) {
        for (int64_t j = 0; j < o.kernel[1]; ++j) {
          int64_t y = r * o.stride[0] + i * o.dilation[0] - o.low[0],
                  z = c * o.stride[1] + j * o.dilation[1] - o.low[1];
          bool in_image = y >= 0 && y < h && z >= 0 && z < w;
          inside += in_image || (o.count_padding && y < h + o.high[0] && z < w + o.high[1]);
          if (!in_image) continue;
          double value = x[size_t(y * w + z)];
          sum += value;
          if (value > best) best = value, place = y * w + z;
        }
      }
      out.max.push_back(best), out.mean.push_back(sum / inside), out.place.push_back(place);
    }
  }
  return out;
}

struct PoolForm {
  const char* name;
  Ints kernel;
  PoolOptions options;
  Window window;
};

TEST(Pools, MeanTheSameInEveryForm) {
  const PoolForm forms[] = {
      {"2", 2, {}, {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}}},
      {"3", 3, {}, {{3, 3}, {3, 3}, {1, 1}, {0, 0}, {0, 0}}},
      {"{2, 3}", {2, 3}, {}, {{2, 3}, {2, 3}, {1, 1}, {0, 0}, {0, 0}}},
      {"stride 1", 2, {.stride = 1}, {{2, 2}, {1, 1}, {1, 1}, {0, 0}, {0, 0}}},
      {"stride {1, 2}", 2, {.stride = {1, 2}}, {{2, 2}, {1, 2}, {1, 1}, {0, 0}, {0, 0}}},
      {"dilation 2", 2, {.dilation = 2}, {{2, 2}, {2, 2}, {2, 2}, {0, 0}, {0, 0}}},
      {"dilation {1, 2}", 2, {.dilation = {1, 2}}, {{2, 2}, {2, 2}, {1, 2}, {0, 0}, {0, 0}}},
      {"padding 1", 3, {.padding = 1}, {{3, 3}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}},
      {"padding {1, 0}", 3, {.padding = {1, 0}}, {{3, 3}, {3, 3}, {1, 1}, {1, 0}, {1, 0}}},
      // Flat padding is (left, right, top, bottom).
      {"flat", 3, {.padding = {1, 0, 0, 2}}, {{3, 3}, {3, 3}, {1, 1}, {0, 1}, {2, 0}}},
      {"all",
       {3, 2},
       {.stride = 2, .dilation = {1, 2}, .padding = {1, 0, 2, 1}},
       {{3, 2}, {2, 2}, {1, 2}, {2, 1}, {1, 0}}},
      {"ceil", 2, {.stride = 3, .ceil_mode = true}, {{2, 2}, {3, 3}, {1, 1}, {0, 0}, {0, 0}, true}},
      {"ceil with padding",
       3,
       {.stride = 2, .padding = 1, .ceil_mode = true},
       {{3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, true}},
      {"without padding",
       3,
       {.stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false},
       {{3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, true, false}},
  };
  constexpr int64_t h = 8, w = 9;
  Doubles values = image({h, w}).to_vector<double>();
  for (const Dims& lead : {Dims{}, Dims{1, 1}, Dims{2}}) {
    int64_t copies = product(lead);
    Dims full = lead;
    full.insert(full.end(), {h, w});
    Tensor x = image({h, w}).expand(full);
    for (const PoolForm& form : forms) {
      SCOPED_TRACE(form.name);
      Pooled expected = pooled(values, h, w, form.window);
      Dims shape = lead;
      shape.insert(shape.end(), expected.shape.begin(), expected.shape.end());
      auto [best, places] = x.max_pool2d_with_indices(form.kernel, form.options);
      Tensor mean = x.avg_pool2d(form.kernel, form.options);
      ASSERT_EQ(best.shape(), shape);
      ASSERT_EQ(mean.shape(), shape);
      Doubles got = best.to_vector<double>(), means = mean.to_vector<double>();
      EXPECT_EQ(x.max_pool2d(form.kernel, form.options).to_vector<double>(), got);
      Int64s at = places.to_vector<int64_t>();
      size_t n = expected.max.size();
      for (size_t i = 0; i < n * size_t(copies); ++i) {
        EXPECT_EQ(got[i], expected.max[i % n]);
        EXPECT_NEAR(means[i], expected.mean[i % n], 1e-12);
        // The first of equal values counts; all within 101 elements differ.
        EXPECT_EQ(at[i], expected.place[i % n]);
      }
    }
  }
  EXPECT_EQ(image({1, 2, 9}).max_pool2d({3}).shape(), (Dims{1, 2, 3})) << "a list of one is a line";
  EXPECT_EQ(image({1, 2, 9}).avg_pool2d({2}, {.padding = {1, 0}}).shape(), (Dims{1, 2, 5}));
  EXPECT_EQ(image({4, 6, 9}).max_pool2d({2, 3, 3}).shape(), (Dims{2, 2, 3}));
  for (const Ints& odd : {Ints{1, 0, 1}, Ints{1, 2, 3, 4, 5}, Ints{-1, 0}})
    EXPECT_NE(message_of([&] { (void)image({1, 1, 6, 6}).max_pool2d(3, {.padding = odd}); }), "");
}

TEST(Pools, AreUndone) {
  struct Row {
    Ints kernel;
    PoolOptions options;
    std::optional<Ints> output_size;
  };
  const Row rows[] = {{2, {}, {}},
                      {{2, 2}, {}, {}},
                      {{2, 3}, {}, {}},
                      {3, {.stride = 3, .padding = 0}, {}},
                      {2, {.stride = {2, 3}, .dilation = {1, 2}}, {}},
                      {2, {.stride = 2}, Ints{7, 7}},
                      {2, {.stride = 2}, Ints{1, 2, 7, 7}}};
  for (const Row& row : rows) {
    int64_t h = row.output_size ? 7 : 6, w = h;
    Tensor x = image({1, 2, h, w});
    auto [best, places] = x.max_pool2d_with_indices(row.kernel, row.options);
    Tensor back = best.max_unpool2d(places, row.kernel, row.options, row.output_size);
    Doubles expected(size_t(2 * h * w), 0), values = best.to_vector<double>();
    Int64s at = places.to_vector<int64_t>();
    ASSERT_EQ(back.shape(), x.shape());
    for (size_t i = 0; i < values.size(); ++i)
      expected[i / (values.size() / 2) * size_t(h * w) + size_t(at[i])] = values[i];
    EXPECT_EQ(back.to_vector<double>(), expected);
  }
}

// Padding is one pair per dim: the flat forms of other libraries, from the last dim on, and half a
// pair mean something else there, and do not compile here.
template <class T>
concept PadsFlat = requires(T x) { x.pad({1, 0}); } || requires(T x) { x.pad({1, 0, 0, 2}); };
template <class T>
concept PadsHalf = requires(T x) { x.pad({{1}, {2}}); } || requires(T x) { x.pad(1); };
template <class T>
concept PadsPairs = requires(T x) { x.pad({{1, 0}, {0, 2}}); };
static_assert(PadsPairs<Tensor> && !PadsFlat<Tensor> && !PadsHalf<Tensor>);

// --- losses --------------------------------------------------------------------------------------

TEST(CrossEntropy, HonoursAllItsOptions) {
  constexpr int64_t n = 4, classes = 3, d = 2;
  Tensor x = (image({n, classes, d}) * 0.05).realize();
  Doubles logits = x.to_vector<double>();
  Int64s labels{0, 2, 1, 1, 2, 0, 0, 1};  // [n, d]
  Tensor y(labels, {n, d});
  auto at = [&](int64_t i, int64_t c, int64_t j) {
    return logits[size_t((i * classes + c) * d + j)];
  };
  for (int64_t ignored : {-1, 0, 1, 2, 7}) {
    for (double smoothing : {0.0, 0.1, 1.0}) {
      Doubles each;
      double total = 0, counted = 0;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < d; ++j) {
          double norm = 0, mean = 0;
          for (int64_t c = 0; c < classes; ++c) norm += std::exp(at(i, c, j));
          for (int64_t c = 0; c < classes; ++c) mean += (std::log(norm) - at(i, c, j)) / classes;
          int64_t label = labels[size_t(i * d + j)];
          double loss = (1 - smoothing) * (std::log(norm) - at(i, label, j)) + smoothing * mean;
          bool counts = label != ignored;
          each.push_back(counts ? loss : 0);
          total += each.back(), counted += counts;
        }
      }
      auto check = [&](Reduction reduction, const Doubles& expected) {
        CrossEntropyOptions options{ignored, smoothing, reduction};
        Doubles dense = x.cross_entropy(y, options).to_vector<double>(),
                sparse = x.permute({0, 2, 1})
                             .sparse_categorical_crossentropy(y, options)
                             .to_vector<double>();
        ASSERT_EQ(dense.size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_NEAR(dense[i], expected[i], 1e-12) << ignored << " " << smoothing;
          EXPECT_NEAR(sparse[i], expected[i], 1e-12) << ignored << " " << smoothing;
        }
      };
      check(Reduction::None, each);
      check(Reduction::Sum, {total});
      check(Reduction::Mean, {total / counted});
    }
  }
  // Ignored rows have no gradient, whatever they hold.
  Tensor z = Tensor(Doubles{1, 2, kInf, 4}, {2, 2}), t{0, 1};
  Tensor slope = z.cross_entropy(t, {.ignore_index = 1}).gradient({z})[0];
  EXPECT_NEAR(slope.to_vector<double>()[0], 1 / (1 + std::exp(1)) - 1, 1e-12);
  EXPECT_TRUE(std::isnan((z * 0).cross_entropy(Tensor{1, 1}, {.ignore_index = 1}).item<double>()));
  EXPECT_NE(message_of([] {
              Tensor p = Tensor::ones({2, 3});
              (void)p.cross_entropy(p, {.ignore_index = 0});
            }).find("ignore_index 0 needs labels"),
            std::string::npos);
}

// -100 and -1, by which data sets mark what does not count, and a class that there is not.
TEST(CrossEntropy, OfALabelThatIsNoClassIsNan) {
  const Tensor x = Tensor::rand({3, 4}).realize(), scores = x.log_softmax().realize();
  auto is_nan = [](const Tensor& t) { return std::isnan(t.item<double>()); };
  for (int64_t label : {-100, -1, 4}) {
    const Tensor labels(std::vector<int64_t>{1, label, 2});
    EXPECT_TRUE(is_nan(x.cross_entropy(labels))) << label;
    EXPECT_TRUE(is_nan(x.sparse_categorical_crossentropy(labels, {.label_smoothing = 0.1})));
    EXPECT_TRUE(is_nan(x.cross_entropy(labels, {.reduction = Reduction::Sum}))) << label;
    EXPECT_TRUE(is_nan(scores.nll_loss(labels))) << label;
    EXPECT_TRUE(is_nan(x.cross_entropy(labels, {.ignore_index = 1}))) << "another is ignored";
    EXPECT_FALSE(is_nan(x.cross_entropy(labels, {.ignore_index = label}))) << label;
    const Doubles each =
        x.cross_entropy(labels, {.reduction = Reduction::None}).to_vector<double>();
    EXPECT_TRUE(std::isfinite(each[0]) && std::isnan(each[1]) && std::isfinite(each[2])) << label;
  }
}

// --- elementwise ---------------------------------------------------------------------------------

TEST(IsClose, TakesEveryArgument) {
  const Doubles numbers{0, 1e-9, 1, 1.00001, 1.001, -1, 100, 100.5, 1e6, kInf, -kInf, kNan};
  Tensor x = Tensor(numbers).unsqueeze(1), y(numbers);
  for (double rtol : {0.0, 1e-5, 1e-2}) {
    for (double atol : {0.0, 1e-8, 0.6}) {
      for (bool equal_nan : {false, true}) {
        std::vector<int> got = x.isclose(y, rtol, atol, equal_nan).to_vector<int>();
        bool all = true;
        for (size_t i = 0; i < got.size(); ++i) {
          double a = numbers[i / numbers.size()], b = numbers[i % numbers.size()];
          bool finite = std::isfinite(a) && std::isfinite(b);
          bool expected = a == b || (finite && std::abs(a - b) <= atol + rtol * std::abs(b)) ||
                          (equal_nan && std::isnan(a) && std::isnan(b));
          EXPECT_EQ(got[i], int(expected))
              << a << " and " << b << " within " << rtol << ", " << atol;
          all = all && expected;
        }
        EXPECT_EQ(x.allclose(y, rtol, atol, equal_nan), all);
        EXPECT_EQ(y.allclose(y, rtol, atol, equal_nan), equal_nan);
      }
    }
  }
  // Differences that integers do not hold, tolerances that 16-bit floats do not.
  Tensor bytes = Tensor{1, 0, 255}.cast(DType::U8), others = Tensor{2, 255, 254}.cast(DType::U8);
  EXPECT_EQ(bytes.isclose(others, 0, 1).to_vector<int>(), (std::vector<int>{1, 0, 1}));
  Tensor ends(Int64s{INT64_MIN, INT64_MAX}, {2});
  EXPECT_EQ(ends.isclose(ends.flip(0), 0, 10).to_vector<int>(), (std::vector<int>{0, 0}));
  EXPECT_EQ((Tensor{2, 3}).isclose(2.4, 0, 0.5).to_vector<int>(), (std::vector<int>{1, 0}));
  Tensor half = Tensor{1.0, 0.0}.cast(DType::F16), near = Tensor{1.001, 6e-8}.cast(DType::F16);
  EXPECT_EQ(half.isclose(near, 1e-5, 1e-8).to_vector<int>(), (std::vector<int>{0, 0}));
  EXPECT_EQ(half.isclose(near, 1e-5, 1e-7).to_vector<int>(), (std::vector<int>{0, 1}));
  EXPECT_EQ((Tensor{true, false}).isclose(Tensor{true, true}).to_vector<int>(),
            (std::vector<int>{1, 0}));
}

TEST(Selu, TakesItsParameters) {
  Doubles x{-3, -0.5, 0, 0.5, 3};
  for (auto [alpha, gamma] : {std::pair{1.67326, 1.0507}, {2.0, 3.0}, {0.5, 1.0}}) {
    Doubles got = Tensor(x).selu(alpha, gamma).to_vector<double>();
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(got[i], gamma * (x[i] > 0 ? x[i] : alpha * (std::exp(x[i]) - 1)), 1e-12);
  }
  EXPECT_EQ(Tensor(x).selu().to_vector<double>(),
            Tensor(x).selu(1.67326, 1.0507).to_vector<double>());
}

TEST(Division, RoundsWithTheNumberOnEitherSide) {
  const Doubles divisors{-7, -3, -2, -1, 1, 2, 3, 7};
  for (DType dtype : {DType::F64, DType::F32, DType::F16, DType::I32, DType::I64, DType::I8}) {
    Tensor x = Tensor(divisors).cast(dtype);
    for (int number : {-7, -1, 0, 5, 6, 7}) {
      auto check = [&](const Tensor& got, Rounding rounding, bool reversed) {
        EXPECT_EQ(got.dtype(), rounding == Rounding::None && !is_float(dtype) ? DType::F32 : dtype);
        Doubles out = got.to_vector<double>();
        for (size_t i = 0; i < divisors.size(); ++i) {
          double q = reversed ? number / divisors[i] : divisors[i] / number;
          double expected = rounding == Rounding::Floor   ? std::floor(q)
                            : rounding == Rounding::Trunc ? std::trunc(q)
                                                          : q;
          EXPECT_NEAR(out[i], expected, 1e-3 * std::abs(expected)) << number << " " << divisors[i];
        }
      };
      for (Rounding rounding : {Rounding::None, Rounding::Floor, Rounding::Trunc}) {
        check(div(number, x, rounding), rounding, true);
        if (number != 0) check(x.div(number, rounding), rounding, false);
      }
    }
  }
  EXPECT_NE(message_of([] {
              (void)div(1000, Tensor{1}.cast(DType::I8), Rounding::Floor);
            }).find("div: 1000 does not fit i8"),
            std::string::npos);
}

TEST(Division, ByInfinitiesLeavesAllThatIsThere) {
  const Doubles numbers{0, 5, -5, 7.5, -0.25, kInf, -kInf, kNan}, divisors{kInf, -kInf, 2, -3};
  for (DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    Tensor x = Tensor(numbers).unsqueeze(1).cast(dtype), y = Tensor(divisors).cast(dtype);
    Doubles mod = (x % y).to_vector<double>(), fmod = x.fmod(y).to_vector<double>();
    for (size_t i = 0; i < mod.size(); ++i) {
      double a = numbers[i / divisors.size()], b = divisors[i % divisors.size()];
      double rest = std::fmod(a, b), floored = rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
      if (std::isnan(rest)) {
        EXPECT_TRUE(std::isnan(mod[i]) && std::isnan(fmod[i])) << a << " by " << b;
      } else {
        EXPECT_EQ(fmod[i], rest) << a << " by " << b;
        EXPECT_EQ(mod[i], floored) << a << " by " << b;
      }
    }
  }
}

TEST(Shifts, ToTheRightLeaveTheSign) {
  const Int64s numbers{INT8_MIN, -8, -1, 0, 5, INT8_MAX}, by{0, 1, 6, 7, 8, 40, 100};
  for (DType dtype : {DType::I8, DType::I16, DType::I32, DType::I64}) {
    Tensor x = Tensor(numbers).cast(dtype), y = Tensor(by).cast(dtype);
    Int64s got = x.unsqueeze(1).rshift(y).to_vector<int64_t>();
    for (size_t i = 0; i < got.size(); ++i) {
      int64_t shift = by[i % by.size()],
              expected = numbers[i / by.size()] >> std::min<int64_t>(shift, 63);
      EXPECT_EQ(got[i], expected) << numbers[i / by.size()] << " >> " << shift;
      EXPECT_EQ((x >> shift).to_vector<int64_t>()[i / by.size()], expected);
    }
  }
  EXPECT_EQ((Tensor{200}.cast(DType::U8) >> 9).item<int>(), 0);
}

TEST(Abs, OfZeroIsPositive) {
  for (DType dtype : {DType::F64, DType::F32, DType::F16, DType::BF16}) {
    Tensor x = Tensor(Doubles{0.0, -0.0, -3, kNan}).cast(dtype).realize();
    Doubles y = x.abs().to_vector<double>();
    EXPECT_FALSE(std::signbit(y[0]));
    EXPECT_FALSE(std::signbit(y[1]));
    EXPECT_EQ(y[2], 3);
    EXPECT_TRUE(std::isnan(y[3]));
    Doubles slope = x.abs().sum().gradient({x})[0].to_vector<double>();
    EXPECT_EQ(slope[0], 0);
    EXPECT_EQ(slope[1], 0);
    EXPECT_EQ(slope[2], -1);
  }
}

TEST(Lerp, GoesFromUnsignedIntegersDown) {
  Tensor a = Tensor{1, 200, 3}.cast(DType::U8), b = Tensor{3, 0, 1}.cast(DType::U8);
  EXPECT_EQ(a.lerp(b, 0.5).to_vector<double>(), (Doubles{2, 100, 2}));
  EXPECT_EQ(a.lerp(b, 0.5).dtype(), DType::F32);
  EXPECT_EQ(a.lerp(b, Tensor{0.0, 0.5, 1.0}).to_vector<double>(), (Doubles{1, 100, 1}));
  EXPECT_EQ(a.lerp(b, 1).dtype(), DType::U8);
  EXPECT_EQ(a.lerp(b, 1).to_vector<double>(), (Doubles{3, 0, 1}));
}

TEST(Casts, OfConstantsAreThoseOfOtherValues) {
  for (double number : {300.0, -1.0, 3e9, -3e9, 1e19, 1e30, kInf, -kInf, kNan, 2.75, -2.75}) {
    for (DType dtype : {DType::I8, DType::U8, DType::I16, DType::I32, DType::U32, DType::I64,
                        DType::U64, DType::Bool, DType::F16, DType::F32}) {
      Tensor constant = Tensor::full({2}, number, DType::F64);
      EXPECT_EQ(constant.cast(dtype).data(), constant.clone().realize().cast(dtype).data())
          << number << " as " << name(dtype);
    }
  }
}

TEST(Losses, OfWhatIsCertainAreFinite) {
  Tensor x = Tensor(Doubles{0, 1, 0.5, 0, 1}), y = Tensor(Doubles{0, 1, 0.25, 1, 0});
  Doubles each = x.binary_crossentropy(y, Reduction::None).to_vector<double>();
  EXPECT_EQ(each[0], 0);
  EXPECT_EQ(each[1], 0);
  EXPECT_NEAR(each[2], std::log(2), 1e-12);
  EXPECT_EQ(each[3], kInf);
  EXPECT_EQ(each[4], kInf);
  Doubles slope = x[Slice({}, 3)]
                      .binary_crossentropy(y[Slice({}, 3)], Reduction::Sum)
                      .gradient({x})[0]
                      .to_vector<double>();
  EXPECT_EQ(slope[0], 1) << "of -log(1 - x)";
  EXPECT_EQ(slope[1], -1) << "of -log(x)";
  EXPECT_NEAR(slope[2], 1, 1e-12);
  // Ignored values may be anything.
  Tensor log_p = Tensor(Doubles{-kInf, 0, kNan, -1}, {2, 2});
  for (const Tensor& weight : {Tensor(), Tensor(Doubles{1, 2})}) {
    EXPECT_EQ(log_p.nll_loss(Tensor{0, 1}, weight, 0).item<double>(), 1);
    EXPECT_EQ(log_p.nll_loss(Tensor{0, 1}, weight, 0, Reduction::None).to_vector<double>()[0], 0);
  }
}

TEST(Normalize, HasASlopeAtZero) {
  Tensor x = Tensor(Doubles{0, 0, 3, 4}, {2, 2}).realize();
  for (double p : {1.0, 2.0, 3.0}) {
    Doubles y = x.normalize(p, 1, 1e-3).to_vector<double>();
    double norm = std::pow(std::pow(3, p) + std::pow(4, p), 1 / p);
    EXPECT_EQ(y[0], 0);
    EXPECT_NEAR(y[2], 3 / norm, 1e-12);
    Doubles slope =
        x.normalize(p, 1, 1e-3)[{Slice(), 0}].sum().gradient({x})[0].to_vector<double>();
    EXPECT_NEAR(slope[0], 1000, 1e-9) << "divided by eps";
    EXPECT_EQ(slope[1], 0);
    EXPECT_NEAR(slope[2], 1 / norm - 3 * std::pow(3 / norm, p - 1) / (norm * norm), 1e-9);
  }
}

TEST(Scatter, ReducesNumbersIntoPlaces) {
  Tensor x = Tensor::full({2, 4}, 2.0), index{{2}, {3}};
  EXPECT_EQ(x.scatter(1, index, 1.5, ScatterReduce::Prod).to_vector<double>(),
            (Doubles{2, 2, 3, 2, 2, 2, 2, 3}));
  EXPECT_EQ(x.scatter(1, index, 1.5, ScatterReduce::Sum).to_vector<double>(),
            (Doubles{2, 2, 3.5, 2, 2, 2, 2, 3.5}));
}

TEST(Interpolation, NearestHasNoCorners) {
  for (Interpolation mode : {Interpolation::Nearest, Interpolation::NearestExact}) {
    EXPECT_NE(message_of([=] {
                (void)image({1, 1, 4, 4}).interpolate({2, 2}, mode, true);
              }).find("interpolate: align_corners is about what lies between elements"),
              std::string::npos);
  }
  EXPECT_NE(message_of([] { (void)image({1, 1, 4, 4}).interpolate({}); }), "");
  // floor(i * n / m) and floor((i + 1/2) n / m).
  Tensor line = Tensor::arange(7).reshape({1, 1, 7});
  EXPECT_EQ(line.interpolate({4}, Interpolation::Nearest).to_vector<int>(),
            (std::vector<int>{0, 1, 3, 5}));
  EXPECT_EQ(line.interpolate({4}, Interpolation::NearestExact).to_vector<int>(),
            (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(line.cast(DType::F64).interpolate({4}, Interpolation::Linear, true).to_vector<double>(),
            (Doubles{0, 2, 4, 6}));
}

// The weight between two elements is what is left of a large number: it is as exact as they are.
TEST(Interpolation, WeightsOfLongLinesAreExact) {
  constexpr int64_t from = 514, to = 9;
  Doubles line(from);
  for (size_t i = 0; i < from; ++i) line[i] = i % 2 == 0 ? -1.5 : 1.5;
  Doubles got =
      Tensor(line, {1, from}).interpolate({to}, Interpolation::Linear).to_vector<double>();
  for (int64_t o = 0; o < to; ++o) {
    int64_t place = (2 * o + 1) * from - to;  // in parts of 1 / (2 to)
    auto low = static_cast<size_t>(place / (2 * to));
    double weight = static_cast<double>(place % (2 * to)) / (2 * to);
    EXPECT_NEAR(got[o], line[low] + (line[low + 1] - line[low]) * weight, 1e-15) << o;
  }
}

// A window that reaches beyond the end counts what is there of it, and all others count themselves: the
// mean of ones is one.
TEST(Pools, WindowsBeyondTheEndCountWhatIsThere) {
  for (const Ints& shape :
       {Ints{255, 22}, Ints{4, 6, 3}, Ints{2, 7, 5}, Ints{3, 1, 7}, Ints{2, 7, 7}}) {
    for (const Ints& window : {Ints{3, 1}, Ints{2, 1}, Ints{1, 2}, Ints{3, 3}}) {
      for (int64_t stride : {2, 3}) {
        const Tensor ones = Tensor::ones(shape).contiguous().realize();
        if (shape[shape.size() - 2] < window[0]) continue;
        const Tensor mean = ones.avg_pool2d(window, {.stride = stride, .ceil_mode = true});
        const std::vector<float> got = mean.to_vector<float>();
        EXPECT_TRUE(std::ranges::all_of(got, [](float x) { return x == 1; }))
            << mean.describe() << " of windows " << window[0] << " x " << window[1] << " by "
            << stride;
      }
    }
  }
}

// --- sizes, places, lists of layers --------------------------------------------------------------

TEST(Sizes, AreShrunkToAndPaddedTo) {
  const Tensor x = Tensor::arange(12).reshape({3, 4});
  EXPECT_EQ(x.shrink_to({2, -1}).to_vector<int>(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(x.shrink_to({0, 4}).shape(), (Dims{0, 4}));
  EXPECT_EQ(x.shrink_to({1, 2}).pad_to({2, 3}, 9).to_vector<int>(),
            (std::vector<int>{0, 1, 9, 9, 9, 9}));
  EXPECT_EQ(x.pad_to({-1, 5}).sum(0).to_vector<int>(), (std::vector<int>{12, 15, 18, 21, 0}));
  EXPECT_EQ(Tensor(2.5).pad_to({}).item<double>(), 2.5);
  // A write to the part is a write to the whole.
  Tensor y = x.clone();
  y.shrink_to({1, 2}) += 10;
  EXPECT_EQ(y.to_vector<int>(), (std::vector<int>{10, 11, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_NE(message_of([&] { x.clone().shrink_to({1, 2}) += 1; }), "");
}

TEST(EmptyLike, HasShapeTypeAndPlace) {
  const Tensor x = Tensor::ones({4, 6}).shard({"CPU:0", "CPU:1"}, 0);
  const Tensor y = x.empty_like(), z = x.empty_like(DType::I64);
  EXPECT_EQ(y.shape(), x.shape());
  EXPECT_EQ(y.dtype(), DType::F32);
  EXPECT_EQ(z.dtype(), DType::I64);
  EXPECT_TRUE(y.sharding() == x.sharding());
  y.assign(x * 3);
  EXPECT_EQ(y.sum().item<float>(), 72);
  EXPECT_TRUE(x.sum(0).empty_like().sharding().is_replicated()) << "a sum that is pending";
}

TEST(Device, IsWhereATensorIs) {
  const Tensor x = Tensor::ones({4});
  EXPECT_EQ(x.to("cpu:3").device(), "CPU:3");
  EXPECT_EQ(x.to(x.to("CPU:2").device()).device(), "CPU:2");
  EXPECT_EQ(x.shard({"CPU:2", "CPU:1"}, 0).devices(), (std::vector<std::string>{"CPU:2", "CPU:1"}));
  EXPECT_EQ(x.to("CPU:1").devices(), (std::vector<std::string>{"CPU:1"}));
}

struct Scale {
  double by;
  Tensor operator()(const Tensor& x) const { return x * by; }
};

TEST(Sequential, TakesListsOfLayers) {
  const Tensor x{1.0, -2.0};
  const auto relu = [](const Tensor& t) { return t.relu(); };
  const std::vector<Scale> scales{{2}, {3}, {-1}};
  EXPECT_EQ(x.sequential(scales).to_vector<double>(), (Doubles{-6, 12}));
  EXPECT_EQ(x.sequential({Scale{2}, relu, Scale{5}}).to_vector<double>(), (Doubles{10, 0}));
  std::vector<std::function<Tensor(const Tensor&)>> layers;
  EXPECT_EQ(x.sequential(layers).to_vector<double>(), (Doubles{1, -2}));
  for (int i = 0; i < 3; ++i) layers.emplace_back(Scale{2});
  layers.emplace_back(relu);
  EXPECT_EQ(x.sequential(layers).to_vector<double>(), (Doubles{8, 0}));
  EXPECT_EQ(x.sequential(Scale{2}, relu).to_vector<double>(), (Doubles{2, 0}));
}

TEST(Index, TakesListsThatTheProgramMakes) {
  const Tensor x = Tensor::arange(24).reshape({2, 3, 4});
  std::vector<Index> index{1};
  index.emplace_back(kEllipsis);
  index.emplace_back(Slice(1, 3));
  EXPECT_EQ(x[index].to_vector<int>(), (std::vector<int>{13, 14, 17, 18, 21, 22}));
  Tensor y = x.clone();
  y[index] = 0;
  EXPECT_EQ(y.sum().item<int>(), 276 - 105);
}

}  // namespace
}  // namespace tinyshard::forms_test
