// Variable: a whole number that changes from call to call of a captured step, such as the place of
// the next token, within bounds that do not.
//
//   Variable pos("pos", 0, 4095);
//   Jit next = [&](Tensor token, Variable p) { return model(token, p).argmax(-1); };
//   for (int64_t i = first; i < last; ++i) token = next(token, pos.bind(i));
//
// Where a tensor is wanted it is an i64 of shape []: an index (x[p], x[p] = row) or an
// operand (Tensor::arange(4096) <= p), and a size (x[Slice(0, p + 1)], Tensor::arange(p)): work is
// done for the size at hand, memory is there for the largest. A new value is one small copy to the
// device in front of the replay, however many kernels read it; nothing is captured again. A step
// may be called with another Variable than it was captured with: for values within the bounds of
// that one, which it relies on.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/tensor/tensor.h"

namespace tinyshard {

namespace detail {
class KeptArguments;

// The way to a leaf of the arguments (jit_arguments.h), put into words when somebody asks.
struct Path {
  const Path* up = nullptr;
  std::string_view field;  // or an element
  size_t index = 0;
  std::string text() const;  // "input 0.extra["mask"][2]"
};
}  // namespace detail

class Variable {
 public:
  // Makes a variable of the values min to max. Copies are the same variable, each with the value
  // that it was bound to.
  Variable(std::string name, int64_t min, int64_t max, Caller caller = Caller::current());
  // This variable with a value. UserError for one outside of the bounds.
  Variable bind(int64_t value, Caller caller = Caller::current()) const;

  const std::string& name() const;
  int64_t min() const;
  int64_t max() const;
  // UserError where it is not bound, and inside of a captured step.
  int64_t value(Caller caller = Caller::current()) const;
  // A constant, or inside of a captured step what stands for the values of all calls.
  const Tensor& tensor(Caller caller = Caller::current()) const;
  operator const Tensor&() const { return tensor(); }  // NOLINT(google-explicit-constructor)

  // The operators of Tensor, for a variable beside a number or another variable.
  friend Tensor operator+(const Operand& a, const Operand& b);
  friend Tensor operator-(const Operand& a, const Operand& b);
  friend Tensor operator*(const Operand& a, const Operand& b);
  friend Tensor operator/(const Operand& a, const Operand& b);
  friend Tensor operator%(const Operand& a, const Operand& b);
  friend Tensor operator&(const Operand& a, const Operand& b);
  friend Tensor operator|(const Operand& a, const Operand& b);
  friend Tensor operator^(const Operand& a, const Operand& b);
  friend Tensor operator<<(const Operand& a, const Operand& b);
  friend Tensor operator>>(const Operand& a, const Operand& b);
  friend Tensor operator<(const Operand& a, const Operand& b);
  friend Tensor operator>(const Operand& a, const Operand& b);
  friend Tensor operator<=(const Operand& a, const Operand& b);
  friend Tensor operator>=(const Operand& a, const Operand& b);
  friend Tensor operator==(const Operand& a, const Operand& b);
  friend Tensor operator!=(const Operand& a, const Operand& b);
  friend Tensor operator-(const Operand& x);
  friend Tensor operator~(const Operand& x);
  friend Tensor operator!(const Operand& x);

 private:
  friend class detail::KeptArguments;
  struct Shared;
  Variable(std::shared_ptr<Shared> shared, Tensor tensor)
      : shared_(std::move(shared)), tensor_(std::move(tensor)) {}

  Variable inside(const StatePtr& state) const;

  std::shared_ptr<Shared> shared_;
  std::optional<int64_t> value_;
  Tensor tensor_;  // what stands for the value, if there is one
};

namespace detail {

// The memory that a step has of its arguments from its first call on: the variables, on whose
// bounds it relies, and how containers were made up. Errors name an argument as the caller does.
//
// Threads: any. Each has memory of its own for the values of variables, the same at every call.
class KeptArguments {
 public:
  void begin_call(bool first);  // the first one, from which all is kept
  // The memory of a variable's value. UserError for a value outside of the bounds.
  StatePtr input(size_t place, const Variable& x, const Path& path);
  // For another tensor there: UserError where the step was captured with a Variable.
  void check_tensor(size_t place, const Path& path) const;
  // UserError where it is not the first call's. For arguments that are not one tensor.
  void check_form(size_t argument, const std::string& form);
  // Returns what a trace is given for x.
  Variable inside(size_t place, const Variable& x, const StatePtr& state) const;

 private:
  mutable std::mutex mutex_;
  bool first_ = true;
  std::map<size_t, Variable> captured_;
  std::map<size_t, std::string> forms_;
  std::map<std::thread::id, std::map<size_t, StatePtr>> memory_;
};

}  // namespace detail

}  // namespace tinyshard
