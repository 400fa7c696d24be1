// A step may be called with these, and its function may return them: tensors, variables, numbers, and
// vectors, arrays, optionals, pairs, tuples, maps and structs with TS_FIELDS of them, inside each
// other. Their leaves are taken in order:
//
//   struct Batch { Tensor tokens; std::map<std::string, Tensor> extra; TS_FIELDS(tokens, extra) };
//   step(batch, 0.1)      input 0.tokens, input 0.extra["mask"], input 1
//
// While a step is traced its function gets the same, with other leaves; a number is a tensor there.
// Numbers that are fields of a struct are no leaves: they are what they were at the first call.
#pragma once
#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/exec/captured_step.h"
#include "core/tensor/tensor.h"
#include "core/tensor/variable.h"

namespace tinyshard::detail {

template <class T>
inline constexpr bool is_tensor = std::is_base_of_v<Tensor, T>;
template <class T>
inline constexpr bool is_variable = std::is_same_v<T, Variable>;
template <class T>
concept Leaf = is_tensor<T> || is_variable<T> || Number<T>;
template <class T>
concept Fields = requires(const T& x) { x.for_each_field([](std::string_view, const auto&) {}); } &&
                 std::copy_constructible<T>;

// Kinds of containers, and what a trace is given in their place.
template <class T>
struct Container {
  static constexpr bool is_known = Leaf<T> || Fields<T>;
  using Inside = T;
};
template <class T>
  requires(Number<T>)
struct Container<T> {
  static constexpr bool is_known = true;
  using Inside = Tensor;
};
template <class T>
  requires(is_tensor<T>)
struct Container<T> {
  static constexpr bool is_known = true;
  using Inside = Tensor;
};
template <class T>
using Inside = typename Container<T>::Inside;
template <class T>
inline constexpr bool is_known = Container<T>::is_known;

template <class T>
struct Container<std::vector<T>> {
  static constexpr bool is_known = detail::is_known<T>;
  using Inside = std::vector<detail::Inside<T>>;
};
template <class T, size_t N>
struct Container<std::array<T, N>> {
  static constexpr bool is_known = detail::is_known<T>;
  using Inside = std::array<detail::Inside<T>, N>;
};
template <class T>
struct Container<std::optional<T>> {
  static constexpr bool is_known = detail::is_known<T>;
  using Inside = std::optional<detail::Inside<T>>;
};
template <class A, class B>
struct Container<std::pair<A, B>> {
  static constexpr bool is_known = detail::is_known<A> && detail::is_known<B>;
  using Inside = std::pair<detail::Inside<A>, detail::Inside<B>>;
};
template <class... T>
struct Container<std::tuple<T...>> {
  static constexpr bool is_known = (detail::is_known<T> && ...);
  using Inside = std::tuple<detail::Inside<T>...>;
};
template <class K, class T, class... Rest>
struct Container<std::map<K, T, Rest...>> {
  static constexpr bool is_known = detail::is_known<T>;
  using Inside = std::map<K, detail::Inside<T>>;
};

inline std::string key_text(const std::string& key) { return '"' + key + '"'; }
template <Number K>
std::string key_text(K key) {
  return std::to_string(key);
}

// Calls visit(leaf, path) for each leaf. A field that is a tensor without a value is passed over, as
// a bias that nobody asked for.
template <class T, class Visit>
void for_each_leaf(const T& x, const Path& path, const Visit& visit) {
  auto part = [&](const auto& value, size_t i) { for_each_leaf(value, Path{&path, {}, i}, visit); };
  if constexpr (Leaf<T>) {
    visit(x, path);
  } else if constexpr (Fields<T>) {
    x.for_each_field([&](std::string_view name, const auto& field) {
      using F = std::remove_cvref_t<decltype(field)>;
      if constexpr (is_tensor<F>) {
        if (!field.defined()) return;
      }
      if constexpr (!Number<F>) {
        static_assert(is_known<F>,
                      "a field of what a Jit is called with, or returns, is a Tensor, "
                      "a Variable, or a container or struct of these");
        for_each_leaf(field, Path{&path, name, 0}, visit);
      }
    });
  } else if constexpr (requires { typename T::mapped_type; }) {
    for (const auto& [key, value] : x) {
      const std::string text = "[" + key_text(key) + "]";
      for_each_leaf(value, Path{&path, text, 0}, visit);
    }
  } else if constexpr (requires { x.has_value(); }) {
    if (x) for_each_leaf(*x, path, visit);
  } else if constexpr (requires { x.begin(); }) {
    for (size_t i = 0; i < x.size(); ++i) part(x[i], i);
  } else {
    std::apply(
        [&](const auto&... value) {
          size_t i = 0;
          (part(value, i++), ...);
        },
        x);
  }
}

// How a container is made up: "{tokens: f, extra: {"mask": _}}". Frozen numbers are part of it.
template <class T>
void describe_form(const T& x, std::string& text) {
  auto list = [&](const char* open, const char* close, const auto& each) {
    text += open;
    const size_t begin = text.size();
    each([&](const std::string& name, const auto& value) {
      if (text.size() > begin) text += ", ";
      text += name;
      describe_form(value, text);
    });
    text += close;
  };
  if constexpr (is_variable<T>) {
    text += "variable";
  } else if constexpr (Leaf<T>) {
    text += "tensor";
  } else if constexpr (Fields<T>) {
    list("{", "}", [&](const auto& add) {
      x.for_each_field([&](std::string_view name, const auto& field) {
        using F = std::remove_cvref_t<decltype(field)>;
        const std::string label = std::string(name) + ": ";
        if constexpr (Number<F>) {
          add(label + std::to_string(field), std::tuple<>());
        } else if constexpr (is_tensor<F>) {
          if (field.defined()) add(label, field);
        } else {
          add(label, field);
        }
      });
    });
  } else if constexpr (requires { typename T::mapped_type; }) {
    list("{", "}", [&](const auto& add) {
      for (const auto& [key, value] : x) add(key_text(key) + ": ", value);
    });
  } else if constexpr (requires { x.has_value(); }) {
    if (x)
      describe_form(*x, text);
    else
      text += "nothing";
  } else if constexpr (requires { x.begin(); }) {
    list("[", "]", [&](const auto& add) {
      for (const auto& value : x) add("", value);
    });
  } else if constexpr (std::tuple_size_v<T> > 0) {
    list("(", ")", [&](const auto& add) {
      std::apply([&](const auto&... value) { (add("", value), ...); }, x);
    });
  }
}

// x with other leaves: make(leaf) gives each, in the order of for_each_leaf().
template <class T, class Make>
Inside<T> with_leaves(const T& x, const Make& make) {
  if constexpr (Leaf<T>) {
    return make(x);
  } else if constexpr (Fields<T>) {
    T copy = x;
    copy.for_each_field([&](std::string_view, const auto& field) {
      using F = std::remove_cvref_t<decltype(field)>;
      if constexpr (is_tensor<F>) {
        if (!field.defined()) return;
      }
      if constexpr (!Number<F>) {
        static_assert(std::is_same_v<F, Inside<F>>,
                      "a field of what a Jit is called with holds numbers in a container: make it "
                      "a Tensor");
        const_cast<F&>(field) = with_leaves(field, make);  // a member of `copy`
      }
    });
    return copy;
  } else if constexpr (requires { typename T::mapped_type; }) {
    Inside<T> out;
    for (const auto& [key, value] : x) out.emplace(key, with_leaves(value, make));
    return out;
  } else if constexpr (requires { x.has_value(); }) {
    Inside<T> out;
    if (x) out.emplace(with_leaves(*x, make));
    return out;
  } else if constexpr (requires(T& list) { list.push_back(list.front()); }) {
    Inside<T> out;
    for (const auto& value : x) out.push_back(with_leaves(value, make));
    return out;
  } else {
    // Braces are worked off from left to right.
    return std::apply([&](const auto&... value) { return Inside<T>{with_leaves(value, make)...}; },
                      x);
  }
}

// The result of a function by value; what it must not be is told by the static_assert of Jit.
template <class R>
inline constexpr bool is_result =
    std::is_void_v<R> || (is_known<R> && !is_variable<R> && !Number<R>);

template <class R>
CapturedStep::States states_of(const R& result) {
  CapturedStep::States states;
  for_each_leaf(result, Path(), [&](const auto& leaf, const Path&) {
    if constexpr (is_tensor<std::remove_cvref_t<decltype(leaf)>>) states.push_back(leaf.state());
  });
  return states;
}

}  // namespace tinyshard::detail
