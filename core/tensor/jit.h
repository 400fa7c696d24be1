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
// or from what is assigned, keep the old contents. Each call leaves parameters with the gradients that
// the first one left them with.
// UserError for reading data inside, for other shapes, and where a gradient that the step reads,
// because it was there before, is no longer that of its parameter.
#pragma once
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/exec/captured_step.h"
#include "core/tensor/tensor.h"
#include "core/tensor/variable.h"

namespace tinyshard {

namespace detail {

// What a step is called with, and what its function gets for it while it is traced. A number is
// given to it as a tensor.
template <class T>
inline constexpr bool is_argument =
    std::is_base_of_v<Tensor, T> || std::is_same_v<T, Variable> || Number<T>;
template <class T>
struct Argument {
  static KeptArgument keep(const T&) { return {}; }
  static StatePtr state(const T& x, size_t place, KeptArgument& kept) {
    kept.check_tensor(place);
    return Tensor(x).state();
  }
  static Tensor inside(const T&, const StatePtr& state) { return Tensor(state); }
};
template <>
struct Argument<Variable> {
  static KeptArgument keep(const Variable& x) { return {x, nullptr}; }
  static StatePtr state(const Variable& x, size_t place, KeptArgument& kept) {
    return x.input(place, kept);
  }
  static Variable inside(const Variable& x, const StatePtr& state) { return x.inside(state); }
};

// What its function may return.
template <class R>
inline constexpr bool is_result = std::is_void_v<R> || std::is_same_v<R, Tensor>;
template <>
inline constexpr bool is_result<std::vector<Tensor>> = true;
template <class... T>
inline constexpr bool is_result<std::tuple<T...>> = (std::is_same_v<T, Tensor> && ...);
template <class A, class B>
inline constexpr bool is_result<std::pair<A, B>> =
    std::is_same_v<A, Tensor> && std::is_same_v<B, Tensor>;

inline CapturedStep::States states_of(const Tensor& t) { return {t.state()}; }
inline CapturedStep::States states_of(const std::vector<Tensor>& list) {
  CapturedStep::States states;
  for (const Tensor& t : list) states.push_back(t.state());
  return states;
}
template <class... T>
CapturedStep::States states_of(const std::tuple<T...>& t) {
  return std::apply([](const auto&... each) { return CapturedStep::States{each.state()...}; }, t);
}
template <class A, class B>
CapturedStep::States states_of(const std::pair<A, B>& p) {
  return {p.first.state(), p.second.state()};
}

template <class R>
struct Results {
  static R from(const CapturedStep::States& s) { return R(s[0]); }  // Tensor
};
template <>
struct Results<std::vector<Tensor>> {
  static std::vector<Tensor> from(const CapturedStep::States& s) { return {s.begin(), s.end()}; }
};
template <class A, class B>
struct Results<std::pair<A, B>> {
  static std::pair<A, B> from(const CapturedStep::States& s) { return {A(s[0]), B(s[1])}; }
};
template <class... T>
struct Results<std::tuple<T...>> {
  static std::tuple<T...> from(const CapturedStep::States& s) {
    return make(s, std::index_sequence_for<T...>());
  }
  template <size_t... I>
  static std::tuple<T...> make(const CapturedStep::States& s, std::index_sequence<I...>) {
    return {T(s[I])...};
  }
};

// What a call wrote to those of its inputs that are views of something goes there.
void write_back(const CapturedStep& step, const CapturedStep::States& inputs);

}  // namespace detail

template <class F>
class Jit {
 public:
  Jit(F function) : function_(std::move(function)) {}  // NOLINT: `Jit step = lambda` is the point

  template <class... T>
  auto operator()(const T&... arguments) {
    constexpr bool known = (detail::is_argument<T> && ...);
    static_assert(known,
                  "a Jit is called with Tensors, Variables and numbers; what else its function "
                  "needs is captured by the lambda");
    if constexpr (known) return call_with(arguments...);
  }

  bool captured() const { return step_.captured(); }
  void reset() { step_.reset(); }
  const CapturedStep& captured_step() const { return step_; }  // see explain.h for what it does

 private:
  template <class... T>
  auto call_with(const T&... arguments) {
    constexpr bool fits =
        std::is_invocable_v<F&, decltype(detail::Argument<T>::inside(arguments, {}))...>;
    static_assert(fits,
                  "the function of this Jit does not take these arguments: it needs as many as it "
                  "has parameters, a Variable for each Variable and a Tensor or a number for each "
                  "Tensor");
    if constexpr (fits) return run<decltype(returned(arguments...))>(arguments...);
  }

  template <class... T>
  auto returned(const T&... arguments)  // the function's result by value; never called
      -> std::remove_cvref_t<
          std::invoke_result_t<F&, decltype(detail::Argument<T>::inside(arguments, {}))...>>;

  template <class R, class... T>
  R run(const T&... arguments) {
    constexpr bool known = detail::is_result<R>;
    static_assert(known,
                  "the function of a Jit returns nothing, a Tensor, or a vector, a pair or a tuple "
                  "of Tensors");
    if constexpr (known) {
      const CapturedStep::States inputs = given(std::index_sequence_for<T...>(), arguments...);
      auto record = [&](const CapturedStep::States& states) {
        return trace<R>(states, std::index_sequence_for<T...>(), arguments...);
      };
      const auto& outputs = step_.call(inputs, std::ref(record));
      detail::write_back(step_, inputs);
      if constexpr (!std::is_void_v<R>) return detail::Results<R>::from(outputs);
    }
  }

  template <size_t... I, class... T>
  CapturedStep::States given(std::index_sequence<I...>, const T&... arguments) {
    if (!captured()) kept_ = {detail::Argument<T>::keep(arguments)...};
    if (kept_.size() < sizeof...(T)) kept_.resize(sizeof...(T));  // which the step will refuse
    return {detail::Argument<T>::state(arguments, I, kept_[I])...};
  }

  template <class R, size_t... I, class... T>
  CapturedStep::States trace(const CapturedStep::States& states, std::index_sequence<I...>,
                             const T&... arguments) {
    if constexpr (std::is_void_v<R>) {
      function_(detail::Argument<T>::inside(arguments, states[I])...);
      return {};
    } else {
      return detail::states_of(function_(detail::Argument<T>::inside(arguments, states[I])...));
    }
  }

  F function_;
  CapturedStep step_;
  std::vector<detail::KeptArgument> kept_;  // by argument, from the first call on
};

}  // namespace tinyshard
