// Dropout of a tensor of ones, [rows, 1, 1, ..], decides for each row
// and rescales what is kept: the mean over many steps is that of x.
#include "core/nn/stochastic_depth.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/call.h"

namespace tinyshard::nn {

Tensor stochastic_depth(const Tensor& x, double p, Caller caller) {
  Call call("stochastic_depth", caller);
  if (!(p >= 0 && p <= 1)) fail(fmt::format("p = {} is not a probability", p));
  if (x.ndim() < 1) fail("a tensor without dims has no rows");
  if (!is_training() || p == 0) return Tensor(x.uop());
  Pairs first;
  for (int64_t dim = 0; dim < x.ndim(); ++dim)
    first.emplace_back(0, dim == 0 ? x.shape(0) : std::min<int64_t>(1, x.shape(dim)));
  return x * x.shrink(first).ones_like(x.dtype()).dropout(p);
}

}  // namespace tinyshard::nn
