// Optimizers: from the gradients that backward() left to new values of the parameters.
//
//   auto optim = nn::optim::AdamW(nn::parameters(model), {.lr = 1e-3});
//   TrainingMode on;
//   optim.zero_grad();
//   loss(batch).backward();
//   optim.step();
//
// Make the optimizer after the parameters were placed: its state lies as they do, or, with
// shard_axis, in parts over that axis of their mesh. Then each device keeps the state of its part
// only, gradients are reduce-scattered, the part is updated and the parameters are all-gathered.
//
// Parameters may lie on several meshes, as those of the stages of a pipeline do. What is one number
// for all of them, such as the learning rate, is then kept by each process for itself.
//
// State is kept, and updates are computed, in f32 for f32 and narrower parameters, f64 for f64.
// Optimizers have fields like models: nn::state_dict(optim) is what a checkpoint needs. State goes by
// the names that nn::parameters gave: "m.fc.weight" for the parameter "fc.weight", in whatever order
// the parameters were given. Parameters without names of their own go by their numbers.
//
// A table has a gradient only in the rows that a step looked up. With `sparse` (SGD, Adam, AdamW,
// RMSprop, Adagrad) these alone are read and written, with their state: a step costs what they take
// and not what the table takes. The other rows keep value and state, so momentum and averages of
// theirs do not fade and no weight decay reaches them until they are looked up again; gradients that
// meet in a row are summed first. Each gradient must be of looked up rows (Embedding, EmbeddingBag,
// embedding, x[{index}]), scaled, clipped and added up at most: step() is a UserError else. So tables
// have an optimizer of their own:
//
//   nn::optim::Adagrad tables({net.words.weight}, {.sparse = true});
//   nn::optim::AdamW rest(nn::parameters(net.layers));
//   nn::optim::OptimizerGroup both(tables, rest);
//
// A tensor that is no parameter when the optimizer is made has no state. If it becomes one later and
// gets a gradient, step() says so: make the optimizer again.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/nn/state_dict.h"

namespace tinyshard::nn::optim {

class LookedUpRows;

// Tensors that an optimizer keeps of its parameters, in their order, with their names as fields.
class ByParameter : public std::vector<Tensor> {
 public:
  template <class Visit>
  void for_each_field(Visit&& visit) const {
    for (size_t i = 0; i < size(); ++i) visit(std::string_view(names_[i]), (*this)[i]);
  }

 private:
  friend class Optimizer;
  std::vector<std::string> names_;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  void zero_grad() const;
  // Brings the gradients to where the state lies: completes sums over a mesh, or with shard_axis
  // leaves each device its part. step() does so too; before it, this lets clip_grad_norm work on
  // what the updates will read. With `reduce_type`, each device's terms of wider gradients are
  // rounded to it before they travel.
  void place_grad(std::optional<DType> reduce_type = {}, Caller caller = Caller::current()) const;
  // Writes new values over parameters and state. Computes them, unless in a captured step.
  // UserError outside of TrainingMode and for a parameter without a gradient.
  void step(Caller caller = Caller::current());
  // Sets the rate of the steps from now on, captured ones too.
  void set_lr(double value) const;

  const std::vector<Tensor>& params() const { return params_; }
  // Does what step() does without computing it: returns the tensors to realize.
  std::vector<Tensor> schedule_step(Caller caller = Caller::current());

  Tensor lr;

 protected:
  // The tensors that are parameters are trained; the others are computed along with them.
  Optimizer(const char* name, const std::vector<Tensor>& tensors, double lr, std::string shard_axis,
            bool sparse = false);

  // Zeros of each parameter's shape, and a number, kept between steps.
  ByParameter state_of_each() const;
  Tensor state_number(double value) const;
  // The number where the state of parameter i is.
  Tensor number_at(size_t i, const Tensor& number) const;

  // Runs once a step, before the updates.
  virtual void begin_step() {}
  // The new value of parameter i. All are of the state's type and lie as the state does. With `sparse`
  // these are the rows that were looked up: kept() and keep() then go to those of a state.
  virtual Tensor update(size_t i, const Tensor& value, const Tensor& gradient) = 0;
  virtual std::vector<Tensor> state() const = 0;
  // The state of its parameter that update() finds, and the one that it leaves there.
  Tensor kept(const Tensor& state) const;
  void keep(const Tensor& state, const Tensor& next) const;
  Sharding place_of_state(const Tensor& parameter) const;
  // Parameter i and its gradient as update() is given them.
  Tensor value_at(size_t i) const;
  Tensor gradient_at(size_t i) const;

 private:
  void name_parameters();
  Tensor state_like(const Tensor& parameter) const;
  void check_gradients() const;
  void update_whole(size_t i);
  void update_rows(size_t i);

  const char* name_;
  std::string shard_axis_;
  std::vector<Tensor> params_, others_;
  std::vector<std::string> names_;  // of params_, all different
  bool apart_ = false;              // parameters lie on several meshes, numbers with each process
  std::vector<Tensor> leaders_;     // with `sparse`, for LookedUpRows; for each parameter
  LookedUpRows* rows_ = nullptr;    // of the parameter that is updated now
};

// --- momentum ------------------------------------------------------------------------------------

struct NewtonSchulz {
  int64_t steps = 5;
  std::vector<double> coefficients = {3.4445, -4.775, 2.0315};
};

struct LarsOptions {
  double lr = 0.001, momentum = 0.9, weight_decay = 0.0001;
  bool nesterov = false;
  bool classic = true;    // the learning rate goes into the momentum
  bool pre_decay = true;  // the decay goes into the gradient rather than the parameter
  double trust = 0.001;   // of the layer's norm ratio; 0 leaves it out
  double eps = 0;         // added to the gradient's norm in that ratio
  std::optional<NewtonSchulz> orthogonal = {};  // of the update, as a matrix
  std::string shard_axis = {};
};

class LARS : public Optimizer {
 public:
  LARS(const std::vector<Tensor>& params, const LarsOptions& options = {})
      : LARS("LARS", params, options) {}

  ByParameter momentum;
  TS_FIELDS(lr, momentum)

 protected:
  LARS(const char* name, const std::vector<Tensor>& params, const LarsOptions& options,
       bool sparse = false);
  void begin_step() override;
  Tensor update(size_t i, const Tensor& value, const Tensor& gradient) override;
  std::vector<Tensor> state() const override { return parameters(*this); }

 private:
  Tensor rate_of(size_t i, const Tensor& value, const Tensor& gradient) const;
  Tensor direction(size_t i, const Tensor& value, const Tensor& gradient);

  LarsOptions options_;
  std::vector<Tensor> directions_;  // of this step, where they are made orthogonal
};

struct SgdOptions {
  double lr = 0.001, momentum = 0, weight_decay = 0;
  bool nesterov = false;
  bool classic = false;
  std::string shard_axis = {};
  bool sparse = false;
};

class SGD : public LARS {
 public:
  SGD(const std::vector<Tensor>& params, const SgdOptions& options = {});
};

struct MuonOptions {
  double lr = 0.001, momentum = 0.95, weight_decay = 0.1;
  NewtonSchulz orthogonal = {};
  bool nesterov = true;
  std::string shard_axis = {};
};

// For matrices; give embeddings, biases and norms to another optimizer. Where the state lies in parts,
// whole matrices of one shape are dealt out to the devices to be made orthogonal, and parts come back: a
// step sends twice what a device lacks of one part, and no device works on what another one does.
class Muon : public LARS {
 public:
  Muon(const std::vector<Tensor>& params, const MuonOptions& options = {});
};

// --- two moments ---------------------------------------------------------------------------------

struct LambOptions {
  double lr = 0.001, b1 = 0.9, b2 = 0.999, eps = 1e-6, weight_decay = 0;
  bool adam = false;  // without the layer's norm ratio
  std::string shard_axis = {};
};

class LAMB : public Optimizer {
 public:
  LAMB(const std::vector<Tensor>& params, const LambOptions& options = {})
      : LAMB("LAMB", params, options) {}

  Tensor b1_t, b2_t;  // b1 and b2 to the power of the number of steps
  ByParameter m, v;
  TS_FIELDS(lr, b1_t, b2_t, m, v)

 protected:
  LAMB(const char* name, const std::vector<Tensor>& params, const LambOptions& options,
       bool sparse = false);
  void begin_step() override;
  Tensor update(size_t i, const Tensor& value, const Tensor& gradient) override;
  std::vector<Tensor> state() const override { return parameters(*this); }

 private:
  LambOptions options_;
  Tensor correction1_, correction2_;  // of this step
};

struct AdamWOptions {
  double lr = 0.001, b1 = 0.9, b2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  std::string shard_axis = {};
  bool sparse = false;
};

// Adam with decoupled weight decay.
class AdamW : public LAMB {
 public:
  AdamW(const std::vector<Tensor>& params, const AdamWOptions& options = {});
};

struct AdamOptions {
  double lr = 0.001, b1 = 0.9, b2 = 0.999, eps = 1e-8;
  std::string shard_axis = {};
  bool sparse = false;
};

class Adam : public LAMB {
 public:
  Adam(const std::vector<Tensor>& params, const AdamOptions& options = {});
};

// --- several at once -----------------------------------------------------------------------------

// Optimizers of different parameters that step together. Borrows them.
class OptimizerGroup {
 public:
  template <class... Member>
  explicit OptimizerGroup(Member&... members) : members_{&members...} {}

  void zero_grad() const;
  void place_grad(std::optional<DType> reduce_type = {}, Caller caller = Caller::current()) const;
  void step(Caller caller = Caller::current());
  std::vector<Tensor> params() const;

 private:
  std::vector<Optimizer*> members_;
};

}  // namespace tinyshard::nn::optim

namespace tinyshard::nn {

// Scales all gradients so that their norm, taken together, is at most max_norm. Returns the norm
// before, on all devices that have one of them. Pending sums over a mesh are completed on every device
// of it, unless Optimizer::place_grad placed the gradients before.
Tensor clip_grad_norm(const std::vector<Tensor>& params, double max_norm);

struct CosineOptions {
  double peak = 1e-3, floor = 0;
  int64_t warmup = 0, steps = 1;
};
// The learning rate of a step: a line up to the peak during warmup, then half a cosine down to the
// floor at the last step. It is with_warmup(cosine_decay_lr(..)) of schedules.h at that step.
double cosine_lr(int64_t step, const CosineOptions& options);

}  // namespace tinyshard::nn
