// Chains of elementwise ops, broadcasts, activations, casts and an optimizer's update.
#include "bench/sweep/kind.h"

namespace tinyshard::sweep {
namespace {

// The links of a chain, by number.
Tensor link(int64_t which, const Tensor& y, const Tensor& x) {
  switch (which) {
    case 0:
      return y.relu();
    case 1:
      return y * 1.5;
    case 2:
      return y + 0.5;
    case 3:
      return y * x;
    case 4:
      return y - x;
    case 5:
      return y.tanh();
    case 6:
      return y.sigmoid();
    case 7:
      return y.abs().sqrt();
    case 8:
      return y.maximum(x);
    case 9:
      return (x > 0).where(y, x);
    case 10:
      return y.square();
    default:
      return y.sin();
  }
}
constexpr int64_t kLinks = 12;

Sizes draw_chain(Draw& draw, int64_t elements) {
  Sizes drawn{draw.shape(elements), {}};
  for (int64_t n = draw.between(3, 9); n > 0; --n) drawn.numbers.push_back(draw.below(kLinks));
  return drawn;
}
Step chain(const Case& of) {
  return unary(of, [links = of.numbers](const Tensor& x) {
    Tensor y = x;
    for (int64_t which : links) y = link(which, y, x);
    return y;
  });
}

// A number a dim: 0 of both, 1 missing in the second, 2 missing in the first.
Sizes draw_broadcast(Draw& draw, int64_t elements) {
  Sizes drawn{draw.shape(elements, draw.between(2, 4)), {}};
  for (size_t i = 0; i < drawn.sizes.size(); ++i)
    drawn.numbers.push_back(draw.pick<int64_t>({0, 0, 1, 1, 2}));
  return drawn;
}
Step broadcast(const Case& of) {
  Dims a = of.sizes, b = of.sizes;
  for (size_t i = 0; i < of.sizes.size(); ++i) {
    if (of.numbers[i] == 1) b[i] = 1;
    if (of.numbers[i] == 2) a[i] = 1;
  }
  return step_of({numbers(a, of.dtype), numbers(b, of.dtype)},
                 [](const Tensors& v) { return v[0] * v[1]; });
}

Step of_two(const Case& of, const std::function<Tensor(const Tensor&, const Tensor&)>& function) {
  return step_of({numbers(of.sizes, of.dtype), numbers(of.sizes, of.dtype)},
                 [function](const Tensors& v) { return function(v[0], v[1]); });
}
Step gelu(const Case& of) {
  return unary(of, [](const Tensor& x) { return x.gelu(); });
}
Step exact_gelu(const Case& of) {
  return unary(of, [](const Tensor& x) { return x.gelu(true); });
}
Step silu(const Case& of) {
  return unary(of, [](const Tensor& x) { return x.silu(); });
}
Step swiglu(const Case& of) {
  return of_two(of, [](const Tensor& x, const Tensor& y) { return x.silu() * y; });
}

Step bits(const Case& of) {
  return of_two(of, [](const Tensor& x, const Tensor& y) { return ((x * 3 + 7) ^ (y >> 2)) & x; });
}

const DType kTargets[] = {DType::F32, DType::BF16, DType::F16, DType::F64,
                          DType::I32, DType::I64,  DType::U8,  DType::Bool};
Sizes draw_cast(Draw& draw, int64_t elements) {
  return {draw.shape(elements), {draw.below(std::ssize(kTargets))}};
}
Step cast_step(const Case& of) {
  const DType to = kTargets[of.numbers.at(0)];
  return unary(of, [to](const Tensor& x) { return x.cast(to).clone(); });
}

// Weights, gradients and two moments in, three of them out.
Step adam(const Case& of) {
  Step step;
  for (int i = 0; i < 4; ++i) step.inputs.push_back(numbers(of.sizes, of.dtype));
  step.function = [](const Tensors& v) {
    const Tensor m = v[2] * 0.9 + v[1] * 0.1, s = v[3].abs() * 0.999 + v[1].square() * 0.001;
    return Tensors{v[0] * 0.9999 - m * 0.001 / (s.sqrt() + 1e-8), m, s};
  };
  return step;
}

}  // namespace

Kinds elementwise_kinds() {
  const std::vector<DType> integers = {DType::I32, DType::I64, DType::U8, DType::I16};
  return {
      {"chain", kMore, draw_chain, chain},
      {"chain_grad", kMore, draw_chain, [](const Case& c) { return gradient_of(chain(c)); }},
      {"add", kAll, draw_shape,
       [](const Case& c) {
         return of_two(c, [](const Tensor& x, const Tensor& y) { return x + y; });
       }},
      {"where", kAll, draw_shape,
       [](const Case& c) {
         return of_two(c, [](const Tensor& x, const Tensor& y) { return (x > y).where(x, y * 2); });
       }},
      {"compare", kAll, draw_shape,
       [](const Case& c) {
         return of_two(c, [](const Tensor& x, const Tensor& y) { return x < y; });
       }},
      {"broadcast", kAll, draw_broadcast, broadcast},
      {"broadcast_grad", kMore, draw_broadcast,
       [](const Case& c) { return gradient_of(broadcast(c), 2); }},
      {"gelu", kFloats, draw_shape, gelu},
      {"gelu_grad", kFloats, draw_shape, [](const Case& c) { return gradient_of(gelu(c)); }},
      {"exact_gelu_grad", kFloats, draw_shape,
       [](const Case& c) { return gradient_of(exact_gelu(c)); }},
      {"silu_grad", kFloats, draw_shape, [](const Case& c) { return gradient_of(silu(c)); }},
      {"swiglu_grad", kFloats, draw_shape, [](const Case& c) { return gradient_of(swiglu(c), 2); }},
      {"bits", integers, draw_shape, bits},
      {"cast", kAll, draw_cast, cast_step},
      {"adam", {DType::F32, DType::F32, DType::BF16}, draw_shape, adam},
  };
}

}  // namespace tinyshard::sweep
