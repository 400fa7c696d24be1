// Parameters and their gradients, and where gradients stop.
#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/exec/state.h"
#include "core/passes/gradient.h"
#include "core/tensor/tensor.h"
#include "core/tensor/view_internal.h"
#include "core/uop/graph.h"
#include "core/uop/node_set.h"

namespace tinyshard {

using value::text_of;
using value::Value;

Tensor Tensor::is_param_(bool is_param, Caller caller) const {
  Call call("is_param_", caller);
  const UOp& node = uop();
  if (is_param && !is_float(node.dtype()))
    fail(fmt::format("a parameter holds floats, not {}", describe()));
  // The name stays with what was built from it before, and is not below the new value as well.
  if (is_param && !has_storage(node)) state_->set(with_own_storage(under_names(node)));
  if (is_param) state_->view_of = nullptr;
  set_parameter(*state_, is_param);
  state_->frozen = !is_param;
  return *this;
}

bool Tensor::is_param() const { return state_ && state_->is_param; }

Tensor Tensor::grad() const { return state_ ? Tensor(state_->gradient()) : Tensor(); }

void Tensor::set_grad(const Tensor& gradient, Caller caller) const {
  Call call("set_grad", caller);
  const Dims mine = shape();  // also of a tensor without a value, which has no place for it
  if (gradient.defined() && gradient.shape() != mine) {
    fail(fmt::format("the tensor is {}, the gradient is {}", describe(), gradient.describe()));
  }
  state_->set_gradient(gradient.state());
}

namespace {

// Returns what the gradient of x starts from.
UOp seed_of(const Tensor& x, const Tensor& gradient) {
  Value root(x);
  if (!is_float(root.dtype()))
    fail(fmt::format("{} holds no floats, so it has no gradient", text_of(root)));
  if (!gradient.defined()) {
    if (root.node()->numel() != 1) {
      fail(fmt::format(
          "{} is not one number: reduce it (sum, mean) or give the gradient that arrives at it",
          text_of(root)));
    }
    return value::constant(root.dtype(), 1, root.shape()).node();
  }
  if (gradient.shape() != x.shape()) {
    fail(fmt::format("the tensor is {}, the gradient that arrives at it is {}", text_of(root),
                     gradient.describe()));
  }
  return value::cast(gradient, root.dtype()).node();
}

// By parameters, or by targets that the caller named.
std::string why_no_gradient(const UOp& root, bool by_parameters) {
  if (under_names(root).op() == Op::Buffer) {
    return "it is computed already, which ends its history; take gradients before reading it";
  }
  bool detached = false, computed = false;
  for (const UOp& x : toposort(std::span(&root, 1))) {
    detached = detached || x.op() == Op::Detach;
    computed = computed || (x.op() == Op::Buffer && is_float(x.dtype()));
  }
  std::string why = by_parameters ? "mark parameters with is_param_()"
                                  : "a target is a tensor that it was computed from, itself";
  if (detached) why += ", and look for detach() on the way";
  if (computed)
    why +=
        ", and for values on the way that were computed or written over before, by reading, "
        "printing, realize(), an assign or a step of an optimizer, which ends their history";
  return why;
}

// The state's node, which may be computed already, and the name that graphs made before know it by.
struct Targets {
  std::vector<UOp> nodes;
  std::vector<int64_t> names;
  void add(TensorState& state) {
    nodes.push_back(touch(state));
    names.push_back(state.name);
  }
  bool any_in(std::span<const std::weak_ptr<const void>> storages) const {
    return std::ranges::any_of(nodes, [&](const UOp& x) {
      if (!has_storage(x)) return false;
      const std::shared_ptr<const void>& own = storage_node(x)->payload;
      return std::ranges::any_of(storages, [&](const std::weak_ptr<const void>& storage) {
        return !storage.owner_before(own) && !own.owner_before(storage);
      });
    });
  }
};

// Fails where x depends on what a target was before it was written over, or on a value that lost its way
// to a target before anybody asked. Example, where the gradient by w would have the last term alone:
//
//   h = w * w;   w.assign(w.detach() * 2);   (h + w * 5).sum().backward();
template <class Wanted>
void need_history(const Tensor& x, const UOp& root, const Targets& targets,
                  const Wanted& is_wanted) {
  std::unordered_set<const Node*> waiting;
  std::unordered_set<const Storage*> written;
  for (const UOp& node : targets.nodes) {
    if (node.op() != Op::Assign) continue;
    waiting.insert(node.get());
    written.insert(Storage::of(*storage_node(node)));
  }
  auto refuse = [&](const UOp& node, const char* what) {
    fail(
        fmt::format("{} depends on a value, {}{}, {}: take gradients before an assign, a step of "
                    "an optimizer or a captured step writes over what they need, or detach() "
                    "that value",
                    x.describe(), name(node.dtype()), value::shape_text(node.shape()), what));
  };
  NodeSet seen;
  // A target may be made of its own former value.
  std::vector<const UOp*> next{&root}, behind;
  auto walk = [&](std::vector<const UOp*>& next, bool before_targets) {
    while (!next.empty()) {
      const UOp& node = *next.back();
      next.pop_back();
      // Nothing goes back through whole numbers, such as an order that a sort gave.
      if (node.op() == Op::Detach || !is_float(node.dtype())) continue;
      if (!seen.add(node)) continue;
      if (before_targets && waiting.contains(node.get())) {
        behind.push_back(&node.src(1));
        continue;
      }
      const bool buffer = node.op() == Op::Buffer, assign = node.op() == Op::Assign;
      if (before_targets && (buffer || assign) &&
          written.contains(Storage::of(*storage_node(node))))
        refuse(node, "that a target had before it was written over");
      const Storage::Ended* ended = buffer ? Storage::of(*node)->ended.get() : nullptr;
      if (ended && is_wanted(*ended)) {
        refuse(node,
               "that was computed when something it reads was written over, before its gradient "
               "was taken");
      }
      // An Assign reads its value, and not its target.
      for (const UOp& source : node->src().subspan(assign ? 1 : 0)) next.push_back(&source);
    }
  };
  walk(next, true);
  walk(behind, false);
}

// Which targets a graph leads to, be it through steps (floor, comparisons) alone.
std::vector<bool> used_targets(const Graph& graph, const Targets& targets) {
  NodeSet nodes;
  std::unordered_set<int64_t> names;
  for (const UOp& x : graph.order()) {
    nodes.add(x);
    if (x.op() == Op::Identity) names.insert(name_of(x));
  }
  std::vector<bool> used;
  for (size_t i = 0; i < targets.nodes.size(); ++i) {
    const UOp& node = targets.nodes[i];
    // Builders leave out what has no elements.
    used.push_back(nodes.contains(node) || names.contains(targets.names[i]) || node->numel() == 0);
  }
  return used;
}

}  // namespace

Tensor Tensor::backward(const Tensor& gradient, Caller caller) const {
  Call call("backward", caller);
  const UOp root = uop(), seed = seed_of(*this, gradient);
  const Graph graph(std::span(&root, 1));
  const std::vector<StatePtr> params = parameters_of(graph);
  Targets targets;
  for (const StatePtr& state : params) targets.add(*state);
  need_history(*this, root, targets, [&](const Storage::Ended& ended) {
    return !ended.parameters.empty() || targets.any_in(ended.storages);
  });
  std::vector<UOp> gradients =
      tinyshard::gradient(graph, std::span(&seed, 1), targets.nodes, targets.names);
  bool any = false;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!gradients[i]) continue;
    any = true;
    set_about(gradients[i], fmt::format("gradient of {}", params[i]->label.empty()
                                                              ? text_of(Value(Tensor(params[i])))
                                                              : params[i]->label));
    const StatePtr& sum = params[i]->gradient();
    params[i]->set_gradient(
        Tensor(sum ? (Value(Tensor(sum)) + Value(gradients[i])).node() : gradients[i]).state());
  }
  if (!any)
    fail(fmt::format("{} depends on no parameter: {}", describe(), why_no_gradient(root, true)));
  return *this;
}

std::vector<Tensor> Tensor::gradient(const std::vector<Tensor>& targets, const Tensor& gradient,
                                     bool materialize_grads, Caller caller) const {
  Call call("gradient", caller);
  const UOp root = uop(), seed = seed_of(*this, gradient);
  const Graph graph(std::span(&root, 1));
  Targets wanted;
  for (const Tensor& target : targets) {
    if (!is_float(target.dtype()))
      fail(fmt::format("target {} holds no floats, so it has no gradient", target.describe()));
    wanted.add(*target.state());
  }
  need_history(*this, root, wanted, [&](const Storage::Ended& ended) {
    auto knew_name = [&](int64_t n) {
      return n != 0 && (std::ranges::find(ended.names, n) != ended.names.end() ||
                        std::ranges::binary_search(ended.parameters, n));
    };
    return std::ranges::any_of(wanted.names, knew_name) || wanted.any_in(ended.storages);
  });
  std::vector<UOp> gradients =
      tinyshard::gradient(graph, std::span(&seed, 1), wanted.nodes, wanted.names);
  std::vector<bool> used;  // known where a target needs it
  std::vector<Tensor> out;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i]) {
      out.emplace_back(gradients[i]);
      continue;
    }
    if (used.empty()) used = used_targets(graph, wanted);
    if (!used[i] && !materialize_grads) {
      fail(
          fmt::format("{} does not depend on target {}, {}: {}; materialize_grads = true gives "
                      "zeros for such targets",
                      describe(), i, targets[i].describe(), why_no_gradient(root, false)));
    }
    out.push_back(targets[i].zeros_like());
  }
  return out;
}

Tensor Tensor::detach() const {
  Call call("detach");
  return value::moved(*this, [](const Value& x) { return value::detach(x); });
}

Tensor Tensor::contiguous_backward() const {
  Call call("contiguous_backward");
  return Value(tinyshard::unary(Op::ContiguousBackward, uop()));
}

}  // namespace tinyshard
