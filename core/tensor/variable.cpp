// A step keeps one place in memory for each input that is a Variable, and for each thread, as two
// threads may call it at once. A call writes its value there before the replay; bounds are held
// against those of the first call, for which sizes and memory were made.
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

namespace detail {

std::string Path::text() const {
  if (!up) return fmt::format("input {}", index);
  if (field.empty()) return fmt::format("{}[{}]", up->text(), index);
  return fmt::format("{}{}{}", up->text(), field.starts_with('[') ? "" : ".", field);
}

void KeptArguments::begin_call(bool first) {
  std::lock_guard lock(mutex_);
  first_ = first;
  if (!first) return;
  captured_.clear();
  forms_.clear();
}

StatePtr KeptArguments::input(size_t place, const Variable& x, const Path& path) {
  const int64_t now = x.value();
  std::lock_guard lock(mutex_);
  if (first_) captured_.try_emplace(place, x);
  const auto found = captured_.find(place);  // none where it was a tensor, which has no bounds
  if (found != captured_.end() && (now < found->second.min() || now > found->second.max())) {
    fail(
        fmt::format("{} is {}, a value of {}, but the step was captured with {}: call it "
                    "with values within these bounds, or call reset() to capture it again",
                    path.text(), now, with_bounds(x), with_bounds(found->second)));
  }
  const auto bytes = std::as_bytes(std::span(&now, 1));
  StatePtr& memory = memory_[std::this_thread::get_id()][place];
  if (memory && !is_lost(*memory))
    write(*memory, bytes);
  else
    memory = make_state(host_buffer({}, DType::I64, bytes));
  return memory;
}

void KeptArguments::check_tensor(size_t place, const Path& path) const {
  std::lock_guard lock(mutex_);
  const auto first = captured_.find(place);
  if (first == captured_.end()) return;
  fail(
      fmt::format("{} is no Variable, but the step was captured with {}, on whose bounds it "
                  "relies: bind one, or call reset() to capture it again",
                  path.text(), with_bounds(first->second)));
}

void KeptArguments::check_form(size_t argument, const std::string& form) {
  std::lock_guard lock(mutex_);
  if (first_) forms_.try_emplace(argument, form);
  const std::string& first = forms_[argument];
  if (first == form) return;
  fail(
      fmt::format("input {} is {}, but the step was captured with {}; make another Jit for other "
                  "arguments, or call reset()",
                  argument, form, first));
}

Variable KeptArguments::inside(size_t place, const Variable& x, const StatePtr& state) const {
  std::lock_guard lock(mutex_);
  const auto first = captured_.find(place);
  return (first == captured_.end() ? x : first->second).inside(state);
}

}  // namespace detail

std::shared_ptr<TensorState> size_state(const Variable& size) { return size.tensor().state(); }

Operand::Operand(const Variable& v, Caller c) : Operand(v.tensor(c), c) {}
Index::Index(const Variable& v, Caller c) : Index(v.tensor(c), c) {}

}  // namespace tinyshard
