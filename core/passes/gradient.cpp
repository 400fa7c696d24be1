// The reverse walk. Rules are only asked for sources on a path to a target, so the graph holds
// nothing that the caller will not read.
//
// In code that each device runs for itself (multi/per_device.h) a source may be one for all devices
// of an axis where the op that reads it is not. Each device then has a term of its gradient, and the
// terms are summed over the axis once all readers have given theirs:
//
//   y = x w, with x own along "d" and w ordinary     the gradient of w is all_reduced(x^T g) over "d"
//
// Where w was put together from parts (whole_of), the sum goes back to them as a reduce-scatter.
#include "core/passes/gradient.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/passes/gradient_rules.h"
#include "core/passes/own_gradient.h"
#include "core/rewrite/pattern.h"
#include "core/uop/node_map.h"
#include "core/uop/node_set.h"
#include "core/uop/own_kernel.h"
#include "multi/mesh.h"
#include "multi/per_device.h"

namespace tinyshard {
namespace {

// Tells whether an After keeps its order in the backward pass, too: in_order_both_ways().
bool is_ordered_both_ways(const UOp& x) { return x.op() == Op::After && x->arguments > 0; }

bool may_follow(const UOp& x, size_t source) {
  if (x.op() == Op::After && source == 1 && !is_ordered_both_ways(x)) return false;
  if (source == 0 && own_gradient(x)) return false;
  const GradientRow& facts = gradient_row(x.op());
  bool wanted = facts.kind == GradientRow::Refuse || facts.kind == GradientRow::Recompute ||
                (facts.sources >> source & 1);
  return facts.kind != GradientRow::Stop && wanted && is_float(x.dtype()) &&
         is_float(x.src(source).dtype());
}

// Terms of a gradient, one on each device, that are to be summed over these axes of the mesh.
struct Terms {
  uint64_t axes;
  std::shared_ptr<const void> mesh;
  UOp each;
};

struct Entry {
  const UOp* value;  // in the graph
  UOp gradient;
  std::vector<Terms> terms = {};  // to be added to it
  bool leads_to_target = false;
};

uint64_t bit(int axis) { return uint64_t{1} << axis; }

UOp summed(const Terms& t, uint64_t axes) {
  const Mesh mesh = Mesh::from_payload(t.mesh);
  UOp sum = t.each;
  for (int a = 0; a < int(mesh.axes().size()); ++a) {
    if (axes & bit(a)) sum = all_reduced(sum, mesh, a, ReduceOp::Sum);
  }
  return sum;
}

// Ops that make of a sum of terms the same sum of what they make of each, as cheaply.
bool takes_terms(const UOp& x) {
  const bool view = x.op() == Op::Reshape || x.op() == Op::Permute || x.op() == Op::Contiguous;
  return view || x.op() == Op::Identity || part_arg(*x).has_value();
}

class Walk {
 public:
  // Targets are nodes and, but for 0, names. Does not look below `ends`, which are targets, too.
  // `per_device`: whether there may be code that each device runs for itself.
  Walk(std::span<const UOp> targets, std::span<const int64_t> names, bool per_device,
       std::span<const UOp> ends = {})
      : names_(names.begin(), names.end()), per_device_(per_device) {
    for (const UOp& target : targets) is_target_[target] = true;
    for (const UOp& end : ends) is_end_[end] = is_target_[end] = true;
    for (int64_t name : names) {
      if (name != 0) named_[name];
    }
  }

  // Appends everything that x depends on, sources before users.
  void visit(const UOp& root) {
    if (place_.contains(root)) return;
    stack_.push_back(open(root));
    while (!stack_.empty()) {
      Open& top = stack_.back();
      if (top.next == top.sources) {
        const bool leads = finish(*top.node, top.leads);
        stack_.pop_back();
        if (!stack_.empty()) stack_.back().leads |= leads;
        continue;
      }
      const UOp& x = *top.node;
      const size_t next = top.next++;
      if (!follows(x, next)) continue;
      const UOp& source = x.src(next);
      if (const int* place = place_.find(source))
        top.leads |= order_[*place].leads_to_target;
      else
        stack_.push_back(open(source));
    }
  }

  void seed(const UOp& root, const UOp& gradient) { accumulate(entry(root), gradient); }

  void run() {
    for (size_t i = order_.size(); i-- > 0;) {
      // Rules make nodes but no entries: the reference stays good.
      Entry& e = order_[i];
      if ((!e.gradient && e.terms.empty()) || !e.leads_to_target) continue;
      const UOp& x = *e.value;
      const OriginScope origin(origin_id(x));
      if (!e.terms.empty() && takes_terms(x)) {
        pass_terms(e);
        if (!e.gradient) continue;
      } else if (!e.terms.empty()) {
        e.gradient = total(e);
        e.terms.clear();
      }
      if (const OwnGradient* own = own_gradient(x)) {
        give_own(x, *own, e.gradient);
        continue;
      }
      if (x.op() == Op::Checkpoint) {
        recompute(x, e.gradient);
        continue;
      }
      for (size_t s = 0; s < x->sources; ++s) {
        if (!leads(x, s)) continue;
        const GradientRow& facts = gradient_row(x.op());
        if (const OwnKernel* own = own_kernel(x)) {
          throw UserError(fmt::format(
              "gradient: the kernel {} was given none: custom_kernel takes it behind the body, or "
              "detach() the value before it",
              own->name));
        }
        if (facts.kind == GradientRow::Refuse) {
          throw UserError(fmt::format(
              "gradient: {} has no derivative; detach() the value before it", describe(*x)));
        }
        give(x, x.src(s), facts.rule(x, e.gradient, s));
      }
      if (is_assignment_to_target(x)) assigned_[x.src(0)] = e.gradient;
    }
  }

  // Returns the gradient of the node and of all others that have the name.
  UOp result(const UOp& target, int64_t name) const {
    UOp sum;
    if (const int* place = target ? place_.find(target) : nullptr) {
      sum = total(order_[*place]);
    } else if (const UOp* gradient = target ? assigned_.find(target) : nullptr) {
      sum = *gradient;
    }
    auto others = named_.find(name);
    if (others == named_.end()) return sum;
    for (int place : others->second.places) {
      if (!(*order_[place].value == target)) add(sum, total(order_[place]));
    }
    add(sum, others->second.computed_again);
    return sum;
  }

 private:
  // A node whose sources are being visited.
  struct Open {
    const UOp* node;
    size_t next, sources;
    bool leads = false;  // whether one of those seen so far leads to a target
  };
  Open open(const UOp& x) const { return {&x, 0, x->sources}; }

  Entry& entry(const UOp& x) { return order_[place_.at(x)]; }

  bool follows(const UOp& x, size_t source) const {
    return (is_end_.size() == 0 || !is_end_.contains(x)) && may_follow(x, source);
  }

  bool leads(const UOp& x, size_t source) {
    if (!follows(x, source)) return false;
    const int* place = place_.find(x.src(source));
    return place && order_[*place].leads_to_target;
  }

  // A tensor whose value was to be written over a storage is that storage once it is realized: what
  // was built from the Assign before still counts as built from the tensor.
  bool is_assignment_to_target(const UOp& x) {
    return x.op() == Op::Assign && is_target_.contains(x.src(0)) && !leads(x, 1);
  }

  // Takes the node if it leads to a target, by its sources or as one, and tells whether it does.
  bool finish(const UOp& x, bool by_sources) {
    bool found = by_sources || is_target_.contains(x) || is_assignment_to_target(x);
    // The gradient of an end goes to the walk around this one, which has it under its name.
    if (x.op() == Op::Identity && !is_end_.contains(x)) {
      if (auto target = named_.find(name_of(x)); target != named_.end()) {
        target->second.places.push_back(int(order_.size()));
        found = true;
      }
    }
    note_mesh(x);
    place_[x] = int(order_.size());
    order_.push_back({&x, {}, {}, found});
    return found;
  }

  // A Checkpoint has the value of its first source, computed from the others. Its gradient goes not
  // through that value, which would have to be kept until now, but through the same computation
  // made again: from the others, after the gradient has come.
  //
  //   checkpoint(f(x, w), x)  ->  f(x', w) with x' = after(x, gradient)
  //
  // Both computations share what does not depend on the inputs (w): a walk through the second one
  // ends there and at x', and this walk goes on from what it brings.
  void recompute(const UOp& x, const UOp& gradient) {
    NodeMap<UOp> made;
    std::vector<UOp> ends, receivers;
    for (const UOp& input : x->src().subspan(1)) {
      if (made.contains(input)) continue;
      made[input] = UOp::make(Op::After, input.dtype(), {input, gradient});
      ends.push_back(made.at(input));
      receivers.push_back(input);
    }
    UOp value = computed_again(x.src(0), x->src().subspan(1), made, [&](const UOp& shared) {
      const int* place = place_.find(shared);
      if (!place || !order_[*place].leads_to_target) return;
      ends.push_back(shared);
      receivers.push_back(shared);
    });
    Walk inside({}, names_, per_device_, ends);
    inside.visit(value);
    inside.seed(value, gradient);
    inside.run();
    for (size_t i = 0; i < ends.size(); ++i) {
      UOp part = inside.result(ends[i], 0);
      if (part && place_.contains(receivers[i])) accumulate(entry(receivers[i]), part);
    }
    for (auto& [name, target] : named_) add(target.computed_again, inside.result({}, name));
  }

  // The nodes of `root` that may depend on one of the inputs, sources before users. A node is younger
  // than its sources, so nothing is looked for below nodes that are older than all inputs: a step of
  // many micro-batches waits for all that was told before it.
  static NodeOrder at_least_as_young(const UOp& root, std::span<const UOp> inputs) {
    uint64_t oldest = std::numeric_limits<uint64_t>::max();
    for (const UOp& x : inputs) oldest = std::min(oldest, x->id);
    NodeOrder order;
    NodeSet met;
    std::vector<std::pair<const UOp*, size_t>> stack;
    const auto push = [&](const UOp& x) {
      if (x->id >= oldest && met.add(x)) stack.emplace_back(&x, 0);
    };
    push(root);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < (*node)->sources) {
        push(node->src(next++));
      } else {
        order.push_back(*node);
        stack.pop_back();
      }
    }
    return order;
  }

  // `made` has the inputs' replacements. What does not depend on them is the same node again, and
  // what was assigned stays so; `share` is told of such nodes where something else uses them.
  template <class Share>
  static UOp computed_again(const UOp& root, std::span<const UOp> inputs, NodeMap<UOp>& made,
                            Share&& share) {
    const auto again = [&](const UOp& x) -> const UOp& {
      const UOp* other = made.find(x);
      return other ? *other : x;
    };
    NodeSet told;
    auto tell = [&](const UOp& x) {
      if (again(x) == x && told.add(x)) share(x);
    };
    for (const UOp& x : at_least_as_young(root, inputs)) {
      if (made.contains(x)) continue;
      bool changed = false;
      std::vector<UOp> sources;
      for (const UOp& s : x->src()) {
        sources.push_back(again(s));
        changed = changed || !(sources.back() == s);
      }
      changed = changed && x.op() != Op::Assign;
      made[x] = changed ? x.with_src(sources) : x;
      if (changed) std::ranges::for_each(x->src(), tell);
    }
    tell(root);
    return again(root);
  }

  static void add(UOp& sum, const UOp& gradient) {
    if (gradient) sum = sum ? add_gradients(sum, gradient) : gradient;
  }

  void accumulate(Entry& e, const UOp& gradient) {
    if (several_meshes_ && e.gradient && gradient)
      e.gradient = add_gradients_at(*e.value, e.gradient, gradient);
    else
      add(e.gradient, gradient);
  }

  // Notes whether there is more than one mesh of several devices among the values.
  void note_mesh(const UOp& x) {
    if (!x->payload || (x.op() != Op::Buffer && x.op() != Op::Redistribute)) return;
    const Mesh mesh = x.op() == Op::Redistribute
                          ? Mesh::from_payload(x->payload)
                          : static_cast<const Placed*>(x->payload.get())->sharding.mesh;
    if (mesh.size() == 1) return;
    several_meshes_ = several_meshes_ || (mesh_ && !(*mesh_ == mesh));
    mesh_ = mesh;
  }

  static UOp total(const Entry& e) {
    UOp sum = e.gradient;
    for (const Terms& t : e.terms) add(sum, summed(t, t.axes));
    return sum;
  }

  // The axes over which what x gives to its source is to be summed: along these devices differ in
  // x, or have a term of it, but not in the source.
  OwnAxes summed_between(const UOp& x, const UOp& source) {
    if (!per_device_) return {};
    OwnAxes own = own_(x);
    if (std::optional<PartArg> part = part_arg(*x)) {
      // Each device gives the gradient of its own part, and reads one of a whole.
      own.axes = part->whole ? own.axes | bit(part->axis) : own.axes & ~bit(part->axis);
      own.mesh = x->payload;
    } else if (std::optional<CollectiveArg> arg = own_collective_arg(*x);
               arg && arg->op == CollectiveOp::AllReduce) {
      own = {own.axes | bit(arg->mesh_axis), x->payload};
    }
    own.axes &= ~own_(source).axes;
    return own;
  }

  void give(const UOp& x, const UOp& source, const UOp& gradient) {
    const OwnAxes over = summed_between(x, source);
    give_terms(source, {over.axes, over.mesh, gradient});
  }

  void give_terms(const UOp& source, const Terms& given) {
    Entry& e = entry(source);
    if (given.axes == 0) return accumulate(e, given.each);
    for (Terms& known : e.terms) {
      if (known.axes == given.axes && known.mesh == given.mesh) return add(known.each, given.each);
    }
    e.terms.push_back(given);
  }

  // The sources behind the first get what the program says.
  void give_own(const UOp& x, const OwnGradient& own, const UOp& gradient) {
    const std::vector<UOp> gradients = own.gradients(x, gradient);
    for (size_t s = 1; s < x->sources; ++s) {
      if (gradients[s - 1] && leads(x, s)) give(x, x.src(s), gradients[s - 1]);
    }
  }

  void pass_terms(const Entry& e) {
    const UOp& x = *e.value;
    if (!leads(x, 0)) return;
    const uint64_t more = summed_between(x, x.src(0)).axes;
    const std::optional<PartArg> part = part_arg(*x);
    for (const Terms& t : e.terms) {
      if (part && part->whole && (t.axes & bit(part->axis))) {
        const Mesh mesh = Mesh::from_payload(t.mesh);
        give_terms(x.src(0), {(t.axes & ~bit(part->axis)) | more, t.mesh,
                              part_of_sum(t.each, mesh, part->axis, part->dim, ReduceOp::Sum)});
      } else {
        give_terms(x.src(0), {t.axes | more, t.mesh, gradient_row(x.op()).rule(x, t.each, 0)});
      }
    }
  }

  struct Named {
    std::vector<int> places;  // in order_
    UOp computed_again;       // what nodes of the name got where a Checkpoint was computed again
  };

  std::vector<int64_t> names_;
  bool per_device_;
  std::optional<Mesh> mesh_;  // one of several devices that values lie on
  bool several_meshes_ = false;
  OwnAxesOf own_;
  std::unordered_map<int64_t, Named> named_;
  NodeMap<bool> is_target_, is_end_;
  NodeMap<int> place_{256};  // in order_
  std::vector<Entry> order_;
  NodeMap<UOp> assigned_;
  std::vector<Open> stack_;
};

}  // namespace

UOp gradient_of_spelling(UOp (*spell)(std::span<const UOp>), std::span<const UOp> operands,
                         const UOp& g, size_t source) {
  NodeMap<UOp> stands_for;
  const auto name_for = [&](const UOp& x) {
    UOp name = named(const_like(x, 0));
    stands_for[name] = x;
    return name;
  };
  std::vector<UOp> names;
  for (const UOp& x : operands) names.push_back(name_for(x));
  const UOp value = spell(names), seed = is_const(g) ? g : name_for(g);
  const UOp out =
      gradient(std::span(&value, 1), std::span(&seed, 1), std::span(&names[source], 1))[0];
  return out ? substitute(out, stands_for) : const_like(operands[source], 0);
}

UOp in_order_both_ways(const UOp& x, const UOp& event) {
  return UOp::make(Op::After, x.dtype(), {x, event}, Dims{1});
}

std::vector<UOp> gradient(const Graph& graph, std::span<const UOp> seeds,
                          std::span<const UOp> targets, std::span<const int64_t> names) {
  const std::vector<UOp>& roots = graph.roots();
  check_internal(roots.size() == seeds.size(), "every root has a seed");
  std::vector<int64_t> name(names.begin(), names.end());
  if (name.empty()) std::ranges::transform(targets, std::back_inserter(name), name_of);
  Walk walk(targets, name, has_own_values(graph));
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!is_float(roots[i].dtype())) {
      throw UserError(fmt::format("gradient: {} is not a float", describe(*roots[i])));
    }
    check_internal(std::ranges::equal(roots[i].shape(), seeds[i].shape()) &&
                       roots[i].dtype() == seeds[i].dtype(),
                   "a seed has its root's shape and type");
    walk.visit(roots[i]);
  }
  for (size_t i = 0; i < roots.size(); ++i) walk.seed(roots[i], seeds[i]);
  walk.run();

  std::vector<UOp> out;
  for (size_t i = 0; i < targets.size(); ++i) out.push_back(walk.result(targets[i], name[i]));
  return out;
}

}  // namespace tinyshard
