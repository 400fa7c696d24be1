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
// replay. Plain C++ values are frozen at the first call. The returned tensors are the same at every
// call, with new contents: read or clone them before the next one. Reading data inside, or calling
// with other shapes, is a UserError.
#pragma once
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/exec/jit.h"
#include "core/tensor/tensor.h"

namespace tinyshard {

namespace detail {

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
    using R = std::invoke_result_t<F&, std::conditional_t<true, Tensor, T>...>;
    CapturedStep::States inputs{Tensor(arguments).state()...};
    const auto& outputs = step_.call(inputs, [this](const CapturedStep::States& states) {
      return trace<R>(states, std::index_sequence_for<T...>());
    });
    if constexpr (!std::is_void_v<R>) return detail::Results<R>::from(outputs);
  }

  bool captured() const { return step_.captured(); }
  void reset() { step_.reset(); }
  const Schedule& schedule() const { return step_.schedule(); }

 private:
  template <class R, size_t... I>
  CapturedStep::States trace(const CapturedStep::States& states, std::index_sequence<I...>) {
    if constexpr (std::is_void_v<R>) {
      function_(Tensor(states[I])...);
      return {};
    } else {
      return detail::states_of(function_(Tensor(states[I])...));
    }
  }

  F function_;
  CapturedStep step_;
};

}  // namespace tinyshard
