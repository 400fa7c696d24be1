// The walk follows one path: nodes are interned, so two that differ
// with equal op, type and argument differ in some source, and the
// first such source decides. Ranges come first and constants last.
#include "core/rewrite/compare_structure.h"

namespace tinyshard {
namespace {

template <class T>
int three_way(T a, T b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

int rank(Op op) {
  if (op == Op::Range) return -1;
  return op == Op::Const ? kOps : static_cast<int>(op);
}

}  // namespace

int compare_structure(const UOp& a, const UOp& b) {
  const UOp* x = &a;
  const UOp* y = &b;
  // Two different nodes of equal op, type and argument differ in some source: one path down, no
  // recursion.
  while (*x != *y) {
    const Node &m = **x, &n = **y;
    if (int c = three_way(rank(m.op), rank(n.op))) return c;
    if (int c = three_way(m.dtype, n.dtype)) return c;
    if (int c = three_way(m.arguments, n.arguments)) return c;
    for (size_t i = 0; i < m.arguments; ++i) {
      if (int c = three_way(m.arg()[i], n.arg()[i])) return c;
    }
    if (int c = three_way(m.sources, n.sources)) return c;
    size_t i = 0;
    while (i < m.sources && m.src()[i] == n.src()[i]) ++i;
    if (i == m.sources) return 0;
    x = &m.src()[i];
    y = &n.src()[i];
  }
  return 0;
}

}  // namespace tinyshard
