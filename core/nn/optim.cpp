// The file begins with the parts that all optimizers share (rates, gradients, where state lies); then
// come a section for those with a momentum and one for those with two moments. LARS and LAMB do the
// work of these: SGD and Muon are LARS with other options, Adam and AdamW are LAMB.
#include "core/nn/optim.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/exec/capture.h"
#include "core/exec/state.h"
#include "core/nn/looked_up_rows.h"
#include "multi/rewrite.h"

namespace tinyshard::nn::optim {
namespace {

DType state_type(const Tensor& parameter) { return accumulator(parameter.dtype()); }

// Returns the ratio where both norms are positive, 1 where one is not. Norms are in f64; the ratio is of
// the state's type, whose largest number stands for those beyond it.
Tensor trust_ratio(const Tensor& r1, const Tensor& r2, const Tensor& ratio, DType type) {
  const double most = type == DType::F64 ? std::numeric_limits<double>::max()
                                         : double(std::numeric_limits<float>::max());
  return (r1 > 0).where((r2 > 0).where(ratio.minimum(most), 1.0), 1.0).cast(type);
}

// Squares of 1e-20 are 0 in f32, of 1e20 infinite.
Tensor norm(const Tensor& x) { return x.cast(DType::F64).square().sum().sqrt(); }

// NaN is none of these either.
void need_not_negative(const char* what, double value) {
  if (!(value >= 0)) fail(fmt::format("{} is {}; it must not be negative", what, value));
}
void need_below_one(const char* what, double value) {
  if (!(value >= 0 && value < 1))
    fail(fmt::format("{} is {}; it must be at least 0 and below 1", what, value));
}

}  // namespace

Optimizer::Optimizer(const char* name, const std::vector<Tensor>& tensors, double rate,
                     std::string shard_axis, bool sparse)
    : name_(name), shard_axis_(std::move(shard_axis)) {
  for (const Tensor& t : tensors) {
    std::vector<Tensor>& list = t.is_param() ? params_ : others_;
    auto same = [&](const Tensor& seen) { return seen.state() == t.state(); };
    if (std::ranges::none_of(list, same)) list.push_back(t);
  }
  Call call(name_);
  if (params_.empty()) {
    fail(fmt::format("none of the {} tensors given is a parameter; mark one with is_param_()",
                     tensors.size()));
  }
  need_not_negative("lr", rate);
  if (sparse && !shard_axis_.empty())
    fail(
        "sparse changes rows where they lie, with shard_axis the whole table would be gathered: "
        "shard the table itself");
  name_parameters();
  const Mesh first = params_[0].sharding().mesh;
  apart_ =
      std::ranges::any_of(params_, [&](const Tensor& p) { return !(p.sharding().mesh == first); });
  lr = state_number(rate);
  if (!sparse) return;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].ndim() == 0)
      fail(fmt::format("parameter {}, {}, has no rows for sparse", i, params_[i].describe()));
    leaders_.push_back(leaders_of_rows(params_[i]));
  }
}

// Takes the names of their model. A number stands for one that has none, and for all of them where two
// have the same, as those of two models may.
void Optimizer::name_parameters() {
  std::set<std::string> different;
  for (size_t i = 0; i < params_.size(); ++i) {
    const std::string& label = params_[i].state()->label;
    names_.push_back(label.empty() ? std::to_string(i) : label);
    different.insert(names_.back());
  }
  if (different.size() == names_.size()) return;
  for (size_t i = 0; i < names_.size(); ++i) names_[i] = std::to_string(i);
}

Sharding Optimizer::place_of_state(const Tensor& parameter) const {
  Sharding place = parameter.sharding();
  if (shard_axis_.empty() || place.mesh.is_single()) return place;
  size_t axis = static_cast<size_t>(place.mesh.axis(shard_axis_));
  if (!place.placements[axis].is_replicate()) return place;
  // The first dim that gives every device a part and that no other mesh axis cuts.
  for (int64_t dim = 0; dim < parameter.ndim(); ++dim) {
    auto cuts = [dim](const Placement& p) { return p.is_shard() && p.dim == dim; };
    if (parameter.shape(dim) < place.mesh.axes()[axis].size) continue;
    if (std::ranges::any_of(place.placements, cuts)) continue;
    place.placements[axis] = Shard(static_cast<int>(dim));
    break;
  }
  return place;
}

Tensor Optimizer::state_like(const Tensor& parameter) const {
  Tensor zeros = Tensor::zeros(parameter.shape(), state_type(parameter));
  return zeros.shard_like(place_of_state(parameter)).clone();
}

ByParameter Optimizer::state_of_each() const {
  ByParameter list;
  list.names_ = names_;
  for (size_t i = 0; i < params_.size(); ++i) {
    list.push_back(state_like(params_[i]));
    list.back().state()->kept_for = {params_[i].state(), names_[i], i};
  }
  return list;
}

Tensor Optimizer::state_number(double value) const {
  const Mesh mesh = apart_ ? default_mesh() : params_[0].sharding().mesh;
  DType widest = state_type(params_[0]);
  for (const Tensor& p : params_) widest = promote(widest, state_type(p));
  return Tensor::full({}, value, widest).shard_like(replicated(mesh)).clone();
}

Tensor Optimizer::number_at(size_t i, const Tensor& number) const {
  const Tensor there = apart_ ? number.shard_like(replicated(params_[i].sharding().mesh)) : number;
  return there.cast(state_type(params_[i]));
}

void Optimizer::zero_grad() const {
  for (const Tensor& p : params_) p.set_grad({});
}

void Optimizer::place_grad(std::optional<DType> reduce_type, Caller caller) const {
  Call call(name_, caller);
  if (reduce_type && !is_float(*reduce_type))
    fail(fmt::format("gradients cannot travel as {}: it is no floating type",
                     tinyshard::name(*reduce_type)));
  for (const Tensor& p : params_) {
    Tensor g = p.grad();
    if (!g.defined()) continue;
    Sharding place = place_of_state(p);
    bool narrower = reduce_type && itemsize(*reduce_type) < itemsize(g.dtype());
    if (narrower && place.mesh.size() > 1) {
      p.set_grad(Tensor(place_as(*reduce_type, g.uop(), place)).cast(g.dtype()));
    } else {
      p.set_grad(g.shard_like(place));
    }
  }
}

void Optimizer::set_lr(double value) const {
  Call call(name_);
  need_not_negative("lr", value);
  if (current_capture())
    fail(
        "set_lr() in a captured step sets the rate at its first call alone; call it before the "
        "step");
  lr.realize();
  float narrow = static_cast<float>(value);
  bool wide = lr.dtype() == DType::F64;
  write(*lr.state(),
        wide ? std::as_bytes(std::span(&value, 1)) : std::as_bytes(std::span(&narrow, 1)));
}

Tensor Optimizer::value_at(size_t i) const {
  const Tensor& p = params_[i];
  return p.shard_like(place_of_state(p)).cast(state_type(p));
}

Tensor Optimizer::gradient_at(size_t i) const {
  const Tensor& p = params_[i];
  // Placed before it is widened: a reduce-scatter moves the narrow type.
  return p.grad().shard_like(place_of_state(p)).cast(state_type(p));
}

// Before anything is written: a step that fails leaves parameters and state as they were.
void Optimizer::check_gradients() const {
  for (const Tensor& t : others_) {
    if (!t.is_param() || !t.grad().defined()) continue;
    const std::string& label = t.state()->label;
    fail(
        fmt::format("{}, {}, was no parameter when the optimizer was made and is one now: make the "
                    "optimizer again; it takes over the state of the others by "
                    "load_state_dict(fresh, state_dict(old), {{.strict = false}})",
                    label.empty() ? "a tensor" : label, t.describe()));
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    const Tensor& p = params_[i];
    if (!p.grad().defined()) {
      fail(
          fmt::format("parameter {}, {}, has no gradient: no loss that depends on it had its "
                      "backward() called",
                      i, p.describe()));
    }
    if (!leaders_.empty() && !looked_up(p.grad())) {
      fail(
          fmt::format("sparse changes rows that were looked up, and the gradient of parameter {}, "
                      "{} {}, is made by {}: give it to an optimizer without sparse",
                      i, names_[i], p.describe(), info(p.grad().uop().op()).name));
    }
    const Mesh home = p.sharding().mesh;
    if (!apart_ && !(lr.sharding().mesh == home)) {
      fail(
          fmt::format("parameter {} is on {}, the state on {}; make the optimizer after the "
                      "parameters were placed",
                      i, home.to_string(), lr.sharding().mesh.to_string()));
    }
  }
}

std::vector<Tensor> Optimizer::schedule_step(Caller caller) {
  Call call(name_, caller);
  if (!is_training())
    fail("step() outside of training mode; put `TrainingMode on;` before the loss");
  check_gradients();
  begin_step();
  std::vector<Tensor> changed = params_;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (leaders_.empty())
      update_whole(i);
    else
      update_rows(i);
    if (Capture* trace = current_capture()) trace->use_up_gradient(*params_[i].state());
  }
  changed.insert(changed.end(), leaders_.begin(), leaders_.end());
  changed.insert(changed.end(), others_.begin(), others_.end());
  for (const Tensor& t : state()) changed.push_back(t);
  return changed;
}

void Optimizer::update_whole(size_t i) {
  const Tensor& p = params_[i];
  const Tensor gradient = gradient_at(i), value = update(i, value_at(i), gradient);
  p.assign(value.cast(p.dtype()).shard_like(p));
}

void Optimizer::update_rows(size_t i) {
  const Tensor& p = params_[i];
  std::vector<Tensor> tables{p};
  for (const Tensor& t : state()) {
    const auto& of = t.state()->kept_for;
    if (of && of->number == i) tables.push_back(t);
  }
  change_rows(tables, leaders_[i], *looked_up(p.grad()), [&](LookedUpRows& rows) {
    rows_ = &rows;
    try {
      const DType type = state_type(p);
      const Tensor next = update(i, rows.of(p).cast(type), rows.gradient().cast(type));
      rows.write(p, next.cast(p.dtype()));
    } catch (...) {
      rows_ = nullptr;
      throw;
    }
    rows_ = nullptr;
  });
}

Tensor Optimizer::kept(const Tensor& state) const { return rows_ ? rows_->of(state) : state; }

void Optimizer::keep(const Tensor& state, const Tensor& next) const {
  if (rows_)
    rows_->write(state, next);
  else
    state.assign(next);
}

void Optimizer::step(Caller caller) {
  std::vector<Tensor> changed = schedule_step(caller);
  if (current_capture() == nullptr) Tensor::realize(changed);
}

// --- momentum ------------------------------------------------------------------------------------

LARS::LARS(const char* name, const std::vector<Tensor>& params, const LarsOptions& options,
           bool sparse)
    : Optimizer(name, params, options.lr, options.shard_axis, sparse), options_(options) {
  Call call(name);
  need_not_negative("momentum", options.momentum);
  need_not_negative("weight_decay", options.weight_decay);
  need_not_negative("eps", options.eps);
  const auto number =
      std::ranges::find(this->params(), 0U, [](const Tensor& p) { return p.shape().size(); });
  if (options_.orthogonal && number != this->params().end())
    fail(fmt::format(
        "{}, {}, is a number and no matrix: give it to another optimizer (OptimizerGroup)",
        number->state()->label.empty() ? "a parameter" : number->state()->label,
        number->describe()));
  if (options_.momentum == 0) return;
  momentum = state_of_each();
}

// Each by itself where it is whole. Newton-Schulz multiplies a matrix with itself several times, and
// would send all of it each time where it lies in parts: such matrices of one shape are stacked, and
// then it is the stack that is divided. Four matrices whose rows lie on two devices:
//
//   device 0: the upper halves of a, b, c, d        a, b whole        the upper halves
//   device 1: the lower halves of a, b, c, d   ->   c, d whole   ->   the lower halves
//
// A matrix that is alone goes to all devices, as its parts need not come back then.
void LARS::begin_step() {
  directions_.clear();
  if (!options_.orthogonal) return;
  struct Stack {
    Sharding parts;
    std::vector<size_t> members;
  };
  std::vector<Stack> stacks;
  for (size_t i = 0; i < params().size(); ++i) {
    directions_.push_back(direction(i, value_at(i), gradient_at(i)));
    const Tensor& g = directions_.back();
    const Sharding parts = place_of_state(params()[i]);
    auto fits = [&](const Stack& s) {
      const Tensor& like = directions_[s.members[0]];
      return s.parts == parts && like.shape() == g.shape() && like.dtype() == g.dtype();
    };
    const bool whole = std::ranges::none_of(parts.placements, &Placement::is_shard);
    auto stack = whole ? stacks.end() : std::ranges::find_if(stacks, fits);
    if (stack == stacks.end()) stack = stacks.insert(stacks.end(), Stack{parts, {}});
    stack->members.push_back(i);
  }
  // Matrices here have `before` dims before their own two.
  auto orthogonal = [&o = *options_.orthogonal](const Tensor& g, size_t before) {
    Dims flat = g.shape();
    flat.resize(before + 1);
    flat.push_back(-1);
    return g.reshape(flat).newton_schulz(o.steps, o.coefficients).reshape(g.shape());
  };
  for (const Stack& s : stacks) {
    Tensor& first = directions_[s.members[0]];
    if (std::ranges::none_of(s.parts.placements, &Placement::is_shard)) {
      first = orthogonal(first, 0);
      continue;
    }
    if (s.members.size() == 1) {
      first = orthogonal(first.shard_like(replicated(s.parts.mesh)), 0).shard_like(s.parts);
      continue;
    }
    std::vector<Tensor> matrices;
    for (const size_t i : s.members) matrices.push_back(directions_[i]);
    Sharding dealt = s.parts, back = s.parts;
    for (size_t axis = 0; axis < back.placements.size(); ++axis) {
      if (!back.placements[axis].is_shard()) continue;
      dealt.placements[axis] = Shard(0);
      ++back.placements[axis].dim;
    }
    const Tensor done = orthogonal(stack(matrices).shard_like(dealt), 1).shard_like(back);
    for (size_t k = 0; k < s.members.size(); ++k) directions_[s.members[k]] = done.at({int64_t(k)});
  }
}

Tensor LARS::rate_of(size_t i, const Tensor& value, const Tensor& gradient) const {
  Tensor rate = number_at(i, lr);
  if (options_.trust == 0) return rate;
  const Tensor r1 = norm(value), r2 = norm(gradient);
  const Tensor ratio = options_.trust * r1 / (r2 + options_.weight_decay * r1 + options_.eps);
  return rate * trust_ratio(r1, r2, ratio, value.dtype());
}

// Returns the direction of the update, with the momentum's new value.
Tensor LARS::direction(size_t i, const Tensor& value, const Tensor& gradient) {
  const LarsOptions& o = options_;
  Tensor g = gradient;
  if (o.pre_decay && o.weight_decay > 0) g = g + o.weight_decay * value;
  if (o.classic) g = g * rate_of(i, value, gradient);
  if (o.momentum == 0) return g;
  const Tensor& b = momentum[i];
  Tensor next = o.momentum * kept(b) + g;
  keep(b, next);
  return o.nesterov ? g + o.momentum * next : next;
}

Tensor LARS::update(size_t i, const Tensor& value, const Tensor& gradient) {
  const LarsOptions& o = options_;
  const Tensor g = o.orthogonal ? directions_[i] : direction(i, value, gradient);
  Tensor v = value;
  if (!o.pre_decay && o.weight_decay > 0) v = v * (1.0 - o.weight_decay * number_at(i, lr));
  return v - (o.classic ? g : g * rate_of(i, value, gradient));
}

SGD::SGD(const std::vector<Tensor>& params, const SgdOptions& o)
    : LARS("SGD", params,
           {.lr = o.lr,
            .momentum = o.momentum,
            .weight_decay = o.weight_decay,
            .nesterov = o.nesterov,
            .classic = o.classic,
            .trust = 0,
            .shard_axis = o.shard_axis},
           o.sparse) {}

Muon::Muon(const std::vector<Tensor>& params, const MuonOptions& o)
    : LARS("Muon", params,
           {.lr = o.lr,
            .momentum = o.momentum,
            .weight_decay = o.weight_decay,
            .nesterov = o.nesterov,
            .classic = false,
            .pre_decay = false,
            .trust = 0,
            .orthogonal = o.orthogonal,
            .shard_axis = o.shard_axis}) {}

// --- two moments ---------------------------------------------------------------------------------

LAMB::LAMB(const char* name, const std::vector<Tensor>& params, const LambOptions& options,
           bool sparse)
    : Optimizer(name, params, options.lr, options.shard_axis, sparse), options_(options) {
  Call call(name);
  need_below_one("b1", options.b1);
  need_below_one("b2", options.b2);
  need_not_negative("eps", options.eps);
  need_not_negative("weight_decay", options.weight_decay);
  b1_t = state_number(1);
  b2_t = state_number(1);
  m = state_of_each();
  v = state_of_each();
}

void LAMB::begin_step() {
  Tensor next1 = b1_t * options_.b1, next2 = b2_t * options_.b2;
  correction1_ = (1 - next1).reciprocal();
  correction2_ = (1 - next2).reciprocal();
  b1_t.assign(next1);
  b2_t.assign(next2);
}

Tensor LAMB::update(size_t i, const Tensor& value, const Tensor& gradient) {
  const LambOptions& o = options_;
  Tensor next_m = o.b1 * kept(m[i]) + (1 - o.b1) * gradient;
  Tensor next_v = o.b2 * kept(v[i]) + (1 - o.b2) * gradient.square();
  keep(m[i], next_m);
  keep(v[i], next_v);
  const Tensor correction1 = number_at(i, correction1_), correction2 = number_at(i, correction2_);
  Tensor up = next_m * correction1 / ((next_v * correction2).sqrt() + o.eps);
  if (o.weight_decay != 0) up = up + o.weight_decay * value;
  Tensor rate = number_at(i, lr);
  if (!o.adam) {
    Tensor r1 = norm(value), r2 = norm(up);
    rate = rate * trust_ratio(r1, r2, r1 / r2, value.dtype());
  }
  return value - rate * up;
}

AdamW::AdamW(const std::vector<Tensor>& params, const AdamWOptions& o)
    : LAMB("AdamW", params,
           {.lr = o.lr,
            .b1 = o.b1,
            .b2 = o.b2,
            .eps = o.eps,
            .weight_decay = o.weight_decay,
            .adam = true,
            .shard_axis = o.shard_axis},
           o.sparse) {}

Adam::Adam(const std::vector<Tensor>& params, const AdamOptions& o)
    : LAMB("Adam", params,
           {.lr = o.lr,
            .b1 = o.b1,
            .b2 = o.b2,
            .eps = o.eps,
            .adam = true,
            .shard_axis = o.shard_axis},
           o.sparse) {}

// --- several at once -----------------------------------------------------------------------------

void OptimizerGroup::zero_grad() const {
  for (const Optimizer* member : members_) member->zero_grad();
}

void OptimizerGroup::place_grad(std::optional<DType> reduce_type, Caller caller) const {
  for (const Optimizer* member : members_) member->place_grad(reduce_type, caller);
}

void OptimizerGroup::step(Caller caller) {
  std::vector<Tensor> changed;
  for (Optimizer* member : members_) {
    for (const Tensor& t : member->schedule_step(caller)) changed.push_back(t);
  }
  if (current_capture() == nullptr) Tensor::realize(changed);
}

std::vector<Tensor> OptimizerGroup::params() const {
  std::vector<Tensor> all;
  for (const Optimizer* member : members_) {
    all.insert(all.end(), member->params().begin(), member->params().end());
  }
  return all;
}

}  // namespace tinyshard::nn::optim

namespace tinyshard::nn {

// A pending sum would be completed for the norm, and again after the scaling.
static void complete_sums(const std::vector<Tensor>& params) {
  std::vector<Tensor> with_gradient;
  std::vector<UOp> gradients;
  for (const Tensor& p : params) {
    if (!p.grad().defined() || p.sharding().mesh.size() == 1) continue;
    with_gradient.push_back(p);
    gradients.push_back(p.grad().uop());
  }
  if (gradients.empty()) return;
  const LocalGraph local = to_local(gradients);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& p = with_gradient[i];
    bool pending = std::ranges::any_of(local.pending[i].placements, &Placement::is_partial);
    if (pending) p.set_grad(p.grad().shard_like(p));
  }
}

namespace {

// Where values of these meshes can meet. What each process has on its one device joins any mesh; of
// the others it is one that has the devices of all, or else these devices, each once, as the job
// counts them.
Mesh common_mesh(const std::vector<std::pair<Mesh, Tensor>>& meshes) {
  std::vector<DeviceRef> devices;
  auto is_here = [](const Mesh& mesh) {
    return mesh.size() == 1 && mesh.devices()[0].rank == DeviceRef::kHere;
  };
  const bool all_here =
      std::ranges::all_of(meshes, [&](const auto& entry) { return is_here(entry.first); });
  for (const auto& [mesh, value] : meshes) {
    if (is_here(mesh) && !all_here) continue;
    for (const DeviceRef& d : mesh.devices()) {
      if (std::ranges::find(devices, d) == devices.end()) devices.push_back(d);
    }
  }
  for (const auto& [mesh, value] : meshes) {
    if (mesh.size() == int64_t(devices.size()) && (all_here || !is_here(mesh))) return mesh;
  }
  auto place = [](const DeviceRef& d) { return std::tuple(d.rank, d.kind, d.index); };
  std::ranges::sort(devices, {}, place);
  return Mesh({{"devices", int64_t(devices.size())}}, devices);
}

}  // namespace

Tensor clip_grad_norm(const std::vector<Tensor>& params, double max_norm) {
  auto refuse = [](const std::string& text) {
    Call call("clip_grad_norm");
    fail(text);
  };
  if (!(max_norm >= 0)) refuse(fmt::format("max_norm is {}; it must not be negative", max_norm));
  complete_sums(params);
  std::vector<std::pair<Mesh, Tensor>> sums;  // of squares, for each mesh that parameters lie on
  for (const Tensor& p : params) {
    if (!p.grad().defined()) continue;
    Tensor squares = p.grad().cast(accumulator(p.dtype())).square().sum();
    const Mesh mesh = p.sharding().mesh;
    auto sum = std::ranges::find(sums, mesh, &std::pair<Mesh, Tensor>::first);
    if (sum == sums.end())
      sums.emplace_back(mesh, squares);
    else
      sum->second = sum->second + squares;
  }
  if (sums.empty()) refuse("none of the parameters has a gradient; call backward() first");
  Tensor total = sums[0].second;
  if (sums.size() > 1) {
    const Mesh all = common_mesh(sums);
    total = total.shard(all);
    for (size_t i = 1; i < sums.size(); ++i) total = total + sums[i].second.shard(all);
  }
  total = total.sqrt();
  Tensor factor = (max_norm / (total + 1e-6)).minimum(1.0);
  // Once for each mesh: shard() looks at all that the factor is made of, which is the whole step.
  std::vector<std::pair<Mesh, Tensor>> factors;
  for (const auto& [mesh, sum] : sums)
    factors.emplace_back(mesh, sums.size() > 1 ? factor.shard(mesh) : factor);
  for (const Tensor& p : params) {
    if (!p.grad().defined()) continue;
    const Mesh mesh = p.sharding().mesh;
    const Tensor& here = std::ranges::find(factors, mesh, &std::pair<Mesh, Tensor>::first)->second;
    p.set_grad((p.grad().cast(factor.dtype()) * here).cast(p.grad().dtype()));
  }
  return total;
}

}  // namespace tinyshard::nn
