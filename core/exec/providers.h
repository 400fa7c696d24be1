// BEAM for what a library and loops of ours can both compute: a product or a convolution goes to
// whichever of the two is faster.
#pragma once
#include "core/runtime/device.h"
#include "core/uop/uop.h"

namespace tinyshard {

// Who computes products, convolutions, sorts and all else that libraries take.
enum class Providers {
  Fastest,    // the device's library, or with BEAM the one that is faster
  Libraries,  // wherever they take it
  Loops       // libraries only where there is no other way
};

// Whether `x` is of those ops that are timed.
bool is_timed(Op op);

// Whether loops compute x, a node of such an op, faster than the library of the device: both are
// timed there with memory of their own, on operands that lie as those of x do, or it was found out before. That
// is remembered in the folder of compiled kernels. False where both do not fit beside what is held.
// What takes a library longer than a few milliseconds is its own: no loops gain on that.
bool loops_are_faster(const UOp& x, Device& device);

}  // namespace tinyshard
