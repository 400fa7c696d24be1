// With decay d, average = d * average + (1 - d) * weight; with equal counts, update n has 1 / (n + 1) of it.
#include "core/nn/average.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/exec/capture.h"
#include "core/exec/state.h"

namespace tinyshard::nn {

Average::Average(const StateDict& weights, const AverageOptions& options) : options_(options) {
  Call call("Average");
  if (!(options.decay >= 0 && options.decay < 1))
    fail(fmt::format("decay is {}; it must be at least 0 and below 1", options.decay));
  for (const auto& [name, weight] : weights) {
    if (!weight.is_floating_point()) continue;
    weights_.emplace_back(name, weight);
    averages[name] = weight.detach().cast(accumulator(weight.dtype())).clone();
  }
  if (weights_.empty()) fail("the model has no weights that are floats");
  updates = Tensor::zeros({}, DType::F32)
                .shard_like(replicated(weights_[0].second.sharding().mesh))
                .clone();
}

void Average::update(Caller caller) {
  Call call("Average", caller);
  const Tensor count = updates + 1.0;
  updates.assign(count);
  std::vector<Tensor> changed{updates};
  for (const auto& [name, weight] : weights_) {
    const Tensor& average = averages.at(name);
    if (!(weight.sharding() == average.sharding()))
      fail(fmt::format("{} is {}, its average {}; make the average after the weights were placed",
                       name, weight.describe(), average.describe()));
    Tensor keep = Tensor::full({}, options_.decay, DType::F32);
    const Tensor n = updates.sharding().mesh == weight.sharding().mesh
                         ? count
                         : count.shard_like(replicated(weight.sharding().mesh));
    if (options_.equal) keep = 1.0 - 1.0 / (n + 1.0);
    if (options_.warm_up) keep = ((n + 1.0) / (n + 10.0)).minimum(options_.decay);
    const bool number = !options_.equal && !options_.warm_up;
    const Tensor value = weight.detach().cast(average.dtype());
    average.assign(number ? average * options_.decay + value * (1 - options_.decay)
                          : average + (value - average) * (1.0 - keep.cast(average.dtype())));
    changed.push_back(average);
  }
  if (current_capture() == nullptr) Tensor::realize(changed);
}

void Average::copy_to_model() const {
  Call call("Average");
  std::vector<Tensor> changed;
  for (const auto& [name, weight] : weights_) {
    weight.assign(averages.at(name).cast(weight.dtype()));
    changed.push_back(weight);
  }
  Tensor::realize(changed);
}

Average::Use::Use(const Average& average) : average_(&average) {
  for (const auto& [name, weight] : average.weights_) own_.push_back(weight.detach().clone());
  Tensor::realize(own_);
  average.copy_to_model();
}

Average::Use::~Use() {
  for (size_t i = 0; i < own_.size(); ++i) {
    const auto& [name, weight] = average_->weights_[i];
    try {
      weight.assign(own_[i]);
    } catch (const UserError& error) {  // the program has put another value there meanwhile
      log_line(fmt::format("Average: {} keeps what it was given: {}", name, error.what()));
    }
  }
}

}  // namespace tinyshard::nn
