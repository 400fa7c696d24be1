// What a local graph takes, for comparing plans of one program: the time of each collective and of
// each product as if nothing ran beside it. Elementwise ops are not counted: they are fused with
// what reads or makes their operands, which counts those.
#pragma once
#include "core/uop/graph.h"
#include "multi/link_model.h"

namespace tinyshard {

struct Estimate {
  double seconds = 0;
  // Of these, in collectives that another plan might not need. Sums that go to storages and that no
  // product reads are not among them: these are gradients, and a plan over a divided batch has them.
  // Nor are parameters that the user has gathered on use, and what is a few bytes.
  double movable_seconds = 0;
  double bytes = 0;  // that products and collectives write on a device
};

// Of a product, a convolution or an attention; nothing of other ops.
double operations_of(const UOp& x);

// `device`: one of the meshes that the graph is for; its devices compute.
Estimate estimate(const Graph& graph, const Mesh& device, LinkModel& links);

}  // namespace tinyshard
