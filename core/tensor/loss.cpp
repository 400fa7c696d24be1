// Losses, from logits or probabilities to one number.
#include <limits>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

using value::text_of;
using value::Value;

namespace {

Dims all_axes(const Value& x) { return value::resolve_axes({}, x.rank()); }

Value reduced(const Value& x, Reduction reduction) {
  switch (reduction) {
    case Reduction::Mean:
      return value::mean(x, all_axes(x));
    case Reduction::Sum:
      return value::sum(x, all_axes(x));
    default:
      return x;
  }
}

// The mean over what counts, `weight` saying how much.
Value reduced(const Value& x, const Value& weight, Reduction reduction) {
  if (reduction != Reduction::Mean) return reduced(x, reduction);
  return value::sum(x, all_axes(x)) / value::sum(weight, all_axes(weight));
}

// `loss`, or NaN where a label is neither one of so many classes nor ignored. A loss that is one number
// is added up without these, so that its gradient and what is sent for it stay as they are.
Value without_strays(const Value& loss, const Value& labels, int64_t classes,
                     const std::optional<int64_t>& ignored, Reduction reduction) {
  const Value wide = value::cast(labels, DType::I64);
  Value stray = (wide < 0) | (wide >= classes);
  if (ignored) stray = stray & (wide != *ignored);
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  if (reduction == Reduction::None) return value::where(stray, kNaN, loss);
  const Value poison =
      value::where(stray, value::constant(loss.dtype(), kNaN), value::constant(loss.dtype(), 0));
  return loss + value::sum(poison, all_axes(poison));
}

Value reduced_but_ignored(const Value& loss, const Value& labels, int64_t classes,
                          const CrossEntropyOptions& options) {
  auto checked = [&](const Value& total) {
    return without_strays(total, labels, classes, options.ignore_index, options.reduction);
  };
  if (!options.ignore_index) return checked(reduced(loss, options.reduction));
  Value counts = labels != *options.ignore_index;
  return checked(
      reduced(value::where(counts, loss, 0), value::cast(counts, loss.dtype()), options.reduction));
}

void check_smoothing(double smoothing) {
  if (!(smoothing >= 0 && smoothing <= 1))
    fail(fmt::format("label_smoothing {} is not between 0 and 1", smoothing));
}

// Element `label` of the class axis of x, for labels of x's shape without that axis.
Value pick_class(const Value& x, int64_t axis, const Value& labels) {
  return value::squeeze(value::gather(x, axis, value::unsqueeze(labels, axis)), axis);
}

bool shapes_without_axis_match(const Value& x, int64_t axis, const Value& labels) {
  Dims shape = x.dims();
  shape.erase(shape.begin() + axis);
  return labels.dims() == shape;
}

void check_labels(const Value& x, int64_t axis, const Value& labels) {
  value::need_int(labels, "labels");
  if (x.rank() == 0 || !shapes_without_axis_match(x, axis, labels)) {
    fail(fmt::format("labels are {}, but x is {} with its classes in dim {}", text_of(labels),
                     text_of(x), axis));
  }
}

}  // namespace

Tensor Tensor::binary_crossentropy(const Tensor& target, Reduction reduction, Caller caller) const {
  Call call("binary_crossentropy", caller);
  return value::in_floats(*this, target, [&](const Value& x, const Value& y) {
    // p log q is nothing where nothing is expected and nothing comes.
    auto expected_log = [](const Value& p, const Value& q) {
      return p * value::log(value::where((p == 0) & (q == 0), 1, q));
    };
    return reduced(-expected_log(y, x) - expected_log(1 - y, 1 - x), reduction);
  });
}

Tensor Tensor::binary_crossentropy_logits(const Tensor& target, Reduction reduction,
                                          const Tensor& pos_weight, Caller caller) const {
  Call call("binary_crossentropy_logits", caller);
  return value::in_floats(*this, target, [&](const Value& x, const Value& y) {
    // -log sigmoid(x) = softplus(-x), -log(1 - sigmoid(x)) = softplus(x)
    Value positive = y * value::softplus(-x);
    if (pos_weight.defined()) positive = positive * Value(pos_weight);
    return reduced(positive + (1 - y) * value::softplus(x), reduction);
  });
}

Tensor Tensor::sparse_categorical_crossentropy(const Tensor& labels,
                                               const CrossEntropyOptions& options,
                                               Caller caller) const {
  Call call("sparse_categorical_crossentropy", caller);
  check_smoothing(options.label_smoothing);
  Value x(*this), y(labels);
  check_labels(x, x.rank() - 1, y);
  return value::in_floats(x, [&](const Value& v) {
    Value log_p = value::log_softmax(v, v.rank() - 1);
    Value loss = -pick_class(log_p, v.rank() - 1, y);
    if (options.label_smoothing > 0) {
      Value everywhere = -value::mean(log_p, {v.rank() - 1});
      loss = loss * (1 - options.label_smoothing) + everywhere * options.label_smoothing;
    }
    return reduced_but_ignored(loss, y, v.size(v.rank() - 1), options);
  });
}

Tensor Tensor::cross_entropy(const Tensor& target, const CrossEntropyOptions& options,
                             Caller caller) const {
  Call call("cross_entropy", caller);
  check_smoothing(options.label_smoothing);
  Value x(*this), y(target);
  if (x.rank() == 0) fail(fmt::format("x is {}: it needs a dim of classes", text_of(x)));
  int64_t axis = x.rank() == 1 ? 0 : 1;
  bool probabilities = x.dims() == y.dims();
  if (probabilities && options.ignore_index)
    fail(fmt::format("ignore_index {} needs labels, target {} holds probabilities",
                     *options.ignore_index, text_of(y)));
  if (!probabilities) {
    if (is_float(y.dtype())) {
      fail(fmt::format(
          "target {} has neither the shape of x {} (probabilities) nor is it integer labels",
          text_of(y), text_of(x)));
    }
    check_labels(x, axis, y);
  }
  return value::in_floats(x, [&](const Value& v) {
    Value log_p = value::log_softmax(v, axis);
    Value loss = probabilities ? -value::sum(log_p * y, {axis}) : -pick_class(log_p, axis, y);
    if (options.label_smoothing > 0) {
      Value everywhere = -value::mean(log_p, {axis});
      loss = loss * (1 - options.label_smoothing) + everywhere * options.label_smoothing;
    }
    return probabilities ? reduced(loss, options.reduction)
                         : reduced_but_ignored(loss, y, v.size(axis), options);
  });
}

Tensor Tensor::nll_loss(const Tensor& target, const Tensor& weight,
                        std::optional<int64_t> ignore_index, Reduction reduction,
                        Caller caller) const {
  Call call("nll_loss", caller);
  Value x(*this), y(target);
  int64_t axis = x.rank() == 1 ? 0 : 1;
  check_labels(x, axis, y);
  if (weight.defined() && (weight.ndim() != 1 || weight.shape(0) != x.size(axis)))
    fail(fmt::format("weight is {} for {} classes", weight.describe(), x.size(axis)));
  return value::in_floats(x, [&](const Value& v) {
    Value loss = -pick_class(v, axis, y), counts = value::constant(loss.dtype(), 1, y.shape());
    if (weight.defined()) {
      int64_t n = y.node()->numel();
      counts = value::reshape(value::gather(weight, 0, value::reshape(y, {n})), y.dims());
      // Narrow weights are summed as the losses are.
      if (is_narrow(counts.dtype())) counts = value::cast(counts, DType::F32);
    }
    if (ignore_index) {
      Value kept = y != *ignore_index;
      counts = value::where(kept, counts, 0), loss = value::where(kept, loss, 0);
    }
    const Value total = weight.defined() || ignore_index ? reduced(loss * counts, counts, reduction)
                                                         : reduced(loss, reduction);
    return without_strays(total, y, v.size(axis), ignore_index, reduction);
  });
}

}  // namespace tinyshard
