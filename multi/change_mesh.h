// A value of one mesh of several devices on another one: in another order or shape, of more or
// fewer devices, with common devices or without, on any ranks.
#pragma once
#include "multi/redistribute.h"

namespace tinyshard {

// The value on `mesh`, placed as is cheapest on the way to `wanted`, without pending sums.
LocalValue on_other_mesh(LocalValue value, DimSpan global, const Mesh& mesh,
                         const std::vector<Placement>& wanted);

// Returns whether its devices belong to the process that asks, whichever it is, as of Mesh::of.
bool is_of_each_process(const Mesh& mesh);

// Returns whether each rank has a device of it.
bool is_on_all_ranks(const Mesh& mesh);

// Returns whether a rank has a device of `to` and none of `from`: it cannot copy what it needs.
bool is_out_of_reach(const Mesh& from, const Mesh& to);

}  // namespace tinyshard
