// Proof that the items of a schedule meet the values that they are meant to read: SPEC=2.
//
// The schedule is taken as it will run, buffers with their places in memory and items in their
// order, and run on bytes that know whose value they hold. This shares no code with what decides
// about memory (memory.cpp, reuse.cpp, dependencies.cpp, core/exec's hazards.cpp): a mistake there
// is found, not repeated.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "core/schedule/schedule.h"

namespace tinyshard {

struct ScheduleState;

// InternalError naming items and buffers where
//   - an item reads a buffer whose bytes hold, wholly or in part, something else: nobody has
//     written it yet, or somebody has written over it;
//   - a result lies in memory that it does not have, or two items write one buffer;
//   - an item touches what a collective on its way writes, or writes what that reads, without
//     waiting for it;
//   - an item writes over its own operand in a way that it may not (verify_in_place, for kernels);
//   - a root is not there at the end.
void verify_memory(const Schedule& schedule);

// The same for tasks that are not items yet, between two steps: InternalError, naming the step that
// ran last, where
//   - nothing writes a buffer that a task or a root wants, or two tasks do;
//   - a kernel draft loads, stores or loops over something else than its task says;
//   - a task does not come after the writer of what it reads, or the writer of a storage's next
//     version does not come after the readers of this one: in `order` or, if that is empty, by the
//     dependencies.
void verify_tasks(const ScheduleState& state, std::string_view step, std::span<const int> order);

// Tells for each two parameters of a kernel whether they share memory, as the schedule has placed
// their buffers, and at least one of them is written: share[a][b].
using SharedParams = std::vector<std::vector<bool>>;

// InternalError where one iteration of the kernel may read an element that another one has already
// stored, under the rules of core/codegen/kernel.h: loops run in any order, a value is computed in
// the loops that it depends on, and a store comes after all that is computed in its loops.
void verify_in_place(const KernelSource& kernel, const SharedParams& share);

}  // namespace tinyshard
