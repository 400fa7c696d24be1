// Results that take the memory of an operand which nobody reads any more: the gradient of the
// logits lies where the logits were.
#pragma once
#include <span>
#include <vector>

#include "core/schedule/dependencies.h"
#include "core/schedule/task.h"

namespace tinyshard {

// Makes an output a further version of an operand (VirtualBuffer::previous) where the operand is a
// temporary that ends with this kernel, both have one type and size, and the kernel may write over
// what it reads. `order` is the final order of the tasks. Who writes over an operand waits for its
// other readers: where these may run beside it, results take up to `spare` bytes of their own
// instead.
void reuse_operands(std::span<const Task> tasks, std::span<const int> order,
                    const Dependencies& dependencies, std::vector<VirtualBuffer>& buffers,
                    int64_t spare = 0);

// True when a kernel may store `output` over the memory that it loads as `buffer`: every load has
// the index of the store, or lies in a fold that is complete before the first store of the elements
// it reads. A softmax may replace its operand: each row is summed before it is written, and rows do
// not meet. Cumulative sums of cumulative sums down a column may not: each element adds up sums
// over the column that are computed for it alone, after the elements before it were stored.
bool may_replace(const KernelDraft& draft, const KernelDraft::Output& output, int buffer,
                 FreeRanges& free_ranges);

}  // namespace tinyshard
