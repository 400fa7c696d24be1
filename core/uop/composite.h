// A composite is an op that others spell: GELU is twenty small ops, and one node until somebody declines
// it. The tensor API makes the node; its gradient, what runs on a mesh and what libraries compute in
// one call read it as it is; the pass `spell` replaces what nobody asked to keep by what it means.
//
//   %1 = gelu f32[4, 8] %0          %1 = lt f32[4, 8] %0 -1000, %2 = where .., and so on
//
// A row says all that there is to know of one (core/ops has the rows), and no pass names any. All are
// elementwise: operands and result have one type and one shape. So they lie on a mesh as any
// elementwise op does, and what they make of numbers, constants among them, is what their spelling
// does: values do not depend on how long an op stayed whole (TS_COMPOSITES).
#pragma once
#include <initializer_list>
#include <span>
#include <string_view>

#include "core/uop/uop.h"

namespace tinyshard {

struct Composite {
  // Stands in the argument of its nodes, so hashes and texts of graphs are the same in all processes:
  // never 0, and no other row of the program has it.
  int64_t number;
  std::string_view name;
  std::string_view meaning;  // in a line, of operands x, y, ..
  int operands;
  // The value in smaller ops, of the node's shape and type. It may hold other composites.
  UOp (*spell)(std::span<const UOp> operands);
  // The gradient of operand `source` of the node y, when g arrives; null: that of the spelling.
  UOp (*gradient)(const UOp& y, const UOp& g, size_t source) = nullptr;
};

// InternalError where number, types or shapes of operands do not fit.
UOp composite(const Composite& row, std::initializer_list<UOp::Borrowed> operands);

inline const Composite& composite_row(const Node& x) {
  return *static_cast<const Composite*>(x.payload.get());
}
inline bool is_composite(const UOp& x, const Composite& row) {
  return x.op() == Op::Composite && &composite_row(*x) == &row;
}

// Returns what a Composite means, as its row spells it.
UOp spelled(const UOp& x);

}  // namespace tinyshard
