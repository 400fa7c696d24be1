// Results that are made where they belong instead of being copied there.
#pragma once
#include <functional>
#include <vector>

#include "core/runtime/device.h"

namespace tinyshard {

struct ScheduleState;

// A collective's result that a storage is assigned arrives there, a product that updates a storage is
// made there, and a scatter that starts from one changes its rows in place.
void name_storages(ScheduleState& state);

// Tells whether the call of x begins with its third operand and may find it where its result is to be:
// a product that updates what is there, a scatter into it.
bool starts_from_third(const UOp& x);

// Where a value has nothing but results of one library call, which nobody else reads, and the
// library can write them where they lie in it, it does.
void place_results(ScheduleState& state);

// The ops whose libraries may be asked for views of what they read and write.
bool is_strided_call(Op op);

// Where the results of a call lie; empty when each is contiguous in a buffer of its own, as one is
// that has no place (null).
using PlaceOf = std::function<const StridedView*(const UOp&)>;
std::vector<StridedView> results_of(const LibraryCall& call, const PlaceOf& place_of);

// Nodes that differ from x, a library op, in their arguments only: one call may compute all of
// them.
std::vector<UOp> siblings(const ScheduleState& state, const UOp& x);

}  // namespace tinyshard
