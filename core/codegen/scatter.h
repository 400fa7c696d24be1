// Scatters as kernels of a GPU: the gradient of an embedding or a gather, a table with rows put in,
// without atomics. Each element of the result is summed by one thread in the order of the source rows,
// so results have the same bits at every run, and those of a CPU.
#pragma once
#include "core/runtime/scatter_shape.h"
#include "core/runtime/target.h"

namespace tinyshard {

// The entry takes index, source, base where there is one, and result. Thread safe. Throws InternalError
// where LLVM refuses.
ObjectCode compile_scatter(const ScatterShape& shape, const Target& target);
// Tells whether each thread looks for the rows of its own column, since the columns of a warp do not share
// their indices.
bool scatters_apart(const ScatterShape& shape, const Target& target);

// The same by sorted rows, and for each reduction: work grows with the sizes of source and result alone.
SortedScatter compile_sorted_scatter(const ScatterShape& shape, const Target& target);

}  // namespace tinyshard
