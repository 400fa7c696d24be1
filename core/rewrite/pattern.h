// A small pattern rewriter: rules of the form node -> replacement, grouped by the op of the node,
// applied bottom-up until none matches. Tensor passes and kernel passes are written with it.
//
//   static const RuleSet kRules({
//       {"double_neg", Op::Neg, op_set(Op::Neg), [](const UOp& x) { return x.src(0).src(0); }},
//   });
//   std::vector<UOp> out = rewrite(graph, kRules);
//
// Threads: a RuleSet is immutable and may be shared; a rewrite keeps its state to itself.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/rewrite/op_set.h"
#include "core/uop/graph.h"
#include "core/uop/node_map.h"
#include "core/uop/uop.h"

namespace tinyshard {

struct Rule {
  std::string_view name;
  Op root;
  // The rule is tried only when each of these ops is the op of some source; the empty set tries it always.
  OpSet needs = {};
  // The replacement; null, or the node itself, means no match. It must have the node's type and
  // shape, and must not depend on anything but the node, or memoisation would be wrong.
  std::function<UOp(const UOp&)> apply;
};

class RuleSet {
 public:
  explicit RuleSet(std::vector<Rule> rules);

  // The replacement by the first rule that matches `x`; null when none does.
  UOp apply(const UOp& x) const;
  bool has_rules(Op op) const { return roots_.contains(op); }

  // How often each rule has matched; counted only when DEBUG >= 3.
  struct Count {
    std::string_view rule;
    uint64_t matches;
  };
  std::vector<Count> counts() const;

 private:
  std::vector<Rule> rules_;      // sorted by root, in the given order within one root
  std::vector<uint16_t> first_;  // rules of op i: [first_[i], first_[i + 1])
  OpSet roots_;
  std::unique_ptr<std::atomic<uint64_t>[]> matches_;
};

// Replacements never come to an end: this node was replaced last.
struct EndlessRewrite : InternalError {
  explicit EndlessRewrite(UOp at);
  UOp node;
};

// The roots with every rule applied wherever it matches, replacements included, sources before
// users. Equal subgraphs are visited once. EndlessRewrite when replacements never come to an end.
std::vector<UOp> rewrite(const Graph& graph, const RuleSet& rules);
UOp rewrite(const UOp& root, const RuleSet& rules);

// Walks once, sources before users; each node is replaced at most once, and replacements are
// not looked into again: for rules whose result contains the op that they match.
std::vector<UOp> rewrite_once(const Graph& graph, const std::function<UOp(const UOp&)>& apply);
// The same for who asks what was known of the node as the graph has it.
std::vector<UOp> rewrite_once(const Graph& graph,
                              const std::function<UOp(const UOp& now, const UOp& was)>& apply);

// The roots with the nodes of `map` replaced, all at once; replacements are not looked into.
// A Range replaced by something other than a Range disappears from the range list of its Folds.
std::vector<UOp> substitute(std::span<const UOp> roots, const NodeMap<UOp>& map);
UOp substitute(const UOp& root, const NodeMap<UOp>& map);

}  // namespace tinyshard
