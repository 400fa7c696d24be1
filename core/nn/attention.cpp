// The three projections lie below each other in one matrix: rows 0 to width are those of the query.
#include "core/nn/attention.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/nn/types_internal.h"

namespace tinyshard::nn {
namespace {

Tensor xavier(int64_t out, int64_t in) {
  const double bound = std::sqrt(6.0 / double(in + out));
  return Tensor::uniform({out, in}, -bound, bound).is_param_();
}

}  // namespace

MultiheadAttention::MultiheadAttention(int64_t width, int64_t count,
                                       const MultiheadAttentionOptions& o)
    : out_proj(width, width, {.bias = o.bias}), heads(count), dropout(o.dropout) {
  Call call("MultiheadAttention");
  if (count < 1 || width < 1 || width % count != 0)
    fail(fmt::format("a width of {} does not divide into {} heads", width, count));
  if (!(o.dropout >= 0 && o.dropout <= 1)) fail(fmt::format("dropout is {}", o.dropout));
  const int64_t keys = o.key_width > 0 ? o.key_width : width;
  const int64_t values = o.value_width > 0 ? o.value_width : width;
  if (keys == width && values == width) {
    in_proj_weight = xavier(3 * width, width);
  } else {
    q_proj_weight = xavier(width, width);
    k_proj_weight = xavier(width, keys);
    v_proj_weight = xavier(width, values);
  }
  if (!o.bias) return;
  in_proj_bias = Tensor::zeros(3 * width).is_param_();
  out_proj.bias = Tensor::zeros(width).is_param_();
}

Tensor MultiheadAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttendOptions& o, Caller caller) const {
  Call call("MultiheadAttention", caller);
  if (query.ndim() != 3 || key.ndim() != 3 || value.ndim() != 3)
    fail(fmt::format("query is {}, key {}, value {}: each must be [batch, length, width]",
                     query.describe(), key.describe(), value.describe()));
  const int64_t batch = query.shape(0), width = out_proj.weight.shape(0);
  // The part of the three projections, and of their bias, that is this one's.
  const auto projected = [&](int64_t part, const Tensor& x, const Tensor& own) {
    const Tensor all =
        own.defined() ? own
                      : in_proj_weight.shrink({{part * width, (part + 1) * width}, {0, width}});
    const Tensor bias = in_proj_bias.defined()
                            ? in_proj_bias.shrink({{part * width, (part + 1) * width}})
                            : Tensor();
    const Tensor y = x.linear(weight_for(x, all).T(), bias.defined() ? weight_for(x, bias) : bias);
    return y.reshape({batch, -1, heads, width / heads}).transpose(1, 2);
  };
  Tensor mask = o.mask;
  if (mask.defined() && mask.ndim() == 3) mask = mask.unsqueeze(1);
  if (o.key_mask.defined()) {
    if (o.key_mask.dtype() != DType::Bool || o.key_mask.ndim() != 2)
      fail(fmt::format("key_mask is {}: it must be bool[batch, keys], true for those there are",
                       o.key_mask.describe()));
    const Tensor keys = o.key_mask.unsqueeze(1).unsqueeze(1);
    constexpr double kNever = -std::numeric_limits<double>::infinity();
    if (!mask.defined())
      mask = keys;
    else
      mask = mask.dtype() == DType::Bool ? mask & keys : keys.where(mask, kNever);
  }
  const Tensor q = projected(0, query, q_proj_weight), k = projected(1, key, k_proj_weight),
               v = projected(2, value, v_proj_weight);
  Tensor out;
  if (o.is_causal && mask.defined()) {
    const Tensor below = Tensor::ones({q.shape(2), k.shape(2)}, DType::Bool).tril();
    mask = mask.dtype() == DType::Bool
               ? mask & below
               : below.where(mask, -std::numeric_limits<double>::infinity());
    out = q.scaled_dot_product_attention(k, v, mask, {.dropout_p = dropout});
  } else {
    out = q.scaled_dot_product_attention(k, v, mask,
                                         {.dropout_p = dropout, .is_causal = o.is_causal});
  }
  return out_proj(out.transpose(1, 2).reshape({batch, -1, width}));
}

}  // namespace tinyshard::nn
