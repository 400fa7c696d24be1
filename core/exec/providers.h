// BEAM for what a library and loops of ours can both compute: a product or a convolution goes to
// whichever of the two is faster, on every device.
#pragma once
#include "core/runtime/device.h"
#include "core/uop/uop.h"

namespace tinyshard {

// A plan leaves products, convolutions, sorts and other ops that libraries take to one of these.
enum class Providers {
  Fastest,    // the device's library, or with BEAM the one that is faster
  Libraries,  // wherever they take it
  Loops       // libraries only where there is no other way
};

// Tells whether loops compute x, a product or a convolution that the device's library takes, faster
// than the library: both are timed there with memory of their own, on operands that lie as those of x
// do, or it was found out before (core/exec/kept_choices.h). The library keeps x where both do not fit
// beside what is held, and where x is another op. A trial takes some ten times as long as the library;
// where that takes more than a few milliseconds, little more than once, unless loops are near it.
bool loops_are_faster(const UOp& x, Device& device);

}  // namespace tinyshard
