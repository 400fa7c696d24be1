// Every elementwise op on every type it takes, against the interpreter, and the accuracy of the
// transcendental functions against long double.
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "tests/core/codegen/harness.h"

namespace tinyshard::test {
namespace {

constexpr DType kTypes[] = {DType::Bool, DType::I8,  DType::I16, DType::I32, DType::I64,
                            DType::U8,   DType::U16, DType::U32, DType::U64, DType::F16,
                            DType::BF16, DType::F32, DType::F64};

// Values that break things: zeros, ones, limits, subnormals, infinities, NaN; then random ones.
void fill_hard(GuardedBuffer& b, uint32_t seed, bool small) {
  b.fill(seed, is_float(b.dtype()) ? -10 : -100, is_float(b.dtype()) ? 10 : 100);
  std::vector<double> hard;
  if (is_float(b.dtype())) {
    double inf = std::numeric_limits<double>::infinity();
    hard = {0,     -0.0, 1,     -1,     inf,          -inf, NAN,   0.5, 1e-40, -1e-7,
            65504, 3e38, 1e300, -1e300, 2147483648.0, -129, 255.5, 256, 1e19};
  } else if (!small) {
    int bits = 8 * static_cast<int>(itemsize(b.dtype()));
    bool u = is_unsigned_int(b.dtype());
    int64_t high =
        b.dtype() == DType::Bool ? 1 : static_cast<int64_t>(~uint64_t{0} >> (64 - bits + !u));
    int64_t low = u || b.dtype() == DType::Bool ? 0 : -high - 1;
    std::vector<int64_t> whole = {0, 1, 2, 3, high, low, high - 1, 7, 8, 15, 16, 31, 32, 63, 64};
    if (!u) whole.insert(whole.end(), {-1, -2, -7});
    for (size_t i = 0; i < whole.size(); ++i) {
      // Bring each value together with many others.
      for (size_t k = 0; k < 5; ++k) {
        int64_t at = static_cast<int64_t>(seed * 7 + i * (seed + 1) * 5 + k * 11) % b.numel();
        int64_t v = b.dtype() == DType::Bool ? whole[i] & 1 : whole[i];
        write_element(b.data(), b.dtype(), at, {0, v});
        Scalar back = b.get(at);
        write_element(b.data(), b.dtype(), at, back);
      }
    }
    return;
  }
  for (size_t i = 0; i < hard.size(); ++i) {
    for (size_t k = 0; k < 4; ++k)
      b.set(static_cast<int64_t>((seed * 7 + i * (2 * seed + 1) + k * 29) %
                                 static_cast<uint64_t>(b.numel())),
            hard[i]);
  }
}

void check_unary(Op op, DType type, DType to, double ulps) {
  constexpr int64_t n = 203;
  Kernel k(std::string(info(op).name) + "_" + std::string(name(type)) + "_" +
           std::string(name(to)));
  int in = k.param(type, n), out = k.param(to, n);
  fill_hard(k.buffer(in), 3, false);
  UOp i = k.loop(n), x = k.load(in, i);
  k.store(out, i, op == Op::Cast || op == Op::Bitcast ? UOp::make(op, to, {x}) : unary(op, x));
  k.check(ulps);
  // The same on a scalar.
  Kernel one("scalar_" + std::string(info(op).name));
  int a = one.param(type, 1), b = one.param(to, 1);
  write_element(one.buffer(a).data(), type, 0, k.buffer(in).get(5));
  UOp y = one.load(a, index_const(0));
  one.store(b, index_const(0),
            op == Op::Cast || op == Op::Bitcast ? UOp::make(op, to, {y}) : unary(op, y));
  one.check(ulps);
}

void check_binary(Op op, DType type, double ulps = 0) {
  constexpr int64_t n = 331;
  DType to = info(op).type_rule == TypeRule::Bool ? DType::Bool : type;
  Kernel k(std::string(info(op).name) + "_" + std::string(name(type)));
  int a = k.param(type, n), b = k.param(type, n), out = k.param(to, n);
  fill_hard(k.buffer(a), 3, false);
  fill_hard(k.buffer(b), 5, false);
  UOp i = k.loop(n);
  k.store(out, i, binary(op, k.load(a, i), k.load(b, i)));
  k.check(ulps);
}

// GPUs divide 16-bit floats to two ulps of f32 before they round.
double division_ulps(DType t) {
  return machine().target().multiprocessors > 0 && (t == DType::F16 || t == DType::BF16) ? 1 : 0;
}

TEST(Ops, UnaryFloats) {
  for (DType t : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    for (Op op : {Op::Neg, Op::Sqrt, Op::Trunc}) check_unary(op, t, t, 0);
    check_unary(Op::Recip, t, t, division_ulps(t));
    for (Op op : {Op::Exp2, Op::Log2, Op::Sin}) {
      bool rough = op == Op::Exp2 && t == DType::F32 && machine().target().multiprocessors > 0;
      check_unary(op, t, t, t == DType::F64 ? 3 : rough ? 2.5 : 1);
    }
  }
}

TEST(Ops, UnaryIntegers) {
  for (DType t : kTypes) {
    if (is_float(t)) continue;
    for (Op op : {Op::Neg, Op::Not}) check_unary(op, t, t, 0);
  }
}

TEST(Ops, Casts) {
  for (DType from : kTypes) {
    for (DType to : kTypes) {
      if (from != to) check_unary(Op::Cast, from, to, 0);
    }
  }
}

// Every middle between two 16-bit floats, and its neighbours in f64: a conversion that went through
// f32 would take these for the middle, too.
TEST(Ops, CastsOfDoublesTo16BitsRoundOnce) {
  for (DType to : {DType::F16, DType::BF16}) {
    const int digits = to == DType::F16 ? 10 : 7, low = to == DType::F16 ? -14 : -126;
    std::vector<double> values;
    for (int exponent = low; exponent <= -low + 1; exponent += to == DType::F16 ? 1 : 7) {
      for (int i = 0; i < 2 << digits; ++i) {  // the first half is subnormal at the lowest exponent
        if (exponent != low && i < 1 << digits) continue;
        const double middle = std::ldexp(i + 0.5, exponent - digits);
        for (double v : {std::nextafter(middle, 0), middle, std::nextafter(middle, INFINITY)})
          values.insert(values.end(), {v, -v});
      }
    }
    values.insert(values.end(), {5e-324, -1e-310, 3.5e38, 0x1.fep127, 0x1.ffp127, -0x1.feffffp127,
                                 0x1.fffffffp127, 1e300, -1e300, 65519.99999999, 65520.0});
    const auto n = static_cast<int64_t>(values.size());
    Kernel k("round_once");
    int in = k.param(DType::F64, n), out = k.param(to, n);
    for (int64_t i = 0; i < n; ++i) k.buffer(in).set(i, values[static_cast<size_t>(i)]);
    UOp i = k.loop(n);
    k.store(out, i, UOp::make(Op::Cast, to, {k.load(in, i)}));
    k.check(0);
  }
}

TEST(Ops, CastsOfIntegersTo16BitsRoundOnce) {
  for (DType from : {DType::I32, DType::U32, DType::I64, DType::U64}) {
    std::vector<int64_t> values;
    const int bits = 8 * static_cast<int>(itemsize(from)) - (is_signed_int(from) ? 1 : 0);
    for (int top = 8; top < bits; ++top) {
      for (uint64_t digits = 128; digits < 256; digits += 9) {
        uint64_t middle = (2 * digits + 1) << top >> 8;
        for (uint64_t v : {middle - 1, middle, middle + 1}) {
          values.push_back(static_cast<int64_t>(v));
          if (is_signed_int(from)) values.push_back(-static_cast<int64_t>(v));
        }
      }
    }
    for (DType to : {DType::F16, DType::BF16}) {
      const auto n = static_cast<int64_t>(values.size());
      Kernel k("round_once");
      int in = k.param(from, n), out = k.param(to, n);
      for (int64_t i = 0; i < n; ++i)
        write_element(k.buffer(in).data(), from, i, {0, values[static_cast<size_t>(i)]});
      UOp i = k.loop(n);
      k.store(out, i, UOp::make(Op::Cast, to, {k.load(in, i)}));
      k.check(0);
    }
  }
}

TEST(Ops, Bitcasts) {
  for (auto [a, b] : {std::pair{DType::F32, DType::I32},
                      {DType::F32, DType::U32},
                      {DType::F64, DType::U64},
                      {DType::F16, DType::U16},
                      {DType::BF16, DType::I16},
                      {DType::F16, DType::BF16},
                      {DType::I8, DType::U8}}) {
    check_unary(Op::Bitcast, a, b, 0);
    if (b != DType::BF16 && a != DType::F16) check_unary(Op::Bitcast, b, a, 0);
  }
}

TEST(Ops, BinaryFloats) {
  for (DType t : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    for (Op op : {Op::Add, Op::Sub, Op::Mul, Op::Mod, Op::Max, Op::CmpLt, Op::CmpEq, Op::CmpNe})
      check_binary(op, t);
    check_binary(Op::Div, t, division_ulps(t));
  }
}

// As a concatenation joins its parts: each is +0 where the other is not, and a zero keeps its sign.
// Quotients of all lengths, subnormal divisors and dividends, infinities: std::fmod is exact.
TEST(Ops, RestsOfFloatsAreExact) {
  for (DType t : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    const int least = t == DType::F64   ? -1074
                      : t == DType::F16 ? -24
                      : t == DType::F32 ? -149
                                        : -133;
    const int most = t == DType::F64 ? 1023 : t == DType::F16 ? 15 : 127;
    std::vector<std::pair<double, double>> values;
    uint64_t state = 88172645463325252u;
    auto next = [&] {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      return state;
    };
    auto any = [&] {
      const int exponent =
          least + static_cast<int>(next() % static_cast<uint64_t>(most - least + 1));
      const double digits = 1 + static_cast<double>(next() >> 11) * 0x1p-53;
      return std::copysign(round_to(t, std::ldexp(digits, exponent)), next() & 1 ? 1.0 : -1.0);
    };
    for (int i = 0; i < 20000; ++i) values.emplace_back(any(), any());
    const double low = std::ldexp(1.0, least), high = round_to(t, std::ldexp(1.99, most));
    const double hard[] = {0.0, -0.0, low,   -3 * low, 1,         -1,
                           0.5, high, -high, INFINITY, -INFINITY, NAN};
    for (double a : hard) {
      for (double b : hard) values.emplace_back(a, b);
    }
    // Quotients that are whole numbers, or round to one from below.
    for (int i = 0; i < 2000; ++i) {
      const double b = round_to(t, std::ldexp(1 + static_cast<double>(next() >> 11) * 0x1p-53, 0));
      const double a = round_to(t, b * static_cast<double>(1 + next() % 250));
      values.emplace_back(a, b);
    }
    const auto n = static_cast<int64_t>(values.size());
    Kernel k("rest_" + std::string(name(t)));
    int a = k.param(t, n), b = k.param(t, n), out = k.param(t, n);
    for (int64_t i = 0; i < n; ++i) {
      k.buffer(a).set(i, values[static_cast<size_t>(i)].first);
      k.buffer(b).set(i, values[static_cast<size_t>(i)].second);
    }
    UOp i = k.loop(n);
    k.store(out, i, binary(Op::Mod, k.load(a, i), k.load(b, i)));
    k.check(0);
  }
}

TEST(Ops, DisjointFloatsAreJoinedByTheirBits) {
  for (DType t : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    Kernel k("joined_" + std::string(name(t)));
    int a = k.param(t, 99), b = k.param(t, 99), out = k.param(t, 99);
    fill_hard(k.buffer(a), 3, false);
    fill_hard(k.buffer(b), 4, false);
    UOp i = k.loop(99), first = binary(Op::CmpLt, i, index_const(50)), zero = const_float(t, 0);
    UOp left = where(first, k.load(a, i), zero), right = where(first, zero, k.load(b, i));
    k.store(out, i, binary(Op::Or, left, right));
    k.check(0);
  }
}

// --- one value, one set of bits ------------------------------------------------------------------

// Random bit patterns besides the hard values: subnormals, large arguments and NaN of all kinds.
void fill_bits(GuardedBuffer& b, uint32_t seed) {
  fill_hard(b, seed, false);
  if (!is_float(b.dtype())) return;
  uint64_t state = seed;
  for (int64_t i = 0; i < b.numel(); i += 2) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t bits = state ^ state >> 29;
    std::memcpy(static_cast<char*>(b.data()) + i * int64_t(itemsize(b.dtype())), &bits,
                itemsize(b.dtype()));
  }
}

// The same expression over n elements, in vectors with a tail, and element by element.
void expect_same_bits(const std::string& name, DType from, DType to, int64_t n,
                      const std::function<UOp(const UOp&, const UOp&)>& f) {
  Kernel many(name), one(name + "_alone");
  int x = many.param(from, n), y = many.param(from, n), out = many.param(to, n);
  fill_bits(many.buffer(x), 3);
  fill_bits(many.buffer(y), 5);
  UOp i = many.loop(n), zero = index_const(0);
  many.store(out, i, f(many.load(x, i), many.load(y, i)));
  many.run();
  int a = one.param(from, 1), b = one.param(from, 1), result = one.param(to, 1);
  one.store(result, zero, f(one.load(a, zero), one.load(b, zero)));
  int wrong = 0;
  for (int64_t k = 0; k < n && wrong < 3; ++k) {
    auto element = [&](int slot, DType type) {
      return static_cast<char*>(many.buffer(slot).data()) + k * int64_t(itemsize(type));
    };
    std::memcpy(one.buffer(a).data(), element(x, from), itemsize(from));
    std::memcpy(one.buffer(b).data(), element(y, from), itemsize(from));
    one.run();
    const double got = many.buffer(out).get(k).real, alone = one.buffer(result).get(0).real;
    if (is_float(to) && std::isnan(got) && std::isnan(alone)) continue;
    bool same = std::memcmp(element(out, to), one.buffer(result).data(), itemsize(to)) == 0;
    wrong += !same;
    EXPECT_TRUE(same) << name << " element " << k << " of " << n
                      << ", x = " << many.buffer(x).get(k).real << ": " << got << " in a vector, "
                      << alone << " alone";
  }
}

TEST(Ops, VectorsTailsAndScalarsGiveTheSameBits) {
  if (machine().target().multiprocessors > 0 || !machine().computes())
    GTEST_SKIP() << "GPUs have no vectors";
  for (int64_t n : {1021, 23}) {
    for (DType t : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
      const std::string type(name(t));
      for (Op op : {Op::Neg, Op::Exp2, Op::Log2, Op::Sin, Op::Sqrt, Op::Recip, Op::Trunc})
        expect_same_bits(std::string(info(op).name) + "_" + type, t, t, n,
                         [op](const UOp& x, const UOp&) { return unary(op, x); });
      for (Op op : {Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Mod, Op::Max})
        expect_same_bits(std::string(info(op).name) + "_" + type, t, t, n,
                         [op](const UOp& x, const UOp& y) { return binary(op, x, y); });
      for (DType to : {DType::F16, DType::BF16, DType::F32, DType::F64, DType::I8, DType::U8,
                       DType::I32, DType::I64, DType::U64})
        expect_same_bits("cast_" + type + "_" + std::string(name(to)), t, to, n,
                         [to](const UOp& x, const UOp&) { return cast(x, to); });
      expect_same_bits("chain_" + type, t, t, n, [](const UOp& x, const UOp& y) {
        UOp e = unary(Op::Exp2, binary(Op::Mul, x, y));
        return binary(Op::Add, binary(Op::Mul, e, x), binary(Op::Sub, binary(Op::Mul, y, y), e));
      });
    }
  }
}

TEST(Ops, BinaryIntegers) {
  for (DType t : kTypes) {
    if (is_float(t)) continue;
    for (Op op : {Op::Add, Op::Sub, Op::Mul, Op::IDiv, Op::Mod, Op::Max, Op::And, Op::Or, Op::Xor,
                  Op::CmpLt, Op::CmpEq, Op::CmpNe})
      check_binary(op, t);
    if (t != DType::Bool) check_binary(Op::Shl, t), check_binary(Op::Shr, t);
  }
}

TEST(Ops, DivisionByConstants) {
  for (DType t : kTypes) {
    if (is_float(t) || t == DType::Bool) continue;
    for (int64_t divisor : {1, 2, 3, 7, 64, 100, 0, -1, -3}) {
      if (divisor < 0 && is_unsigned_int(t)) continue;
      Kernel k("divide_" + std::string(name(t)) + "_by_constant");
      int a = k.param(t, 100), q = k.param(t, 100), m = k.param(t, 100);
      fill_hard(k.buffer(a), 3, false);
      UOp i = k.loop(100), by = const_int(t, divisor);
      k.store(q, i, binary(Op::IDiv, k.load(a, i), by));
      k.store(m, i, binary(Op::Mod, k.load(a, i), by));
      k.check(0);
    }
  }
}

TEST(Ops, WhereAndThreefry) {
  Kernel k("where");
  int c = k.param(DType::Bool, 99), a = k.param(DType::F32, 99), b = k.param(DType::F32, 1),
      out = k.param(DType::F32, 99);
  UOp i = k.loop(99);
  k.store(out, i, where(k.load(c, i), k.load(a, i), k.load(b, index_const(0))));
  k.check(0);

  Kernel r("threefry");
  int key = r.param(DType::U64, 1), bits = r.param(DType::U64, 77);
  write_element(r.buffer(key).data(), DType::U64, 0, {0, 0x0123456789abcdef});
  UOp j = r.loop(77);
  r.store(bits, j, binary(Op::Threefry, cast(j * 3 + 5, DType::U64), r.load(key, index_const(0))));
  r.check(0);
}

// The known answers of Random123's threefry2x32, 20 rounds.
TEST(Ops, ThreefryKnownAnswers) {
  struct Case {
    uint32_t counter[2], key[2], expected[2];
  };
  for (const Case& c :
       {Case{{0, 0}, {0, 0}, {0x6b200159, 0x99ba4efe}},
        Case{{0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x1cb996fc, 0xbb002be7}},
        Case{{0x243f6a88, 0x85a308d3}, {0x13198a2e, 0x03707344}, {0xc4923a9c, 0x483df7a0}}}) {
    Kernel k("threefry_known");
    int a = k.param(DType::U64, 1), b = k.param(DType::U64, 1), out = k.param(DType::U64, 1);
    auto word = [](const uint32_t(&w)[2]) {
      return static_cast<int64_t>(uint64_t{w[1]} << 32 | w[0]);
    };
    write_element(k.buffer(a).data(), DType::U64, 0, {0, word(c.counter)});
    write_element(k.buffer(b).data(), DType::U64, 0, {0, word(c.key)});
    UOp zero = index_const(0);
    k.store(out, zero, binary(Op::Threefry, k.load(a, zero), k.load(b, zero)));
    k.run();
    EXPECT_EQ(k.buffer(out).get(0).whole, word(c.expected));
  }
}

// --- accuracy ------------------------------------------------------------------------------------

double worst_ulps(Op op, DType dtype, const std::vector<double>& inputs,
                  long double (*reference)(long double)) {
  int64_t n = static_cast<int64_t>(inputs.size());
  Kernel k("accuracy");
  int in = k.param(dtype, n), out = k.param(dtype, n);
  for (int64_t i = 0; i < n; ++i) k.buffer(in).set(i, inputs[static_cast<size_t>(i)]);
  UOp i = k.loop(n);
  k.store(out, i, unary(op, k.load(in, i)));
  k.run();
  double worst = 0;
  for (int64_t j = 0; j < n; ++j) {
    long double expected = reference(k.buffer(in).get(j).real);
    double actual = k.buffer(out).get(j).real;
    double rounded = round_to(dtype, static_cast<double>(expected));
    if (std::isnan(expected) || !std::isfinite(rounded)) {
      EXPECT_TRUE(std::isnan(rounded) ? std::isnan(actual) : rounded == actual)
          << info(op).name << "(" << inputs[static_cast<size_t>(j)] << ") = " << actual;
      continue;
    }
    double error = static_cast<double>(std::abs(expected - actual)) / ulp(dtype, rounded);
    if (error > 2.5)
      ADD_FAILURE() << info(op).name << "(" << k.buffer(in).get(j).real << ") = " << actual
                    << ", not " << static_cast<double>(expected);
    worst = std::max(worst, error);
  }
  return worst;
}

// Exponentially and uniformly spread values between low and high, both signs if `both`.
std::vector<double> spread(double low, double high, bool both) {
  std::vector<double> values = {low, high};
  for (int i = 0; i < 20000; ++i) {
    values.push_back(low * std::pow(high / low, i / 20000.0) * (1 + 1e-5 * (i % 97)));
    values.push_back(low + (high - low) * i / 20000.0);
    if (both) values.push_back(-values.back()), values.push_back(-values[values.size() - 3]);
  }
  return values;
}

TEST(Accuracy, Exp2) {
  double most = machine().target().multiprocessors > 0 ? 2.5 : 1.0;
  EXPECT_LT(worst_ulps(Op::Exp2, DType::F32, spread(1e-9, 150, true), exp2l), most);
  EXPECT_LT(worst_ulps(Op::Exp2, DType::F64, spread(1e-18, 1100, true), exp2l), 1.01);
}

TEST(Accuracy, Log2) {
  EXPECT_LT(worst_ulps(Op::Log2, DType::F32, spread(1e-45, 3e38, false), log2l), 1.5);
  EXPECT_LT(worst_ulps(Op::Log2, DType::F32, spread(0.5, 2, false), log2l), 1.5);
  EXPECT_LT(worst_ulps(Op::Log2, DType::F64, spread(5e-324, 1e308, false), log2l), 1.0);
  EXPECT_LT(worst_ulps(Op::Log2, DType::F64, spread(0.5, 2, false), log2l), 1.0);
}

TEST(Accuracy, Sin) {
  EXPECT_LT(worst_ulps(Op::Sin, DType::F32, spread(1e-30, 1e6, true), sinl), 0.6);
  EXPECT_LT(worst_ulps(Op::Sin, DType::F32, spread(1e6, 3e38, true), sinl), 0.6);
  EXPECT_LT(worst_ulps(Op::Sin, DType::F64, spread(1e-300, 1e9, true), sinl), 1.5);
  EXPECT_LT(worst_ulps(Op::Sin, DType::F64, spread(1e9, 1e18, true), sinl), 2.5);
}

// sinl is exact enough only up to 2^63; beyond, known values (computed with 1200 bits).
TEST(Accuracy, SinOfHugeNumbers) {
  const std::pair<double, double> known[] = {{1e22, -0.8522008497671888},
                                             {1e300, -0.8178819121159086},
                                             {0x1p1023, 0.563127779850884},
                                             {3e38, -0.02367845989469641}};
  for (auto [x, expected] : known) {
    Kernel k("huge");
    int in = k.param(DType::F64, 1), out = k.param(DType::F64, 1);
    k.buffer(in).set(0, x);
    UOp zero = index_const(0);
    k.store(out, zero, unary(Op::Sin, k.load(in, zero)));
    k.run();
    EXPECT_NEAR(k.buffer(out).get(0).real, expected, 4e-16) << x;
  }
}

}  // namespace
}  // namespace tinyshard::test
