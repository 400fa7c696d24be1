// Weights of products are drawn evenly within 1 / sqrt(inputs) of zero, those of tables by Glorot's
// rule. A product reads a weight in the type of x (weight_for).
#include "core/nn/linear.h"

#include "core/base/call.h"
#include "core/nn/bound_internal.h"
#include "core/nn/types_internal.h"

namespace tinyshard::nn {

Linear::Linear(int64_t in_features, int64_t out_features, const BiasOption& options) {
  double bound = uniform_bound(in_features);
  weight = Tensor::uniform({out_features, in_features}, -bound, bound).is_param_();
  if (options.bias) bias = Tensor::uniform(out_features, -bound, bound).is_param_();
}

Tensor Linear::operator()(const Tensor& x, Caller caller) const {
  Call call("Linear", caller);
  return x.linear(weight_for(x, weight).T(), weight_for(x, bias));
}

Embedding::Embedding(int64_t vocab_size, int64_t embed_size)
    : weight(Tensor::glorot_uniform({vocab_size, embed_size}).is_param_()) {}

Tensor Embedding::operator()(const Tensor& index, Caller caller) const {
  Call call("Embedding", caller);
  return weight.embedding(index);
}

}  // namespace tinyshard::nn
