// Products store their results in the type in which these are read.
#pragma once
#include <vector>

#include "core/runtime/library_provider.h"

namespace tinyshard {

// A product of f32 that is only rounded to 16 bits rounds its sums itself, and one that a collective
// sends is what the collective reads, with no copy between: where the devices support the product so
// and nobody else reads it. The bits stay the same.
std::vector<Replacement> find_narrow_products(const RegionQuery& query);

}  // namespace tinyshard
