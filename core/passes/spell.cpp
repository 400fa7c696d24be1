// gelu f32[4] %0 becomes its twenty ops, and composites among these become theirs, until none is left that
// is not kept.
#include "core/passes/spell.h"

#include <algorithm>

#include "core/rewrite/pattern.h"

namespace tinyshard {

std::vector<UOp> spell(const Graph& graph, const std::function<bool(const Composite&)>& keeps) {
  const auto is_spelled = [&](const UOp& x) {
    if (x.op() != Op::Composite) return false;
    const auto constant = [](const UOp& s) { return is_const(s); };
    return std::ranges::any_of(x->src(), constant) || !keeps(composite_row(*x));
  };
  if (std::ranges::none_of(graph.order(), is_spelled)) return graph.roots();
  return rewrite(graph, RuleSet({{"spell", Op::Composite, {}, [&](const UOp& x) {
                                    return is_spelled(x) ? spelled(x) : UOp();
                                  }}}));
}

}  // namespace tinyshard
