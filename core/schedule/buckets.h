// Many small all-reduces become few large ones, in place.
#pragma once
#include <vector>

#include "core/schedule/merge.h"

namespace tinyshard {

// All-reduces over one mesh axis with one type and op share a bucket of at most `bytes` (a larger
// one has a bucket of its own). Their operands are computed straight into the bucket and their
// results read from it, so that nothing is copied and one collective does the work of all.
void bucket_collectives(std::vector<Task>& tasks, std::vector<VirtualBuffer>& buffers,
                        int64_t bytes);

}  // namespace tinyshard
