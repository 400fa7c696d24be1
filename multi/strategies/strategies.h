// How each class of ops runs on a mesh: one function per class, each in a file of its own. It takes
// the operands as they lie, has them moved where the op cannot work on them so (by redistribute,
// the cheapest way that is right), and says how the result lies.
//
// One that could run in several ways asks values.decisions() and prices each way by values.links().
//
// To add one: a function here, its file, a line in the switch of multi/rewrite.cpp, and rows in
// tests/multi/sharding_test.cpp (values on every placement) and a tests/multi/bytes_*_test.cpp.
#pragma once
#include "multi/strategies/local_values.h"

namespace tinyshard {

LocalValue elementwise(const UOp& x, LocalValues& values);
LocalValue movement(const UOp& x, LocalValues& values);  // Reshape, Permute, Expand
LocalValue windows(const UOp& x, LocalValues& values);   // Pad, Shrink, Flip
LocalValue reduction(const UOp& x, LocalValues& values);
LocalValue gather(const UOp& x, LocalValues& values);
LocalValue scatter_add(const UOp& x, LocalValues& values);
LocalValue sort(const UOp& x, LocalValues& values);
// A ScatterAdd by the order of a sort by columns, which takes the way of that sort back. Nothing where
// it is by another index, or where to add up what each device makes takes less time.
std::optional<LocalValue> scattered_by_order(const UOp& x, LocalValues& values);
LocalValue scan_rows(const UOp& x, LocalValues& values);  // each device has whole rows
LocalValue decompose(const UOp& x, LocalValues& values);
// Decomposes the matrices that each device holds; none of them is divided itself.
LocalValue decomposed(const UOp& x, const LocalValue& matrices);
LocalValue dot(const UOp& x, LocalValues& values);
LocalValue convolution(const UOp& x, LocalValues& values);   // and its gradients
LocalValue unfolded(const UOp& x, LocalValues& values);      // and their sum back
LocalValue attention(const UOp& x, LocalValues& values);     // and its gradient
LocalValue whole_kernel(const UOp& x, LocalValues& values);  // Sink
LocalValue buffer(const UOp& x, LocalValues& values);
LocalValue assign(const UOp& x, LocalValues& values);
LocalValue placed(const UOp& x, LocalValues& values);  // Redistribute

}  // namespace tinyshard
