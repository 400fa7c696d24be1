// Sums, extremes, variances and softmaxes over any axes, and their gradients.
#include "bench/sweep/kind.h"

namespace tinyshard::sweep {
namespace {

using Reduce = std::function<Tensor(const Tensor&, const Dims& axes)>;

Step reduced(const Case& of, const Reduce& reduce) {
  return unary(of, [reduce, axes = of.numbers](const Tensor& x) { return reduce(x, axes); });
}

Kind forward(std::string_view name, const std::vector<DType>& types, const Reduce& reduce) {
  return {name, types, draw_axes, [reduce](const Case& c) { return reduced(c, reduce); }};
}
Kind backward(std::string_view name, const std::vector<DType>& types, const Reduce& reduce) {
  return {name, types, draw_axes,
          [reduce](const Case& c) { return gradient_of(reduced(c, reduce)); }};
}
// The gradient of a sum needs nothing but the sizes of its operand.
Kind sum_gradient() {
  Kind kind =
      backward("sum_grad", kFloats, [](const Tensor& x, const Dims& a) { return x.sum(a); });
  kind.work = filled;
  return kind;
}
// Along one axis.
Kind over_one(Kind kind) {
  kind.draw = draw_axis;
  return kind;
}

Tensor sum(const Tensor& x, const Dims& axes) { return x.sum(axes); }
Tensor mean(const Tensor& x, const Dims& axes) { return x.mean(axes); }
Tensor largest(const Tensor& x, const Dims& axes) { return x.max(axes); }
Tensor smallest(const Tensor& x, const Dims& axes) { return x.min(axes); }
Tensor variance(const Tensor& x, const Dims& axes) { return x.var(axes, false, 0); }
Tensor logsumexp(const Tensor& x, const Dims& axes) { return x.logsumexp(axes); }
Tensor softmax(const Tensor& x, const Dims& axes) { return x.softmax(axes[0]); }
Tensor log_softmax(const Tensor& x, const Dims& axes) { return x.log_softmax(axes[0]); }
Tensor length(const Tensor& x, const Dims& axes) { return x.square().sum(axes).sqrt(); }

Step product_sum(const Case& of) {
  return step_of({numbers(of.sizes, of.dtype), numbers(of.sizes, of.dtype)},
                 [axes = of.numbers](const Tensors& v) { return (v[0] * v[1]).sum(axes); });
}
Step mean_and_variance(const Case& of) {
  Step step = unary(of, [](const Tensor& x) { return x; });
  step.function = [axes = of.numbers](const Tensors& v) {
    const auto [variance, mean] = v[0].var_mean(axes, false, 0);
    return Tensors{variance, mean};
  };
  return step;
}

// Rows of classes: [rows, classes] and a label each.
Sizes draw_classes(Draw& draw, int64_t elements) {
  int64_t classes = draw.pick<int64_t>({10, 100, 1000, 1000, 10007, 32000, 50257, 128256});
  classes = std::min(classes, std::max<int64_t>(2, elements / 2));
  return {{std::max<int64_t>(1, elements / classes), classes}, {}};
}
Step cross_entropy(const Case& of) {
  return step_of({numbers(of.sizes, of.dtype), places({of.sizes[0]}, of.sizes[1])},
                 [](const Tensors& v) { return v[0].sparse_categorical_crossentropy(v[1]); });
}

}  // namespace

Kinds reduction_kinds() {
  const std::vector<DType> sums = {DType::F32, DType::BF16, DType::BF16, DType::F16,
                                   DType::F64, DType::I32,  DType::I64};
  return {
      forward("sum", sums, sum),
      sum_gradient(),
      forward("mean", kMore, mean),
      forward("max", kAll, largest),
      backward("max_grad", kFloats, largest),
      forward("min", kAll, smallest),
      forward("var", kMore, variance),
      backward("var_grad", kFloats, variance),
      forward("logsumexp", kFloats, logsumexp),
      forward("length", kFloats, length),
      backward("length_grad", kFloats, length),
      {"product_sum", kMore, draw_axes, product_sum},
      {"mean_and_variance", kFloats, draw_axes, mean_and_variance},
      over_one(
          forward("argmax", kAll, [](const Tensor& x, const Dims& a) { return x.argmax(a[0]); })),
      over_one(forward("any", kAll, [](const Tensor& x, const Dims& a) { return (x > 2).any(a); })),
      over_one(forward("softmax", kMore, softmax)),
      over_one(backward("softmax_grad", kFloats, softmax)),
      over_one(forward("log_softmax", kFloats, log_softmax)),
      over_one(backward("log_softmax_grad", kFloats, log_softmax)),
      {"cross_entropy", kFloats, draw_classes, cross_entropy},
      {"cross_entropy_grad", kFloats, draw_classes,
       [](const Case& c) { return gradient_of(cross_entropy(c)); }},
  };
}

}  // namespace tinyshard::sweep
