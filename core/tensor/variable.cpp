#include "core/tensor/variable.h"

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/exec/state.h"
#include "core/tensor/sizes_internal.h"

namespace tinyshard {

struct Variable::Shared {
  std::string name;
  int64_t min, max;
  StatePtr input;  // made by the first step that is called with the variable
};

Variable::Variable(std::string name, int64_t min, int64_t max, Caller caller)
    : shared_(std::make_shared<Shared>(Shared{std::move(name), min, max, {}})) {
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

const StatePtr& Variable::input() const {
  Call call("captured step");
  const int64_t now = value();
  auto bytes = std::as_bytes(std::span(&now, 1));
  if (shared_->input && !is_lost(*shared_->input))
    write(*shared_->input, bytes);
  else
    shared_->input = make_state(host_buffer({}, DType::I64, bytes));
  return shared_->input;
}

std::shared_ptr<TensorState> size_state(const Variable& size) { return size.tensor().state(); }

Operand::Operand(const Variable& v, Caller c) : Operand(v.tensor(c), c) {}
Index::Index(const Variable& v, Caller c) : Index(v.tensor(c), c) {}

}  // namespace tinyshard
