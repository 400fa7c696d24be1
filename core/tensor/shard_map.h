// Code that each device of a mesh runs for itself, with collectives by hand.
//
//   Mesh mesh({{"d", 4}});
//   auto softmax = shard_map(mesh, [](Tensor x) {          // x [8, 250] of a whole [8, 1000]
//     Tensor e = (x - all_reduce(x.max(1, true), "d", ReduceOp::Max)).exp();
//     return e / all_reduce(e.sum(1, true), "d");
//   }, {.in = {{{"d", Shard(1)}}}, .out = {{{"d", Shard(1)}}}});
//   Tensor y = softmax(x);                                 // [8, 1000], lies as Shard(1)
//
// The function is called once and builds one graph for all devices, in which the device's number is
// a value (axis_index). It sees the shapes of one device. What else it reads, such as a weight that
// a lambda has captured, is whole on each device. Its values have no place outside: reading one
// (item, realize), assigning it and moving it (shard, to) are UserErrors.
//
// Gradients go through shard_map and its collectives, from outside and inside. A value that is the
// same on the devices of an axis has one gradient there: that of a weight which all devices read is
// the sum over them, without a collective by hand. A result that is placed as Replicate over an axis
// must be the same there: one of all_reduce or all_gather, or computed from such. UserError names
// the axis where it is not.
//
// Sizes must divide: UserError for a dim of an input, or of a reduce_scatter or an all_to_all, that
// the devices of its axis do not divide.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"

namespace tinyshard {

// How arguments and results lie, one list for each, as Tensor::shard takes it. Axes that are not
// named are Replicate. What lies otherwise is brought there first.
struct ShardMapPlacements {
  std::vector<std::vector<AxisPlacement>> in, out;
};

namespace detail {
using LocalFunction = std::function<std::vector<StatePtr>(const std::vector<Tensor>&)>;
std::vector<StatePtr> run_shard_map(const Mesh& mesh, const ShardMapPlacements& placements,
                                    const std::vector<Tensor>& arguments, const LocalFunction& f,
                                    Caller caller);
}  // namespace detail

template <class F>
class ShardMap {
 public:
  ShardMap(Mesh mesh, F function, ShardMapPlacements placements, Caller caller)
      : mesh_(std::move(mesh)),
        function_(std::move(function)),
        placements_(std::move(placements)),
        caller_(caller) {}

  // As many Tensors as `in` has; returns what the function does: a Tensor, or a vector, a pair or a
  // tuple of Tensors.
  template <class... T>
  auto operator()(const T&... arguments) {
    using R = std::remove_cvref_t<std::invoke_result_t<F&, const T&...>>;
    static_assert((std::is_base_of_v<Tensor, T> && ...), "a shard_map is called with Tensors");
    static_assert(detail::is_result<R> && !std::is_void_v<R>,
                  "the function of a shard_map returns a Tensor, or a vector, a pair or a tuple of "
                  "Tensors");
    std::optional<R> result;
    auto run = [&](const std::vector<Tensor>& local) {
      result.emplace(call<T...>(local, std::index_sequence_for<T...>()));
      return detail::states_of(*result);
    };
    const auto states = detail::run_shard_map(mesh_, placements_, {arguments...}, run, caller_);
    size_t next = 0;
    return detail::with_leaves(*result, [&](const Tensor&) { return Tensor(states[next++]); });
  }

 private:
  template <class... T, size_t... I>
  auto call(const std::vector<Tensor>& local, std::index_sequence<I...>) {
    return function_(local[I]...);
  }

  Mesh mesh_;
  F function_;
  ShardMapPlacements placements_;
  Caller caller_;
};

template <class F>
ShardMap<F> shard_map(const Mesh& mesh, F function, ShardMapPlacements placements,
                      Caller caller = Caller::current()) {
  return ShardMap<F>(mesh, std::move(function), std::move(placements), caller);
}

// --- inside of the function ----------------------------------------------------------------------
// Each over one axis of the mesh of the shard_map, by name. UserError outside of one, and for an
// axis that its mesh does not have.

// The place of this device along the axis, i32 of shape [], and how many devices there are.
Tensor axis_index(const std::string& axis, Caller caller = Caller::current());
int64_t axis_size(const std::string& axis, Caller caller = Caller::current());

// The reduction of what the devices have, element by element; the same on all of them.
Tensor all_reduce(const Tensor& x, const std::string& axis, ReduceOp op = ReduceOp::Sum,
                  Caller caller = Caller::current());
// Joins what the devices have, one after the other along `dim`; the same on all of them.
Tensor all_gather(const Tensor& x, const std::string& axis, int64_t dim = 0,
                  Caller caller = Caller::current());
// Gives each device its part of the reduction along `dim`.
Tensor reduce_scatter(const Tensor& x, const std::string& axis, int64_t dim = 0,
                      ReduceOp op = ReduceOp::Sum, Caller caller = Caller::current());
// Part i of x along `split_dim` goes to device i; what arrives is joined along `concat_dim`, in the
// order of the senders.
Tensor all_to_all(const Tensor& x, const std::string& axis, int64_t split_dim, int64_t concat_dim,
                  Caller caller = Caller::current());
// x goes from device to device as pairs {from, to} say. Who receives nothing gets zeros. UserError
// for two pairs of one sender or of one receiver.
Tensor collective_permute(const Tensor& x, const std::string& axis,
                          const std::vector<std::pair<int64_t, int64_t>>& pairs,
                          Caller caller = Caller::current());
// x goes `by` devices further, from the last ones to the first ones.
Tensor shift(const Tensor& x, const std::string& axis, int64_t by = 1,
             Caller caller = Caller::current());

}  // namespace tinyshard
