// Linear and Embedding: products with a table of weights.
#pragma once
#include <cstdint>

#include "core/nn/fields.h"

namespace tinyshard::nn {

struct BiasOption {
  bool bias = true;
};

// x @ weight.T + bias over the last dim. weight is [out, in], as in checkpoints of other tools.
struct Linear {
  Linear(int64_t in_features, int64_t out_features, const BiasOption& options = {});
  Tensor operator()(const Tensor& x, Caller caller = Caller::current()) const;

  Tensor weight, bias;
  TS_FIELDS(weight, bias)
};

// Rows of a table by number: indices of any shape give [..., embed_size].
struct Embedding {
  Embedding(int64_t vocab_size, int64_t embed_size);
  Tensor operator()(const Tensor& index, Caller caller = Caller::current()) const;

  Tensor weight;
  TS_FIELDS(weight)
};

}  // namespace tinyshard::nn
