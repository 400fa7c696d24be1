// Writes the graph, or the items, of a plan's record (plan_record.h) as text for Graphviz.
#pragma once
#include <string>
#include <string_view>

namespace tinyshard {

// Returns a digraph of the nodes that the sharding rewrite was given, or of the program's where no such
// pass ran; an empty digraph for an empty record.
std::string plan_dot(std::string_view record);

// Returns a digraph of the items of a plan: an arrow leads to an item from the last one before it that wrote
// what it reads.
std::string items_dot(std::string_view record);

}  // namespace tinyshard
