// A kernel that a program wrote (core/tensor/custom_kernel.h), in the graph: Sink(operands...) {dims...}
// with one of these as its payload is the value of these dims that it computes. Its operands are read
// whole, row-major; its parameters are the operands, in order, and then the result.
#pragma once
#include <string>
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard {

struct OwnKernel {
  std::string name;
  UOp sink;                // over one Store of the last parameter
  std::vector<UOp> loops;  // outer to inner
};

// Null for what is no such kernel.
inline const OwnKernel* own_kernel(const UOp& x) {
  return x.op() == Op::Sink ? static_cast<const OwnKernel*>(x->payload.get()) : nullptr;
}

}  // namespace tinyshard
