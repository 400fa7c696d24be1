// Code per device against the same code in plain vectors, one per device: random programs of
// collectives and arithmetic, their gradients by differences, and what shard_map refuses.
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/message_of.h"
#include "tests/multi/one_device.h"

namespace tinyshard::shard_map_test {
namespace {

// --- the oracle: a matrix on each device of a mesh of two axes -----------------------------------

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> at;
  double& operator()(int64_t r, int64_t c) { return at[size_t(r * columns + c)]; }
  double operator()(int64_t r, int64_t c) const { return at[size_t(r * columns + c)]; }
};

Matrix zeros(int64_t rows, int64_t columns) {
  return {rows, columns, std::vector<double>(size_t(rows * columns))};
}

Matrix block(const Matrix& x, int dim, int64_t part, int64_t parts) {
  Matrix out = dim == 0 ? zeros(x.rows / parts, x.columns) : zeros(x.rows, x.columns / parts);
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.columns; ++c)
      out(r, c) = dim == 0 ? x(part * out.rows + r, c) : x(r, part * out.columns + c);
  }
  return out;
}

Matrix beside(const std::vector<Matrix>& parts, int dim) {
  const auto n = int64_t(parts.size());
  const Matrix& one = parts[0];
  Matrix out = dim == 0 ? zeros(n * one.rows, one.columns) : zeros(one.rows, n * one.columns);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t r = 0; r < one.rows; ++r) {
      for (int64_t c = 0; c < one.columns; ++c) {
        double& to = dim == 0 ? out(i * one.rows + r, c) : out(r, i * one.columns + c);
        to = parts[size_t(i)](r, c);
      }
    }
  }
  return out;
}

// The matrices of the devices: device (i, j) at i * sizes[1] + j.
struct Held {
  int64_t sizes[2];
  std::vector<Matrix> on;

  int64_t place(size_t device, int axis) const {
    return axis == 0 ? int64_t(device) / sizes[1] : int64_t(device) % sizes[1];
  }
  // The devices that differ from this one in their place along the axis alone, in order.
  std::vector<size_t> line(size_t device, int axis) const {
    const int64_t step = axis == 0 ? sizes[1] : 1;
    std::vector<size_t> all;
    for (int64_t i = 0; i < sizes[axis]; ++i)
      all.push_back(size_t(int64_t(device) + (i - place(device, axis)) * step));
    return all;
  }
  // A new matrix for each device, from its place along the axis and those of its line.
  Held each(int axis, const std::function<Matrix(int64_t, const std::vector<Matrix>&)>& f) const {
    Held out{{sizes[0], sizes[1]}, {}};
    for (size_t d = 0; d < on.size(); ++d) {
      std::vector<Matrix> line_of;
      for (size_t other : line(d, axis)) line_of.push_back(on[other]);
      out.on.push_back(f(place(d, axis), line_of));
    }
    return out;
  }
  Held mapped(const std::function<double(double)>& f) const {
    Held out = *this;
    for (Matrix& m : out.on) {
      for (double& v : m.at) v = f(v);
    }
    return out;
  }
};

Matrix combined(const std::vector<Matrix>& all, const std::function<double(double, double)>& f) {
  Matrix out = all[0];
  for (size_t i = 1; i < all.size(); ++i) {
    for (size_t k = 0; k < out.at.size(); ++k) out.at[k] = f(out.at[k], all[i].at[k]);
  }
  return out;
}
Matrix sum_of(const std::vector<Matrix>& all) { return combined(all, std::plus<>()); }

Held entered(const Matrix& whole, const int64_t sizes[2], const std::vector<Placement>& place) {
  Held out{{sizes[0], sizes[1]}, std::vector<Matrix>(size_t(sizes[0] * sizes[1]), whole)};
  for (int axis : {0, 1}) {
    if (!place[size_t(axis)].is_shard()) continue;
    out = out.each(axis, [&](int64_t at, const std::vector<Matrix>& line) {
      return block(line[size_t(at)], place[size_t(axis)].dim, at, sizes[axis]);
    });
  }
  return out;
}

Matrix left(Held x, const std::vector<Placement>& place) {
  for (int axis : {1, 0}) {
    if (!place[size_t(axis)].is_shard()) continue;
    x = x.each(axis, [&](int64_t, const std::vector<Matrix>& line) {
      return beside(line, place[size_t(axis)].dim);
    });
  }
  return x.on[0];
}

// --- programs: steps that exist twice ------------------------------------------------------------

struct Step {
  std::string name;
  std::function<Tensor(const Tensor& x, const Tensor& w)> device;
  std::function<Held(const Held& x, double w)> oracle;
};

const char* const kAxes[] = {"a", "b"};

// Returns the steps that a matrix of this shape can take.
std::vector<Step> steps_for(int64_t rows, int64_t columns, const int64_t sizes[2]) {
  std::vector<Step> all;
  for (int axis : {0, 1}) {
    const std::string over = kAxes[axis];
    const int64_t n = sizes[axis];
    auto lines = [axis](auto f) {
      return [axis, f](const Held& x, double) { return x.each(axis, f); };
    };
    using Line = const std::vector<Matrix>&;
    all.push_back({"all_reduce " + over,
                   [=](const Tensor& x, const Tensor&) { return all_reduce(x, over) * 0.5; },
                   [axis](const Held& x, double) {
                     return x.each(axis, [](int64_t, Line line) { return sum_of(line); })
                         .mapped([](double v) { return v * 0.5; });
                   }});
    all.push_back(
        {"all_reduce max " + over,
         [=](const Tensor& x, const Tensor&) { return all_reduce(x, over, ReduceOp::Max) + x; },
         lines([](int64_t at, Line line) {
           Matrix top = combined(line, [](double a, double b) { return std::max(a, b); });
           return sum_of({top, line[size_t(at)]});
         })});
    all.push_back(
        {"all_reduce prod " + over,
         [=](const Tensor& x, const Tensor&) { return all_reduce(x, over, ReduceOp::Prod) - x; },
         lines([](int64_t at, Line line) {
           return combined({combined(line, std::multiplies<>()), line[size_t(at)]}, std::minus<>());
         })});
    all.push_back({"axis_index " + over,
                   [=](const Tensor& x, const Tensor&) { return x * (axis_index(over) + 1); },
                   lines([](int64_t at, Line line) {
                     Matrix out = line[size_t(at)];
                     for (double& v : out.at) v *= double(at + 1);
                     return out;
                   })});
    all.push_back(
        {"shift " + over, [=](const Tensor& x, const Tensor&) { return shift(x, over) - x; },
         lines([n](int64_t at, Line line) {
           return combined({line[size_t((at + n - 1) % n)], line[size_t(at)]}, std::minus<>());
         })});
    all.push_back({"collective_permute " + over,
                   [=](const Tensor& x, const Tensor&) {
                     std::vector<std::pair<int64_t, int64_t>> pairs{{n - 1, 0}};
                     if (n > 1) pairs.push_back({0, n - 1});
                     return collective_permute(x.sin(), over, pairs) + x;
                   },
                   lines([n](int64_t at, Line line) {
                     Matrix out = line[size_t(at)];
                     if (at != 0 && at != n - 1) return out;
                     const Matrix& from = line[size_t(n - 1 - at)];
                     for (size_t k = 0; k < out.at.size(); ++k) out.at[k] += std::sin(from.at[k]);
                     return out;
                   })});
    for (int dim : {0, 1}) {
      const int64_t size = dim == 0 ? rows : columns, other = dim == 0 ? columns : rows;
      if (size <= 12)
        all.push_back({fmt::format("all_gather {} {}", over, dim),
                       [=](const Tensor& x, const Tensor&) { return all_gather(x, over, dim); },
                       lines([dim](int64_t, Line line) { return beside(line, dim); })});
      if (size % n != 0) continue;
      all.push_back(
          {fmt::format("reduce_scatter {} {}", over, dim),
           [=](const Tensor& x, const Tensor&) { return reduce_scatter(x, over, dim); },
           lines([dim, n](int64_t at, Line line) { return block(sum_of(line), dim, at, n); })});
      all.push_back({fmt::format("reduce_scatter min {} {}", over, dim),
                     [=](const Tensor& x, const Tensor&) {
                       return reduce_scatter(x, over, dim, ReduceOp::Min);
                     },
                     lines([dim, n](int64_t at, Line line) {
                       auto least = [](double a, double b) { return std::min(a, b); };
                       return block(combined(line, least), dim, at, n);
                     })});
      all.push_back({fmt::format("reduce_scatter prod {} {}", over, dim),
                     [=](const Tensor& x, const Tensor&) {
                       return reduce_scatter(x, over, dim, ReduceOp::Prod);
                     },
                     lines([dim, n](int64_t at, Line line) {
                       return block(combined(line, std::multiplies<>()), dim, at, n);
                     })});
      if (other > 12) continue;
      all.push_back(
          {fmt::format("all_to_all {} {}", over, dim),
           [=](const Tensor& x, const Tensor&) { return all_to_all(x, over, dim, 1 - dim); },
           lines([dim, n](int64_t at, Line line) {
             std::vector<Matrix> parts;
             for (const Matrix& m : line) parts.push_back(block(m, dim, at, n));
             return beside(parts, 1 - dim);
           })});
    }
  }
  all.push_back(
      {"times w", [](const Tensor& x, const Tensor& w) { return x * w; },
       [](const Held& x, double w) { return x.mapped([=](double v) { return v * w; }); }});
  all.push_back({"sin", [](const Tensor& x, const Tensor&) { return x.sin() + x * 0.25; },
                 [](const Held& x, double) {
                   return x.mapped([](double v) { return std::sin(v) + v * 0.25; });
                 }});
  return all;
}

struct Program {
  int64_t sizes[2];
  std::vector<Placement> in, out;
  std::vector<Step> steps;
  std::string name;

  Held oracle(const Matrix& x, double w) const {
    Held held = entered(x, sizes, in);
    for (const Step& step : steps) held = step.oracle(held, w);
    return held;
  }
};

constexpr int64_t kSize = 12;

Program random_program(uint32_t seed) {
  std::mt19937 random(seed);
  auto below = [&](size_t n) { return size_t(random() % n); };
  static constexpr int64_t kSizes[][2] = {{2, 2}, {2, 3}, {3, 1}, {1, 4}};
  const int64_t* sizes = kSizes[seed % 4];
  Program p{{sizes[0], sizes[1]}, {}, {}, {}, fmt::format("seed {}:", seed)};
  const Placement all[] = {Replicate, Shard(0), Shard(1)};
  for (int axis : {0, 1}) {
    p.in.push_back(all[below(3)]);
    p.out.push_back(all[below(3)]);
    p.name +=
        fmt::format(" {} -> {}", p.in[size_t(axis)].to_string(), p.out[size_t(axis)].to_string());
  }
  Held at = entered(zeros(kSize, kSize), sizes, p.in);
  auto add = [&](const Step& step) {
    p.name += "; " + step.name;
    p.steps.push_back(step);
    at = step.oracle(at, 1);
  };
  for (size_t i = 0, n = 2 + below(4); i < n; ++i) {
    std::vector<Step> possible = steps_for(at.on[0].rows, at.on[0].columns, sizes);
    add(possible[below(possible.size())]);
  }
  for (int axis : {0, 1}) {  // what is to be the same on all devices is made so
    if (!p.out[size_t(axis)].is_replicate()) continue;
    for (const Step& step : steps_for(1, 1, sizes)) {
      if (step.name == std::string("all_reduce ") + kAxes[axis]) add(step);
    }
  }
  return p;
}

Matrix numbers(int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> some(-1, 1);
  Matrix out = zeros(rows, columns);
  for (double& v : out.at) v = some(random);
  return out;
}

Tensor tensor_of(const Matrix& m) { return Tensor(m.at, {m.rows, m.columns}); }

void expect_close(const Tensor& got, const std::vector<double>& want, double tolerance,
                  const std::string& what) {
  const auto values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(values[i], want[i], tolerance * (1 + std::abs(want[i]))) << what << " at " << i;
}

std::vector<AxisPlacement> named(const std::vector<Placement>& place) {
  return {{"a", place[0]}, {"b", place[1]}};
}

class ShardMaps : public OnDevices<8, testing::Test> {};
class ShardMapPrograms : public OnDevices<8, testing::TestWithParam<uint32_t>> {};

// Values, and the gradients of an argument and of what the function has captured.
TEST_P(ShardMapPrograms, AreWhatEachDeviceDoesByHand) {
  const Program p = random_program(GetParam());
  SCOPED_TRACE(p.name);
  const Mesh mesh({{"a", p.sizes[0]}, {"b", p.sizes[1]}});
  const Matrix x0 = numbers(kSize, kSize, 1);
  const double w0 = 0.75;
  const Matrix want = left(p.oracle(x0, w0), p.out);
  const Matrix weights = numbers(want.rows, want.columns, 2);

  auto run = [&](const Tensor& x, const Tensor& w) {
    auto f = shard_map(mesh,
                       [&](Tensor local) {
                         for (const Step& step : p.steps) local = step.device(local, w);
                         return local;
                       },
                       {.in = {named(p.in)}, .out = {named(p.out)}});
    const Tensor y = f(x);
    const Tensor loss = (y * tensor_of(weights)).sum();
    std::vector<Tensor> out = loss.gradient({x, w}, {}, true);
    out.push_back(y);
    return out;
  };
  auto loss_of = [&](const Matrix& x, double w) {
    const Matrix y = left(p.oracle(x, w), p.out);
    return std::inner_product(y.at.begin(), y.at.end(), weights.at.begin(), 0.0);
  };
  const double h = 1e-5;
  std::vector<double> slope;
  for (size_t i = 0; i < x0.at.size(); ++i) {
    Matrix up = x0, down = x0;
    up.at[i] += h;
    down.at[i] -= h;
    slope.push_back((loss_of(up, w0) - loss_of(down, w0)) / (2 * h));
  }
  const double slope_w = (loss_of(x0, w0 + h) - loss_of(x0, w0 - h)) / (2 * h);

  Jit step = [&](Tensor x, Tensor w) { return run(x, w); };
  for (int i = 0; i < 3; ++i) {  // the later ones are replayed
    const std::vector<Tensor> got = step(tensor_of(x0), Tensor(std::vector<double>{w0}, {1, 1}));
    ASSERT_EQ(got[2].shape(), (Dims{want.rows, want.columns}));
    expect_close(got[2], want.at, 1e-12, "values");
    expect_close(got[0], slope, 1e-6, "gradient of x");
    expect_close(got[1], {slope_w}, 1e-6, "gradient of w");
  }
}

INSTANTIATE_TEST_SUITE_P(Random, ShardMapPrograms, testing::Range(0u, 80u));

// The example of docs/shard.md.
TEST_F(ShardMaps, DividesTheDocumentedSoftmax) {
  Mesh mesh({{"model", 4}});
  const Tensor x = Tensor::arange(8000).cast(DType::F64).sin().reshape({8, 1000});
  auto softmax = shard_map(mesh,
                           [](Tensor x) {
                             Tensor e =
                                 (x - all_reduce(x.max(1, true), "model", ReduceOp::Max)).exp();
                             return e / all_reduce(e.sum(1, true), "model");
                           },
                           {.in = {{{"model", Shard(1)}}}, .out = {{{"model", Shard(1)}}}});
  Tensor y = softmax(x);
  EXPECT_EQ(y.sharding().to_string(), "f64[8, 1000@model:4]");
  std::vector<double> want = x.to_vector<double>();
  for (size_t row = 0; row < 8; ++row) {
    double sum = 0;
    for (size_t i = 0; i < 1000; ++i) sum += std::exp(want[row * 1000 + i]);
    for (size_t i = 0; i < 1000; ++i) want[row * 1000 + i] = std::exp(want[row * 1000 + i]) / sum;
  }
  expect_close(y, want, 1e-14, "softmax");
}

// A gradient that the function takes itself, of what each device has and of what all share.
TEST_F(ShardMaps, TakeGradientsInside) {
  const Mesh mesh({{"d", 4}});
  const Matrix x = numbers(8, 3, 3), w = numbers(1, 3, 4);
  auto f = shard_map(mesh,
                     [&](Tensor rows, Tensor weight) {
                       const Tensor loss = (rows * weight).sin().sum();
                       const std::vector<Tensor> slopes = loss.gradient({rows, weight});
                       return std::pair(slopes[0], slopes[1]);
                     },
                     {.in = {{{"d", Shard(0)}}, {}}, .out = {{{"d", Shard(0)}}, {}}});
  const auto [of_rows, of_weight] = f(tensor_of(x), tensor_of(w));
  Matrix want = zeros(8, 3), want_w = zeros(1, 3);
  for (int64_t r = 0; r < 8; ++r) {
    for (int64_t c = 0; c < 3; ++c) {
      want(r, c) = std::cos(x(r, c) * w(0, c)) * w(0, c);
      want_w(0, c) += std::cos(x(r, c) * w(0, c)) * x(r, c);
    }
  }
  expect_close(of_rows, want.at, 1e-12, "rows");
  expect_close(of_weight, want_w.at, 1e-12, "weight");
}

// Gradients of gradients: of the cube of each element, and of the product with a shared weight.
TEST_F(ShardMaps, HaveSecondDerivatives) {
  const Mesh mesh({{"d", 4}});
  const Tensor x = tensor_of(numbers(8, 3, 9)), w = tensor_of(numbers(1, 3, 10));
  auto f = shard_map(mesh,
                     [](Tensor rows, Tensor weight) {
                       return all_reduce((rows * rows * rows * weight).sum(), "d");
                     },
                     {.in = {{{"d", Shard(0)}}, {}}, .out = {{}}});
  const Tensor slope = f(x, w).gradient({x})[0];
  const std::vector<Tensor> second = slope.sum().gradient({x, w});
  expect_close(second[0], (x * w * 6).to_vector<double>(), 1e-12, "x");
  expect_close(second[1], (x * x * 3).sum(0, true).to_vector<double>(), 1e-12, "w");
}

// A column has no zero, one or two: their products have slopes that no quotient gives. Columns are
// rows of one device's x.
TEST_F(ShardMaps, DeriveProductsAsOneDeviceDoes) {
  const Mesh mesh({{"d", 4}});
  Matrix values = numbers(4, 3, 11);
  values.at[1 * 3 + 1] = values.at[0 * 3 + 2] = values.at[3 * 3 + 2] = 0;
  const Tensor x = tensor_of(values), weights = tensor_of(numbers(1, 3, 12));
  auto product = shard_map(mesh, [](Tensor row) { return all_reduce(row, "d", ReduceOp::Prod); },
                           {.in = {{{"d", Shard(0)}}}, .out = {{}}});
  auto derivatives = [&](const Tensor& y) {
    std::vector<Tensor> out{(y * weights).sum().gradient({x})[0]};
    out.push_back((out[0] * out[0]).sum().gradient({x})[0]);
    return out;
  };
  const std::vector<Tensor> got = derivatives(product(x)), want = derivatives(x.prod(0, true));
  expect_close(got[0], want[0].to_vector<double>(), 1e-12, "first");
  expect_close(got[1], want[1].to_vector<double>(), 1e-12, "second");
}

// Drawn as an ordinary value, so the same on all devices: it may be returned as Replicate.
TEST_F(ShardMaps, DrawOneNumberForAll) {
  const Mesh mesh({{"d", 4}});
  Tensor::manual_seed(3);
  const std::vector<double> want = Tensor::rand({2, 3}, DType::F64).to_vector<double>();
  Tensor::manual_seed(3);
  auto f = shard_map(mesh,
                     [](Tensor x) {
                       const Tensor drawn = Tensor::rand({2, 3}, DType::F64);
                       return std::pair(drawn, x * drawn);
                     },
                     {.in = {{{"d", Shard(0)}}}, .out = {{}, {{"d", Shard(0)}}}});
  const auto [drawn, scaled] = f(Tensor::ones({8, 3}, DType::F64));
  EXPECT_EQ(drawn.to_vector<double>(), want);
  EXPECT_EQ(scaled[{Slice(6, 8)}].to_vector<double>(), want);
}

// Other types travel as well, and keep what only they hold.
TEST_F(ShardMaps, MoveEveryType) {
  const Mesh mesh({{"d", 4}});
  const std::vector<int64_t> numbers{1, 0, 3, -4, 5, 6, 0, 8};
  for (DType type : {DType::Bool, DType::I8, DType::U16, DType::I32, DType::I64, DType::BF16,
                     DType::F16, DType::F32}) {
    const Tensor x = Tensor(numbers, {8}).abs().cast(type);
    auto f = shard_map(mesh,
                       [](Tensor local) {
                         return std::vector<Tensor>{shift(local, "d"), all_gather(local, "d"),
                                                    all_reduce(local, "d", ReduceOp::Max)};
                       },
                       {.in = {{{"d", Shard(0)}}}, .out = {{{"d", Shard(0)}}, {}, {}}});
    const std::vector<Tensor> got = f(x);
    const auto plain = x.to_vector<double>();
    std::vector<double> shifted = plain;
    std::rotate(shifted.begin(), shifted.end() - 2, shifted.end());
    EXPECT_EQ(got[0].to_vector<double>(), shifted) << name(type);
    EXPECT_EQ(got[1].to_vector<double>(), plain) << name(type);
    EXPECT_EQ(got[2].to_vector<double>(),
              (type == DType::Bool ? std::vector<double>{1, 1} : std::vector<double>{5, 8}))
        << name(type);
    for (const Tensor& t : got) EXPECT_EQ(t.dtype(), type);
  }
}

// Layers, losses, checkpointed activations and an optimizer inside of a Jit: as on one device.
TEST_F(ShardMaps, TrainAsOneDevice) {
  const Mesh mesh({{"data", 2}, {"model", 2}});
  const Matrix x = numbers(8, 6, 5), y = numbers(8, 4, 6), w1 = numbers(6, 8, 7),
               w2 = numbers(8, 4, 8);
  auto train = [&](bool by_hand) {
    Tensor a = tensor_of(w1).is_param_(), b = tensor_of(w2).is_param_();
    nn::optim::AdamW optimizer({a, b}, {.lr = 1e-2});
    auto loss_of = [&](const Tensor& rows, const Tensor& labels) {
      if (!by_hand) return (rows.matmul(a).relu().matmul(b) - labels).square().mean();
      auto f =
          shard_map(mesh,
                    [](Tensor part, Tensor want, Tensor up, Tensor down) {
                      const Tensor hidden = nn::checkpoint_activations(
                          [&](Tensor in) { return in.matmul(up).relu(); }, part);
                      const Tensor out = all_reduce(hidden.matmul(down), "model");
                      return all_reduce((out - want).square().mean(), "data") / axis_size("data");
                    },
                    {.in = {{{"data", Shard(0)}},
                            {{"data", Shard(0)}},
                            {{"model", Shard(1)}},
                            {{"model", Shard(0)}}},
                     .out = {{}}});
      return f(rows, labels, a, b);
    };
    Jit step = [&](Tensor rows, Tensor labels) {
      TrainingMode on;
      optimizer.zero_grad();
      const Tensor loss = loss_of(rows, labels).backward();
      optimizer.step();
      return loss;
    };
    std::vector<double> losses;
    for (int i = 0; i < 20; ++i) losses.push_back(step(tensor_of(x), tensor_of(y)).item<double>());
    return losses;
  };
  const std::vector<double> want = train(false), got = train(true);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12 * want[i]) << i;
  EXPECT_LT(want.back(), want.front());
}

// Shapes and sizes that f sees are one device's view.
TEST_F(ShardMaps, ShowsOneDevicesShapes) {
  const Mesh mesh({{"a", 2}, {"b", 2}});
  auto f = shard_map(
      mesh,
      [](Tensor x) {
        EXPECT_EQ(x.shape(), (Dims{2, 3}));
        EXPECT_EQ(axis_size("b"), 2);
        EXPECT_EQ(axis_index("a").shape(), Dims{});
        return x + x.zeros_like() + axis_index("a") * 10 + axis_index("b");
      },
      {.in = {{{"a", Shard(0)}, {"b", Shard(1)}}}, .out = {{{"a", Shard(0)}, {"b", Shard(1)}}}});
  const Tensor y = f(Tensor::zeros({4, 6}, DType::F64));
  EXPECT_EQ(y.sharding().to_string(), "f64[4@a:2, 6@b:2]");
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 6; ++c) {
      const int64_t place = r / 2 * 10 + c / 3;
      EXPECT_EQ((y[{r, c}].item<double>()), double(place));
    }
  }
}

TEST_F(ShardMaps, RefuseWhatHasNoMeaning) {
  const Mesh mesh({{"a", 2}, {"b", 2}});
  const Tensor x = Tensor::ones({5, 4}, DType::F64);
  auto message = [&](auto f, const ShardMapPlacements& places, const auto&... arguments) {
    return test::message_of<UserError>([&] {
      auto mapped = shard_map(mesh, f, places);
      mapped(arguments...).realize();
    });
  };
  const auto same = [](const Tensor& t) { return t; };
  const std::vector<AxisPlacement> rows{{"a", Shard(0)}}, columns{{"a", Shard(1)}};
  using testing::HasSubstr;
  EXPECT_THAT(message(same, {.in = {rows}, .out = {rows}}, x),
              HasSubstr("dim 0 of argument 0, f64[5, 4], does not divide: the axis \"a\" has 2 "
                        "devices"));
  EXPECT_THAT(message(same, {.in = {columns}, .out = {{}}}, x),
              HasSubstr("result 0, f64[5, 2], differs from device to device of \"a\""));
  EXPECT_THAT(message(same, {.in = {columns}, .out = {columns, {}}}, x),
              HasSubstr("returns 1 tensors; it has placements of 2"));
  EXPECT_THAT(message(same, {.in = {}, .out = {columns}}, x),
              HasSubstr("called with 1 tensors; it has placements of 0"));
  EXPECT_THAT(message(same, {.in = {{{"c", Shard(0)}}}, .out = {{}}}, x),
              HasSubstr("has no axis \"c\""));
  EXPECT_THAT(message([](const Tensor& t) { return all_reduce(t, "c"); },
                      {.in = {columns}, .out = {{}}}, x),
              HasSubstr("mesh has no axis \"c\"; it has \"a\", \"b\""));
  EXPECT_THAT(message([](const Tensor& t) { return reduce_scatter(t, "b"); },
                      {.in = {columns}, .out = {columns}}, x),
              HasSubstr("dim 0 of f64[5, 2] does not divide: the axis \"b\" has 2 devices"));
  EXPECT_THAT(message([](const Tensor& t) { return collective_permute(t, "a", {{0, 1}, {1, 1}}); },
                      {.in = {columns}, .out = {columns}}, x),
              HasSubstr("device 1 receives twice"));
  EXPECT_THAT(message([](const Tensor& t) { return collective_permute(t, "a", {{0, 2}}); },
                      {.in = {columns}, .out = {columns}}, x),
              HasSubstr("names device 2: the axis \"a\" has 2 devices"));
  EXPECT_THAT(message([](const Tensor& t) { return t + t.sum().item<double>(); },
                      {.in = {columns}, .out = {columns}}, x),
              HasSubstr("has for itself"));
  EXPECT_THAT(message([](const Tensor& t) { return t.to("CPU:0"); },
                      {.in = {columns}, .out = {columns}}, x),
              HasSubstr("inside shard_map values move by collectives"));
  EXPECT_THAT(test::message_of<UserError>([&] { all_reduce(x, "a"); }),
              HasSubstr("all_reduce: over \"a\": devices have values of their own only in"));
  Tensor total = Tensor::zeros({5, 2}, DType::F64).realize();
  EXPECT_THAT(message(
                  [&](const Tensor& t) {
                    total.assign(t).realize();
                    return t;
                  },
                  {.in = {columns}, .out = {columns}}, x),
              HasSubstr("return it from shard_map and assign the result"));
  Tensor kept;
  EXPECT_THAT(message(
                  [&](const Tensor& t) {
                    auto inner = shard_map(mesh, same, {.in = {{}}, .out = {{}}});
                    return inner(t);
                  },
                  {.in = {columns}, .out = {columns}}, x),
              HasSubstr("called inside of the function of another shard_map"));
  message(
      [&](const Tensor& t) {
        kept = t * 2;
        return t;
      },
      {.in = {columns}, .out = {columns}}, x);
  EXPECT_THAT(test::message_of<UserError>([&] { kept.realize(); }),
              HasSubstr("it has a value for all once shard_map returns it"));
}

}  // namespace
}  // namespace tinyshard::shard_map_test
