// Attention of several heads with its projections, under the names and in the layout of PyTorch's
// nn.MultiheadAttention, whose checkpoints load. Batches come first: [batch, length, width].
#pragma once
#include <cstdint>
#include <optional>

#include "core/nn/fields.h"
#include "core/nn/linear.h"

namespace tinyshard::nn {

struct MultiheadAttentionOptions {
  bool bias = true;
  double dropout = 0;                      // of the weights, in TrainingMode
  int64_t key_width = 0, value_width = 0;  // of key and value; 0 for `width`
};

struct AttendOptions {
  // Bools say where to attend; floats are added to the scores. [L, S], [batch, L, S] or
  // [batch, heads, L, S].
  Tensor mask = {};
  Tensor key_mask = {};  // bool[batch, S]: which keys there are; padding is false
  bool is_causal = false;
};

struct MultiheadAttention {
  MultiheadAttention(int64_t width, int64_t heads, const MultiheadAttentionOptions& options = {});

  // [batch, L, width] of query [batch, L, width] and key and value [batch, S, ...].
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttendOptions& options = {}, Caller caller = Caller::current()) const;
  Tensor operator()(const Tensor& x, const AttendOptions& options = {},
                    Caller caller = Caller::current()) const {
    return (*this)(x, x, x, options, caller);
  }

  // A single matrix holds the three where key and value are as wide as the query.
  Tensor in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias;
  Linear out_proj;
  int64_t heads;
  double dropout;
  TS_FIELDS(in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias, out_proj)
};

}  // namespace tinyshard::nn
