// Feed-forward layers of which each token visits a few, chosen by a router.
//
//   nn::MixtureOfExperts moe(512, 2048, 8, {.top_k = 2});
//   auto [y, balance] = moe(x);                               // x [batch, sequence, 512]
//   Tensor loss = task_loss(y) + 0.01 * balance;
//
//   nn::expert_parallel(model, mesh, "expert");               // expert e on device e / (8 / devices)
//
// Rows of the batch are groups: in each, an expert has room for a number of tokens that depends on
// sizes alone, so shapes are known and no device waits to hear what the others have. Which tokens
// find room depends on their group alone, so the result is the same however it is divided: those
// that come first, first choices before second ones. A token without room adds nothing there.
//
//   tokens of a group     a b c d      2 experts, top_k = 1, room for 2 each
//   choices               0 0 0 1      expert 0 works on a, b; expert 1 on d; c gets zeros
//
// With experts over an axis, tokens go to their experts by an all-to-all and come back by another;
// weights stay where they are (tests/core/nn/mixture_of_experts_test.cpp has the bytes).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/nn/linear.h"
#include "core/nn/state_dict.h"

namespace tinyshard::nn {

struct MixtureOfExpertsOptions {
  int64_t top_k = 2;  // experts of a token
  // Room of an expert in a group of s tokens: this times s * top_k / experts, rounded up. Without
  // it there is room for all s, and nothing is dropped; an expert then computes s rows of a group,
  // however few it has.
  std::optional<double> capacity_factor = 1.25;
  bool normalize = true;  // the weights of a token's experts add up to 1
  bool gated = true;      // down(silu(gate(x)) * up(x)); else down(gelu(up(x)))
};

// The weights of all experts.
struct Experts {
  Tensor up, gate, down;  // [experts, width, hidden] twice, [experts, hidden, width]
  TS_FIELDS(up, gate, down)
};

struct MixtureOfExperts {
  // UserError for sizes below 1, a top_k that is not in [1, experts], a factor that is not above 0.
  MixtureOfExperts(int64_t width, int64_t hidden, int64_t experts,
                   const MixtureOfExpertsOptions& options = {}, Caller caller = Caller::current());

  // x [.., sequence, width]. The result, of x's shape and type, and the load-balancing loss f32[]
  // (f64 of f64): experts times the sum over them of (their share of all choices) * (their mean
  // probability), which is 1 where tokens are spread evenly.
  std::pair<Tensor, Tensor> operator()(const Tensor& x, Caller caller = Caller::current()) const;

  // Tokens of a group of that size for which an expert has room.
  int64_t capacity(int64_t tokens) const;

  Linear router;  // without bias; computes in f32 at least
  Experts experts;
  MixtureOfExpertsOptions options;
  TS_FIELDS(router, experts)
};

// Divides the experts of these layers over the axis, which their number must be a multiple of, and
// where `tensor_axis` is given their hidden dim over that one; along other axes they stay as they
// are. All other tensors of the model are placed on the mesh as they lie. A layer divides rows of
// its input over all axes of the mesh but `tensor_axis`, as far as they divide, and so lies its
// result; where rows do not divide among the devices of an expert axis, these compute all tokens,
// each for its experts. UserError for a model without such layers, and for sizes that do not divide.
void expert_parallel(const std::vector<Experts>& layers, const StateDict& tensors, const Mesh& mesh,
                     const std::string& axis, const std::string& tensor_axis = "",
                     Caller caller = Caller::current());

namespace detail {
template <class Model>
void collect_experts(const Model& model, std::vector<Experts>& found) {
  if constexpr (std::is_same_v<Model, Experts>) {
    found.push_back(model);
  } else if constexpr (std::is_same_v<Model, Tensor>) {
    return;
  } else if constexpr (requires { model.for_each_field([](std::string_view, const auto&) {}); }) {
    model.for_each_field(
        [&](std::string_view, const auto& value) { collect_experts(value, found); });
  } else if constexpr (requires { typename Model::mapped_type; }) {
    for (const auto& [key, value] : model) collect_experts(value, found);
  } else if constexpr (std::ranges::range<Model>) {
    for (const auto& value : model) collect_experts(value, found);
  } else if constexpr (requires { std::tuple_size<Model>::value; }) {
    std::apply([&](const auto&... value) { (collect_experts(value, found), ...); }, model);
  } else if constexpr (requires { static_cast<bool>(model) && (*model, true); }) {
    if (model) collect_experts(*model, found);
  }
}
}  // namespace detail

template <class Model>
void expert_parallel(const Model& model, const Mesh& mesh, const std::string& axis,
                     const std::string& tensor_axis = "", Caller caller = Caller::current()) {
  std::vector<Experts> layers;
  detail::collect_experts(model, layers);
  parameters(model);  // plans and errors know them by their names
  expert_parallel(layers, state_dict(model), mesh, axis, tensor_axis, caller);
}

}  // namespace tinyshard::nn
