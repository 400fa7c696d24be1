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

// Tells whether the call of x adds to its third operand, which may lie where the result is to be: a
// product that updates a storage, a scatter into one.
bool starts_from_third(const UOp& x);

// Has a library call write its results straight into a value that consists of nothing else, if
// nobody else reads the results and the library can do so.
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
