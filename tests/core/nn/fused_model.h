// Blocks whose attention has one weight for queries, keys and values, and whose feed-forward layer
// has one for gate and up: sliced in the ways that models slice them.
#pragma once
#include <cstdint>
#include <tinyshard/tinyshard.h>
#include <vector>

namespace tinyshard::test {

struct FusedConfig {
  int64_t layers = 2, width = 16, heads = 4, groups = 2, head = 4, hidden = 24;
  // How [q, k, v] is taken apart: 0: slices, 1: [heads of all three, head], 2: [3, heads, head],
  // where groups are as many as heads.
  int slicing = 0;
  bool checkpoint = false, bias = true;
  double dropout = 0;
  std::vector<int64_t> parts() const { return {heads, groups, groups}; }
};

struct FusedBlock {
  explicit FusedBlock(const FusedConfig& c)
      : config(c),
        norm_1(c.width),
        norm_2(c.width),
        qkv(c.width, (c.heads + 2 * c.groups) * c.head, {.bias = c.bias}),
        out(c.heads * c.head, c.width, {.bias = c.bias}),
        gate_up(c.width, 2 * c.hidden, {.bias = c.bias}),
        down(c.hidden, c.width, {.bias = c.bias}) {}

  FusedConfig config;
  nn::LayerNorm norm_1, norm_2;
  nn::Linear qkv, out, gate_up, down;
  TS_FIELDS(norm_1, norm_2, qkv, out, gate_up, down)

  Tensor attention(const Tensor& x) const {
    const int64_t head = config.head, q = config.heads, kv = config.groups;
    Tensor all = qkv(x);
    std::vector<Tensor> part;
    if (config.slicing == 0) {
      for (Tensor& t : all.split({q * head, kv * head, kv * head}, -1))
        part.push_back(t.unflatten(-1, {-1, head}).transpose(1, 2));
    } else if (config.slicing == 1) {
      Tensor heads = all.unflatten(-1, {-1, head}).transpose(1, 2);
      part = heads.split({q, kv, kv}, 1);
    } else {
      Tensor apart = all.unflatten(-1, {3, q, head}).permute({2, 0, 3, 1, 4});
      part = {apart[0], apart[1], apart[2]};
    }
    Tensor y = part[0].scaled_dot_product_attention(part[1], part[2], {},
                                                    {.is_causal = true, .enable_gqa = q != kv});
    return out(y.transpose(1, 2).flatten(2));
  }
  Tensor operator()(const Tensor& x) const {
    auto dropped = [&](const Tensor& t) {
      return config.dropout > 0 ? t.dropout(config.dropout) : t;
    };
    Tensor h = x + dropped(attention(norm_1(x)));
    std::vector<Tensor> part = gate_up(norm_2(h)).chunk(2, -1);
    return h + dropped(down(part[0].silu() * part[1]));
  }
};

struct FusedModel {
  explicit FusedModel(const FusedConfig& c) : config(c), h(nn::layers<FusedBlock>(c.layers, c)) {}

  FusedConfig config;
  std::vector<FusedBlock> h;
  TS_FIELDS(h)

  Tensor operator()(Tensor x) const {
    for (const FusedBlock& block : h)
      x = config.checkpoint ? nn::checkpoint_activations(block, x) : block(x);
    return x;
  }
};

inline void divide(const FusedModel& model, const Mesh& mesh, const std::string& axis) {
  nn::tensor_parallel(model, mesh, axis,
                      {{.names = "h.*.qkv", .split = Column, .parts = model.config.parts()},
                       {.names = "h.*.gate_up", .split = Column, .parts = {1, 1}},
                       {.names = "h.*.out|down", .split = Row}});
}

}  // namespace tinyshard::test
