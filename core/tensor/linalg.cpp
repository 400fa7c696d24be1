// Decompositions. QR and SVD are nodes of the graph, of which a CPU computes each in f64, one matrix
// after the other: they are for small matrices.
#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/sizes.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {
namespace {

// A matrix of so many rows takes 2 GiB in f64, and days of work.
constexpr int64_t kMostRows = int64_t{1} << 14;
constexpr int64_t kMostElements = int64_t{1} << 30;

void check_matrices(const Tensor& x) {
  if (x.ndim() < 2) fail(fmt::format("needs at least two dims, not {}", x.describe()));
  if (!is_float(x.dtype())) fail(fmt::format("needs floats, not {}", x.describe()));
  const Dims shape = x.shape();
  const int64_t side = std::max(x.shape(-2), x.shape(-1)),
                count = product(DimSpan(shape).first(shape.size() - 2));
  if (side > kMostRows || multiply_sizes(count, 3 * side * side) > kMostElements) {
    fail(
        fmt::format("{} is too large for a decomposition on the host: at most {} rows and columns, "
                    "and {} elements in all results",
                    x.describe(), kMostRows, kMostElements));
  }
}

Tensor factor_of(const Tensor& x, Factor factor, bool full = true) {
  return Tensor(
      UOp::make(Op::Decompose, x.dtype(), {x.uop()}, to_ints(DecomposeArg{factor, full})));
}

}  // namespace

std::pair<Tensor, Tensor> Tensor::qr(Caller caller) const {
  Call call("qr", caller);
  check_matrices(*this);
  return {factor_of(*this, Factor::Q), factor_of(*this, Factor::R)};
}

Tensor::Svd Tensor::svd(bool full_matrices, Caller caller) const {
  Call call("svd", caller);
  check_matrices(*this);
  return {factor_of(*this, Factor::U, full_matrices), factor_of(*this, Factor::S),
          factor_of(*this, Factor::V, full_matrices)};
}

// Each step is several nodes of the graph.
constexpr int64_t kMostSteps = 1000;

// Steps of X <- a X + b (X X') X + c (X X')^2 X..., which drive the singular values of X to one.
Tensor Tensor::newton_schulz(int64_t steps, const std::vector<double>& coefficients, double eps,
                             Caller caller) const {
  Call call("newton_schulz", caller);
  if (ndim() < 2) fail(fmt::format("needs at least two dims, not {}", describe()));
  if (coefficients.empty()) fail("no coefficients");
  if (steps < 0 || steps > kMostSteps)
    fail(fmt::format("{} steps; between 0 and {} are possible", steps, kMostSteps));
  // Squares of what 16 bits hold, or whole numbers, need not be among what these hold.
  const DType type = is_float(dtype()) ? dtype() : default_float();
  const Tensor wide = cast(accumulator(type));
  Tensor x = wide.div(wide.square().sum({-2, -1}, true).sqrt().add(eps)).cast(type);
  bool tall = shape(-2) > shape(-1);
  if (tall) x = x.transpose(-2, -1);
  for (int64_t i = 0; i < steps; ++i) {
    Tensor gram = x.matmul(x.transpose(-2, -1)), power = x, next = x * coefficients[0];
    for (size_t j = 1; j < coefficients.size(); ++j) {
      power = gram.matmul(power);
      next = next + power * coefficients[j];
    }
    x = next;
  }
  return tall ? x.transpose(-2, -1) : x;
}

}  // namespace tinyshard
