// Composites (core/uop/composite.h) become the smaller ops that they mean.
#pragma once
#include <functional>
#include <vector>

#include "core/uop/composite.h"
#include "core/uop/graph.h"

namespace tinyshard {

// Spells each composite but those that `keeps`. Of a constant it spells all, as these fold.
std::vector<UOp> spell(const Graph& graph, const std::function<bool(const Composite&)>& keeps);

}  // namespace tinyshard
