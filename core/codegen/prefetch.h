// How far ahead a kernel on the CPU asks for what it will read. A processor fetches in advance where
// it sees a walk through memory, and it reads on while earlier loads are under way. Both see too
// little where a row is short, or where an element of 16 bits takes as many instructions as a wider
// one. Such a load also asks for what it reads some iterations later:
//
//   for i: for k in steps of 64: sum += x[k] * w[i, k]        rows of w of 768 bf16, 1536 bytes
//
// asks for w[i + 3, k], 4608 bytes further on. Of rows that are long the distance is one of k.
#pragma once
#include <cstdint>

#include "core/codegen/plan.h"

namespace tinyshard::codegen {

// Bytes from the address of `load`, emitted at `place` in `lanes` neighbouring elements, to what is
// worth asking for with it. 0: the load reads small or often read memory, or walks in no known steps.
int64_t prefetch_distance(const Graph& graph, const Nest& nest, int load, int place, int lanes);

}  // namespace tinyshard::codegen
