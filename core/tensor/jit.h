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
// next one, or give them to it. Values made from them, or from what is assigned, keep the old
// contents. Reading data inside, or calling with other shapes, is a UserError.
#pragma once
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/exec/jit.h"
#include "core/tensor/tensor.h"
#include "core/tensor/variable.h"

namespace tinyshard {

namespace detail {

// What a step is called with, and what its function gets for it while it is traced.
template <class T>
struct Argument {
  static StatePtr state(const T& x) { return Tensor(x).state(); }
  static Tensor inside(const T&, const StatePtr& state) { return Tensor(state); }
};
template <>
struct Argument<Variable> {
  static StatePtr state(const Variable& x) { return x.input(); }
  static Variable inside(const Variable& x, const StatePtr& state) { return x.inside(state); }
};

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

}  // namespace detail

template <class F>
class Jit {
 public:
  Jit(F function) : function_(std::move(function)) {}  // NOLINT: `Jit step = lambda` is the point

  template <class... T>
  auto operator()(const T&... arguments) {
    using R = std::invoke_result_t<F&, decltype(detail::Argument<T>::inside(arguments, {}))...>;
    CapturedStep::States inputs{detail::Argument<T>::state(arguments)...};
    auto record = [&](const CapturedStep::States& states) {
      return trace<R>(states, std::index_sequence_for<T...>(), arguments...);
    };
    const auto& outputs = step_.call(inputs, std::ref(record));
    if constexpr (!std::is_void_v<R>) return detail::Results<R>::from(outputs);
  }

  bool captured() const { return step_.captured(); }
  void reset() { step_.reset(); }
  const Schedule& schedule() const { return step_.schedule(); }

 private:
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
};

}  // namespace tinyshard
