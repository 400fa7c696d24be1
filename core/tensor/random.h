// The generator behind rand() and dropout. An element of a random tensor is a hash (Threefry) of
// the seed, of where the draw stands in the order of draws, and of the element's index in the whole
// tensor: no device count changes it. Draws outside of training count on the host; draws in
// TrainingMode or inside a captured step count in a small tensor, which a replayed step advances.
// Each thread that trains has such a count of its own; the first one's starts at 0, as in a process
// of one thread.
#pragma once
#include <cstdint>

#include "core/uop/uop.h"

namespace tinyshard {

// All that the next draws depend on; a checkpoint keeps it. Reading it realizes.
struct RandomState {
  uint64_t seed = 0;
  uint64_t drawn = 0;    // elements drawn outside of training
  uint64_t trained = 0;  // and in training, by the thread that asks
};
RandomState random_state();
void set_random_state(const RandomState& state);

// 64 random bits for each element.
UOp random_bits(DimSpan shape);

}  // namespace tinyshard
