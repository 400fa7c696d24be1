// The data that the scheduler hands to the code generator, and what it gets back.
//
// A kernel is a Sink over Store(param, index, value) nodes whose values are scalar expressions of
// loop ranges. The generator decides placement (each value at the shallowest loop where its ranges
// are open), vector range, tiles and the split into work items; it never changes what is computed.
//
// Meaning of the nodes, where op.h leaves it open:
//   Range           the variable of a loop, 0..size-1, of type Index. Loop ranges may run in any
//                   order and on any thread; Fold ranges belong to the Fold nodes that list them.
//   Load            the element, or 0 without touching memory where `valid` is false. An index that
//                   contains a Load itself (a gather) reads 0 outside of [0, numel) of its param;
//                   any other index must be in range wherever `valid` holds.
//   Store           happens once for each value of the Loop ranges it depends on, or not at all
//                   where `valid` is false. All loads of an iteration precede its stores, so a
//                   param may be updated in place where load and store index are the same
//                   expression. A store index that contains a Load drops elements outside of
//                   [0, numel).
//   Fold            reduces its value over its ranges in the node's dtype, in an order fixed at
//                   compile time: results do not depend on threads. Empty ranges give the identity.
//                   Its arguments are {ReduceOp, contracts}: a sum that contracts may add a product
//                   that nothing else reads without rounding it first. No other product is fused
//                   with a sum, so a node has the same bits in every kernel that computes it.
//   IDiv, Mod       truncate on integer types and give 0 for a divisor of 0; on Index they round to
//                   minus infinity.
//   Shl, Shr        give 0 when the distance is not in [0, width).
//   Max             is NaN if one operand is.
//   Cast            from float to integer saturates, NaN gives 0.
//   F16, BF16, F8   Each op computes in f32 and rounds its result. A Fold rounds once, at its end.
//   Bool            One byte, 0 or 1, in memory. Add is Or, Mul and Max follow And and Or.
//   Threefry        threefry-2x32, 20 rounds, of (counter, key): the low 32 bits are the first word
//                   of each.
//   DeviceCoordinate {axis, size}: coordinates[axis] of the call.
//   Const           The i-th of `scalars` is coordinates[scalars.first + i], where its element has
//                   the lowest bytes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype/dtype.h"
#include "core/runtime/target.h"
#include "core/uop/uop.h"

namespace tinyshard {

struct ParamInfo {
  DType dtype = DType::F32;
  int64_t numel = 0;  // of the buffer that will be passed; at least what the kernel touches
  bool written = false;
  // This param may be given the same buffer as `alias`, another slot. Every load of one of the two
  // then has the index expression of the other's stores, or lies in a fold that the stored values
  // need and that reads, for each value of the loops around it, just what is stored there: it must
  // be complete before those stores, and is not computed again after them. -1: a buffer of its own,
  // unless it is never written.
  int alias = -1;
  // Bytes from the begin of the buffer to element 0 of this param (core/codegen/offsets.h): the call
  // passes a pointer to there. No part of the code.
  int64_t offset = 0;

  bool operator==(const ParamInfo&) const = default;
};

// Constants whose values are no part of a kernel's code (core/codegen/scalars.h): they come with
// each call, behind its coordinates. Plan, code around them and bits are those of the kernel that
// has them in its code.
struct Scalars {
  int first = 0;               // their place among the coordinates of a call
  std::vector<UOp> constants;  // Const nodes of the sink, which hold the values of this call
};

struct KernelSource {
  std::string name;  // letters, digits and '_'; for dumps and profiles only
  UOp sink;
  std::vector<UOp> loops;         // every Loop range used, outer to inner as the scheduler prefers
  std::vector<ParamInfo> params;  // by slot
  // Which of the generator's plans: 0 is its own choice, 1 to kKernelChoices - 1 are others that
  // may be faster, some of them the same. On GPUs folds of another plan may differ in their last bits.
  int choice = 0;
  Scalars scalars;
};
constexpr int kKernelChoices = 8;

// A kernel for one target. On GPUs `code` is as core/runtime/target.h says. On CPUs `code.bytes` is
// an image (core/runtime/image.h): position independent machine code with its constants, loaded by
// a copy to executable memory. Its entry,
//   void entry(void* const* buffers, const int64_t* coordinates, int64_t begin, int64_t end)
// does the work items [begin, end) of [0, code.work_items). Any split of them, in any order and on
// any threads, gives the same bits. Buffers are aligned to 64 bytes, by slot. work_items is 0 when
// there is nothing to do (outputs without elements).
struct CompiledKernel {
  std::string name;
  ObjectCode code;
  double cost_ns = 0;       // one core's time for the whole kernel, estimated from the plan
  int64_t bytes_moved = 0;  // distinct bytes read and written, upper estimate
};

using KernelEntry = void (*)(void* const* buffers, const int64_t* coordinates, int64_t begin,
                             int64_t end);

}  // namespace tinyshard
