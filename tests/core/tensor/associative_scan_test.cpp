// Scans by an operation of one's own against loops.
#include "core/tensor/associative_scan.h"

#include <cmath>

#include <gtest/gtest.h>

#include "core/tensor/jit.h"
#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::associative_scan_test {
namespace {

// Rows of `n` values: x[row][t].
using Rows = std::vector<std::vector<double>>;

Rows waves(size_t rows, size_t n, double frequency) {
  Rows out(rows, std::vector<double>(n));
  for (size_t r = 0; r < rows; ++r)
    for (size_t t = 0; t < n; ++t) out[r][t] = std::sin(frequency * double(r * n + t) + 0.3);
  return out;
}
Tensor tensor(const Rows& rows) {
  std::vector<double> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return Tensor(flat, {int64_t(rows.size()), int64_t(rows[0].size())});
}
void expect_near(const Tensor& got, const Rows& want, double bound) {
  const std::vector<double> values = got.to_vector<double>();
  size_t i = 0;
  for (const auto& row : want) {
    for (const double w : row) {
      EXPECT_NEAR(values[i], w, bound) << i;
      ++i;
    }
  }
}
Rows recurrence(const Rows& a, const Rows& b, double initial, bool reverse = false) {
  Rows out = b;
  for (size_t r = 0; r < b.size(); ++r) {
    double h = initial;
    for (size_t k = 0; k < b[r].size(); ++k) {
      const size_t t = reverse ? b[r].size() - 1 - k : k;
      out[r][t] = h = a[r][t] * h + b[r][t];
    }
  }
  return out;
}

TEST(AssociativeScan, IsALoopOfAnyLength) {
  for (const size_t n : {1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 100}) {
    const Rows a = waves(3, n, 0.7), b = waves(3, n, 1.9);
    expect_near(linear_recurrence(tensor(a), tensor(b), 1), recurrence(a, b, 0), 1e-12);
    expect_near(linear_recurrence(tensor(a), tensor(b), -1, Tensor(Scalar(0.5)), true),
                recurrence(a, b, 0.5, true), 1e-12);
  }
}

TEST(AssociativeScan, TakesAnyDimAndBroadcasts) {
  const Rows a = waves(1, 40, 0.7), b = waves(6, 40, 1.9);
  Rows same(6, a[0]);
  const Tensor down = linear_recurrence(tensor(a).T(), tensor(b).T(), 0);  // [40, 1] and [40, 6]
  expect_near(down.T(), recurrence(same, b, 0), 1e-12);
  const Tensor initial = Tensor(std::vector<double>(6, 2.0));
  expect_near(linear_recurrence(tensor(a), tensor(b), 1, initial), recurrence(same, b, 2), 1e-12);
  const Tensor none = linear_recurrence(Tensor::ones({2, 0}), Tensor::ones({2, 0}), 1);
  EXPECT_EQ(none.shape(), (Dims{2, 0}));
}

// Matrices do not commute: the order of the operands shows.
TEST(AssociativeScan, KeepsTheOrderOfWhatDoesNotCommute) {
  constexpr int64_t kN = 13;
  std::vector<double> m(kN * 4);
  for (size_t i = 0; i < m.size(); ++i) m[i] = std::cos(1.3 * double(i));
  const Tensor x(m, {kN, 2, 2});
  for (const bool reverse : {false, true}) {
    const Tensor all = associative_scan(
        [](const Tensors& p, const Tensors& q) { return Tensors{p[0].matmul(q[0])}; }, {x}, 0,
        reverse)[0];
    std::vector<double> run{1, 0, 0, 1};
    for (int64_t k = 0; k < kN; ++k) {
      const auto t = size_t(reverse ? kN - 1 - k : k);
      const double* y = &m[t * 4];
      run = {run[0] * y[0] + run[1] * y[2], run[0] * y[1] + run[1] * y[3],
             run[2] * y[0] + run[3] * y[2], run[2] * y[1] + run[3] * y[3]};
      const auto got = all.at({int64_t(t)}).to_vector<double>();
      for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], run[i], 1e-12) << k;
    }
  }
}

TEST(AssociativeScan, HasGradients) {
  const Rows a = waves(2, 9, 0.7), b = waves(2, 9, 1.9);
  const Tensor x = tensor(a), y = tensor(b);
  const auto loss = [&](const Rows& p, const Rows& q) {
    double sum = 0;
    const Rows h = recurrence(p, q, 0.5);
    for (size_t r = 0; r < 2; ++r)
      for (size_t t = 0; t < 9; ++t) sum += h[r][t] * double(t + 1);
    return sum;
  };
  const Tensor weights = Tensor::arange(1, 10).cast(DType::F64);
  const Tensor initial(Scalar(0.5));
  const auto gradients = (linear_recurrence(x, y, 1, initial) * weights).sum().gradient({x, y});
  for (size_t which : {0, 1}) {
    const auto got = gradients[which].to_vector<double>();
    for (size_t r = 0; r < 2; ++r) {
      for (size_t t = 0; t < 9; ++t) {
        Rows up = which == 0 ? a : b, down = up;
        up[r][t] += 1e-6, down[r][t] -= 1e-6;
        const double slope = which == 0 ? (loss(up, b) - loss(down, b)) / 2e-6
                                        : (loss(a, up) - loss(a, down)) / 2e-6;
        EXPECT_NEAR(got[r * 9 + t], slope, 1e-6 * (1 + std::fabs(slope)));
      }
    }
  }
}

TEST(AssociativeScan, IsTheSameDividedAndCaptured) {
  TINYSHARD_NEED_DEVICES(4);
  const Rows a = waves(8, 50, 0.7), b = waves(8, 50, 1.9);
  const Mesh mesh = Mesh::of(device_names(4), "d");
  Jit step = [](Tensor decay, Tensor input) { return linear_recurrence(decay, input, 1); };
  for (const int dim : {0, 1}) {
    const Tensor x = tensor(a).shard(mesh, {{"d", Shard(dim)}}),
                 y = tensor(b).shard(mesh, {{"d", Shard(dim)}});
    expect_near(linear_recurrence(x, y, 1), recurrence(a, b, 0), 1e-12);
    step.reset();
    for (int i = 0; i < 3; ++i) expect_near(step(x, y), recurrence(a, b, 0), 1e-12);
  }
}

TEST(AssociativeScan, SaysWhatIsWrong) {
  const Tensor x = Tensor::ones({4, 3});
  const auto message = [](const auto& call) { return test::message_of<UserError>(call); };
  const Combine first = [](const Tensors& p, const Tensors&) { return Tensors{p[0]}; };
  EXPECT_NE(message([&] { associative_scan({}, {x}); }).find("no operation"), std::string::npos);
  EXPECT_NE(message([&] { associative_scan(first, {}); }).find("no elements"), std::string::npos);
  EXPECT_NE(message([&] { associative_scan(first, {x, x}); }).find("given 2 tensors and gave 1"),
            std::string::npos);
  EXPECT_NE(message([&] { associative_scan(first, {x}, 2); }).find("dim 2"), std::string::npos);
  EXPECT_NE(message([&] { associative_scan(first, {x, Tensor::ones({5, 3})}); }).find("one size"),
            std::string::npos);
  EXPECT_NE(message([&] {
              associative_scan([](const Tensors& p, const Tensors&) { return Tensors{p[0].sum()}; },
                               {x});
            }).find("gave f32[]"),
            std::string::npos);
  EXPECT_NE(
      message([&] { linear_recurrence(x.cast(DType::I32), x, 0); }).find("both must be floats"),
      std::string::npos);
}

}  // namespace
}  // namespace tinyshard::associative_scan_test
