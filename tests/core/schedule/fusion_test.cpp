// Which values get memory where one step after another reads the same value in several places: a
// kernel computes a value once for each of these, so unbroken chains would multiply from step to
// step. The size of kernels is bounded for any number of steps, and values are those of single
// steps.
#include <algorithm>
#include <functional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

#include "core/exec/make_executable.h"
#include "core/uop/uop.h"

namespace tinyshard::fusion_test {
namespace {

using StepFunction = std::function<Tensor(const Tensor&)>;

struct Solver {
  std::string name;
  Ints shape;
  StepFunction step;
};

Tensor heat_2d(const Tensor& x) {
  return x + 0.1 * (x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1) + x.roll(-1, 1) - 4 * x);
}
Tensor heat_1d(const Tensor& x) { return (x.roll(1) - 2 * x + x.roll(-1)) * 0.1 + x; }
Tensor transposed(const Tensor& x) {
  return x.reshape({4, 4}).T().flatten().sin() * 0.5 + x.roll(1) * 0.25;
}
Tensor circular(const Tensor& x) {
  const int64_t n = x.shape(0);
  Tensor around = x.pad({{1, 1}}, 0, PadMode::Circular);
  return (around[Slice(0, n)] + around[Slice(2, n + 2)]) * 0.25 + x * 0.5;
}
// No value is read twice itself: what is made of it is, once each.
Tensor mirrored(const Tensor& x) { return x.sin().pad({{2, 0}})[Slice(0, 32)] + x.cos().flip({0}); }
// The step in f32 between values in f16.
Tensor narrow(const Tensor& x) {
  Tensor wide = x.cast(DType::F16).cast(DType::F32);
  return (wide.roll(1) - 2 * wide + wide.roll(-1)) * 0.1 + wide;
}
// Every step reads a sum over the whole.
Tensor normalized(const Tensor& x) { return heat_1d(x) / (x.square().sum() + 1); }
// Looks at itself in another shape and back, which is one place read once.
Tensor residual(const Tensor& x) { return x.reshape({8, 8}).sin().reshape({64}) + x * 0.5; }

std::vector<Solver> solvers() {
  return {{"heat in two dims", {16, 16}, heat_2d},
          {"heat in one dim", {64}, heat_1d},
          {"transposed", {16}, transposed},
          {"circular", {64}, circular},
          {"mirrored", {32}, mirrored},
          {"narrow", {64}, narrow},
          {"normalized", {64}, normalized},
          {"residual", {64}, residual}};
}

struct Sizes {
  size_t largest = 0, kernels = 0;
};

Sizes kernel_sizes(const std::vector<Tensor>& results) {
  std::vector<UOp> roots;
  for (const Tensor& x : results) roots.push_back(x.uop());
  Sizes sizes;
  for (const Item& item : make_plan(roots).items) {
    if (item.kind != Item::Kind::Kernel) continue;
    ++sizes.kernels;
    sizes.largest = std::max(sizes.largest, toposort(std::span(&item.kernel.sink, 1)).size());
  }
  return sizes;
}

Tensor after_steps(Tensor x, const StepFunction& step, int steps) {
  for (int i = 0; i < steps; ++i) x = step(x);
  return x;
}

TEST(Fusion, StepsThatReadAroundThemselvesAreKernelsOfBoundedSize) {
  for (const Solver& solver : solvers()) {
    Tensor x = Tensor::rand(solver.shape).realize();
    for (int steps = 3; steps <= 40; ++steps) {
      const Sizes sizes = kernel_sizes({after_steps(x, solver.step, steps)});
      ASSERT_LE(sizes.largest, 3000u) << solver.name << ", " << steps << " steps";
      ASSERT_LE(sizes.kernels, 2 * size_t(steps)) << solver.name << ", " << steps << " steps";
    }
  }
}

// Several results: their steps are shared, and so is what grows.
TEST(Fusion, SharedStepsAreKernelsOfBoundedSizeToo) {
  Tensor x = Tensor::rand({16, 16}).realize();
  for (int steps = 3; steps <= 12; ++steps) {
    Tensor y = after_steps(x, heat_2d, steps);
    const Sizes sizes = kernel_sizes({y * 2, y.T() + 1});
    ASSERT_LE(sizes.largest, 3000u) << steps << " steps";
  }
}

TEST(Fusion, ManyStepsHaveTheBitsOfSingleOnes) {
  for (const Solver& solver : solvers()) {
    Tensor x = Tensor::rand(solver.shape).realize(), single = x;
    for (int steps = 1; steps <= 12; ++steps) {
      single = solver.step(single).realize();
      if (steps % 4 == 0) {
        EXPECT_EQ(after_steps(x, solver.step, steps).to_vector<float>(), single.to_vector<float>())
            << solver.name << ", " << steps << " steps";
      }
    }
  }
}

// Elementwise steps read each value at one place only, so computations do not multiply, and all
// steps stay one kernel.
TEST(Fusion, ElementwiseStepsStayOneKernel) {
  Tensor x = Tensor::rand({64}).realize();
  auto step = [](const Tensor& y) { return y * y + y * 0.5; };
  EXPECT_EQ(kernel_sizes({after_steps(x, step, 40)}).kernels, 1u);
  EXPECT_EQ(kernel_sizes({after_steps(x, residual, 40)}).kernels, 1u);
}

}  // namespace
}  // namespace tinyshard::fusion_test
