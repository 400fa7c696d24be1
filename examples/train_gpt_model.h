// A GPT over bytes: the model that examples/train_gpt.cpp trains.
#pragma once
#include <cstdint>
#include <tinyshard/tinyshard.h>
#include <vector>

namespace gpt {

using namespace tinyshard;

constexpr int64_t kBytes = 256;

struct Config {
  int64_t layers = 4, width = 128, heads = 4, context = 128;
};

struct Attention {
  explicit Attention(const Config& c)
      : heads(c.heads), qkv(c.width, 3 * c.width), out(c.width, c.width) {}

  int64_t heads;
  nn::Linear qkv, out;
  TS_FIELDS(qkv, out)

  Tensor operator()(const Tensor& x) const {
    auto by_head = [&](const Tensor& t) { return t.unflatten(-1, {heads, -1}).transpose(1, 2); };
    std::vector<Tensor> part = qkv(x).chunk(3, -1);
    Tensor y = by_head(part[0]).scaled_dot_product_attention(by_head(part[1]), by_head(part[2]), {},
                                                             {.is_causal = true});
    return out(y.transpose(1, 2).flatten(2));
  }
};

struct Block {
  explicit Block(const Config& c)
      : norm1(c.width),
        norm2(c.width),
        attention(c),
        up(c.width, 4 * c.width),
        down(4 * c.width, c.width) {}

  nn::LayerNorm norm1, norm2;
  Attention attention;
  nn::Linear up, down;
  TS_FIELDS(norm1, norm2, attention, up, down)

  Tensor operator()(const Tensor& x) const {
    Tensor h = x + attention(norm1(x));
    return h + down(up(norm2(h)).gelu());
  }
};

struct Model {
  explicit Model(const Config& c)
      : bytes(kBytes, c.width),
        positions(c.context, c.width),
        blocks(nn::layers<Block>(c.layers, c)),
        norm(c.width),
        head(c.width, kBytes, {.bias = false}) {}

  nn::Embedding bytes, positions;
  std::vector<Block> blocks;
  nn::LayerNorm norm;
  nn::Linear head;
  TS_FIELDS(bytes, positions, blocks, norm, head)

  // text is [batch, context]; the result scores the byte that follows each: [batch, context, 256].
  Tensor operator()(const Tensor& text) const {
    Tensor x = bytes(text) + positions.weight;
    for (const Block& block : blocks) x = block(x);
    return head(norm(x));
  }

  // text is [batch, context + 1].
  Tensor loss(const Tensor& text) const {
    Tensor scores = (*this)(text[{kEllipsis, Slice({}, -1)}]);
    return scores.cast(promote(scores.dtype(), DType::F32))
        .sparse_categorical_crossentropy(text[{kEllipsis, Slice(1, {})}]);
  }
};

}  // namespace gpt
