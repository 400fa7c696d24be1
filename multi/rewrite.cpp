// Walks the graph, sources first; each op asks the strategy of its class for its local value
// (`rule`). Where ops had a choice, the walk is repeated with other answers while the planner finds
// that the whole gets cheaper (multi/planner.h); what it finds is remembered.
//
// Example: x [8, 4] divided by rows over 2 devices, w [4, 4] whole. x.matmul(w) is [4, 4] on each
// device and divided by rows; its sum over dim 0 is [1, 4] on each and pending; a division by 8
// keeps it pending; maximum(0) needs the value, so that one all-reduce of 4 elements comes before
// it.
#include "multi/rewrite.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <mutex>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/observer.h"
#include "core/rewrite/rule_log.h"
#include "core/runtime/communicator.h"
#include "core/uop/node_map.h"
#include "multi/collective.h"
#include "multi/joined_parts.h"
#include "multi/strategies/joined.h"
#include "multi/strategies/own.h"
#include "multi/strategies/pending.h"
#include "multi/strategies/strategies.h"
#include "multi/wire.h"

namespace tinyshard {
namespace {

// Returns the mesh of constants that nobody placed: the first device of this process.
Mesh home() {
  DeviceRef first = world().devices.front();
  first.rank = DeviceRef::kHere;
  return Mesh::single(first);
}

// Returns the text of an error: the op that cannot be divided, the type and shape of its result,
// the mistake, and the source line.
std::string told_of(const UOp& x, const UserError& mistake) {
  const Origin& from = origin_of(origin_id(x));
  std::string text =
      fmt::format("{}, which makes {}{}: {}", from.op.empty() ? info(x.op()).name : from.op,
                  name(x.dtype()), to_string(x.shape()), mistake.what());
  if (!from.source().empty()) text += fmt::format("  ({})", from.source());
  return text;
}

// Remembers plans, so that a program which computes the same again and again outside of a captured
// step is searched once.
class KnownPlans {
 public:
  template <class Search>
  Plan plan_of(uint64_t signature, const Search& search) {
    {
      std::lock_guard lock(mutex_);
      if (auto found = known_.find(signature); found != known_.end()) return found->second;
    }
    Plan plan = search();
    std::lock_guard lock(mutex_);
    if (known_.size() >= kMost) known_.clear();
    known_[signature] = plan;
    return plan;
  }

 private:
  static constexpr size_t kMost = 1024;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Plan> known_;
};
KnownPlans& known_plans() {
  static KnownPlans& plans = *new KnownPlans;  // outlives every static tensor
  return plans;
}

class Rewriter {
 public:
  explicit Rewriter(const Graph& graph) : roots_(graph.roots()), order_(graph.order()) {
    per_device_ = has_own_values(graph);
  }

  LocalGraph run(Planning planning) {
    LocalGraph alone = by({});
    alone_at_once_ = at_once_;
    if (planning == Planning::Alone || decisions_.asked().empty()) return alone;
    const Tried tried{cost_of(alone), decisions_.asked()};
    if (!worth_planning(tried)) return alone;
    const Plan plan = known_plans().plan_of(signature(tried), [&] {
      const Unobserved nothing_is_told;
      const RuleLog no_rules(0);
      const auto in = [&](size_t nodes) { return int(nodes / order_.size()); };
      const Budget budget{.attempts = in(kNodes), .in_vain = std::max(kInVain, in(kNodesInVain))};
      return plan_whole(tried, [this](const Plan& p) { return this->tried(p); }, budget);
    });
    if (plan.empty()) return alone;
    LocalGraph together = by(plan);
    observe([&] {
      return ObservedEvent{
          .kind = EventKind::Reshard,
          .name =
              fmt::format("the plan of the whole differs in {} choices: {:.1f} us, not {:.1f}",
                          plan.size(), cost_of(together).seconds * 1e6, tried.cost.seconds * 1e6)};
    });
    return together;
  }

  // Rewrites by a plan. A plan by which an op cannot run costs infinity.
  Tried tried(const Plan& plan) {
    try {
      const LocalGraph graph = by(plan);
      return {cost_of(graph), decisions_.asked()};
    } catch (const UserError&) {
      return {{.seconds = std::numeric_limits<double>::infinity()}, {}};
    }
  }

 private:
  // How much is looked at in search of a plan, some microseconds a node.
  static constexpr size_t kNodes = 200'000, kNodesInVain = 15'000;
  static constexpr int kInVain = 24;

  LocalGraph by(const Plan& plan) {
    at_once_ = alone_at_once_;
    LocalGraph result = attempt(plan);
    while (complete_at_once(result)) result = attempt(plan);
    return result;
  }

  Estimate cost_of(const LocalGraph& local) {
    const auto size = [](const Sharding& s) { return s.mesh.size(); };
    if (local.shardings.empty()) return {};
    return estimate(local.graph, std::ranges::max_element(local.shardings, {}, size)->mesh, links_);
  }

  // A hash of the graph and of where its values lie, by what the ops were asked.
  uint64_t signature(const Tried& tried) const {
    uint64_t hash = combine(structural_hash(roots_), std::bit_cast<uint64_t>(tried.cost.seconds));
    for (const Decisions::Asked& asked : tried.asked) {
      hash = combine(hash, asked.question);
      for (double seconds : asked.offers) hash = combine(hash, std::bit_cast<uint64_t>(seconds));
    }
    return hash;
  }

  LocalGraph attempt(const Plan& plan) {
    decisions_.begin(plan);
    values_ = LocalValues(decisions_, links_);
    values_.look_ahead(order_, roots_);
    pending_.clear();
    MovementLog log;
    for (const UOp& x : order_) {
      const OriginScope origin(origin_id(x));
      log.reads(*x);
      const size_t first = decisions_.asked().size();
      LocalValue value = value_of(x);
      value.origin = origin_of_value(x, value);
      if (at_once_.contains(x)) value = settled_in_both_forms(std::move(value), x.shape());
      if (is_pending(value)) pending_.push_back(x);
      if (value.mesh) {
        log.lies(x, {*value.mesh, value.place}, value.origin,
                 std::span(decisions_.asked()).subspan(first), first);
      }
      values_.add(std::move(value));
    }
    LocalGraph result;
    std::vector<UOp> roots;
    for (const UOp& root : roots_) {
      const OriginScope origin(origin_id(root));
      log.reads(*root);
      LocalValue left = values_.lying(root);
      left.gather_on_use = nullptr;
      // A storage may hold the terms of a sum; it is what was assigned, as it is.
      LocalValue v = root.op() == Op::Assign ? left : settled(left, root.shape());
      if (!v.mesh) v = redistribute(v, root.shape(), home(), {});
      roots.push_back(v.local);
      result.shardings.push_back({*v.mesh, v.place});
      result.pending.push_back({*v.mesh, left.mesh ? left.place : v.place});
      result.own.push_back(per_device_ && own_(root).axes != 0);
    }
    result.graph = std::move(roots);
    result.values = log.take_values();
    result.movements = log.take_movements();
    return result;
  }

  LocalValue value_of(const UOp& x) {
    try {
      return follows_devices(x) ? own_value(x, values_, own_) : with_apart(x, rule(x), values_);
    } catch (const UserError& mistake) {
      throw UserError(told_of(x, mistake));
    }
  }

  // A pending reduction that one user completes and another keeps pending is completed once, for
  // both: y / 2 of a pending y would need a collective of its own, y itself beside it has one. So
  // are those found here from now on; whether there are any. Not what goes to a storage of terms.
  bool complete_at_once(const LocalGraph& local) {
    NodeMap<bool> completed, stored, kept;
    for (const UOp& x : local.graph.order()) {
      if (x.op() == Op::Collective && collective_arg(*x).op == CollectiveOp::AllReduce)
        completed[x.src(0).src(0)] = true;
    }
    if (completed.size() == 0) return false;
    for (size_t i = pending_.size(); i-- > 0;) {
      const UOp& x = pending_[i];
      const bool terms = x.op() == Op::Assign || stored.contains(x);
      for (const UOp& s : x->src()) {
        if (!is_pending(values_.lying(s))) continue;
        kept[s] = true;
        if (terms) stored[s] = true;
      }
    }
    const size_t before = at_once_.size();
    complete_where_they_part(completed, stored);
    for (const UOp& x : pending_) {
      const LocalValue& v = values_.lying(x);
      if (!kept.contains(x) || stored.contains(x) || x.op() == Op::Buffer) continue;
      auto pending = std::ranges::find_if(v.place, &Placement::is_partial);
      if (completed.contains(to_wire(v.local, pending->op))) at_once_[x] = true;
    }
    return at_once_.size() > before;
  }

  // The pending source of x that has as many elements and that x is linear in; null where x is made
  // of several pending ones, or of one that counts less.
  UOp pending_source(const UOp& x) const {
    UOp found;
    for (const UOp& s : x->src()) {
      if (!is_pending(values_.lying(s))) continue;
      if (found) return {};
      found = s;
    }
    const bool same = found && found->numel() == x->numel() && found.dtype() == x.dtype();
    return same && stays_partial_through(x, found) ? found : UOp();
  }

  // A sum s that is completed as s / n for one user and as s reshaped for another is completed once,
  // where the two part.
  void complete_where_they_part(const NodeMap<bool>& completed, const NodeMap<bool>& stored) {
    NodeMap<bool> counted;
    NodeMap<int> leads_to;
    std::vector<UOp> ends;
    for (const UOp& x : pending_) {
      const LocalValue& v = values_.lying(x);
      if (stored.contains(x)) continue;
      const UOp sent = to_wire(v.local, std::ranges::find_if(v.place, &Placement::is_partial)->op);
      if (!completed.contains(sent) || counted.contains(sent)) continue;
      counted[sent] = true;
      ends.push_back(x);
      for (UOp s = x; s; s = pending_source(s)) ++leads_to[s];
    }
    for (UOp x : ends) {
      while (x && leads_to[x] < 2) x = pending_source(x);
      if (x && !stored.contains(x) && x.op() != Op::Buffer) at_once_[x] = true;
    }
  }

  // Returns whether x belongs to the code of shard_map, which runs as it is written.
  bool follows_devices(const UOp& x) {
    return per_device_ && (own_(x).axes != 0 || part_arg(*x) || own_collective_arg(*x));
  }

  static bool is_pending(const LocalValue& v) {
    return std::ranges::any_of(v.place, &Placement::is_partial);
  }

  static LocalValue still_on_use(LocalValue v, const LocalValue& source) {
    v.gather_on_use = source.gather_on_use;
    return v;
  }

  // A reduction that stays pending through x comes from the op that left it pending, but for a
  // value with a purpose of its own.
  OriginId origin_of_value(const UOp& x, const LocalValue& value) {
    if (!origin_of(origin_id(x)).about.empty() || !is_pending(value)) return origin_id(x);
    for (const UOp& s : x->src()) {
      if (is_pending(values_.lying(s))) return values_.lying(s).origin;
    }
    return origin_id(x);
  }

  LocalValue rule(const UOp& x) {
    switch (info(x.op()).op_class) {
      case OpClass::Elementwise:
        return elementwise(x, values_);
      case OpClass::Movement:
        return x.op() == Op::Pad || x.op() == Op::Shrink || x.op() == Op::Flip
                   ? windows(x, values_)
                   : movement(x, values_);
      default:
        break;
    }
    switch (x.op()) {
      case Op::Const:
      case Op::Iota:
        return {x, std::nullopt, {}};
      case Op::Buffer:
        return buffer(x, values_);
      case Op::Reduce:
        return reduction(x, values_);
      case Op::Gather:
        return gather(x, values_);
      case Op::ScatterAdd:
        return scatter_add(x, values_);
      case Op::Sort:
        return sort(x, values_);
      case Op::Scan:
        return scan_rows(x, values_);
      case Op::Decompose:
        return decompose(x, values_);
      case Op::Dot:
        return dot(x, values_);
      case Op::Conv:
      case Op::ConvBackwardData:
      case Op::ConvBackwardWeight:
        return convolution(x, values_);
      case Op::Attention:
      case Op::AttentionBackward:
        return attention(x, values_);
      case Op::Unfold:
      case Op::UnfoldBackward:
        return unfolded(x, values_);
      case Op::Assign:
        return assign(x, values_);
      case Op::Sink:
        return whole_kernel(x, values_);
      case Op::Redistribute:
        return placed(x, values_);
      case Op::Contiguous:
      case Op::Detach:
      case Op::ContiguousBackward:
      case Op::Identity:
      case Op::Checkpoint: {
        LocalValue v = values_.lying(x.src(0));
        if (x.op() == Op::Contiguous) v = settled(std::move(v), x.shape());
        return still_on_use(rebuilt(x, {v}, v), v);
      }
      case Op::After: {  // of the second source only the time counts
        LocalValue v = settled(values_.lying(x.src(0)), x.shape());
        return still_on_use(rebuilt(x, {v, values_.lying(x.src(1))}, v), v);
      }
      default:
        throw InternalError("no sharding rule for " + describe(*x));
    }
  }

  LinkModel links_;
  std::span<const UOp> roots_, order_;
  Decisions decisions_;
  LocalValues values_{decisions_, links_};
  OwnAxesOf own_;
  bool per_device_ = false;
  std::vector<UOp> pending_;     // values that are pending reductions, in order
  NodeMap<bool> alone_at_once_;  // where each op chooses alone
  NodeMap<bool> at_once_;        // pending reductions that are completed where they are made
};

}  // namespace

Tried try_plan(const Graph& graph, const Plan& plan) {
  Rewriter rewriter(graph);
  rewriter.run(Planning::Alone);
  return rewriter.tried(plan);
}

LocalGraph to_local(const Graph& graph, Planning planning) {
  std::vector<bool> in_true_order(graph.roots().size());
  for (;;) {
    const OrderedGraph ordered = in_order_of_devices(graph, in_true_order);
    LocalGraph local = Rewriter(ordered.graph).run(planning);
    bool all_named = true;
    for (size_t i = 0; i < ordered.orders.size(); ++i) {
      if (!ordered.orders[i] || (name_parts(local.shardings[i], ordered.orders[i]) &&
                                 name_parts(local.pending[i], ordered.orders[i])))
        continue;
      in_true_order[i] = true;  // it turned out to lie otherwise
      all_named = false;
    }
    if (all_named) return local;
  }
}

}  // namespace tinyshard
