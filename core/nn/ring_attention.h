// Attention over a sequence that is divided over devices, none of which ever holds all of it.
//
//   Tensor y = nn::ring_attention(q, k, v, mesh, "sequence", {.is_causal = true});
//
// Each device keeps its rows of q and computes with the keys and values of one device after the
// other, which are sent to it point to point while it works on those before:
//
//   4 devices      device 0: k0 v0, then k3 v3, k2 v2, k1 v1      device 1: k1 v1, then k0 v0, ...
//
// Sums of exp(score) and of exp(score) * v run along, relative to the largest score so far, and are
// rescaled where a larger one comes. That largest score cancels in the result, so it counts as a
// constant of the gradient, and what the backward pass needs of a step is that number for each row:
// scores are computed, and keys and values sent, again.
//
//   sent by a device, n devices      forward 2 (n - 1) parts (k and v), backward 4 (n - 1)
//   held beside its parts            keys, values and scores of two steps, however many there are
//
// Attention by Tensor::scaled_dot_product_attention gathers keys and values or divides by heads,
// which sends less; this is for sequences whose keys and values, or scores, are too large for that.
#pragma once
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace tinyshard::nn {

struct RingAttentionOptions {
  bool is_causal = false;   // row i looks at columns up to i
  bool enable_gqa = false;  // fewer heads of key and value than of query
  // How other axes of the mesh divide q, k and v alike: batch and heads, {{"data", Shard(0)}}.
  std::vector<AxisPlacement> others = {};
};

// q [.., L, E], k [.., S, E], v [.., S, V] of one float type, brought to parts of L and S over the
// axis: [.., L, V], which lies so. Computes in f32 at least. UserError for shapes that do not fit
// each other and for L or S that the devices do not divide.
Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Mesh& mesh,
                      const std::string& axis, const RingAttentionOptions& options = {},
                      Caller caller = Caller::current());

}  // namespace tinyshard::nn
