// When a parameter that lies in parts is put together: once for each time that its block has its
// turn, so that no gathered value lives from the forward to the backward pass.
//
// Comes in: a local graph in which each gathered parameter is one value, read by both passes.
// Goes out: one gather for each turn, all gathers of a turn with its number. A turn is a run of
// ops, in the order of the graph, that read gathered parameters of one block and of no other:
//
//   reads, in order       h0 h0  h1 h1  head head  h1 h1  h0
//   turns                 1      2      3          4      5     (4 and 5: the backward pass)
//
// The parameters of no block are one block. A block that is kept has one turn, its first. A block
// with little in between has still the same turn: what is gathered there is less than a quarter of
// it. Nothing is said of time here: core/schedule/turns.h orders gathers by these numbers.
#pragma once
#include <vector>

#include "core/uop/graph.h"

namespace tinyshard {

std::vector<UOp> gather_in_turns(const Graph& graph);

}  // namespace tinyshard
