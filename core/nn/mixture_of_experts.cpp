// The place of a choice in its expert's room is the number of choices before it
// that name that expert, counted by sums over one-hot choices. A place from
// `capacity` on means no room: indices beyond the last slot or token look up
// zeros and scatter nowhere, so that no shape depends on what the router chose.
//
//   choices [0 0 0 1], room 2    before [0 1 2 0]    slots [0 1 none 2]
#include "core/nn/mixture_of_experts.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/nn/bound_internal.h"
#include "core/nn/placement.h"
#include "core/nn/types_internal.h"
#include "core/tensor/shard_map.h"
#include "multi/gather_on_use.h"

namespace tinyshard::nn {
namespace {

// Each axis of a mesh, by what it does for the layer.
struct Division {
  std::string expert, tensor;                   // axes by name; empty: none
  std::vector<AxisPlacement> tokens, up, down;  // of [groups, ...], of the weights
  bool tokens_by_expert = false;                // the expert axis divides the groups, too
};

bool is_gathered(const Tensor& weight, size_t axis) {
  const auto& on_use = weight.state()->gather_on_use;
  return on_use && on_use->axes[axis];
}

Division division_of(const Experts& experts, int64_t groups) {
  const Sharding up = experts.up.sharding(), down = experts.down.sharding();
  Division d;
  int64_t parts = 1;
  for (size_t a = 0; a < up.mesh.axes().size(); ++a) {
    const auto& [name, devices] = up.mesh.axes()[a];
    const bool kept = up.mesh == down.mesh && !is_gathered(experts.up, a);
    if (kept && up.placements[a] == Shard(2) && down.placements[a] == Shard(1) &&
        d.tensor.empty()) {
      d.tensor = name;
      d.up.push_back({name, Shard(2)});
      d.down.push_back({name, Shard(1)});
      continue;
    }
    const bool divides = groups % (parts * devices) == 0;
    if (kept && up.placements[a] == Shard(0) && down.placements[a] == Shard(0) &&
        d.expert.empty()) {
      d.expert = name;
      d.tokens_by_expert = divides;
      d.up.push_back({name, Shard(0)});
      d.down.push_back({name, Shard(0)});
    }
    if (!divides) continue;
    parts *= devices;
    d.tokens.push_back({name, Shard(0)});
  }
  return d;
}

// x[group, index[group, i], :]; zeros where the index is out of range.
Tensor rows_at(const Tensor& x, const Tensor& index) {
  return x.gather(1, index.unsqueeze(-1).expand({index.shape(0), index.shape(1), x.shape(2)}));
}

// rows [experts, n, width].
Tensor fed_forward(const Tensor& rows, const Tensor& up, const Tensor& gate, const Tensor& down) {
  Tensor hidden = rows.matmul(weight_for(rows, up));
  hidden = gate.defined() ? rows.matmul(weight_for(rows, gate)).silu() * hidden : hidden.gelu();
  return hidden.matmul(weight_for(rows, down));
}

// Which tokens are where, of g groups of s tokens; slots are an expert's room, one expert after the
// other.
struct Routes {
  Tensor token_of;  // i32 [g, experts * capacity]: s for a slot that stays empty
  Tensor slot_of;   // i32 [g, top_k * s], first choices first: behind the last slot for no room
  Tensor weights;   // [g, top_k * s]
};

Routes routes_of(const Tensor& chosen, const Tensor& weights, int64_t experts, int64_t capacity) {
  const int64_t g = chosen.shape(0), s = chosen.shape(1), k = chosen.shape(2);
  const Tensor choices = chosen.transpose(1, 2).reshape({g, k * s});
  const Tensor one = choices.one_hot(experts);  // [g, k * s, experts]
  const Tensor before = ((one.cumsum(1) - one) * one).sum(2).cast(DType::I32);
  const Tensor slot =
      (before < capacity).where(choices.cast(DType::I32) * capacity + before, experts * capacity);
  const Tensor tokens = Tensor::arange(s, DType::I32).reshape({1, 1, s}).expand({g, k, s});
  return {Tensor::full({g, experts * capacity}, s, DType::I32)
              .scatter(1, slot, tokens.reshape({g, k * s})),
          slot, weights.transpose(1, 2).reshape({g, k * s})};
}

// All of the layer behind its router, of what one device has.
Tensor through_experts(const Tensor& x, const Routes& routes, const Tensor& up, const Tensor& gate,
                       const Tensor& down, int64_t capacity, const Division& d) {
  const int64_t g = x.shape(0), s = x.shape(1), width = x.shape(2), mine = up.shape(0);
  const bool exchanges = !d.expert.empty() && d.tokens_by_expert;
  Tensor token_of = routes.token_of, slot_of = routes.slot_of;
  if (!d.expert.empty() &&
      !exchanges) {  // all tokens are here: those of other experts do not count
    const Tensor first = axis_index(d.expert) * static_cast<int>(mine * capacity);
    const Tensor places = Tensor::arange(mine * capacity, DType::I32) + first;
    token_of = token_of.gather(1, places.unsqueeze(0).expand({g, mine * capacity}));
    slot_of = slot_of - first;
  }
  // [groups, experts, capacity, width]: of own groups and all experts, or of all groups in which
  // this device takes part and own experts.
  Tensor rows = rows_at(x, token_of).reshape({g, -1, capacity, width});
  if (exchanges) rows = all_to_all(rows, d.expert, 1, 0);
  const int64_t groups = rows.shape(0);
  rows = rows.transpose(0, 1).reshape({mine, groups * capacity, width});
  rows = fed_forward(rows, up, gate, down);
  rows = rows.reshape({mine, groups, capacity, width}).transpose(0, 1);
  if (exchanges) rows = all_to_all(rows, d.expert, 0, 1);
  const Tensor chosen = rows_at(rows.reshape({g, -1, width}), slot_of);
  // Each slot belongs to one choice; those of a token are weighted and added in a wide type.
  const DType wide = accumulator(x.dtype());
  const int64_t k = slot_of.shape(1) / s;
  Tensor y = (chosen.cast(wide) * routes.weights.unsqueeze(-1)).reshape({g, k, s, width}).sum(1);
  if (!d.expert.empty() && !exchanges) y = all_reduce(y, d.expert);
  if (!d.tensor.empty()) y = all_reduce(y, d.tensor);
  return y.cast(x.dtype());
}

void check_sizes(int64_t width, int64_t hidden, int64_t experts,
                 const MixtureOfExpertsOptions& options) {
  if (width < 1 || hidden < 1 || experts < 1)
    fail(fmt::format("width {}, hidden {} and experts {} are sizes of at least 1", width, hidden,
                     experts));
  if (options.top_k < 1 || options.top_k > experts)
    fail(fmt::format("top_k is {} of {} experts", options.top_k, experts));
  if (options.capacity_factor && !(*options.capacity_factor > 0))
    fail(fmt::format("capacity_factor is {}, which leaves no room", *options.capacity_factor));
}

Tensor weights(int64_t experts, int64_t in, int64_t out) {
  const double bound = uniform_bound(in);
  return Tensor::uniform({experts, in, out}, -bound, bound).is_param_();
}

// Checked before it is the size of a Linear, whose errors would tell less.
int64_t checked_width(int64_t width, int64_t hidden, int64_t experts,
                      const MixtureOfExpertsOptions& options, Caller caller) {
  Call call("MixtureOfExperts", caller);
  check_sizes(width, hidden, experts, options);
  return width;
}

}  // namespace

MixtureOfExperts::MixtureOfExperts(int64_t width, int64_t hidden, int64_t number,
                                   const MixtureOfExpertsOptions& how, Caller caller)
    : router(checked_width(width, hidden, number, how, caller), number, {.bias = false}),
      experts{weights(number, width, hidden), how.gated ? weights(number, width, hidden) : Tensor(),
              weights(number, hidden, width)},
      options(how) {}

int64_t MixtureOfExperts::capacity(int64_t tokens) const {
  if (!options.capacity_factor) return tokens;
  const double even =
      static_cast<double>(tokens * options.top_k) / static_cast<double>(experts.up.shape(0));
  const auto room = static_cast<int64_t>(std::ceil(*options.capacity_factor * even));
  return std::clamp<int64_t>(room, 1, std::max<int64_t>(tokens, 1));
}

std::pair<Tensor, Tensor> MixtureOfExperts::operator()(const Tensor& in, Caller caller) const {
  Call call("MixtureOfExperts", caller);
  const int64_t width = experts.up.shape(1), number = experts.up.shape(0);
  if (in.ndim() < 2 || in.shape(-1) != width || !is_float(in.dtype()))
    fail(fmt::format("{} is no [.., sequence, {}] of floats", in.describe(), width));
  const int64_t s = in.shape(-2), g = s == 0 ? 0 : in.numel() / (s * width);
  if (g == 0) fail(fmt::format("{} has no tokens", in.describe()));
  const Tensor x = in.reshape({g, s, width});
  const Division d = division_of(experts, g);

  const DType wide = accumulator(x.dtype());
  const Tensor odds = x.cast(wide).linear(router.weight.cast(wide).T()).softmax();
  auto [weights, chosen] = odds.topk(options.top_k);
  if (options.normalize) weights = weights / weights.sum(-1, true);
  const Tensor share =
      chosen.one_hot(number).sum({0, 1, 2}).cast(wide) / static_cast<double>(g * s * options.top_k);
  const Tensor balance = (share * odds.mean({0, 1})).sum() * static_cast<double>(number);

  const int64_t room = capacity(s);
  const Routes routes = routes_of(chosen, weights, number, room);
  if (d.expert.empty() && d.tensor.empty()) {
    const Tensor y = through_experts(x, routes, experts.up, experts.gate, experts.down, room, d);
    return {y.reshape(in.shape()), balance};
  }
  auto on_device = [&](const Tensor& tokens, const Tensor& token_of, const Tensor& slot_of,
                       const Tensor& scale, const Tensor& up, const Tensor& down,
                       const Tensor& gate) {
    return through_experts(tokens, {token_of, slot_of, scale}, up, options.gated ? gate : Tensor(),
                           down, room, d);
  };
  // Without a gate, `up` stands in its place and is not read.
  auto divided = shard_map(
      experts.up.sharding().mesh, on_device,
      {.in = {d.tokens, d.tokens, d.tokens, d.tokens, d.up, d.down, d.up}, .out = {d.tokens}},
      caller);
  const Tensor y = divided(x, routes.token_of, routes.slot_of, routes.weights, experts.up,
                           experts.down, options.gated ? experts.gate : experts.up);
  return {y.reshape(in.shape()), balance};
}

void expert_parallel(const std::vector<Experts>& layers, const StateDict& tensors, const Mesh& mesh,
                     const std::string& axis, const std::string& tensor_axis, Caller caller) {
  Call call("expert_parallel", caller);
  if (layers.empty()) fail("the model has no MixtureOfExperts");
  mesh.axis(axis);  // that there is one
  if (!tensor_axis.empty()) mesh.axis(tensor_axis);
  if (axis == tensor_axis)
    fail(fmt::format("\"{}\" cannot divide both experts and what each has", axis));
  std::set<const TensorState*> placed;
  auto move_to = [&](const Tensor& t, const Sharding& where) {
    if (placed.insert(t.state().get()).second) t.replace(t.shard_like(where));
  };
  auto divide_along = [&](const Tensor& t, int dim, const std::string& over, Sharding& where) {
    const auto number = static_cast<size_t>(where.mesh.axis(over));
    const MeshAxis& a = where.mesh.axes()[number];
    if (t.shape(dim) % a.size != 0)
      fail(fmt::format("dim {} of the weight {} does not divide among the {} devices of \"{}\"",
                       dim, t.describe(), a.size, a.name));
    where.placements[number] = Shard(dim);
  };
  auto divide = [&](const Tensor& t, int hidden_dim) {
    if (!t.defined()) return;
    Sharding where = place_on(mesh, "a weight of experts", t);
    divide_along(t, 0, axis, where);
    if (!tensor_axis.empty()) divide_along(t, hidden_dim, tensor_axis, where);
    move_to(t, where);
  };
  for (const Experts& e : layers) {
    divide(e.up, 2);
    divide(e.gate, 2);
    divide(e.down, 1);
  }
  for (const auto& [name, t] : tensors) {
    if (!placed.contains(t.state().get())) move_to(t, place_on(mesh, name, t));
  }
}

}  // namespace tinyshard::nn
