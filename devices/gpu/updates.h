// Products that are added to what lies there: the step of SGD, sums of gradients.
#pragma once
#include <vector>

#include "core/runtime/library_provider.h"

namespace tinyshard::gpu {

// w.assign(w - rate * a @ b), and the like with + or without a factor, becomes one product that
// reads and writes w (Epilogue::Update), in f32 and where the devices support that. Not where others
// may still read the old w beside the product, which would have to wait for them, and not where
// somebody else reads the product, or where it is rounded to 16 bits before it is added.
std::vector<Replacement> find_updates(const RegionQuery& query);

}  // namespace tinyshard::gpu
