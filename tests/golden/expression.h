// The expressions that cases of gradients record: Python over tensors, such as
// "(x.permute([1,0])*3.0).sum(axis=1)". Each operator and method is a row of calls.h.
#pragma once
#include "tests/golden/golden_case.h"

namespace tinyshard::golden {

// The value of the case's argument `expr`, in which its inputs are x, y, z or `input_names`.
// Mismatch where it holds what is not understood.
Tensors evaluate(const Case& c);

}  // namespace tinyshard::golden
