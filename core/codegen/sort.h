// Sorts as kernels of a GPU, by radix, stable and without atomics (core/runtime/sort_shape.h).
#pragma once
#include "core/runtime/sort_shape.h"
#include "core/runtime/target.h"

namespace tinyshard {

// The entry takes keys and order, of rows that fit a tile. Thread safe, as the other. InternalError where
// LLVM refuses.
ObjectCode compile_row_sort(const SortShape& shape, const Target& target);
SortSteps compile_sort_steps(const SortShape& shape, const Target& target);

}  // namespace tinyshard
