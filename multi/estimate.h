// Estimates the time of a local graph, to compare plans of one program: of each collective and of
// each product as if nothing ran beside it. Elementwise ops are not counted: they are fused with
// what reads or makes their operands, which counts those.
#pragma once
#include "core/uop/graph.h"
#include "multi/link_model.h"

namespace tinyshard {

struct Estimate {
  double seconds = 0;
  // Seconds of collectives that another plan might not need. Sums that go to storages and that no
  // product reads do not count: these are gradients, and a plan over a divided batch has them.
  // Nor do parameters that the user has gathered on use, and collectives of a few bytes.
  double movable_seconds = 0;
  double bytes = 0;  // that products and collectives write on a device
};

// Counts the operations of a product, a convolution or an attention; 0 for other ops.
double operations_of(const UOp& x);

// `device`: one of the meshes that the graph is for; its devices compute.
Estimate estimate(const Graph& graph, const Mesh& device, LinkModel& links);

}  // namespace tinyshard
