// Patterns are matched by going on: what is left to match is a function that is called once a part has
// been found, so that a later part which does not fit makes an earlier one try its other order.
//
//   (a * x) + x, names a and x        in  (x * y) + y
//   a = x, x = y       then + x wants y: fits
//   (y * x) + y: a = y, x = x does not fit; the other order of the product, a = x, x = y, does
#include "core/rewrite/match.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/rewrite/pattern.h"
#include "core/uop/user_code.h"

namespace tinyshard {

struct Pattern::Data {
  std::vector<Op> ops = {};  // none: all
  std::optional<std::vector<Pattern>> sources = {};
  std::string name = {};
  std::optional<DType> dtype = {};
  std::optional<double> number = {};
  std::vector<std::function<bool(const UOp&)>> conditions = {};
};

Pattern::Pattern(Op op) : Pattern(std::vector<Op>{op}) {}
Pattern::Pattern(Op op, std::vector<Pattern> sources)
    : Pattern(std::vector<Op>{op}, std::move(sources)) {}
Pattern::Pattern(std::vector<Op> ops)
    : data_(std::make_shared<const Data>(Data{.ops = std::move(ops)})) {}
Pattern::Pattern(std::vector<Op> ops, std::vector<Pattern> sources)
    : data_(std::make_shared<const Data>(
          Data{.ops = std::move(ops), .sources = std::move(sources)})) {}

Pattern Pattern::any(std::string name) {
  return Pattern(std::make_shared<const Data>(Data{.name = std::move(name)}));
}
Pattern Pattern::constant(std::string name) {
  return Pattern(std::make_shared<const Data>(Data{.ops = {Op::Const}, .name = std::move(name)}));
}
Pattern Pattern::constant(double value) {
  return Pattern(std::make_shared<const Data>(Data{.ops = {Op::Const}, .number = value}));
}

Pattern Pattern::named(std::string name) const {
  Data data = *data_;
  data.name = std::move(name);
  return Pattern(std::make_shared<const Data>(std::move(data)));
}
Pattern Pattern::of_type(DType dtype) const {
  Data data = *data_;
  data.dtype = dtype;
  return Pattern(std::make_shared<const Data>(std::move(data)));
}
Pattern Pattern::where(std::function<bool(const UOp&)> condition) const {
  Data data = *data_;
  data.conditions.push_back(std::move(condition));
  return Pattern(std::make_shared<const Data>(std::move(data)));
}

const UOp& Match::operator[](std::string_view name) const {
  for (const auto& [known, node] : named_) {
    if (known == name) return node;
  }
  std::string known;
  for (const auto& [other, node] : named_) known += fmt::format(" \"{}\"", other);
  throw UserError(fmt::format("the pattern has no name \"{}\"; it has{}", name,
                              known.empty() ? " none" : known));
}

// An attempt to find a pattern at a node.
class Matching {
 public:
  static std::optional<Match> find(const Pattern& pattern, const UOp& root) {
    Matching matching(root);
    if (!matching.fits(pattern, root, [] { return true; })) return std::nullopt;
    return std::move(matching.match_);
  }

 private:
  using Rest = std::function<bool()>;
  explicit Matching(const UOp& root) : match_(root) {}

  bool fits(const Pattern& pattern, const UOp& node, const Rest& rest) {
    const Pattern::Data& p = *pattern.data_;
    const bool wants_names = std::ranges::count(p.ops, Op::Identity) > 0;
    const UOp x = wants_names ? node : under_names(node);
    if (!p.ops.empty() && std::ranges::count(p.ops, x.op()) == 0) return false;
    if (p.dtype && x.dtype() != *p.dtype) return false;
    if (p.number && !is_const(x, *p.number)) return false;
    if (p.sources && p.sources->size() != x->sources) return false;
    if (std::ranges::any_of(p.conditions, [&](const auto& holds) { return !holds(x); }))
      return false;
    if (p.name.empty()) return sources_fit(p, x, rest);
    for (const auto& [name, other] : match_.named_) {
      if (name == p.name) return under_names(other) == x && sources_fit(p, x, rest);
    }
    match_.named_.emplace_back(p.name, node);
    if (sources_fit(p, x, rest)) return true;
    match_.named_.pop_back();
    return false;
  }

  bool sources_fit(const Pattern::Data& p, const UOp& x, const Rest& rest) {
    if (!p.sources) return rest();
    if (source_fits(*p.sources, x, 0, false, rest)) return true;
    const bool swaps = info(x.op()).element.commutative && p.sources->size() == 2;
    return swaps && source_fits(*p.sources, x, 0, true, rest);
  }

  bool source_fits(const std::vector<Pattern>& sources, const UOp& x, size_t i, bool swapped,
                   const Rest& rest) {
    if (i == sources.size()) return rest();
    return fits(sources[i], x.src(swapped ? sources.size() - 1 - i : i),
                [&, i] { return source_fits(sources, x, i + 1, swapped, rest); });
  }

  Match match_;
};

namespace {

thread_local ReplacingLog* current_log = nullptr;

// The line of the user's program that a node comes from, as errors end.
std::string line_of(const UOp& x) {
  const std::string source = origin_of(origin_id(x)).source();
  return source.empty() ? "" : fmt::format("  ({})", source);
}

// Returns the replacement that a rule makes of a node; null where it does not apply.
UOp applied(const PatternRule& rule, const UOp& node) {
  std::optional<Match> match = Matching::find(rule.pattern, node);
  if (!match) return {};
  const auto place = [&] { return fmt::format("rule \"{}\" at {}", rule.name, describe(*node)); };
  UOp by = in_user_code([&] { return rule.replace(*match); },
                        [&](const std::string& text) {
                          return fmt::format("{}: {}{}", place(), text, line_of(node));
                        });
  if (!by || by == node) return {};
  if (by.dtype() != node.dtype() || !std::ranges::equal(by.shape(), node.shape())) {
    throw UserError(fmt::format(
        "{}: the replacement is {}; it must be {}{}, as what it takes the place of{}", place(),
        describe(*under_names(by)), name(node.dtype()), to_string(node.shape()), line_of(node)));
  }
  if (current_log) current_log->add({rule.name, node, by});
  return by;
}

}  // namespace

ReplacingLog::ReplacingLog() : before_(std::exchange(current_log, this)) {}
ReplacingLog::~ReplacingLog() { current_log = before_; }

struct PatternMatcher::Data {
  std::vector<PatternRule> rules;
  RuleSet by_root;
};

PatternMatcher::PatternMatcher(std::vector<PatternRule> rules) {
  struct Kept {
    std::vector<PatternRule> rules;
  };
  auto kept = std::make_shared<const Kept>(Kept{std::move(rules)});
  std::vector<Rule> by_root;
  for (const PatternRule& rule : kept->rules) {
    if (!rule.replace)
      throw UserError(fmt::format("rule \"{}\" says nothing of what it replaces with", rule.name));
    auto apply = [kept, &rule](const UOp& x) { return applied(rule, x); };
    const std::vector<Op>& ops = rule.pattern.data_->ops;
    for (int op = 0; op < kOps; ++op) {
      const bool is_root = ops.empty() || std::ranges::count(ops, Op(op)) > 0;
      // A name is the node that it names: that one is replaced below it.
      const bool is_name = Op(op) == Op::Identity && ops.empty();
      if (is_root && !is_name) by_root.push_back({rule.name, Op(op), {}, apply});
    }
  }
  data_ = std::make_shared<const Data>(Data{kept->rules, RuleSet(std::move(by_root))});
}

PatternMatcher PatternMatcher::operator+(const PatternMatcher& other) const {
  std::vector<PatternRule> all = data_->rules;
  all.insert(all.end(), other.data_->rules.begin(), other.data_->rules.end());
  return PatternMatcher(std::move(all));
}

UOp PatternMatcher::rewrite(const UOp& node) const { return data_->by_root.apply(node); }

std::vector<std::string> PatternMatcher::names() const {
  std::vector<std::string> names;
  for (const PatternRule& rule : data_->rules) names.push_back(rule.name);
  return names;
}

std::vector<UOp> graph_rewrite(std::span<const UOp> roots, const PatternMatcher& rules) {
  for (const UOp& root : roots) {
    if (!root) throw UserError("graph_rewrite: a root is null");
  }
  try {
    return rewrite(roots, rules.data_->by_root);
  } catch (const EndlessRewrite& endless) {
    for (const PatternRule& rule : rules.data_->rules) {
      const UOp by = applied(rule, endless.node);
      if (!by) continue;
      throw UserError(fmt::format(
          "rule \"{}\" at {}: the rewrite does not end: what it gives, {}, is replaced again and "
          "again{}",
          rule.name, describe(*endless.node), describe(*by), line_of(endless.node)));
    }
    throw;
  }
}

UOp graph_rewrite(const UOp& root, const PatternMatcher& rules) {
  return std::move(graph_rewrite(std::span(&root, 1), rules)[0]);
}

}  // namespace tinyshard
