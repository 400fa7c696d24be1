// Which constants of a kernel come with its calls. A program that computes x * rate with another
// rate in each step has a new kernel in each step, equal to the one before but for a constant:
//
//   step 0   x * 0.1     compiled as it is; noted: a product by one constant, 0.1 so far
//   step 1   x * 0.09    the same with another constant: compiled once more, now with the constant
//                        as an argument
//   step 2   x * 0.081   the code of step 1, called with 0.081
//
// The bits are those of the constant in the code. What precedes code generation has seen the
// constant and folded what it folds, so kernels differ where that made a difference. Values that
// code generation itself asks for (0, 1, -1, infinities, NaN, numbers below the normal ones) stay a
// part of the code, and so do divisors of integers, widths of shifts, what loops and offsets are
// made of, and on GPUs powers of two in divisions of floats. Captured steps keep their constants:
// they are compiled once.
#pragma once
#include <cstdint>
#include <vector>

#include "core/codegen/kernel.h"
#include "core/runtime/target.h"

namespace tinyshard {

// Notes the kernel, and makes scalars of its constants when some of them had other values in a
// kernel that was noted before and is equal otherwise. `first`: the number of a call's coordinates.
// Thread safe.
void choose_scalars(KernelSource& kernel, const Target& target, int first);

// Returns the values that a call has behind its coordinates.
std::vector<int64_t> scalar_values(const KernelSource& kernel);

}  // namespace tinyshard
