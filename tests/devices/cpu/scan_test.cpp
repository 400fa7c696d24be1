// Scans are those of a loop in a wider type, for any number of threads, lines of any form, and what is no
// number; and sums of what is not negative never fall, however long a line is.
#include "devices/cpu/scan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "devices/cpu/thread_pool.h"

namespace tinyshard::scan_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A number in [0, 1).
double mixed(uint64_t i) {
  i = (i + 1) * 0x9e3779b97f4a7c15ull;
  i = (i ^ (i >> 29)) * 0xbf58476d1ce4e5b9ull;
  return double((i ^ (i >> 32)) >> 11) * 0x1p-53;
}

template <class Out, class T>
std::vector<Out> scanned(const ScanSpec& s, const std::vector<T>& x, int threads) {
  ThreadPool pool(threads);
  std::vector<Out> out(x.size(), Out(99));
  struct alignas(64) Line {
    char bytes[64];
  };
  auto scratch = std::make_unique<Line[]>(size_t(scan_scratch_bytes(s) / 64 + 1));
  scan_lines(s, x.data(), out.data(), scratch.get(), pool);
  return out;
}

struct Form {
  int64_t outer, n, inner;
};
constexpr Form kForms[] = {{1, 1, 1},     {3, 7, 1},      {1, 1000, 1},   {2, 40000, 1},
                           {70, 300, 1},  {70, 20000, 1}, {1, 100000, 1}, {2, 50, 3},
                           {1, 3000, 17}, {2, 130, 300},  {1, 900, 513},  {80, 5, 2},
                           {1, 40000, 2}, {1, 17000, 1}};

// The forms but the largest one, for what is compared element by element often.
std::vector<Form> small_forms() {
  std::vector<Form> forms;
  for (const Form& f : kForms) {
    if (f.outer * f.n * f.inner <= 120'000) forms.push_back(f);
  }
  return forms;
}

// f(spec, offset of a line's first element) for each line.
template <class F>
void each_line(const ScanSpec& s, F f) {
  for (int64_t o = 0; o < s.outer; ++o) {
    for (int64_t i = 0; i < s.inner; ++i) f(o * s.n * s.inner + i);
  }
}

template <class T>
constexpr DType type_of() {
  return dtype_of<T>();
}

template <class T>
ScanSpec spec_of(ScanArg arg, const Form& form) {
  return {arg, type_of<T>(), form.outer, form.n, form.inner};
}

template <class T>
std::vector<T> numbers(const ScanSpec& s, double low, double high) {
  std::vector<T> x(size_t(s.outer * s.n * s.inner));
  for (size_t i = 0; i < x.size(); ++i) x[i] = T(low + (high - low) * mixed(i));
  return x;
}

template <class T>
void expect_sums(const Form& form, bool reverse) {
  const ScanSpec s = spec_of<T>({.kind = ScanKind::Sum, .reverse = reverse}, form);
  const bool is_float = std::is_floating_point_v<T>;
  const auto x = numbers<T>(s, is_float ? -1 : 0, is_float ? 1 : 1e6);
  const auto out = scanned<T>(s, x, 1);
  for (int threads : {2, 5}) ASSERT_EQ(scanned<T>(s, x, threads), out);
  each_line(s, [&](int64_t at) {
    long double sum = 0, sizes = 0;
    uint64_t wrapped = 0;
    for (int64_t k = 0; k < s.n; ++k) {
      const auto i = size_t(at + (reverse ? s.n - 1 - k : k) * s.inner);
      if constexpr (std::is_floating_point_v<T>) {
        sum += x[i], sizes += std::abs(x[i]);
        const double few = 8 * double(std::numeric_limits<T>::epsilon());
        ASSERT_NEAR(double(out[i]), double(sum), few * double(sizes))
            << "place " << k << " of " << s.n;
      } else {
        wrapped += uint64_t(x[i]);
        ASSERT_EQ(out[i], T(wrapped)) << "place " << k << " of " << s.n;
      }
    }
  });
}

TEST(Scan, SumsOfLines) {
  for (const Form& form : kForms) {
    for (bool reverse : {false, true}) {
      expect_sums<float>(form, reverse);
      expect_sums<double>(form, reverse);
      expect_sums<int32_t>(form, reverse);
      expect_sums<uint32_t>(form, reverse);
      expect_sums<int64_t>(form, reverse);
      expect_sums<uint64_t>(form, reverse);
    }
  }
}

template <class T>
int64_t falls(const Form& form, double zeros, bool reverse) {
  const ScanSpec s = spec_of<T>({.kind = ScanKind::Sum, .reverse = reverse}, form);
  auto x = numbers<T>(s, 0, 1);
  for (size_t i = 0; i < x.size(); ++i) x[i] = mixed(i + 77) < zeros ? T(0) : x[i];
  const auto out = scanned<T>(s, x, 3);
  int64_t count = 0;
  each_line(s, [&](int64_t at) {
    for (int64_t k = 1; k < s.n; ++k) {
      const T first = out[size_t(at + (k - 1) * s.inner)], second = out[size_t(at + k * s.inner)];
      count += reverse ? first < second : second < first;
    }
  });
  return count;
}

TEST(Scan, SumsOfWhatIsNotNegativeNeverFall) {
  for (const Form& form : {Form{1, 1 << 20, 1}, Form{3, 70001, 1}, Form{1, 20000, 40}}) {
    for (double zeros : {0.0, 0.5, 0.98}) {
      for (bool reverse : {false, true}) {
        EXPECT_EQ(falls<float>(form, zeros, reverse), 0) << form.n << ", zeros " << zeros;
        EXPECT_EQ(falls<double>(form, zeros, reverse), 0) << form.n << ", zeros " << zeros;
      }
    }
  }
}

// A sum one by one is off by 1e-4 here.
TEST(Scan, SumsOfMillionsLoseFewDigits) {
  const ScanSpec s = spec_of<float>({.kind = ScanKind::Sum}, {1, 1 << 22, 1});
  const auto x = numbers<float>(s, 0, 1), out = scanned<float>(s, x, 2);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum += double(x[i]);
    ASSERT_NEAR(double(out[i]), sum, 2e-7 * sum) << i;
  }
}

TEST(Scan, ProductsOfLines) {
  for (const Form& form : kForms) {
    const ScanSpec s = spec_of<double>({.kind = ScanKind::Prod}, form);
    const auto x = numbers<double>(s, 0.999, 1.001), out = scanned<double>(s, x, 1);
    ASSERT_EQ(scanned<double>(s, x, 3), out);
    each_line(s, [&](int64_t at) {
      long double product = 1;
      for (int64_t k = 0; k < s.n; ++k) {
        const auto i = size_t(at + k * s.inner);
        product *= x[i];
        ASSERT_NEAR(out[i], double(product), 1e-11 * double(product)) << k << " of " << s.n;
      }
    });
  }
}

template <class T>
void expect_best(const Form& form, bool least, const std::vector<T>& x) {
  const ScanKind kind = least ? ScanKind::Min : ScanKind::Max;
  const ScanSpec values = spec_of<T>({.kind = kind}, form);
  const ScanSpec places = spec_of<T>({.kind = kind, .places = true}, form);
  const auto best = scanned<T>(values, x, 3);
  const auto where = scanned<int32_t>(places, x, 3);
  each_line(values, [&](int64_t at) {
    int64_t place = 0;
    auto element = [&](int64_t k) { return x[size_t(at + k * form.inner)]; };
    for (int64_t k = 0; k < form.n; ++k) {
      const T now = element(place), v = element(k);
      const bool known = now == now;
      if (known && (v != v || (least ? v < now : v > now))) place = k;
      const auto i = size_t(at + k * form.inner);
      ASSERT_EQ(where[i], place) << "at " << k << " of " << form.n << ", inner " << form.inner;
      const T want = element(place);
      ASSERT_TRUE(best[i] == want ? std::signbit(double(best[i])) == std::signbit(double(want))
                                  : want != want && best[i] != best[i])
          << best[i] << " is not " << want << " at " << k << " of " << form.n;
    }
  });
}

TEST(Scan, TheFirstOfEqualOnesIsBest) {
  for (const Form& form : small_forms()) {
    for (bool least : {false, true}) {
      const ScanSpec s = spec_of<double>({}, form);
      auto x = numbers<double>(s, -1, 1);
      expect_best<double>(form, least, x);
      // Rising ones, with ties, and both zeros.
      for (size_t i = 0; i < x.size(); ++i) {
        const size_t step = i / 5;
        x[i] = double(step) * (i % 2 ? 1 : -1);
      }
      expect_best<double>(form, least, x);
      for (size_t i = 0; i < x.size(); ++i) x[i] = i % 3 == 0 ? -0.0 : 0.0;
      expect_best<double>(form, least, x);
      // Nothing but infinities, and what is no number somewhere.
      std::ranges::fill(x, least ? kInfinity : -kInfinity);
      expect_best<double>(form, least, x);
      x[x.size() / 2] = std::nan("");
      x[x.size() - 1] = 5;
      expect_best<double>(form, least, x);
      expect_best<float>(form, least, numbers<float>(s, -1, 1));
      expect_best<int32_t>(form, least, numbers<int32_t>(s, -100, 100));
      expect_best<uint64_t>(form, least, numbers<uint64_t>(s, 0, 1e6));
    }
  }
}

template <class T>
void expect_logs(const ScanSpec& s, const std::vector<T>& x, double few) {
  const auto out = scanned<T>(s, x, 1);
  for (int threads : {2, 5}) {
    const auto again = scanned<T>(s, x, threads);
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_TRUE(out[i] == again[i] || (out[i] != out[i] && again[i] != again[i])) << i;
  }
  each_line(s, [&](int64_t at) {
    double base = -kInfinity;
    long double sum = 0;
    for (int64_t k = 0; k < s.n; ++k) {
      const auto i = size_t(at + k * s.inner);
      const auto v = double(x[i]);
      if (v > base)
        sum = base == -kInfinity ? 0 : sum * std::exp((long double)(base - v)), base = v;
      if (v != -kInfinity) sum += v == base ? 1.0L : std::exp((long double)(v - base));
      const double want = sum == 0 ? -kInfinity : base + double(std::log(sum));
      if (std::isfinite(want))
        ASSERT_NEAR(double(out[i]), want, few * (1 + std::abs(want))) << k << " of " << s.n;
      else
        ASSERT_TRUE(want == double(out[i]) || (std::isnan(want) && std::isnan(out[i])))
            << out[i] << " is not " << want << " at " << k << " of " << s.n;
    }
  });
}

TEST(Scan, LogsOfSums) {
  for (const Form& form : small_forms()) {
    const ScanSpec s = spec_of<float>({.kind = ScanKind::LogSumExp}, form);
    const ScanSpec wide = spec_of<double>({.kind = ScanKind::LogSumExp}, form);
    for (double range : {1.0, 80.0, 1000.0}) expect_logs(s, numbers<float>(s, -range, range), 5e-7);
    expect_logs(wide, numbers<double>(wide, -80, 80), 1e-14);
    auto x = numbers<float>(s, -3, 3);
    // They rise by more than a block takes, from nothing.
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = i < x.size() / 3 ? -float(kInfinity) : float(i) * 0.3F;
    expect_logs(s, x, 5e-7);
    x.assign(x.size(), -float(kInfinity));
    expect_logs(s, x, 0);
    x[x.size() / 2] = float(kInfinity);
    x[x.size() - 1] = 3;
    expect_logs(s, x, 5e-7);
    x[x.size() / 3] = std::nanf("");
    const auto out = scanned<float>(s, x, 2);
    EXPECT_TRUE(std::isnan(out[x.size() / 3])) << form.n;
  }
}

TEST(Scan, OfNothing) {
  ThreadPool pool(2);
  for (const ScanSpec& s : {spec_of<float>({}, {3, 0, 2}), spec_of<float>({}, {0, 5, 1})}) {
    EXPECT_EQ(scan_scratch_bytes(s), 0);
    scan_lines(s, nullptr, nullptr, nullptr, pool);
  }
}

TEST(Scan, RefusesWhatDoesNotAccumulate) {
  const ScanArg logs{.kind = ScanKind::LogSumExp};
  EXPECT_FALSE(scan_supports({.arg = {}, .dtype = DType::F16, .n = 3}));
  EXPECT_FALSE(scan_supports({.arg = logs, .dtype = DType::I32, .n = 3}));
  EXPECT_TRUE(scan_supports({.arg = {}, .dtype = DType::U64, .n = 3}));
}

}  // namespace
}  // namespace tinyshard::scan_test
