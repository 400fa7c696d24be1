// The inside of Simplifier (symbolic.h). One walk over the expression, sources first. Index nodes
// become linear forms (IndexAlgebra) and are made into nodes again only where something other than
// a sum uses them; all other nodes are built by constructors that apply the identities, so that no
// node has to be looked at twice.
#pragma once
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/rewrite/index_algebra.h"
#include "core/rewrite/symbolic.h"
#include "core/uop/node_map.h"

namespace tinyshard {

class Simplifier::Impl {
 public:
  Impl() = default;
  explicit Impl(const UOp& condition);

  UOp simplify(const UOp& root) {
    roots_.push_back(root);  // the memo is keyed by address
    return visit(root);
  }

 private:
  using Form = IndexAlgebra::Form;

  // --- symbolic.cpp: the walk ---
  UOp visit(const UOp& root);
  bool known(const UOp& x) const {
    return x.dtype() == DType::Index ? algebra_.find(x) != nullptr : memo_.contains(x);
  }
  UOp result(const UOp& x) {
    return x.dtype() == DType::Index ? algebra_.node(*algebra_.find(x)) : memo_.at(x);
  }
  const Linear& linear(const UOp& x) const { return algebra_.linear(*algebra_.find(x)); }
  UOp with_results(const UOp& x);
  UOp value(const UOp& x);
  UOp load(const UOp& x);
  UOp fold(const UOp& x);
  UOp decided(const UOp& x) const;  // a constant where the condition settles it

  // --- simplify_index.cpp: Index nodes, from simplified sources ---
  Form index_form(const UOp& x);
  Linear index_value(const UOp& x);
  Linear index_division(const UOp& x);
  Linear index_cast(const UOp& x);
  Linear index_where(const UOp& x);
  Linear index_max(const Linear& a, const Linear& b);
  Linear opaque(const UOp& x) { return algebra_.atom(with_results(x)); }

  // Other integers that are Index values.
  std::optional<Linear> as_index(const UOp& x) const;
  UOp on_index(Op op, const UOp& a, const UOp& b);
  UOp index_given(const UOp& index, const UOp& valid);

  // --- simplify_values.cpp: all other nodes; simplified sources give simplified nodes ---
  UOp elementwise(Op op, DType dtype, std::span<const UOp> src);
  UOp elementwise(Op op, DType dtype, std::initializer_list<UOp> src) {
    return elementwise(op, dtype, std::span(src.begin(), src.size()));
  }
  UOp arithmetic(Op op, const UOp& a, const UOp& b);
  UOp float_arithmetic(Op op, const UOp& a, const UOp& b);
  UOp int_arithmetic(Op op, const UOp& a, const UOp& b);
  UOp comparison(Op op, const UOp& a, const UOp& b);
  UOp negation(const UOp& x);
  UOp select(const UOp& condition, const UOp& a, const UOp& b);
  UOp convert(const UOp& x, DType to);

  IndexAlgebra algebra_;
  NodeMap<UOp> memo_;
  std::vector<UOp> roots_;
  UOp condition_;                                             // what may be assumed; null: nothing
  std::vector<std::pair<UOp, bool>> truths_;                  // its parts, and their opposites
  std::vector<std::pair<UOp, std::unique_ptr<Impl>>> given_;  // by what loads assume
};

}  // namespace tinyshard
