// Runs a case, from its description to what became of it.
#include "tests/golden/run_case.h"

#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "tests/golden/calls.h"
#include "tests/golden/layers.h"

namespace tinyshard::golden {
namespace {

// --- decompositions: multiplied out again, on the host ---

// The matrices of a batch, as doubles.
struct Matrices {
  explicit Matrices(const Tensor& x) : rows(x.shape(-2)), columns(x.shape(-1)), values(numbers(x)) {
    count = rows * columns == 0 ? 0 : static_cast<int64_t>(values.size()) / (rows * columns);
  }
  double at(int64_t matrix, int64_t r, int64_t c) const {
    return values[static_cast<size_t>((matrix * rows + r) * columns + c)];
  }
  int64_t rows, columns, count = 0;
  std::vector<double> values;
};

template <class Got, class Expected>
void near(const char* what, const Matrices& like, int64_t rows, int64_t columns, double tolerance,
          Got got, Expected expected) {
  for (int64_t m = 0; m < like.count; ++m) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const double a = got(m, r, c), b = expected(m, r, c);
        if (!(std::abs(a - b) <= tolerance))
          throw Mismatch(fmt::format("{}[{}, {}, {}] is {}, expected {}", what, m, r, c, a, b));
      }
    }
  }
}

void orthonormal(const char* what, const Matrices& q, bool by_columns, double tolerance) {
  const int64_t n = by_columns ? q.columns : q.rows, length = by_columns ? q.rows : q.columns;
  near(
      what, q, n, n, tolerance,
      [&](int64_t m, int64_t i, int64_t j) {
        double sum = 0;
        for (int64_t k = 0; k < length; ++k)
          sum += by_columns ? q.at(m, k, i) * q.at(m, k, j) : q.at(m, i, k) * q.at(m, j, k);
        return sum;
      },
      [](int64_t, int64_t i, int64_t j) { return i == j ? 1.0 : 0.0; });
}

void check_decomposition(const Case& c, const Tensors& parts) {
  const double tolerance = c.all().at("atol");
  const json& shapes = c.all().at("shapes");
  if (shapes.size() != parts.size()) throw Mismatch("another number of factors");
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].shape() != shapes[i].get<Dims>())
      throw Mismatch(fmt::format("factor {} has another shape", i));
  }
  const Matrices x(c.in());
  const auto original = [&](int64_t m, int64_t i, int64_t j) { return x.at(m, i, j); };
  if (c.op() == "qr") {
    const Matrices q(parts[0]), r(parts[1]);
    near(
        "QR", x, x.rows, x.columns, tolerance,
        [&](int64_t m, int64_t i, int64_t j) {
          double sum = 0;
          for (int64_t k = 0; k < q.columns; ++k) sum += q.at(m, i, k) * r.at(m, k, j);
          return sum;
        },
        original);
    orthonormal("Q'Q", q, true, tolerance);
    near(
        "R below its diagonal", r, r.rows, r.columns, tolerance,
        [&](int64_t m, int64_t i, int64_t j) { return i > j ? r.at(m, i, j) : 0.0; },
        [](int64_t, int64_t, int64_t) { return 0.0; });
    return;
  }
  if (c.op() != "svd") throw Mismatch("nothing says how to put " + c.op() + " together again");
  const Matrices u(parts[0]), vt(parts[2]);
  const std::vector<double> s = numbers(parts[1]);
  const int64_t k = parts[1].shape(-1);
  near(
      "USV'", x, x.rows, x.columns, tolerance,
      [&](int64_t m, int64_t i, int64_t j) {
        double sum = 0;
        for (int64_t n = 0; n < k; ++n)
          sum += u.at(m, i, n) * s[static_cast<size_t>(m * k + n)] * vt.at(m, n, j);
        return sum;
      },
      original);
  orthonormal("U'U", u, true, tolerance);
  orthonormal("V'V", vt, false, tolerance);
  for (size_t i = 1; i < s.size(); ++i) {
    if (i % static_cast<size_t>(k) != 0 && s[i] > s[i - 1] + tolerance)
      throw Mismatch(fmt::format("singular value {} is larger than the one before", i));
  }
  const json& key = c.all().at("outputs").at(1);
  const std::vector<double> expected = c.expected(key);
  if (s.size() != expected.size()) throw Mismatch("another number of singular values");
  for (size_t i = 0; i < s.size(); ++i) {
    if (!(std::abs(s[i] - expected[i]) <= tolerance))
      throw Mismatch(fmt::format("singular value {} is {}, expected {}", i, s[i], expected[i]));
  }
}

bool same_value(const json& a, const json& b) {
  if (a.is_array() || b.is_array()) {
    if (!a.is_array() || !b.is_array() || a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (!same_value(a[i], b[i])) return false;
    }
    return true;
  }
  if (a.is_string() || b.is_string()) return a == b;
  if (a.is_boolean() || b.is_boolean()) {
    auto number = [](const json& v) {
      return v.is_boolean() ? double(v.get<bool>()) : v.get<double>();
    };
    return number(a) == number(b);
  }
  return a == b;  // of numbers, whatever their JSON types
}

// --- a case ---

Tensors run(Case& c) {
  if (is_layer(c.op())) return run_layer(c);
  auto row = calls().find(c.op());
  if (row == calls().end()) throw Mismatch("unknown op " + c.op());
  Tensors out = row->second(c);
  if (c.inputs() == 0) {
    for (Tensor& x : out) x = c.where().put(x);
  }
  return out;
}

Outcome expect_error(const json& description, const Recorded& recorded, const Where& where) {
  const std::string& op = description.at("op").get_ref<const std::string&>();
  if (!is_layer(op) && !gives_value(op) && !calls().contains(op))
    return {false, "unknown op " + op};
  try {
    Case c(description, recorded, where);
    if (gives_value(op)) {
      value_of(c);
    } else {
      Tensor::realize(run(c));
    }
  } catch (const UserError& error) {
    const std::string text = error.what();
    if (text.size() <= 20) return {false, "an error that says little: " + text};
    return {true, text};
  } catch (const Refused& refused) {
    return {true, std::string("no program with this call compiles: ") + refused.what()};
  }
  return {false, "no error, though " + description.value("error", std::string("one is expected"))};
}

Outcome run_unguarded(const json& description, const Recorded& recorded, const Where& where) {
  const TrainingMode mode(description.value("training", false));
  if (description.at("check") == "error") return expect_error(description, recorded, where);
  Case c(description, recorded, where);
  if (description.contains("value") && gives_value(c.op())) {
    const json got = value_of(c);
    if (!same_value(got, description.at("value"))) return {false, "it is " + got.dump()};
  } else {
    const Tensors outputs = run(c);
    if (description.contains("value")) {
      if (outputs.size() != 1 ||
          !same_value(numbers(outputs[0]), json::array({description.at("value")})))
        return {false, "another value"};
    } else if (description.at("check") == "reconstruct") {
      check_decomposition(c, outputs);
    } else {
      c.compare_gradients(outputs);  // before the outputs: reading a tensor ends its history
      c.compare(outputs);
    }
  }
  if (const auto unread = c.unread(); !unread.empty())
    return {false, "no such argument of " + c.op() + ": " + unread.front()};
  return {true, {}};
}

}  // namespace

Outcome run_case(const json& description, const Recorded& recorded, const Where& where) {
  try {
    return run_unguarded(description, recorded, where);
  } catch (const std::exception& error) {
    return {false, error.what()};
  }
}

}  // namespace tinyshard::golden
