// Jit: a function of tensors that is traced once and replayed from then on.
//
//   Jit step = [&](Tensor images, Tensor labels) {
//     TrainingMode on;
//     optim.zero_grad();
//     Tensor loss = net(images).sparse_categorical_crossentropy(labels).backward();
//     optim.step();
//     return loss;
//   };
//   float value = step(images, labels).item<float>();
//
// Tensors assigned inside (parameters, optimizer state, random counters) are assigned again by each
// replay. Plain C++ values are frozen at the first call; a Variable is a number that is not. The
// returned tensors are the same at every call, with new contents: read or clone them before the
// next one, begin to copy them to the host (host_copy.h), or give them to it. Values made from them,
// or from what is assigned, keep the old contents.
//
// A function that looks at what surrounds it is traced once for each way that it finds it: in training
// mode or not, under each default_float(), with other tensors as parameters, with a gradient to add to
// or without one. So gradients accumulate over calls as they do without a capture. Those that a call
// leaves are there for others, but for those that an optimizer of the same step has taken.
//
// Arguments and results may be containers and structs (jit_arguments.h). Several threads may call one
// step; each gets results of its own. JIT=0 calls the function each time, without a capture.
// UserError for reading data inside and for other shapes.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/exec/captured_step.h"
#include "core/tensor/jit_arguments.h"
#include "core/tensor/tensor.h"
#include "core/tensor/variable.h"

namespace tinyshard {

namespace detail {

// Brings what a call wrote to those of its inputs that are views of something to its place there.
void write_back(std::span<const size_t> assigned, const CapturedStep::States& inputs);

}  // namespace detail

template <class F>
class Jit {
 public:
  Jit(F function) : function_(std::move(function)) {}  // NOLINT: `Jit step = lambda` is the point

  // Calls with up to six arguments have errors that name the line of the call.
  template <class... T>
  auto operator()(const T&... arguments) {
    return call(Caller(), arguments...);
  }
  auto operator()(Caller caller = Caller::current()) { return call(caller); }
  template <class T0>
  auto operator()(const T0& x0, Caller caller = Caller::current()) {
    return call(caller, x0);
  }
  template <class T0, class T1>
  auto operator()(const T0& x0, const T1& x1, Caller caller = Caller::current()) {
    return call(caller, x0, x1);
  }
  template <class T0, class T1, class T2>
  auto operator()(const T0& x0, const T1& x1, const T2& x2, Caller caller = Caller::current()) {
    return call(caller, x0, x1, x2);
  }
  template <class T0, class T1, class T2, class T3>
  auto operator()(const T0& x0, const T1& x1, const T2& x2, const T3& x3,
                  Caller caller = Caller::current()) {
    return call(caller, x0, x1, x2, x3);
  }
  template <class T0, class T1, class T2, class T3, class T4>
  auto operator()(const T0& x0, const T1& x1, const T2& x2, const T3& x3, const T4& x4,
                  Caller caller = Caller::current()) {
    return call(caller, x0, x1, x2, x3, x4);
  }
  template <class T0, class T1, class T2, class T3, class T4, class T5>
  auto operator()(const T0& x0, const T1& x1, const T2& x2, const T3& x3, const T4& x4,
                  const T5& x5, Caller caller = Caller::current()) {
    return call(caller, x0, x1, x2, x3, x4, x5);
  }

  bool captured() const { return step_.captured(); }
  void reset() { step_.reset(); }
  const CapturedStep& captured_step() const { return step_; }  // see explain.h for what it does

 private:
  template <class... T>
  auto call(Caller caller, const T&... arguments) {
    constexpr bool known = (detail::is_known<T> && ...);
    static_assert(
        known,
        "a Jit is called with Tensors, Variables and numbers, and vectors, arrays, "
        "optionals, pairs, tuples, maps and structs with TS_FIELDS of them; what else its "
        "function needs is captured by the lambda");
    if constexpr (known) {
      constexpr bool fits = std::is_invocable_v<F&, detail::Inside<T>...>;
      static_assert(
          fits,
          "the function of this Jit does not take these arguments: it needs as many as it "
          "has parameters, a Variable for each Variable, a Tensor or a number for each Tensor, and "
          "containers for containers (a Jit is called with Tensors, Variables and numbers)");
      if constexpr (fits) {
        using R = std::remove_cvref_t<std::invoke_result_t<F&, detail::Inside<T>...>>;
        constexpr bool returns = detail::is_result<R>;
        static_assert(returns,
                      "the function of a Jit returns nothing, a Tensor, or a vector, a pair or a "
                      "tuple of Tensors, an array, an optional, a map or a struct with TS_FIELDS");
        if constexpr (returns) return run<R>(caller, arguments...);
      }
    }
  }

  template <class R, class... T>
  R run(Caller caller, const T&... arguments) {
    CapturedStep::States inputs;
    {
      const Call call("captured step", caller);
      inputs = given(arguments...);
    }
    if (!CapturedStep::is_wanted()) return apply(inputs, arguments...);
    CapturedStep::Site site{caller, [&](size_t leaf) { return name_of(leaf, arguments...); }};
    auto trace = [&](const CapturedStep::States& states) -> CapturedStep::States {
      if constexpr (std::is_void_v<R>) {
        apply(states, arguments...);
        return {};
      } else {
        auto result = std::make_shared<const R>(apply(states, arguments...));
        site.form = {result, &typeid(R)};
        return detail::states_of(*result);
      }
    };
    step_.call(inputs, std::ref(trace), &site);
    detail::write_back(site.assigned, inputs);
    if constexpr (!std::is_void_v<R>) {
      if (*site.form.type != typeid(R))
        throw UserError("captured step: its function returns another type than at the first call");
      return *static_cast<const R*>(site.form.value.get());
    }
  }

  // The inputs of a call, in the order of the leaves.
  template <class... T>
  CapturedStep::States given(const T&... arguments) {
    if (!kept_) kept_ = std::make_unique<detail::KeptArguments>();
    kept_->begin_call(!captured());
    CapturedStep::States states;
    size_t argument = 0;
    (give(arguments, argument++, states), ...);
    return states;
  }
  template <class T>
  void give(const T& x, size_t argument, CapturedStep::States& states) {
    const detail::Path root{nullptr, {}, argument};
    if constexpr (!detail::Leaf<T>) {
      std::string form;
      detail::describe_form(x, form);
      kept_->check_form(argument, form);
    }
    detail::for_each_leaf(x, root, [&](const auto& leaf, const detail::Path& path) {
      const size_t place = states.size();
      if constexpr (detail::is_variable<std::remove_cvref_t<decltype(leaf)>>) {
        states.push_back(kept_->input(place, leaf, path));
      } else {
        kept_->check_tensor(place, path);
        states.push_back(Tensor(leaf).state());
      }
    });
  }

  template <class... T>
  static std::string name_of(size_t wanted, const T&... arguments) {
    std::string name;
    size_t place = 0, argument = 0;
    [[maybe_unused]] auto look = [&](const auto& x) {
      detail::for_each_leaf(x, {nullptr, {}, argument++},
                            [&](const auto&, const detail::Path& path) {
                              if (place++ == wanted) name = path.text();
                            });
    };
    (look(arguments), ...);
    return name;
  }

  // The function on arguments with these leaves.
  template <class... T>
  auto apply(const CapturedStep::States& states, const T&... arguments) {
    size_t next = 0;
    [[maybe_unused]] auto leaf = [&](const auto& x) {
      const size_t place = next++;
      if constexpr (detail::is_variable<std::remove_cvref_t<decltype(x)>>)
        return kept_->inside(place, x, states[place]);
      else
        return Tensor(states[place]);
    };
    // Braces are worked off from left to right.
    return std::apply(function_,
                      std::tuple<detail::Inside<T>...>{detail::with_leaves(arguments, leaf)...});
  }

  F function_;
  CapturedStep step_;
  std::unique_ptr<detail::KeptArguments> kept_ = std::make_unique<detail::KeptArguments>();
};

}  // namespace tinyshard
