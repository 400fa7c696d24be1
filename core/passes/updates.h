// Products that are added to what lies there: the step of SGD, sums of gradients.
#pragma once
#include <functional>
#include <vector>

#include "core/runtime/device.h"
#include "core/uop/graph.h"

namespace tinyshard {

// w.assign(w - rate * a @ b), and the like with + or without a factor, becomes one product that
// reads and writes w (Epilogue::Update), in f32 and where `library_supports` takes that (asked with
// row-major operands). Not where others may still read the old w beside the product, which would
// have to wait for them, and not where somebody else reads the product, or where it is rounded to
// 16 bits before it is added.
std::vector<UOp> fuse_updates(const Graph& graph,
                              const std::function<bool(const LibraryCall&)>& library_supports);

}  // namespace tinyshard
