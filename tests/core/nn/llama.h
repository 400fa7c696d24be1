// A Llama of any size: RMSNorm, rotary embedding, grouped queries, SwiGLU.
#pragma once
#include <cmath>
#include <cstdint>
#include <tinyshard/tinyshard.h>
#include <vector>

namespace tinyshard::test {

struct LlamaConfig {
  int64_t layers = 2, width = 16, heads = 4, groups = 2, hidden = 24, vocabulary = 20;
  DType type = DType::F32;
  bool checkpoint = false;
  int64_t head() const { return width / heads; }
};

inline Tensor matrix(int64_t out, int64_t in, DType type) {
  return Tensor::normal({out, in}, 0, 0.3).cast(type).is_param_();
}

struct LlamaAttention {
  explicit LlamaAttention(const LlamaConfig& c)
      : config(c),
        wq(matrix(c.width, c.width, c.type)),
        wk(matrix(c.groups * c.head(), c.width, c.type)),
        wv(matrix(c.groups * c.head(), c.width, c.type)),
        wo(matrix(c.width, c.width, c.type)) {}

  LlamaConfig config;
  Tensor wq, wk, wv, wo;
  TS_FIELDS(wq, wk, wv, wo)

  // Pairs of halves of a head turn with the position.
  Tensor turned(const Tensor& x) const {
    const int64_t half = config.head() / 2, length = x.shape(-2);
    Tensor frequency =
        (Tensor::arange(half).cast(DType::F32) * (-std::log(1e4) / double(half))).exp();
    Tensor angle = Tensor::arange(length).cast(DType::F32).unsqueeze(1) * frequency;
    Tensor cos = angle.cos().cast(x.dtype()), sin = angle.sin().cast(x.dtype());
    std::vector<Tensor> part = x.chunk(2, -1);
    return (part[0] * cos - part[1] * sin).cat({part[1] * cos + part[0] * sin}, -1);
  }

  Tensor operator()(const Tensor& x) const {
    auto heads = [&](const Tensor& w) {
      return x.matmul(w.T()).unflatten(-1, {-1, config.head()}).transpose(1, 2);
    };
    Tensor y = turned(heads(wq)).scaled_dot_product_attention(
        turned(heads(wk)), heads(wv), {}, {.is_causal = true, .enable_gqa = true});
    return y.transpose(1, 2).flatten(2).matmul(wo.T());
  }
};

struct LlamaBlock {
  explicit LlamaBlock(const LlamaConfig& c)
      : attention_norm(c.width),
        attention(c),
        norm(c.width),
        w1(matrix(c.hidden, c.width, c.type)),
        w2(matrix(c.width, c.hidden, c.type)),
        w3(matrix(c.hidden, c.width, c.type)) {}

  nn::RMSNorm attention_norm;
  LlamaAttention attention;
  nn::RMSNorm norm;
  Tensor w1, w2, w3;
  TS_FIELDS(attention_norm, attention, norm, w1, w2, w3)

  Tensor operator()(const Tensor& x) const {
    Tensor h = x + attention(attention_norm(x));
    Tensor y = norm(h);
    return h + (y.matmul(w1.T()).silu() * y.matmul(w3.T())).matmul(w2.T());
  }
};

struct Llama {
  explicit Llama(const LlamaConfig& c)
      : config(c),
        embed(matrix(c.vocabulary, c.width, c.type)),
        h(nn::layers<LlamaBlock>(c.layers, c)),
        norm(c.width),
        head(matrix(c.vocabulary, c.width, c.type)) {}

  LlamaConfig config;
  Tensor embed;
  std::vector<LlamaBlock> h;
  nn::RMSNorm norm;
  Tensor head;
  TS_FIELDS(embed, h, norm, head)

  Tensor loss(const Tensor& tokens, const Tensor& next) const {
    Tensor x = embed.embedding(tokens);
    for (const LlamaBlock& block : h)
      x = config.checkpoint ? nn::checkpoint_activations(block, x) : block(x);
    return norm(x).matmul(head.T()).sparse_categorical_crossentropy(next);
  }
};

}  // namespace tinyshard::test
