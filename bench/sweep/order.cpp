// Running totals, sorts and the largest ones, along any axis.
#include "bench/sweep/kind.h"

namespace tinyshard::sweep {
namespace {

// An axis, and how many of it.
Sizes draw_largest(Draw& draw, int64_t elements) {
  Sizes drawn = draw_axis(draw, elements);
  const int64_t size = drawn.sizes[size_t(drawn.numbers[0])];
  drawn.numbers.push_back(std::min(size, draw.pick<int64_t>({1, 2, 8, 10, 50, 256})));
  return drawn;
}

using Along = std::function<Tensor(const Tensor&, int64_t axis)>;
std::function<Step(const Case&)> along(const Along& function) {
  return [function](const Case& c) {
    return unary(c,
                 [function, axis = c.numbers.at(0)](const Tensor& x) { return function(x, axis); });
  };
}
std::function<Step(const Case&)> gradient_along(const Along& function) {
  return [make = along(function)](const Case& c) { return gradient_of(make(c)); };
}

using Pair = std::pair<Tensor, Tensor>;
using PairOf = std::function<Pair(const Tensor&, const Dims& numbers)>;
std::function<Step(const Case&)> values_and_places(const PairOf& function) {
  return [function](const Case& c) {
    return Step{{numbers(c.sizes, c.dtype)}, [function, of = c.numbers](const Tensors& v) {
                  const Pair made = function(v[0], of);
                  return Tensors{made.first, made.second};
                }};
  };
}

Tensor cumsum(const Tensor& x, int64_t axis) { return x.cumsum(axis); }
Tensor cumprod(const Tensor& x, int64_t axis) { return x.cumprod(axis); }

}  // namespace

Kinds order_kinds() {
  return {
      {"cumsum", kAll, draw_axis, along(cumsum)},
      {"cumsum_grad", kFloats, draw_axis, gradient_along(cumsum), filled},
      {"cumprod", kMore, draw_axis, along(cumprod)},
      {"logcumsumexp", kFloats, draw_axis,
       along([](const Tensor& x, int64_t axis) { return x.logcumsumexp(axis); })},
      {"cummax", kMore, draw_axis,
       values_and_places([](const Tensor& x, const Dims& of) { return x.cummax(of[0]); })},
      {"sort", kAll, draw_axis,
       values_and_places([](const Tensor& x, const Dims& of) { return x.sort(of[0]); })},
      {"argsort", kAll, draw_axis,
       along([](const Tensor& x, int64_t axis) { return x.argsort(axis); })},
      {"topk", kAll, draw_largest,
       values_and_places([](const Tensor& x, const Dims& of) { return x.topk(of[1], of[0]); })},
  };
}

}  // namespace tinyshard::sweep
