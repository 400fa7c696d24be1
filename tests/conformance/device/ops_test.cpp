// Ops of Tensor on every type and every view of their operands, on a device of each kind, against
// plain loops over double; each case has its range of operands and its tolerance. All operands are
// eighths, which every float type holds, or whole numbers.
#include <cmath>
#include <functional>
#include <vector>

#include "core/tensor/tensor.h"
#include "tests/conformance/device/device_case.h"

namespace tinyshard::test::ops_test {
namespace {

using Values = std::vector<double>;

struct OpCase {
  const char* name;
  std::function<Tensor(const Tensor&, const Tensor&)> run;
  std::function<double(double, double)> expected;
  double low = -4, high = 4;  // of operands
  double ulps = 0;            // of the result's type, at 1 or at the result where that is larger
  bool integers = true;       // defined on them, with the same result
};

double nearest_even(double x) { return std::nearbyint(x); }

const std::vector<OpCase>& cases() {
  using T = const Tensor&;
  static const std::vector<OpCase> all = {
      {"add", [](T a, T b) { return a + b; }, [](double a, double b) { return a + b; }, -4, 4, 1},
      {"sub", [](T a, T b) { return a - b; }, [](double a, double b) { return a - b; }, -4, 4, 1},
      {"mul", [](T a, T b) { return a * b; }, [](double a, double b) { return a * b; }, -4, 4, 1},
      {"div", [](T a, T b) { return a / b; }, [](double a, double b) { return a / b; }, 0.5, 4, 2,
       false},
      {"mod", [](T a, T b) { return a.mod(b); },
       [](double a, double b) { return a - std::floor(a / b) * b; }, 1, 9, 1},
      {"max", [](T a, T b) { return a.maximum(b); },
       [](double a, double b) { return std::max(a, b); }},
      {"min", [](T a, T b) { return a.minimum(b); },
       [](double a, double b) { return std::min(a, b); }},
      {"less", [](T a, T b) { return a.lt(b); }, [](double a, double b) { return a < b ? 1 : 0; }},
      {"equal", [](T a, T b) { return a.eq(b); },
       [](double a, double b) { return a == b ? 1 : 0; }},
      {"where", [](T a, T b) { return a.lt(b).where(a, b * 2); },
       [](double a, double b) { return a < b ? a : b * 2; }, -4, 4, 1},
      {"neg", [](T a, T) { return a.neg(); }, [](double a, double) { return -a; }},
      {"abs", [](T a, T) { return a.abs(); }, [](double a, double) { return std::fabs(a); }},
      {"sign", [](T a, T) { return a.sign(); },
       [](double a, double) { return double((a > 0) - (a < 0)); }},
      {"square", [](T a, T) { return a.square(); }, [](double a, double) { return a * a; }, -4, 4,
       1},
      {"relu", [](T a, T) { return a.relu(); }, [](double a, double) { return std::max(a, 0.0); }},
      {"floor", [](T a, T) { return a.floor(); }, [](double a, double) { return std::floor(a); }},
      {"ceil", [](T a, T) { return a.ceil(); }, [](double a, double) { return std::ceil(a); }},
      {"trunc", [](T a, T) { return a.trunc(); }, [](double a, double) { return std::trunc(a); }},
      {"round", [](T a, T) { return a.round(); }, [](double a, double) { return nearest_even(a); }},
      {"sqrt", [](T a, T) { return a.sqrt(); }, [](double a, double) { return std::sqrt(a); }, 0, 4,
       2, false},
      {"exp", [](T a, T) { return a.exp(); }, [](double a, double) { return std::exp(a); }, -4, 4,
       4, false},
      {"log", [](T a, T) { return a.log(); }, [](double a, double) { return std::log(a); }, 0.5, 4,
       4, false},
      {"sin", [](T a, T) { return a.sin(); }, [](double a, double) { return std::sin(a); }, -4, 4,
       4, false},
      {"tanh", [](T a, T) { return a.tanh(); }, [](double a, double) { return std::tanh(a); }, -4,
       4, 8, false},
      {"sigmoid", [](T a, T) { return a.sigmoid(); },
       [](double a, double) { return 1 / (1 + std::exp(-a)); }, -4, 4, 8, false},
      {"erf", [](T a, T) { return a.erf(); }, [](double a, double) { return std::erf(a); }, -4, 4,
       16, false},
  };
  return all;
}

// A view of a [5, 7] operand that has 5 x 7 elements of a larger one, and the same on the host.
struct View {
  const char* name;
  Dims base;  // shape of the memory
  std::function<Tensor(const Tensor&)> of;
  std::function<int64_t(int64_t row, int64_t column)> element;  // of the memory
};

const std::vector<View>& views() {
  static const std::vector<View> all = {
      {"plain",
       {5, 7},
       [](const Tensor& x) { return x; },
       [](int64_t r, int64_t c) { return r * 7 + c; }},
      {"transposed",
       {7, 5},
       [](const Tensor& x) { return x.T(); },
       [](int64_t r, int64_t c) { return c * 5 + r; }},
      {"cut",
       {9, 10},
       [](const Tensor& x) { return x.shrink({{2, 7}, {3, 10}}); },
       [](int64_t r, int64_t c) { return (r + 2) * 10 + c + 3; }},
      {"flipped",
       {5, 7},
       [](const Tensor& x) { return x.flip({0, 1}); },
       [](int64_t r, int64_t c) { return (4 - r) * 7 + 6 - c; }},
      {"repeated",
       {1, 7},
       [](const Tensor& x) { return x.expand({5, 7}); },
       [](int64_t, int64_t c) { return c; }},
      {"reshaped",
       {35},
       [](const Tensor& x) { return x.reshape({5, 7}); },
       [](int64_t r, int64_t c) { return r * 7 + c; }},
  };
  return all;
}

// Eighths, or whole numbers, spread over [low, high].
Values numbers(size_t n, const OpCase& op, bool whole, int step) {
  const double unit = whole ? 1 : 0.125;
  const int first = int(std::ceil(op.low / unit)),
            count = int(std::floor(op.high / unit)) - first + 1;
  Values values(n);
  for (size_t i = 0; i < n; ++i) values[i] = (first + int(i * size_t(step)) % count) * unit;
  return values;
}

double epsilon(DType type) {
  switch (type) {
    case DType::F64:
      return 0x1p-52;
    case DType::F32:
      return 0x1p-23;
    case DType::F16:
      return 0x1p-10;
    case DType::BF16:
      return 0x1p-7;
    default:
      return 0;
  }
}

class DeviceOps : public DeviceCase {
 protected:
  std::string place() const { return std::string(GetParam()) + ":0"; }
  Tensor operand(const Values& values, const Dims& shape, DType type) const {
    return Tensor(values, Ints(shape)).cast(type).to(place()).realize();
  }
};

TEST_P(DeviceOps, OnEveryTypeAndView) {
  for (const OpCase& op : cases()) {
    for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64}) {
      if (!op.integers && !is_float(type)) continue;
      for (const View& view : views()) {
        SCOPED_TRACE(std::string(op.name) + " " + std::string(name(type)) + " " + view.name);
        const Values a = numbers(size_t(product(view.base)), op, !is_float(type), 3);
        const Values b = numbers(35, op, !is_float(type), 7);
        const Tensor x = operand(a, view.base, type), y = operand(b, {5, 7}, type);
        const Tensor z = op.run(view.of(x), y).realize();
        if (!device().executes()) continue;  // it was planned, which is all
        const Values result = z.to_vector<double>();
        for (int64_t i = 0; i < 35; ++i) {
          const double want = op.expected(a[size_t(view.element(i / 7, i % 7))], b[size_t(i)]);
          const double allowed = op.ulps * epsilon(type) * std::max(1.0, std::fabs(want));
          ASSERT_NEAR(result[size_t(i)], want, allowed) << "element " << i;
        }
      }
    }
  }
}

// Along rows, columns and both, of whole numbers: exact in any order.
TEST_P(DeviceOps, ReductionsOfEveryView) {
  for (DType type : {DType::F32, DType::F64, DType::BF16, DType::I32, DType::I64}) {
    for (const View& view : views()) {
      SCOPED_TRACE(std::string(name(type)) + " " + view.name);
      const Values a =
          numbers(size_t(product(view.base)), {.name = "", .run = {}, .expected = {}}, true, 5);
      const Tensor x = view.of(operand(a, view.base, type));
      const Tensor rows = x.sum(1).realize(), columns = x.max(0).realize(), all = x.sum().realize();
      if (!device().executes()) continue;
      Values by_row(5), by_column(7, -100);
      double sum = 0;
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t c = 0; c < 7; ++c) {
          const double v = a[size_t(view.element(r, c))];
          by_row[size_t(r)] += v;
          by_column[size_t(c)] = std::max(by_column[size_t(c)], v);
          sum += v;
        }
      }
      EXPECT_EQ(rows.to_vector<double>(), by_row);
      EXPECT_EQ(columns.to_vector<double>(), by_column);
      EXPECT_EQ(all.item<double>(), sum);
    }
  }
}

TINYSHARD_ON_EVERY_DEVICE(DeviceOps);

}  // namespace
}  // namespace tinyshard::test::ops_test
