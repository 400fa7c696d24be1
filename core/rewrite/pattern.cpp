// A walk notes what each node has become, so each is looked at once, however many read it. With the rules
// a + 0 -> a and neg(neg(a)) -> a:
//
//   neg(neg(x + 0))
//   x + 0             becomes x, which is known
//   neg(x + 0)        made again as neg(x): no rule
//   neg(neg(x + 0))   made again as neg(neg(x)), which becomes x
//
// A replacement that is not known is gone through like any node, one deeper than what it replaces: rules
// that undo each other are found by that depth. Stacks are explicit, as graphs may be deeper than the
// one of a thread.
#include "core/rewrite/pattern.h"

#include <algorithm>
#include <deque>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/rewrite/rule_log.h"
#include "core/uop/node_set.h"

namespace tinyshard {
namespace {

// Replacements of replacements of ... : more than this many is taken for a loop in the rules.
constexpr uint32_t kMaxDepth = 10'000;

OpSet ops_of_sources(const UOp& x) {
  OpSet set;
  for (const UOp& s : x->src()) set.add(s.op());
  return set;
}

// A Walk knows the present form of each node that it has reached. It keeps the nodes made on the way
// alive, because its tables are keyed by address. Most nodes stay as they are: a bit says so.
class Walk {
 public:
  explicit Walk(const RuleSet& rules) : rules_(rules) {}

  // Null where x was not reached.
  const UOp* now(const UOp& x) const { return same_.contains(x) ? &x : changed_.find(x); }

  // Rewrites x and what is below it, sources first.
  void reach(const UOp& x) {
    push(x, 0);
    while (!stack_.empty()) {
      Frame& frame = stack_.back();
      const UOp& node = *frame.node;
      if (frame.stage == Stage::Replaced) {
        const Replaced& replaced = replacements_[frame.replacement];
        UOp result = *now(replaced.by);
        set(replaced.node, result);
        finish(node, std::move(result));
        continue;
      }
      auto src = node->src();
      while (frame.next < src.size() && now(src[frame.next])) ++frame.next;
      if (frame.next < src.size()) {
        push(src[frame.next++], frame.depth);
        continue;
      }
      const OriginScope origin(origin_id(node));
      UOp current = rebuilt(node);
      if (!(current == node)) {
        if (const UOp* known = now(current)) {
          finish(node, *known);
          continue;
        }
      }
      UOp replacement = rules_.apply(current);
      if (!replacement || replacement == current) {
        if (!(current == node)) {
          alive_.push_back(current);
          same_.add(current);
        }
        finish(node, current);
        continue;
      }
      if (const UOp* known = now(replacement)) {
        finish(node, *known);
        continue;
      }
      if (frame.depth >= kMaxDepth) throw EndlessRewrite(current);
      frame.stage = Stage::Replaced;
      frame.replacement = static_cast<uint32_t>(replacements_.size());
      uint32_t depth = frame.depth + 1;
      replacements_.push_back({std::move(current), std::move(replacement)});
      push(replacements_.back().by, depth);
    }
  }

 private:
  enum class Stage : uint8_t { Sources, Replaced };
  struct Frame {
    const UOp* node;
    uint32_t next, depth, replacement;
    Stage stage;
  };

  struct Replaced {
    UOp node, by;
  };

  void push(const UOp& node, uint32_t depth) {
    if (!now(node)) stack_.push_back({&node, 0, depth, 0, Stage::Sources});
  }
  void set(const UOp& node, UOp result) {
    if (result == node)
      same_.add(node);
    else
      changed_[node] = std::move(result);
  }
  void finish(const UOp& node, UOp result) {
    set(node, std::move(result));
    stack_.pop_back();
  }
  UOp rebuilt(const UOp& node) {
    auto src = node->src();
    if (std::ranges::all_of(src, [&](const UOp& s) { return same_.contains(s); })) return node;
    sources_.clear();
    for (const UOp& s : src) sources_.push_back(*now(s));
    return node.with_src(sources_);
  }

  const RuleSet& rules_;
  NodeSet same_;
  NodeMap<UOp> changed_;
  std::vector<Frame> stack_;
  std::deque<Replaced> replacements_;
  std::vector<UOp> alive_;
  std::vector<UOp> sources_;
};

}  // namespace

EndlessRewrite::EndlessRewrite(UOp at)
    : InternalError(fmt::format("rewrite rules do not come to an end at {}", describe(*at))),
      node(std::move(at)) {}

RuleSet::RuleSet(std::vector<Rule> rules) : rules_(std::move(rules)), first_(kOps + 1) {
  std::ranges::stable_sort(rules_, {}, &Rule::root);
  for (const Rule& rule : rules_) {
    roots_.add(rule.root);
    ++first_[static_cast<size_t>(rule.root) + 1];
  }
  for (size_t i = 0; i < kOps; ++i) first_[i + 1] += first_[i];
  matches_ = std::make_unique<std::atomic<uint64_t>[]>(rules_.size());
}

UOp RuleSet::apply(const UOp& x) const {
  size_t op = static_cast<size_t>(x.op());
  if (first_[op] == first_[op + 1]) return {};
  OpSet sources = ops_of_sources(x);
  for (size_t i = first_[op]; i < first_[op + 1]; ++i) {
    const Rule& rule = rules_[i];
    if (!rule.needs.subset_of(sources)) continue;
    UOp result = rule.apply(x);
    if (!result || result == x) continue;
    if (options().debug >= 3) matches_[i].fetch_add(1, std::memory_order_relaxed);
    RuleLog::note(rule.name, x, result);
    return result;
  }
  return {};
}

std::vector<RuleSet::Count> RuleSet::counts() const {
  std::vector<Count> counts;
  for (size_t i = 0; i < rules_.size(); ++i) {
    counts.push_back({rules_[i].name, matches_[i].load(std::memory_order_relaxed)});
  }
  return counts;
}

std::vector<UOp> rewrite(const Graph& graph, const RuleSet& rules) {
  Walk walk(rules);
  for (const UOp& x : graph.order()) walk.reach(x);
  std::vector<UOp> results;
  results.reserve(graph.roots().size());
  for (const UOp& root : graph.roots()) results.push_back(*walk.now(root));
  return results;
}

UOp rewrite(const UOp& root, const RuleSet& rules) {
  return std::move(rewrite(std::span(&root, 1), rules)[0]);
}

namespace {

// The changes of one walk over a graph, sources before users. Only what changes is noted: most of a
// large graph stays as it is when a few nodes of it are replaced.
class Changes {
 public:
  void set(const UOp& x, UOp now) {
    if (!(now == x)) changed_[x] = std::move(now);
  }
  const UOp& of(const UOp& x) const {
    const UOp* now = changed_.find(x);
    return now ? *now : x;
  }
  // The sources of x as they are now; empty when none has changed.
  std::span<UOp> sources(const UOp& x) {
    src_.clear();
    auto has_changed = [&](const UOp& s) { return changed_.contains(s); };
    if (std::ranges::none_of(x->src(), has_changed)) return {};
    for (const UOp& s : x->src()) src_.push_back(of(s));
    return src_;
  }
  std::vector<UOp> of(std::span<const UOp> roots) const {
    std::vector<UOp> results;
    results.reserve(roots.size());
    for (const UOp& root : roots) results.push_back(of(root));
    return results;
  }

 private:
  NodeMap<UOp> changed_;
  std::vector<UOp> src_;
};

}  // namespace

std::vector<UOp> rewrite_once(const Graph& graph, const std::function<UOp(const UOp&)>& apply) {
  return rewrite_once(graph, [&](const UOp& now, const UOp&) { return apply(now); });
}

std::vector<UOp> rewrite_once(const Graph& graph,
                              const std::function<UOp(const UOp&, const UOp&)>& apply) {
  Changes changes;
  for (const UOp& x : graph.order()) {
    std::span<const UOp> src = changes.sources(x);
    UOp current = src.empty() ? x : x.with_src(src);
    UOp replacement = apply(current, x);
    changes.set(x, replacement ? std::move(replacement) : std::move(current));
  }
  return changes.of(graph.roots());
}

std::vector<UOp> substitute(std::span<const UOp> roots, const NodeMap<UOp>& map) {
  Changes changes;
  for (const UOp& x : toposort(roots)) {
    if (const UOp* replacement = map.find(x)) {
      changes.set(x, *replacement);
      continue;
    }
    std::span<UOp> src = changes.sources(x);
    if (src.empty()) continue;
    if (x.op() == Op::Fold) {  // over the ranges that are left
      auto is_gone = [](const UOp& r) { return r.op() != Op::Range; };
      auto end = std::remove_if(src.begin() + 1, src.end(), is_gone);
      src = src.first(size_t(end - src.begin()));
    }
    changes.set(x, x.op() == Op::Fold && src.size() == 1 ? src[0] : x.with_src(src));
  }
  return changes.of(roots);
}

UOp substitute(const UOp& root, const NodeMap<UOp>& map) {
  return std::move(substitute(std::span(&root, 1), map)[0]);
}

}  // namespace tinyshard
