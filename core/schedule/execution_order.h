// The order in which tasks run: every dependency holds, and memory is given back early.
#pragma once
#include <span>
#include <vector>

#include "core/schedule/dependencies.h"

namespace tinyshard {

// Tasks follow the positions of their values in the graph, with two exceptions. A task that frees
// more memory than it allocates, or produces less than 1/16 of the bytes that it reads, runs as soon
// as it can: the gradient of a weight does not keep its operands until the optimizer asks for it.
// Collectives, and what makes their operands, run as soon as they can, too, and what needs their
// results is in no hurry, so that they run beside other work. Gathers of parameters on use wait
// for their turns (core/schedule/turns.h). The same on every rank.
std::vector<int> execution_order(std::span<const Task> tasks,
                                 const std::vector<VirtualBuffer>& buffers,
                                 const Dependencies& dependencies);

}  // namespace tinyshard
