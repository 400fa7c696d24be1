// RMSprop keeps a running mean of squares, v = a v + (1 - a) g^2, and steps by g / (sqrt(v) + eps); Adagrad
// keeps their sum.
#include "core/nn/adaptive.h"

#include <fmt/format.h>

#include "core/base/call.h"

namespace tinyshard::nn::optim {
namespace {

void need(bool good, const char* what, double value, const char* rule) {
  if (!good) fail(fmt::format("{} is {}; it must {}", what, value, rule));
}

}  // namespace

RMSprop::RMSprop(const std::vector<Tensor>& params, const RmspropOptions& o)
    : Optimizer("RMSprop", params, o.lr, o.shard_axis, o.sparse), options_(o) {
  Call call("RMSprop");
  need(o.alpha >= 0 && o.alpha < 1, "alpha", o.alpha, "be at least 0 and below 1");
  need(o.eps >= 0, "eps", o.eps, "not be negative");
  need(o.weight_decay >= 0, "weight_decay", o.weight_decay, "not be negative");
  need(o.momentum >= 0, "momentum", o.momentum, "not be negative");
  v = state_of_each();
  if (o.centered) mean = state_of_each();
  if (o.momentum > 0) momentum = state_of_each();
}

Tensor RMSprop::update(size_t i, const Tensor& value, const Tensor& gradient) {
  const RmspropOptions& o = options_;
  const Tensor g = o.weight_decay > 0 ? gradient + o.weight_decay * value : gradient;
  const Tensor next = o.alpha * kept(v[i]) + (1 - o.alpha) * g.square();
  keep(v[i], next);
  Tensor size = next;
  if (o.centered) {
    const Tensor m = o.alpha * kept(mean[i]) + (1 - o.alpha) * g;
    keep(mean[i], m);
    size = next - m.square();
  }
  Tensor up = g / (o.eps_inside ? (size + o.eps).sqrt() : size.sqrt() + o.eps);
  if (o.momentum > 0) {
    up = o.momentum * kept(momentum[i]) + up;
    keep(momentum[i], up);
  }
  return value - number_at(i, lr) * up;
}

Adagrad::Adagrad(const std::vector<Tensor>& params, const AdagradOptions& o)
    : Optimizer("Adagrad", params, o.lr, o.shard_axis, o.sparse), options_(o) {
  Call call("Adagrad");
  need(o.lr_decay >= 0, "lr_decay", o.lr_decay, "not be negative");
  need(o.eps >= 0, "eps", o.eps, "not be negative");
  need(o.weight_decay >= 0, "weight_decay", o.weight_decay, "not be negative");
  need(o.initial >= 0, "initial", o.initial, "not be negative");
  steps = state_number(0);
  sum = state_of_each();
  if (o.initial == 0) return;
  for (const Tensor& s : sum) s.assign(s.full_like(o.initial));
}

void Adagrad::begin_step() {
  rate_ = lr / (1 + options_.lr_decay * steps);
  steps.assign(steps + 1);
}

Tensor Adagrad::update(size_t i, const Tensor& value, const Tensor& gradient) {
  const AdagradOptions& o = options_;
  const Tensor g = o.weight_decay > 0 ? gradient + o.weight_decay * value : gradient;
  const Tensor next = kept(sum[i]) + g.square();
  keep(sum[i], next);
  return value - number_at(i, rate_) * g / (next.sqrt() + o.eps);
}

}  // namespace tinyshard::nn::optim
