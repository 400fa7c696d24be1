// A Llama whose tensors have the names of Hugging Face's files: RMSNorm, rotary embedding, grouped
// queries, SwiGLU. `next` makes the scores behind one token with a key/value cache, `begin` those
// behind a text that the cache begins with, `all` those behind all tokens at once, of one text or of
// a batch, without it. docs/decode.md explains the step.
//
// Weights are kept in default_float(), and what is computed from them has that type, or another that
// the model is given: a training with weights in f32 may compute in bf16.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <fmt/format.h>

namespace llama {

using namespace tinyshard;

// Sine and cosine of a row for each position: [positions, head / 2], f32.
struct Turns {
  Tensor cosine, sine;
};
// By how much a pair of halves turns from one position to the next. Of a model that was trained on
// short texts first, a linear scaling slows all pairs, that of Llama 3 those that turn less than
// slow_turns times in such a text, and those up to fast_turns in part.
inline double rate(const ModelConfig& c, int64_t pair) {
  const int64_t pairs = c.head_width / 2;
  const double whole = std::pow(c.rope_base, -double(pair) / double(pairs));
  if (!c.rope_scaling) return whole;
  const RopeScaling& s = *c.rope_scaling;
  if (s.kind == "linear") return whole / s.factor;
  const double turns = double(s.context) * whole / (2 * std::numbers::pi);
  const double fast = std::clamp((turns - s.slow_turns) / (s.fast_turns - s.slow_turns), 0.0, 1.0);
  return whole * (fast + (1 - fast) / s.factor);
}
// `slower`: divisors of the rates, as GGUF files have them for the scaling of Llama 3.
inline Turns turns(const ModelConfig& c, int64_t positions, const Mesh& mesh,
                   const std::vector<double>& slower = {}) {
  std::vector<float> rates;
  for (int64_t pair = 0; pair < c.head_width / 2; ++pair)
    rates.push_back(float(rate(c, pair) / (slower.empty() ? 1 : slower[size_t(pair)])));
  Tensor angle = Tensor::arange(positions).cast(DType::F32).unsqueeze(1) * Tensor(rates);
  return {angle.cos().shard(mesh).realize(), angle.sin().shard(mesh).realize()};
}
// Pairs of halves of x, [..., heads, tokens, head], turn with the position.
inline Tensor turned(const Tensor& x, const Turns& t) {
  const int64_t half = x.shape(-1) / 2;
  Tensor a = x[{kEllipsis, Slice(0, half)}], b = x[{kEllipsis, Slice(half, 2 * half)}];
  return cat({a * t.cosine - b * t.sine, b * t.cosine + a * t.sine}, -1).cast(x.dtype());
}

struct Attention {
  explicit Attention(const ModelConfig& c)
      : q_proj(c.width, c.heads * c.head_width, {.bias = false}),
        k_proj(c.width, c.kv_heads * c.head_width, {.bias = false}),
        v_proj(c.width, c.kv_heads * c.head_width, {.bias = false}),
        o_proj(c.heads * c.head_width, c.width, {.bias = false}),
        head(c.head_width) {}

  nn::Linear q_proj, k_proj, v_proj, o_proj;
  int64_t head;
  TS_FIELDS(q_proj, k_proj, v_proj, o_proj)

  // [..., tokens, heads * head] as [..., heads, tokens, head].
  Tensor by_head(const Tensor& x) const { return x.unflatten(-1, {-1, head}).transpose(-3, -2); }
  Tensor over(const Tensor& query, const Tensor& keys, const Tensor& values, bool causal) const {
    AttentionOptions options;
    options.enable_gqa = true;
    options.is_causal = causal;
    Tensor y = query.scaled_dot_product_attention(keys, values, {}, options);
    return o_proj(y.transpose(-3, -2).flatten(-2));
  }
};

struct Mlp {
  explicit Mlp(const ModelConfig& c)
      : gate_proj(c.width, c.hidden, {.bias = false}),
        up_proj(c.width, c.hidden, {.bias = false}),
        down_proj(c.hidden, c.width, {.bias = false}) {}

  nn::Linear gate_proj, up_proj, down_proj;
  TS_FIELDS(gate_proj, up_proj, down_proj)

  Tensor operator()(const Tensor& x) const { return down_proj(gate_proj(x).silu() * up_proj(x)); }
};

// Keys and values of the positions so far, [kv_heads, positions, head].
struct Cache {
  Tensor keys, values;
};

struct Block {
  explicit Block(const ModelConfig& c)
      : self_attn(c),
        mlp(c),
        input_layernorm(c.width, {.eps = c.norm_epsilon}),
        post_attention_layernorm(c.width, {.eps = c.norm_epsilon}) {}

  Attention self_attn;
  Mlp mlp;
  nn::RMSNorm input_layernorm, post_attention_layernorm;
  TS_FIELDS(self_attn, mlp, input_layernorm, post_attention_layernorm)

  // The token at position p, x [1, width]: its row goes into the cache, of which p + 1 are read.
  Tensor next(const Tensor& x, const Variable& p, const Turns& at, const Cache& cache) const {
    const Attention& a = self_attn;
    Tensor n = input_layernorm(x);
    cache.keys[{Slice(), p}] = turned(a.by_head(a.k_proj(n)), at).squeeze(1);
    cache.values[{Slice(), p}] = a.by_head(a.v_proj(n)).squeeze(1);
    Tensor keys = cache.keys[{Slice(), Slice(0, p + 1)}],
           values = cache.values[{Slice(), Slice(0, p + 1)}];
    Tensor h = x + a.over(turned(a.by_head(a.q_proj(n)), at), keys, values, false);
    return h + mlp(post_attention_layernorm(h));
  }
  // All tokens, x [..., tokens, width]. With a cache, x [tokens, width], theirs are its first rows.
  Tensor all(const Tensor& x, const Turns& at, const Cache* cache = nullptr) const {
    const Attention& a = self_attn;
    Tensor n = input_layernorm(x);
    Tensor keys = turned(a.by_head(a.k_proj(n)), at), values = a.by_head(a.v_proj(n));
    if (cache) {
      const Slice rows(0, x.shape(0));
      cache->keys[{Slice(), rows}] = keys;
      cache->values[{Slice(), rows}] = values;
    }
    Tensor h = x + a.over(turned(a.by_head(a.q_proj(n)), at), keys, values, true);
    return h + mlp(post_attention_layernorm(h));
  }
};

struct Body {
  explicit Body(const ModelConfig& c)
      : embed_tokens(c.vocabulary, c.width),
        layers(nn::layers<Block>(c.layers, c)),
        norm(c.width, {.eps = c.norm_epsilon}) {}

  nn::Embedding embed_tokens;
  std::vector<Block> layers;
  nn::RMSNorm norm;
  TS_FIELDS(embed_tokens, layers, norm)
};

struct Model {
  explicit Model(const ModelConfig& c, std::optional<DType> computed_in = {})
      : model(c), compute(computed_in) {
    if (!c.tied) lm_head.emplace(c.width, c.vocabulary, nn::BiasOption{.bias = false});
  }

  Body model;
  std::optional<nn::Linear> lm_head;  // none: the table of the embedding
  std::optional<DType> compute;
  TS_FIELDS(model, lm_head)

  // The scores of the words behind one token [1] at position p: [1, vocabulary].
  Tensor next(const Tensor& token, const Variable& p, const Turns& t,
              const std::vector<Cache>& caches) const {
    const Turns at{t.cosine[p], t.sine[p]};
    Tensor x = embedded(token);
    for (size_t i = 0; i < caches.size(); ++i) x = model.layers[i].next(x, p, at, caches[i]);
    return scores(x);
  }
  // The same behind the last one of tokens [n] at positions 0 to n - 1, which go into the caches.
  Tensor begin(const Tensor& tokens, const Turns& t, const std::vector<Cache>& caches) const {
    const int64_t n = tokens.shape(0);
    const Turns at{t.cosine[Slice(0, n)], t.sine[Slice(0, n)]};
    Tensor x = embedded(tokens);
    for (size_t i = 0; i < caches.size(); ++i) x = model.layers[i].all(x, at, &caches[i]);
    return scores(x[{Slice(n - 1, n)}]);
  }
  // The same of all tokens [..., n]: [..., n, vocabulary].
  Tensor all(const Tensor& tokens, const Turns& t) const {
    const Slice so_far(0, tokens.shape(-1));
    const Turns at{t.cosine[so_far], t.sine[so_far]};
    Tensor x = embedded(tokens);
    for (const Block& block : model.layers) x = block.all(x, at);
    return scores(x);
  }

  // The parts of that before and behind the blocks.
  Tensor embedded(const Tensor& tokens) const {
    Tensor x = model.embed_tokens(tokens);
    return compute ? x.cast(*compute) : x;
  }
  Tensor scores(const Tensor& x) const {
    Tensor n = model.norm(x);
    Tensor y = lm_head ? (*lm_head)(n) : n.linear(model.embed_tokens.weight.cast(n.dtype()).T());
    return y.cast(promote(y.dtype(), DType::F32));
  }
};

// UserError for what config.json asks for and this model does not compute.
inline void check_config(const ModelConfig& c, const std::string& folder) {
  auto refuse = [&](const std::string& what) {
    throw UserError(fmt::format("{}: {}", folder, what));
  };
  if (c.family != "llama") refuse(fmt::format("model_type is \"{}\", not \"llama\"", c.family));
  if (!c.by_layer.empty() || !c.layer_ropes.empty())
    refuse("its layers differ in their sizes or in how they turn: a Llama's are equal");
  if (c.layers < 1 || c.width < 1 || c.heads < 1 || c.kv_heads < 1 || c.vocabulary < 1)
    refuse(fmt::format("{} layers, {} wide, {} heads, {} of keys, {} words: all must be given",
                       c.layers, c.width, c.heads, c.kv_heads, c.vocabulary));
  if (c.heads % c.kv_heads != 0)
    refuse(fmt::format("{} heads do not share {} heads of keys", c.heads, c.kv_heads));
  if (c.head_width < 2 || c.head_width % 2 != 0)
    refuse(fmt::format("a head of {} has no halves to turn", c.head_width));
  if (!c.activation.empty() && c.activation != "silu")
    refuse(fmt::format("hidden_act is \"{}\", not \"silu\"", c.activation));
  if (c.rope_scaling && c.rope_scaling->kind != "linear" && c.rope_scaling->kind != "llama3")
    refuse(fmt::format("rope_scaling is of type \"{}\": linear and llama3 are known here",
                       c.rope_scaling->kind));
}

// UserError where the files have no tensor of the last layer, before a model of a million layers is
// made because a config.json says so.
inline void check_layers(const ModelConfig& c, const nn::StateDict& tensors,
                         const std::string& folder) {
  const std::string last = fmt::format("model.layers.{}.", c.layers - 1);
  const auto found = tensors.lower_bound(last);
  if (found == tensors.end() || !found->first.starts_with(last))
    throw UserError(fmt::format("{}: it is said to have {} layers, and has no tensor {}*", folder,
                                c.layers, last));
}

// Whole heads on each device of the axis; sums meet twice a block.
inline void divide_layers(const Model& model, const Mesh& mesh, const std::string& axis) {
  std::vector<nn::TensorParallelRule> rules = {
      {"model.layers.*.q_proj|k_proj|v_proj|gate_proj|up_proj", Column},
      {"model.layers.*.o_proj|down_proj", Row},
      {"model.embed_tokens", Vocabulary}};
  if (model.lm_head) rules.push_back({"lm_head", Vocabulary});
  nn::tensor_parallel(model, mesh, axis, rules);
}
inline void place(const Model& model, const ModelConfig& c, const Mesh& mesh,
                  const std::string& axis) {
  if (c.kv_heads % mesh.size() != 0)
    throw UserError(
        fmt::format("{} heads of keys do not divide among {} devices", c.kv_heads, mesh.size()));
  divide_layers(model, mesh, axis);
}

inline std::vector<Cache> caches(const ModelConfig& c, int64_t positions, const Mesh& mesh,
                                 const std::string& axis) {
  auto empty = [&] {
    return Tensor::zeros({c.kv_heads, positions, c.head_width})
        .shard(mesh, {{axis, Shard(0)}})
        .clone()
        .realize();
  };
  std::vector<Cache> list;
  for (int64_t i = 0; i < c.layers; ++i) list.push_back({empty(), empty()});
  return list;
}

}  // namespace llama
