// Rewriting with patterns: the shape of a few nodes, and what takes their place.
//
//   const PatternMatcher rules({
//       {"double", Pattern(Op::Add, {Pattern::any("x"), Pattern::any("x")}),
//        [](const Match& m) { return m["x"] * 2; }},
//       {"sqrt of square", Pattern(Op::Sqrt, {Pattern(Op::Mul, {Pattern::any("x"), Pattern::any("x")})}),
//        [](const Match& m) { return maximum(m["x"], -m["x"]); }},
//   });
//   UOp simpler = graph_rewrite(graph, rules);
//
// A name that occurs twice stands for one node. Names of tensors (Op::Identity) are looked through, so
// a pattern fits the graph of a Tensor as it fits one within the passes. Of commutative ops both
// orders are tried. Where several rules fit, the first one is taken.
//
// Mistakes are UserErrors that name the rule and the node: a replacement of another type or shape,
// rules without an end, builders that do not fit within a replacement, a name that no pattern has.
//
// Threads: patterns and matchers do not change, and may be used from any.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype/dtype.h"
#include "core/uop/uop.h"

namespace tinyshard {

class RuleSet;

// A description of nodes. Cheap to copy.
class Pattern {
 public:
  // A node of this op, whatever its sources are.
  explicit Pattern(Op op);
  // A node of this op with sources like these, as many.
  Pattern(Op op, std::vector<Pattern> sources);
  // A node of any of these ops.
  explicit Pattern(std::vector<Op> ops);
  Pattern(std::vector<Op> ops, std::vector<Pattern> sources);
  static Pattern any(std::string name = {});       // every node
  static Pattern constant(std::string name = {});  // a Const
  static Pattern constant(double value);           // a Const of this number, in any type

  // The same with one more condition. `condition` sees the node without its name.
  Pattern named(std::string name) const;
  Pattern of_type(DType dtype) const;
  Pattern where(std::function<bool(const UOp&)> condition) const;

 private:
  friend class Matching;
  friend class PatternMatcher;
  struct Data;
  explicit Pattern(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

// The nodes that a pattern was found to stand for.
class Match {
 public:
  // The node of this name. UserError for a name that the pattern does not have.
  const UOp& operator[](std::string_view name) const;
  // The node that is replaced.
  const UOp& root() const { return root_; }

 private:
  friend class Matching;
  explicit Match(UOp root) : root_(std::move(root)) {}
  UOp root_;
  std::vector<std::pair<std::string_view, UOp>> named_;
};

// A rule of one's own. `replace` gives what takes the place of the node, of its type and shape; or a null
// UOp, which means that the rule does not apply. It may depend on the match alone.
struct PatternRule {
  std::string name;
  Pattern pattern;
  std::function<UOp(const Match&)> replace;
};

// A list of rules. Cheap to copy.
class PatternMatcher {
 public:
  explicit PatternMatcher(std::vector<PatternRule> rules);
  // These rules, then those of the other one.
  PatternMatcher operator+(const PatternMatcher& other) const;

  // Returns the replacement of this node alone by the first rule that applies; null where none does.
  UOp rewrite(const UOp& node) const;
  std::vector<std::string> names() const;

 private:
  friend std::vector<UOp> graph_rewrite(std::span<const UOp> roots, const PatternMatcher& rules);
  struct Data;
  explicit PatternMatcher(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

// The graphs with each rule applied wherever it fits, sources before users, replacements included,
// until none fits.
std::vector<UOp> graph_rewrite(std::span<const UOp> roots, const PatternMatcher& rules);
UOp graph_rewrite(const UOp& root, const PatternMatcher& rules);

// Each replacement of a rewrite, in the order in which they were made, for as long as this lives in its
// thread.
struct Replacing {
  std::string_view rule;
  UOp node, by;
};
class ReplacingLog {
 public:
  ReplacingLog();
  ~ReplacingLog();
  ReplacingLog(const ReplacingLog&) = delete;
  ReplacingLog& operator=(const ReplacingLog&) = delete;
  const std::vector<Replacing>& entries() const { return entries_; }
  void add(Replacing replacing) { entries_.push_back(std::move(replacing)); }

 private:
  std::vector<Replacing> entries_;
  ReplacingLog* before_;
};

}  // namespace tinyshard
