// The generator behind rand() and dropout. An element of a random tensor is a hash (Threefry) of
// the seed, of where the draw stands in the order of draws, and of the element's index in the whole
// tensor: no device count changes it. Draws outside of training count on the host; draws in
// TrainingMode or inside a captured step count in a small tensor, which a replayed step advances.
// Each thread has counts of its own, so that what a loader draws changes no weights; those of the
// thread of main(), and of one that has called manual_seed(), start at 0.
#pragma once
#include <cstdint>

#include "core/uop/uop.h"

namespace tinyshard {

// All that the next draws depend on; a checkpoint keeps it. Reading it realizes.
struct RandomState {
  uint64_t seed = 0;
  uint64_t drawn = 0;    // elements drawn outside of training, by the thread that asks
  uint64_t trained = 0;  // and in training
};
RandomState random_state();
void set_random_state(const RandomState& state);

// 64 random bits for each element.
UOp random_bits(DimSpan shape);

}  // namespace tinyshard
