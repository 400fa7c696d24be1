// Which way to run a product of two operands over a mesh, by the time that each takes.
#pragma once
#include <vector>

#include "multi/strategies/local_values.h"

namespace tinyshard {

// A way to divide an op along one mesh axis: where it wants its operands, and how its result then
// lies. A pending result is that of operands divided along what the op sums over.
struct Way {
  Placement a, b, result;
};

struct Contraction {
  const Mesh& mesh;
  const LocalValue &a, &b;  // on that mesh
  DimSpan shape_a, shape_b, shape;
  DType type;
  double operations;  // of the whole
  // Numbers of ops that share the cost of moving each operand: a weight that is gathered for a
  // product is there for its gradient, too, and the input of three layers for all of them.
  int shared_a = 1, shared_b = 1;
  // True if an operand stays where it lies when any way lets it.
  bool a_stays = false, b_stays = false;
};

struct Chosen {
  std::vector<Placement> a, b, result;  // one per mesh axis
};

// The cheapest of all combinations of `ways`, a list for each mesh axis, or the one that a plan has
// for x; of equal ones the first. Its cost is the time to bring the operands, to complete a sum,
// and to compute on a device. Where both operands lie as a sum wants them, completing it costs
// nothing: that is done when, and as what, it is needed, in buckets, or never (gradients of data
// parallel training, the second product of a Megatron pair).
Chosen cheapest(const UOp& x, const Contraction& op, const std::vector<std::vector<Way>>& ways,
                const LocalValues& values);

}  // namespace tinyshard
