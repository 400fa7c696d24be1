// Values without elements.
#pragma once
#include <vector>

#include "core/uop/graph.h"

namespace tinyshard {

// Local graphs in which only storages have no elements: a value without elements becomes a
// constant, and so does a value that is made of nothing (padding around an empty tensor, a sum over
// an empty dim, a product over an empty inner dim). Later stages divide by sizes and turn places
// into coordinates; they never meet a size of zero as an operand.
std::vector<UOp> fold_empties(const Graph& graph);

}  // namespace tinyshard
