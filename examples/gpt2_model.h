// GPT-2. The fields have the names of the published weights, so a state dict of the model is such a
// file: "wte.weight", "h.0.attn.c_attn.weight" (stored [in, out])...
//
// Weights are kept in default_float() and rounded to `compute` once a step; activations, logits and
// what flows back are of that type, sums inside normalisations, softmax and the loss are in f32.
#pragma once
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace gpt2 {

using namespace tinyshard;

struct Config {
  int64_t layers = 12, width = 768, heads = 12, context = 1024, vocabulary = 50257;
  DType compute = DType::BF16;
  bool checkpoint_activations = false;

  // Rows of the token table: padded, as matrix products like round numbers.
  int64_t rows() const { return (vocabulary + 127) / 128 * 128; }
};

// The published sizes: "124M", "350M", "774M", "1558M".
inline const std::vector<std::pair<std::string, Config>>& sizes() {
  static const std::vector<std::pair<std::string, Config>> kSizes = {
      {"124M", {.layers = 12, .width = 768, .heads = 12}},
      {"350M", {.layers = 24, .width = 1024, .heads = 16}},
      {"774M", {.layers = 36, .width = 1280, .heads = 20}},
      {"1558M", {.layers = 48, .width = 1600, .heads = 25}},
  };
  return kSizes;
}

inline Tensor normal(const Ints& shape, double std) {
  return Tensor::normal(shape, 0, std).is_param_();
}

struct Projection {
  Projection(int64_t in, int64_t out, double std)
      : weight(normal({in, out}, std)), bias(Tensor::zeros(out).is_param_()) {}

  Tensor weight, bias;  // [in, out]
  TS_FIELDS(weight, bias)

  Tensor operator()(const Tensor& x) const {
    return x.linear(weight.cast(x.dtype()), bias.cast(x.dtype()));
  }
};

constexpr double kStd = 0.02;

struct Attention {
  Attention(const Config& c, double std_out)
      : heads(c.heads), c_attn(c.width, 3 * c.width, kStd), c_proj(c.width, c.width, std_out) {}

  int64_t heads;
  Projection c_attn, c_proj;
  TS_FIELDS(c_attn, c_proj)

  Tensor operator()(const Tensor& x) const {
    auto by_head = [&](const Tensor& t) { return t.unflatten(-1, {heads, -1}).transpose(1, 2); };
    std::vector<Tensor> part = c_attn(x).chunk(3, -1);
    Tensor y = by_head(part[0]).scaled_dot_product_attention(by_head(part[1]), by_head(part[2]), {},
                                                             {.is_causal = true});
    return c_proj(y.transpose(1, 2).flatten(2));
  }
};

struct Mlp {
  Mlp(const Config& c, double std_out)
      : c_fc(c.width, 4 * c.width, kStd), c_proj(4 * c.width, c.width, std_out) {}

  Projection c_fc, c_proj;
  TS_FIELDS(c_fc, c_proj)

  Tensor operator()(const Tensor& x) const { return c_proj(c_fc(x).gelu()); }
};

struct Block {
  // Scales down the terms that are added to the stream 2 * layers times: its variance stays.
  explicit Block(const Config& c)
      : ln_1(c.width),
        ln_2(c.width),
        attn(c, kStd / std::sqrt(2.0 * double(c.layers))),
        mlp(c, kStd / std::sqrt(2.0 * double(c.layers))) {}

  nn::LayerNorm ln_1, ln_2;
  Attention attn;
  Mlp mlp;
  TS_FIELDS(ln_1, attn, ln_2, mlp)

  Tensor operator()(const Tensor& x) const {
    Tensor h = x + attn(ln_1(x));
    return h + mlp(ln_2(h));
  }
};

struct Table {
  Table(int64_t rows, int64_t width) : weight(normal({rows, width}, kStd)) {}
  Tensor weight;
  TS_FIELDS(weight)
};

struct Model {
  explicit Model(const Config& c)
      : config(c),
        wte(c.rows(), c.width),
        wpe(c.context, c.width),
        h(nn::layers<Block>(c.layers, c)),
        ln_f(c.width) {}

  Config config;
  Table wte, wpe;
  std::vector<Block> h;
  nn::LayerNorm ln_f;
  TS_FIELDS(wte, wpe, h, ln_f)

  // tokens is [batch, time]; the result scores the token that follows each: [batch, time, rows].
  Tensor operator()(const Tensor& tokens) const {
    Tensor x = embedded(tokens);
    for (const Block& block : h) x = through(block, x);
    return scores(x);
  }

  // The parts of that, one after the other.
  Tensor embedded(const Tensor& tokens) const {
    Tensor places = wpe.weight[Slice(0, tokens.shape(-1))];
    return (wte.weight.embedding(tokens) + places).cast(config.compute);
  }
  Tensor through(const Block& block, const Tensor& x) const {
    return config.checkpoint_activations ? nn::checkpoint_activations(block, x) : block(x);
  }
  Tensor scores(const Tensor& x) const {
    return ln_f(x).matmul(wte.weight.cast(config.compute).T());  // the head shares the table
  }

  // The mean over [batch, time + 1] tokens.
  Tensor loss(const Tensor& tokens) const {
    return loss_of((*this)(without_last(tokens)), without_first(tokens));
  }
  static Tensor without_last(const Tensor& tokens) { return tokens[{kEllipsis, Slice({}, -1)}]; }
  static Tensor without_first(const Tensor& tokens) { return tokens[{kEllipsis, Slice(1, {})}]; }
  Tensor loss_of(const Tensor& all_scores, const Tensor& next) const {
    Tensor scores = all_scores.cast(promote(all_scores.dtype(), DType::F32));
    if (config.rows() > config.vocabulary) {
      Tensor is_token = Tensor::arange(config.rows()) < config.vocabulary;
      scores = is_token.where(scores, -std::numeric_limits<double>::infinity());
    }
    return scores.sparse_categorical_crossentropy(next);
  }
};

// --- published weights ---------------------------------------------------------------------------

constexpr const char* kTokenTable = "wte.weight";

// Reads a safetensors file with the published names, with or without "transformer." before them.
// UserError names what is missing, odd or of another shape.
inline void load_weights(const Model& model, const std::filesystem::path& path) {
  nn::StateDict weights;
  for (const auto& [published, tensor] : safe_load(path)) {
    std::string name = published;
    if (name.starts_with("transformer.")) name.erase(0, std::string("transformer.").size());
    // The causal mask, and the head that is the token table.
    bool derived = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
                   name == "lm_head.weight";
    if (derived) continue;
    if (!weights.emplace(name, tensor).second)
      throw UserError(fmt::format("{}: {} is there twice", path.string(), name));
  }
  const Config& c = model.config;
  auto table = weights.find(kTokenTable);
  if (table != weights.end() && table->second.shape() == Dims{c.vocabulary, c.width})
    table->second = table->second.pad({{0, c.rows() - c.vocabulary}, {0, 0}});
  try {
    nn::load_state_dict(model, weights);
  } catch (const UserError& e) {
    throw UserError(fmt::format("{}: {}", path.string(), e.what()));
  }
}

inline void save_weights(const Model& model, const std::filesystem::path& path) {
  nn::StateDict weights = nn::state_dict(model);
  weights.at(kTokenTable) = model.wte.weight[Slice(0, model.config.vocabulary)];
  safe_save(weights, path);
}

}  // namespace gpt2
