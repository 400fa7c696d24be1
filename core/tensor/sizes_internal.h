// Sizes that are known when a captured step runs, while ops are built (core/uop/sizes.h says what
// the graph holds of them). A public method that is in the table of sizes.cpp may be called with
// such a tensor. What it builds is looked at when it becomes a tensor: sizes follow from the ops,
// from the operands' on, and where an op would divide, join or read past such a size, or meet
// another one, the call fails. What lies behind a size must not reach a result: whoever reduces
// over such a dim fills it first. Internal to core/tensor.
#pragma once
#include <optional>

#include "core/tensor/value_internal.h"
#include "core/uop/sizes.h"

namespace tinyshard::value {

// An operand of the running call; fails a call that takes plain sizes alone.
void meet_operand(const UOp& value);
// The value of a new tensor with a name that tells its sizes; null when all are plain.
UOp with_sizes(const UOp& value);

// The size of a dim, if it is not a plain number.
std::optional<SymbolicSize> size_along(const Value& x, int64_t axis);
// The number of elements along these axes: a number or an i64.
Value count_along(const Value& x, const Dims& axes);
// x at the bound of the axis, with `value` behind its size.
Value filled(const Value& x, int64_t axis, const Scalar& value);
// x, of which only the first `size` elements along the axis count.
Value limited_to(const Value& x, int64_t axis, const SymbolicSize& size);
// x as if all of its elements counted: for those who see to it themselves.
Value at_bound(const Value& x);
SymbolicSize add(const SymbolicSize& a, const SymbolicSize& b);
SymbolicSize subtract(const SymbolicSize& a, const SymbolicSize& b);
SymbolicSize plain_size(int64_t size);

// Returns the size given as an index or in a shape; fails unless it sums variables times numbers.
SymbolicSize size_of(const StatePtr& state);
// Tells whether x is such a sum.
bool is_size(const Value& x);
// From here on `buffer` stands for a variable.
void name_variable(const UOp& buffer, const std::string& name, int64_t low, int64_t high);

}  // namespace tinyshard::value
