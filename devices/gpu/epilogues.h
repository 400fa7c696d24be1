// Products do what follows them: a bias, ReLU, GELU, GELU's gradient. The values before
// a GELU, which its gradient needs, come from the same call; that of a ReLU needs the result alone.
#pragma once
#include <vector>

#include "core/runtime/library_provider.h"

namespace tinyshard::gpu {

// Finds only what the devices support and what no other node reads halfway. A GELU, and its
// gradient, read sums that are not rounded to 16 bits before, as the libraries have it; every other
// epilogue gives the bits of the ops that it stands for, but for the order of the sums.
std::vector<Replacement> find_epilogues(const RegionQuery& query);

}  // namespace tinyshard::gpu
