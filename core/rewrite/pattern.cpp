#include "core/rewrite/pattern.h"

#include <algorithm>
#include <deque>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"

namespace tinyshard {
namespace {

// Replacements of replacements of ... : more than this many is taken for a loop in the rules.
constexpr uint32_t kMaxDepth = 10'000;

OpSet ops_of_sources(const UOp& x) {
  OpSet set = 0;
  for (const UOp& s : x->src()) set |= op_bit(s.op());
  return set;
}

// What every walk shares: results by node, and the nodes made on the way kept alive, because the
// table is keyed by address.
class Walk {
 public:
  // Calls replace(node with rewritten sources, original node) once per node, sources first; a null
  // result keeps the node.
  template <class Replace>
  UOp run(const UOp& root, bool again, const Replace& replace) {
    push(root, 0);
    while (!stack_.empty()) {
      Frame& frame = stack_.back();
      const UOp& node = *frame.node;
      if (frame.stage == Stage::Replaced) {
        const Replaced& replaced = replacements_[frame.replacement];
        UOp result = done_.at(replaced.by);
        done_[replaced.node] = result;
        finish(node, std::move(result));
        continue;
      }
      auto src = node->src();
      while (frame.next < src.size() && done_.contains(src[frame.next])) ++frame.next;
      if (frame.next < src.size()) {
        push(src[frame.next++], frame.depth);
        continue;
      }
      UOp current = rebuilt(node);
      if (!(current == node) && again) {
        if (const UOp* known = done_.find(current)) {
          finish(node, *known);
          continue;
        }
      }
      UOp replacement = replace(current, node);
      if (!replacement || replacement == current) {
        if (again && !(current == node)) {
          alive_.push_back(current);
          done_[current] = current;
        }
        finish(node, current);
        continue;
      }
      if (!again) {
        finish(node, replacement);
        continue;
      }
      if (const UOp* known = done_.find(replacement)) {
        finish(node, *known);
        continue;
      }
      if (frame.depth >= kMaxDepth) {
        throw InternalError(
            fmt::format("rewrite rules do not come to an end at {}", describe(*current)));
      }
      frame.stage = Stage::Replaced;
      frame.replacement = static_cast<uint32_t>(replacements_.size());
      uint32_t depth = frame.depth + 1;
      replacements_.push_back({std::move(current), std::move(replacement)});
      push(replacements_.back().by, depth);
    }
    return done_.at(root);
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
    if (!done_.contains(node)) stack_.push_back({&node, 0, depth, 0, Stage::Sources});
  }
  void finish(const UOp& node, UOp result) {
    done_[node] = std::move(result);
    stack_.pop_back();
  }
  UOp rebuilt(const UOp& node) {
    auto src = node->src();
    size_t i = 0;
    while (i < src.size() && done_.at(src[i]) == src[i]) ++i;
    if (i == src.size()) return node;
    sources_.clear();
    for (const UOp& s : src) sources_.push_back(done_.at(s));
    return node.with_src(sources_);
  }

  NodeMap<UOp> done_ = NodeMap<UOp>(128);
  std::vector<Frame> stack_;
  std::deque<Replaced> replacements_;
  std::vector<UOp> alive_;
  std::vector<UOp> sources_;
};

}  // namespace

RuleSet::RuleSet(std::vector<Rule> rules) : rules_(std::move(rules)), first_(kOps + 1) {
  std::ranges::stable_sort(rules_, {}, &Rule::root);
  for (const Rule& rule : rules_) {
    roots_ |= op_bit(rule.root);
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
    if ((rule.needs & ~sources) != 0) continue;
    UOp result = rule.apply(x);
    if (!result || result == x) continue;
    if (options().debug >= 3) matches_[i].fetch_add(1, std::memory_order_relaxed);
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

std::vector<UOp> rewrite(std::span<const UOp> roots, const RuleSet& rules) {
  Walk walk;
  std::vector<UOp> results;
  results.reserve(roots.size());
  for (const UOp& root : roots) {
    results.push_back(
        walk.run(root, true, [&](const UOp& x, const UOp&) { return rules.apply(x); }));
  }
  return results;
}

UOp rewrite(const UOp& root, const RuleSet& rules) {
  return std::move(rewrite(std::span(&root, 1), rules)[0]);
}

std::vector<UOp> rewrite_once(std::span<const UOp> roots,
                              const std::function<UOp(const UOp&)>& apply) {
  Walk walk;
  std::vector<UOp> results;
  results.reserve(roots.size());
  for (const UOp& root : roots) {
    results.push_back(walk.run(root, false, [&](const UOp& x, const UOp&) { return apply(x); }));
  }
  return results;
}

std::vector<UOp> substitute(std::span<const UOp> roots, const NodeMap<UOp>& map) {
  Walk walk;
  std::vector<UOp> results;
  results.reserve(roots.size());
  for (const UOp& root : roots) {
    results.push_back(walk.run(root, false, [&](const UOp& current, const UOp& original) -> UOp {
      if (const UOp* replacement = map.find(original)) return *replacement;
      if (current.op() != Op::Fold || current == original) return {};
      std::vector<UOp> src{current.src(0)};
      for (const UOp& range : current->src().subspan(1)) {
        if (range.op() == Op::Range) src.push_back(range);
      }
      return src.size() == 1 ? src[0] : current.with_src(src);
    }));
  }
  return results;
}

UOp substitute(const UOp& root, const NodeMap<UOp>& map) {
  return std::move(substitute(std::span(&root, 1), map)[0]);
}

}  // namespace tinyshard
