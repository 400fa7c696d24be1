// Integers of every width and truth values on a device of each kind: each op on all pairs of the
// numbers at the ends of the type and around zero, to the bit, against the host's own 128-bit
// arithmetic; and casts between all types.
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/tensor/tensor.h"
#include "tests/conformance/device/device_case.h"

namespace tinyshard::test::numbers_test {
namespace {

using Wide = __int128;

template <class T>
constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

template <class T>
T wrapped(Wide x) {
  return static_cast<T>(static_cast<unsigned __int128>(x));
}

Wide floor_quotient(Wide a, Wide b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

template <class T>
std::vector<T> ends() {
  using L = std::numeric_limits<T>;
  std::vector<T> numbers{0, 1, 2, 3, 7, 100, L::max(), T(L::max() - 1), T(L::max() / 2)};
  if constexpr (std::is_signed_v<T>)
    numbers.insert(numbers.end(), {T(-1), T(-2), T(-7), T(-100), L::min(), T(L::min() + 1)});
  return numbers;
}

template <class T>
struct Pairs {
  std::vector<T> a, b;
};

// All pairs; where `divides`, those that C++ can divide.
template <class T>
Pairs<T> pairs(bool divides) {
  Pairs<T> p;
  for (T x : ends<T>()) {
    for (T y : ends<T>()) {
      const bool overflows =
          std::is_signed_v<T> && x == std::numeric_limits<T>::min() && y == T(-1);
      if (divides && (y == 0 || overflows)) continue;
      p.a.push_back(x);
      p.b.push_back(y);
    }
  }
  return p;
}

template <class T>
Pairs<T> shifts() {
  Pairs<T> p;
  for (T x : ends<T>()) {
    for (int bits = 0; bits < int(sizeof(T)) * 8; ++bits) {
      p.a.push_back(x);
      p.b.push_back(T(bits));
    }
  }
  return p;
}

class DeviceNumbers : public DeviceCase {
 protected:
  template <class T>
  Tensor there(const std::vector<T>& values) {
    return Tensor(values, {int64_t(values.size())}).to(std::string(GetParam()) + ":0").realize();
  }

  struct Check {
    const char* name;
    Tensor result;
    std::function<Wide(Wide, Wide)> expected;
  };

  template <class T, class R = T>
  void expect(const Pairs<T>& p, const std::vector<Check>& checks) {
    std::vector<Tensor> results;
    for (const Check& c : checks) results.push_back(c.result);
    Tensor::realize(results);
    if (!device().executes()) return;
    for (const Check& c : checks) {
      const std::vector<R> got = c.result.template to_vector<R>();
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], wrapped<R>(c.expected(Wide(p.a[i]), Wide(p.b[i]))))
            << c.name << " of " << name(dtype_of<T>()) << " " << +p.a[i] << ", " << +p.b[i];
      }
    }
  }

  template <class T>
  void arithmetic() {
    Pairs<T> p = pairs<T>(false);
    Tensor a = there(p.a), b = there(p.b);
    expect<T>(p, {{"add", a + b, [](Wide x, Wide y) { return x + y; }},
                  {"sub", a - b, [](Wide x, Wide y) { return x - y; }},
                  {"mul", a * b, [](Wide x, Wide y) { return Wide(T(x)) * T(y); }},
                  {"max", a.maximum(b), [](Wide x, Wide y) { return std::max(x, y); }},
                  {"min", a.minimum(b), [](Wide x, Wide y) { return std::min(x, y); }},
                  {"and", a & b, [](Wide x, Wide y) { return x & y; }},
                  {"or", a | b, [](Wide x, Wide y) { return x | y; }},
                  {"xor", a ^ b, [](Wide x, Wide y) { return x ^ y; }},
                  {"not", ~a, [](Wide x, Wide) { return ~x; }},
                  {"where", (a < b).where(a, b), [](Wide x, Wide y) { return x < y ? x : y; }}});
    if constexpr (std::is_signed_v<T>) {
      expect<T>(p, {{"neg", -a, [](Wide x, Wide) { return -x; }},
                    {"abs", a.abs(), [](Wide x, Wide) { return x < 0 ? -x : x; }},
                    {"sign", a.sign(), [](Wide x, Wide) { return Wide(x > 0) - Wide(x < 0); }}});
    }
    expect<T, bool>(p, {{"less", a.lt(b), [](Wide x, Wide y) { return Wide(x < y); }},
                        {"equal", a.eq(b), [](Wide x, Wide y) { return Wide(x == y); }},
                        {"not equal", a.ne(b), [](Wide x, Wide y) { return Wide(x != y); }},
                        {"logical not", !a, [](Wide x, Wide) { return Wide(x == 0); }}});
    p = pairs<T>(true);
    a = there(p.a), b = there(p.b);
    expect<T>(p, {{"floor div", a.floor_div(b), floor_quotient},
                  {"trunc div", a.div(b, Rounding::Trunc), [](Wide x, Wide y) { return x / y; }},
                  {"mod", a.mod(b), [](Wide x, Wide y) { return x - floor_quotient(x, y) * y; }},
                  {"fmod", a.fmod(b), [](Wide x, Wide y) { return x % y; }}});
    p = shifts<T>();
    a = there(p.a), b = there(p.b);
    expect<T>(p, {{"left", a << b, [](Wide x, Wide y) { return x << y; }},
                  {"right", a >> b, [](Wide x, Wide y) { return x >> y; }}});
  }

  // Numbers that both types hold, and those that a narrower integer wraps.
  template <class From, class To>
  void cast_of(std::vector<From> values) {
    if constexpr (is_integer<From> && is_integer<To>) {
      for (From x : ends<From>()) values.push_back(x);
    }
    const Tensor y = there(values).cast(dtype_of<To>()).realize();
    if (!device().executes()) return;
    const std::vector<To> got = y.template to_vector<To>();
    for (size_t i = 0; i < values.size(); ++i) {
      const To want =
          std::is_same_v<To, bool> ? To(values[i] != From(0)) : static_cast<To>(values[i]);
      ASSERT_EQ(got[i], want) << name(dtype_of<From>()) << " " << +values[i] << " as "
                              << name(dtype_of<To>());
    }
  }

  template <class From>
  void casts_of() {
    std::vector<From> values{From(0), From(1), From(2), From(3), From(100), From(127)};
    std::vector<From> counts = values;  // what unsigned types hold, too
    if (std::is_signed_v<From>) values.insert(values.end(), {From(-1), From(-100)});
    if (std::is_floating_point_v<From>) {
      values.insert(values.end(), {From(2.5), From(-2.5), From(99.9)});
      counts.insert(counts.end(), {From(0.25), From(2.75)});
    }
    cast_of<From, bool>(values);
    cast_of<From, int8_t>(values);
    cast_of<From, int16_t>(values);
    cast_of<From, int32_t>(values);
    cast_of<From, int64_t>(values);
    cast_of<From, uint8_t>(counts);
    cast_of<From, uint16_t>(counts);
    cast_of<From, uint32_t>(counts);
    cast_of<From, uint64_t>(counts);
    cast_of<From, float>(values);
    cast_of<From, double>(values);
  }
};

TEST_P(DeviceNumbers, IntegersAtTheirEnds) {
  arithmetic<int8_t>();
  arithmetic<int16_t>();
  arithmetic<int32_t>();
  arithmetic<int64_t>();
  arithmetic<uint8_t>();
  arithmetic<uint16_t>();
  arithmetic<uint32_t>();
  arithmetic<uint64_t>();
}

TEST_P(DeviceNumbers, TruthValues) {
  const Tensor a = there<int8_t>({0, 0, 1, 1}).cast(DType::Bool),
               b = there<int8_t>({0, 1, 0, 1}).cast(DType::Bool);
  using Truths = std::vector<bool>;
  const std::vector<std::pair<Tensor, Truths>> checks = {
      {a & b, {false, false, false, true}},        {a | b, {false, true, true, true}},
      {a ^ b, {false, true, true, false}},         {!a, {true, true, false, false}},
      {a.eq(b), {true, false, false, true}},       {a.lt(b), {false, true, false, false}},
      {a.maximum(b), {false, true, true, true}},   {a.minimum(b), {false, false, false, true}},
      {a.where(b, !b), {true, false, false, true}}};
  for (size_t i = 0; i < checks.size(); ++i) {
    const Tensor y = checks[i].first.realize();
    EXPECT_EQ(y.dtype(), DType::Bool);
    if (!device().executes()) continue;
    EXPECT_EQ(y.to_vector<bool>(), checks[i].second) << i;
  }
}

TEST_P(DeviceNumbers, CastsBetweenAllTypes) {
  casts_of<bool>();
  casts_of<int8_t>();
  casts_of<int16_t>();
  casts_of<int32_t>();
  casts_of<int64_t>();
  casts_of<uint8_t>();
  casts_of<uint16_t>();
  casts_of<uint32_t>();
  casts_of<uint64_t>();
  casts_of<float>();
  casts_of<double>();
}

// The number of the 16-bit type nearest to x, of two that are as near the even one, for numbers that
// it holds as normal ones: `digits` are those after the point.
double nearest(double x, int digits) {
  const double unit = std::ldexp(1.0, std::ilogb(x) - digits);
  return std::nearbyint(x / unit) * unit;
}

// Ties, what lies a little beside them, and f64 that f32 would make ties of.
TEST_P(DeviceNumbers, SixteenBitFloatsRoundOnce) {
  for (const auto& [type, digits] : {std::pair(DType::F16, 10), std::pair(DType::BF16, 7)}) {
    std::vector<double> values;
    for (int last = 0; last < 4; ++last) {
      const double unit = std::ldexp(1.0, -digits), tie = 1 + (last + 0.5) * unit;
      for (double beside : {0.0, unit / 1024, -unit / 1024, 0x1p-45, -0x1p-45}) {
        values.push_back(tie + beside);
        values.push_back(-(tie + beside) * 64);
      }
    }
    const Tensor narrow = there(values).cast(type).realize();
    if (!device().executes()) continue;
    const std::vector<double> got = narrow.to_vector<double>();
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(got[i], nearest(values[i], digits)) << name(type) << " of " << values[i];
    std::vector<float> single(values.begin(), values.end());
    const std::vector<double> from_single = there(single).cast(type).to_vector<double>();
    for (size_t i = 0; i < single.size(); ++i)
      ASSERT_EQ(from_single[i], nearest(double(single[i]), digits))
          << name(type) << " of " << single[i];
  }
}

TEST_P(DeviceNumbers, BitsAreKept) {
  const std::vector<float> values{0.0F, -0.0F, 1.5F, -3e38F,
                                  std::numeric_limits<float>::infinity()};
  std::vector<uint32_t> bits;
  for (float x : values) bits.push_back(std::bit_cast<uint32_t>(x));
  const Tensor x = there(values), y = x.bitcast(DType::U32).realize(),
               z = there(bits).bitcast(DType::F32).realize(),
               bytes = x.bitcast(DType::U8).realize();
  if (!device().executes()) return;
  EXPECT_EQ(y.to_vector<uint32_t>(), bits);
  EXPECT_EQ(z.bitcast(DType::U32).to_vector<uint32_t>(), bits);
  std::vector<uint8_t> expected(values.size() * 4);
  std::memcpy(expected.data(), values.data(), expected.size());
  EXPECT_EQ(bytes.to_vector<uint8_t>(), expected);
}

TINYSHARD_ON_EVERY_DEVICE(DeviceNumbers);

}  // namespace
}  // namespace tinyshard::test::numbers_test
