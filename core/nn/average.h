// Averages of a model's weights over training, which often do better than the last ones.
//
//   nn::Average average(model, {.decay = 0.999});
//   Jit step = [&](Tensor x) { ...; optim.step(); average.update(); return loss; };
//   { nn::Average::Use use(average); evaluate(model); }   // the averages in the model's place
//
// update() stands in the step that updates the weights: it is part of its kernels.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "core/nn/fields.h"
#include "core/nn/state_dict.h"

namespace tinyshard::nn {

struct AverageOptions {
  double decay = 0.999;  // average = decay * average + (1 - decay) * weight; 0 follows the weights
  bool equal = false;    // all updates count alike instead (stochastic weight averaging)
  bool warm_up = false;  // the decay of update n is at most (1 + n) / (10 + n)
};

class Average {
 public:
  // Begins with the present values of parameters and other floats of the model. Averages lie as the
  // weights do; those of narrower types are f32.
  template <class Model>
  explicit Average(const Model& model, const AverageOptions& options = {})
      : Average(state_dict(model), options) {}
  Average(const StateDict& weights, const AverageOptions& options);

  // UserError where a weight was placed elsewhere since.
  void update(Caller caller = Caller::current());
  // Writes the averages over the weights.
  void copy_to_model() const;

  // While it lives, the model has the averages; then its own weights again. Its end runs nothing, so
  // that no device can fail there: weights are written back by the next run that uses them.
  class Use {
   public:
    explicit Use(const Average& average);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    const Average* average_;
    std::vector<Tensor> own_;
  };

  std::map<std::string, Tensor> averages;  // by the weights' names
  Tensor updates;                          // how many there were
  TS_FIELDS(averages, updates)

 private:
  AverageOptions options_;
  std::vector<std::pair<std::string, Tensor>> weights_;
};

}  // namespace tinyshard::nn
