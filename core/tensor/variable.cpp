#include "core/tensor/variable.h"

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/exec/state.h"
#include "core/tensor/sizes_internal.h"

namespace tinyshard {

namespace {

std::string with_bounds(const Variable& v) {
  return fmt::format("\"{}\", which goes from {} to {}", v.name(), v.min(), v.max());
}

}  // namespace

struct Variable::Shared {
  std::string name;
  int64_t min, max;
};

Variable::Variable(std::string name, int64_t min, int64_t max, Caller caller)
    : shared_(std::make_shared<Shared>(Shared{std::move(name), min, max})) {
  Call call("Variable", caller);
  if (min > max) fail(fmt::format("\"{}\" has no values from {} to {}", shared_->name, min, max));
}

Variable Variable::bind(int64_t value, Caller caller) const {
  Call call("bind", caller);
  if (value < min() || value > max())
    fail(fmt::format("{} is outside of \"{}\", which goes from {} to {}", value, name(), min(),
                     max()));
  Variable bound(shared_, Tensor::full({}, value, DType::I64));
  bound.value_ = value;
  return bound;
}

const std::string& Variable::name() const { return shared_->name; }
int64_t Variable::min() const { return shared_->min; }
int64_t Variable::max() const { return shared_->max; }

int64_t Variable::value(Caller caller) const {
  Call call("value", caller);
  tensor();
  if (!value_) {
    fail(fmt::format(
        "\"{}\" has another value at each call of the captured step: use it as a tensor", name()));
  }
  return *value_;
}

const Tensor& Variable::tensor(Caller caller) const {
  Call call("tensor", caller);
  if (!tensor_.defined()) fail(fmt::format("\"{}\" is bound to no value", name()));
  return tensor_;
}

Variable Variable::inside(const StatePtr& state) const {
  value::name_variable(state->value, name(), min(), max());
  return {shared_, Tensor(state)};
}

const StatePtr& Variable::input(size_t place, detail::KeptArgument& kept) const {
  Call call("captured step");
  const int64_t now = value();
  const auto& first = kept.captured;
  if (first && (now < first->min() || now > first->max())) {
    fail(
        fmt::format("input {} is {}, a value of {}, but the step was captured with {}: call it "
                    "with values within these bounds, or call reset() to capture it again",
                    place, now, with_bounds(*this), with_bounds(*first)));
  }
  auto bytes = std::as_bytes(std::span(&now, 1));
  if (kept.memory && !is_lost(*kept.memory))
    write(*kept.memory, bytes);
  else
    kept.memory = make_state(host_buffer({}, DType::I64, bytes));
  return kept.memory;
}

void detail::KeptArgument::check_tensor(size_t place) const {
  if (!captured) return;
  Call call("captured step");
  fail(
      fmt::format("input {} is no Variable, but the step was captured with {}, on whose bounds it "
                  "relies: bind one, or call reset() to capture it again",
                  place, with_bounds(*captured)));
}

std::shared_ptr<TensorState> size_state(const Variable& size) { return size.tensor().state(); }

Operand::Operand(const Variable& v, Caller c) : Operand(v.tensor(c), c) {}
Index::Index(const Variable& v, Caller c) : Index(v.tensor(c), c) {}

}  // namespace tinyshard
