// A walk with a stack of its own visits sources before users, as expressions can be deep. Index
// values go to the algebra of sums, all others to rules by their op. A simplifier that is given a
// condition first takes it apart into facts: bounds of sums, and truths of whole comparisons.
#include "core/rewrite/symbolic.h"

#include "core/rewrite/conditions.h"
#include "core/rewrite/simplifier.h"
#include "core/uop/args.h"

namespace tinyshard {

// --- the walk ------------------------------------------------------------------------------------

UOp Simplifier::Impl::visit(const UOp& root) {
  if (known(root)) return result(root);
  std::vector<std::pair<const UOp*, size_t>> stack;
  stack.reserve(32);
  stack.push_back({&root, 0});
  while (!stack.empty()) {
    auto& [x, next] = stack.back();
    auto src = (*x)->src();
    while (next < src.size() && known(src[next])) ++next;
    if (next < src.size()) {
      stack.push_back({&src[next++], 0});
      continue;
    }
    const UOp& node = *x;
    if (!known(node)) {
      if (node.dtype() == DType::Index) {
        algebra_.remember(node, index_form(node));
      } else {
        UOp simplified = decided(value(node));
        memo_[node] = simplified;
        if (!memo_.contains(simplified)) memo_[simplified] = simplified;
      }
    }
    stack.pop_back();
  }
  return result(root);
}

UOp Simplifier::Impl::with_results(const UOp& x) {
  std::vector<UOp> src;
  src.reserve(x->sources);
  for (const UOp& s : x->src()) src.push_back(result(s));
  return x.with_src(src);
}

Simplifier::Impl::Impl(const UOp& condition) {
  condition_ = simplify(condition);
  auto assume = [&](const UOp& x, bool value) {
    if (!is_const(x)) truths_.push_back({x, value});
  };
  std::vector<UOp> parts = conjuncts(condition_);
  std::vector<std::pair<Linear, Interval>> facts;
  for (const UOp& part : parts) {
    UOp opposite = negation(part);
    if (auto bound = as_bound(part)) {
      if (auto form = algebra_.find(bound->sum)) {
        facts.push_back({algebra_.linear(*form), bound->interval});
      }
    }
    assume(part, true);
    assume(opposite, false);
  }
  for (auto& [sum, interval] : facts) algebra_.add_fact(sum, interval);
  algebra_.forget_forms();
  memo_ = NodeMap<UOp>();
}

UOp Simplifier::Impl::value(const UOp& x) {
  switch (x.op()) {
    case Op::Load:
      return load(x);
    case Op::Fold:
      return fold(x);
    default:
      break;
  }
  if (x->sources == 0) return x;
  if (!is_elementwise(x.op())) return with_results(x);
  UOp src[3];
  for (size_t i = 0; i < x->sources; ++i) src[i] = result(x.src(i));
  return elementwise(x.op(), x.dtype(), std::span<const UOp>(src, x->sources));
}

UOp Simplifier::Impl::decided(const UOp& x) const {
  for (const auto& [known, truth] : truths_) {
    if (known == x) return const_int(DType::Bool, truth, x.shape());
  }
  return x;
}

UOp Simplifier::Impl::load(const UOp& x) {
  // Where the condition fails, the value may be anything, but the load happens all the same: it
  // keeps what guards it, and an index that lies inside of its buffer.
  if (condition_) return x;
  UOp param = result(x.src(0)), index = result(x.src(1));
  if (x->sources < 3) return x.with_src(std::initializer_list<UOp>{param, index});
  UOp valid = result(x.src(2));
  if (is_const(valid)) {
    if (!const_bits(*valid)) return const_int(x.dtype(), 0);
    return UOp::make(Op::Load, x.dtype(), {param, index}, x->arg());
  }
  index = index_given(index, valid);
  return UOp::make(Op::Load, x.dtype(), {param, index, valid}, x->arg());
}

UOp Simplifier::Impl::fold(const UOp& x) {
  std::vector<UOp> src{result(x.src(0))};
  for (const UOp& range : x->src().subspan(1)) {
    if (range_arg(*range).size != 1)
      src.push_back(range);  // its own variable, not a value to replace
  }
  if (src.size() == 1) return src[0];
  return x.with_src(src);
}

// --- interface -----------------------------------------------------------------------------------

Simplifier::Simplifier() : impl_(std::make_unique<Impl>()) {}
Simplifier::Simplifier(const UOp& condition) : impl_(std::make_unique<Impl>(condition)) {}
Simplifier::~Simplifier() = default;
Simplifier::Simplifier(Simplifier&&) noexcept = default;
Simplifier& Simplifier::operator=(Simplifier&&) noexcept = default;

UOp Simplifier::operator()(const UOp& expression) { return impl_->simplify(expression); }

std::vector<UOp> Simplifier::operator()(std::span<const UOp> roots) {
  std::vector<UOp> results;
  results.reserve(roots.size());
  for (const UOp& root : roots) results.push_back(impl_->simplify(root));
  return results;
}

UOp simplify(const UOp& expression) { return Simplifier()(expression); }
std::vector<UOp> simplify(std::span<const UOp> roots) { return Simplifier()(roots); }
UOp simplify_given(const UOp& expression, const UOp& condition) {
  return Simplifier(condition)(expression);
}

}  // namespace tinyshard
