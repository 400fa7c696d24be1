// Optimizers that divide by a running size of each gradient: RMSprop and Adagrad.
#pragma once
#include <string>
#include <vector>

#include "core/nn/optim.h"

namespace tinyshard::nn::optim {

struct RmspropOptions {
  double lr = 0.01, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false;    // divides by the deviation: the running mean is taken off
  bool eps_inside = false;  // sqrt(v + eps), as TensorFlow has it, rather than sqrt(v) + eps
  std::string shard_axis = {};
  bool sparse = false;
};

class RMSprop : public Optimizer {
 public:
  RMSprop(const std::vector<Tensor>& params, const RmspropOptions& options = {});

  ByParameter v, mean, momentum;  // mean and momentum where they are asked for
  TS_FIELDS(lr, v, mean, momentum)

 protected:
  Tensor update(size_t i, const Tensor& value, const Tensor& gradient) override;
  std::vector<Tensor> state() const override { return parameters(*this); }

 private:
  RmspropOptions options_;
};

struct AdagradOptions {
  double lr = 0.01, lr_decay = 0, eps = 1e-10, weight_decay = 0;
  double initial = 0;  // of the sums of squares
  std::string shard_axis = {};
  bool sparse = false;
};

class Adagrad : public Optimizer {
 public:
  Adagrad(const std::vector<Tensor>& params, const AdagradOptions& options = {});

  Tensor steps;
  ByParameter sum;  // of squares
  TS_FIELDS(lr, steps, sum)

 protected:
  void begin_step() override;
  Tensor update(size_t i, const Tensor& value, const Tensor& gradient) override;
  std::vector<Tensor> state() const override { return parameters(*this); }

 private:
  AdagradOptions options_;
  Tensor rate_;  // of this step
};

}  // namespace tinyshard::nn::optim
