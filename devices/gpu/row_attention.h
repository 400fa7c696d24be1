// Attention of rows that all look at the keys up to one number: what a token asks for whose keys
// and values lie in a cache, as scaled_dot_product_attention spells it for symbolic sizes.
#pragma once
#include <vector>

#include "core/runtime/library_provider.h"

namespace tinyshard::gpu {

// Finds the second product of each, which becomes an Attention with a position as its fourth
// operand, where the devices support that and nobody else reads the scores or the weights. Of such
// a call nothing behind the position is read. As with other attention, weights are rounded to 16
// bits before they are divided by their sum, not after it.
std::vector<Replacement> find_row_attention(const RegionQuery& query);

}  // namespace tinyshard::gpu
