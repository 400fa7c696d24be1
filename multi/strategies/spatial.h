// Convolutions of images that are split in space.
#pragma once
#include "multi/strategies/local_values.h"

namespace tinyshard {

// The convolution or gradient x with the rows or columns of its images divided as they lie: each
// device receives the rows beside its part that its windows reach. Nothing where no image is split
// in space, or more than one axis splits it so.
std::optional<LocalValue> spatial_convolution(const UOp& x, const Mesh& mesh, LocalValues& values);

}  // namespace tinyshard
