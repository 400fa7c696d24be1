// A model is a struct of tensors, layers and containers of them; TS_FIELDS names its members, and
// that is all there is to a module. No base class, no registration.
//
//   struct Block {
//     nn::Linear up{64, 256}, down{256, 64};
//     TS_FIELDS(up, down)
//     Tensor operator()(const Tensor& x) const { return x + down(up(x).gelu()); }
//   };
//
// A Tensor is a handle: a copied model shares its tensors with the original. nn::layers makes a
// list of separate ones.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/tensor/tensor.h"

// Lists the members that hold tensors, in the order in which they are saved.
#define TS_FIELDS(...)                                                            \
  template <class Visit>                                                          \
  void for_each_field(Visit&& visit) const {                                      \
    ::tinyshard::nn::visit_named(visit, #__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__); \
  }

namespace tinyshard::nn {

// Calls visit(name, field) for each field; `names` is the macro's argument as it was written.
template <class Visit, class... Field>
void visit_named(Visit& visit, std::string_view names, const Field&... fields) {
  [[maybe_unused]] auto next = [&names] {
    names.remove_prefix(std::min(names.find_first_not_of(" \t\n"), names.size()));
    size_t comma = std::min(names.find(','), names.size());
    std::string_view name = names.substr(0, comma);
    names.remove_prefix(std::min(comma + 1, names.size()));
    return name.substr(0, name.find_last_not_of(" \t\n") + 1);
  };
  (visit(next(), fields), ...);
}

// Calls visit(name, tensor) for every tensor of a model: "blocks.0.attention.weight". Absent
// tensors (a bias that was not asked for, an empty optional) are passed over.
template <class Model, class Visit>
void for_each_tensor(const Model& model, const std::string& name, const Visit& visit) {
  auto inner = [&name](auto part) {
    std::string text;
    if constexpr (std::is_integral_v<decltype(part)>) {
      text = std::to_string(part);
    } else {
      text = part;
    }
    return name.empty() ? text : name + "." + text;
  };
  if constexpr (std::is_same_v<Model, Tensor>) {
    if (model.defined()) visit(name, model);
  } else if constexpr (requires { model.for_each_field([](std::string_view, const auto&) {}); }) {
    model.for_each_field([&](std::string_view field, const auto& value) {
      for_each_tensor(value, inner(field), visit);
    });
  } else if constexpr (requires { typename Model::mapped_type; }) {
    for (const auto& [key, value] : model) for_each_tensor(value, inner(key), visit);
  } else if constexpr (std::ranges::range<Model>) {
    size_t i = 0;
    for (const auto& value : model) for_each_tensor(value, inner(i++), visit);
  } else if constexpr (requires { std::tuple_size<Model>::value; }) {
    std::apply(
        [&](const auto&... value) {
          size_t i = 0;
          (for_each_tensor(value, inner(i++), visit), ...);
        },
        model);
  } else if constexpr (requires { static_cast<bool>(model) && (*model, true); }) {
    if (model) for_each_tensor(*model, name, visit);
  } else {
    static_assert(sizeof(Model) == 0,
                  "a model is a Tensor, a struct with TS_FIELDS, or a container, optional or "
                  "pointer of these");
  }
}

// n separate layers, each constructed from these arguments. UserError for more than 65536 of them:
// such a number comes from a file or a command line that is wrong.
template <class Layer, class... Argument>
std::vector<Layer> layers(int64_t n, const Argument&... arguments) {
  constexpr int64_t kMost = 1 << 16;
  if (n < 0 || n > kMost)
    throw UserError("nn::layers: " + std::to_string(n) + " is not a number from 0 to " +
                    std::to_string(kMost));
  std::vector<Layer> list;
  list.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) list.emplace_back(arguments...);
  return list;
}

}  // namespace tinyshard::nn
