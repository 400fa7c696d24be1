// A kernel that a program writes itself, in UOps: what one element of the result is.
//
//   // The sums of squares of rows, [rows].
//   Tensor y = custom_kernel("row_squares", {x}, {rows}, DType::F32, [&](KernelBuilder& k) {
//     UOp column = k.range(columns);
//     UOp v = k.load(0, {k.index(0), column});
//     return k.fold(ReduceOp::Sum, v * v, {column});
//   });
//
// The body runs once, when the call is made; it gives a scalar expression of the element's index, of
// elements of the inputs, of numbers and of folds, with the operators of core/uop/expressions.h and
// the builders of core/uop/uop.h. The kernel is one launch on each device, and no other kernel is
// fused with it; inputs that are not computed yet are computed before. How loops are split, ordered and
// spread over threads is the code generator's business; the order of a fold is fixed, so that results
// do not depend on threads.
//
// On several devices each has all inputs whole and computes the whole result. To divide the work, call
// it within shard_map: there inputs are the parts of a device. A gradient goes through it where
// `gradient` says how: the gradients of the inputs, as Function::backward gives them.
//
// UserError, naming the kernel: a body that gives no scalar of the result's type, an index beyond an
// input's dims, a range of a fold that is used outside of it, nodes that have no place in a kernel.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor/function.h"
#include "core/tensor/tensor.h"
#include "core/uop/expressions.h"

namespace tinyshard {

// The means by which a body writes a kernel. It lives as long as the body runs.
class KernelBuilder {
 public:
  // The index of the element that is computed, along one dim of the result; an Index.
  UOp index(size_t dim) const;
  // A number as an Index.
  UOp place(int64_t number) const { return index_const(number); }
  const Dims& shape_of(size_t input) const;
  // The element of an input at these places, one for each of its dims: of type Index, or integers that
  // were loaded. Outside of the input it is 0.
  UOp load(size_t input, const std::vector<UOp>& places);
  // The variable of a fold, from 0 up to size.
  UOp range(int64_t size);
  // The reduction of a value over ranges, in the value's type.
  UOp fold(ReduceOp op, const UOp& value, const std::vector<UOp>& ranges);

 private:
  friend class KernelMaker;
  struct State;
  explicit KernelBuilder(State& state) : state_(&state) {}
  State* state_;
};

using KernelBody = std::function<UOp(KernelBuilder& kernel)>;
using KernelGradient =
    std::function<std::vector<Tensor>(const Tensor& gradient, const std::vector<Tensor>& inputs)>;

// `name`: letters, digits and '_'; it is what plans and profiles call the kernel.
Tensor custom_kernel(const std::string& name, const std::vector<Tensor>& inputs, const Ints& shape,
                     DType dtype, const KernelBody& body, const KernelGradient& gradient = {},
                     Caller caller = Caller::current());

}  // namespace tinyshard
