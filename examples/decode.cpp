// Decodes with a key/value cache and one capture, for every length up to that of the cache:
//
//   ./decode                                   times at some positions
//   ./decode --tokens 200 --check              each token against a pass over all tokens so far
//
// The blocks are those of Llama with random weights: root mean squares, rotary positions, grouped
// queries, a gated layer. docs/decode.md explains the step.
#include <chrono>
#include <cmath>
#include <iostream>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/run_main.h"

using namespace tinyshard;

struct Config {
  int64_t layers = 4, width = 256, heads = 8, shared_heads = 2, words = 512, cache = 4096;
  int64_t head() const { return width / heads; }
};

// Rotates pairs of x [heads, tokens, head] by angles [tokens, head / 2].
Tensor rotated(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  const int64_t half = x.shape(-1) / 2;
  Tensor a = x[{kEllipsis, Slice(0, half)}], b = x[{kEllipsis, Slice(half, 2 * half)}];
  return cat({a * cosine - b * sine, b * cosine + a * sine}, -1);
}

struct Block {
  explicit Block(const Config& c)
      : c(c),
        q(weight(c.width, c.width)),
        k(weight(c.width, c.shared_heads * c.head())),
        v(weight(c.width, c.shared_heads * c.head())),
        out(weight(c.width, c.width)),
        gate(weight(c.width, 2 * c.width)),
        up(weight(c.width, 2 * c.width)),
        down(weight(2 * c.width, c.width)),
        keys(cache(c)),
        values(cache(c)) {}

  static Tensor weight(int64_t from, int64_t to) {
    return (Tensor::randn({from, to}) / std::sqrt(double(from))).realize();
  }
  static Tensor cache(const Config& c) {
    return Tensor::zeros({c.shared_heads, c.cache, c.head()}).clone().realize();
  }
  static Tensor norm(const Tensor& x) { return x * (x.square().mean(-1, true) + 1e-5).rsqrt(); }
  Tensor by_head(const Tensor& x) const {
    return x.reshape({-1, x.shape(-1) / c.head(), c.head()}).transpose(0, 1);
  }

  // x [tokens, width] with the keys and values [shared heads, tokens so far, head] that it may see.
  Tensor attend(const Tensor& x, const Tensor& query, const Tensor& seen_keys,
                const Tensor& seen_values, bool is_causal) const {
    AttentionOptions options;
    options.enable_gqa = true;
    options.is_causal = is_causal;
    Tensor y = query.scaled_dot_product_attention(seen_keys, seen_values, {}, options);
    Tensor z = x + y.transpose(0, 1).reshape({-1, c.width}).matmul(out), n = norm(z);
    return z + (n.matmul(gate).silu() * n.matmul(up)).matmul(down);
  }

  // Decodes a token at position p: its row goes into the caches, of which p + 1 rows are read.
  Tensor next(const Tensor& x, const Variable& p, const Tensor& cosine, const Tensor& sine) const {
    Tensor n = norm(x);
    keys[{Slice(), p}] = rotated(by_head(n.matmul(k)), cosine, sine).squeeze(1);
    values[{Slice(), p}] = by_head(n.matmul(v)).squeeze(1);
    return attend(x, rotated(by_head(n.matmul(q)), cosine, sine), keys[{Slice(), Slice(0, p + 1)}],
                  values[{Slice(), Slice(0, p + 1)}], false);
  }

  // All tokens at once.
  Tensor all(const Tensor& x, const Tensor& cosine, const Tensor& sine) const {
    Tensor n = norm(x);
    return attend(x, rotated(by_head(n.matmul(q)), cosine, sine),
                  rotated(by_head(n.matmul(k)), cosine, sine), by_head(n.matmul(v)), true);
  }

  Config c;
  Tensor q, k, v, out, gate, up, down, keys, values;
};

struct Model {
  explicit Model(const Config& c)
      : table(Block::weight(c.width, c.words).T().contiguous().realize()) {
    for (int64_t i = 0; i < c.layers; ++i) blocks.emplace_back(c);
    Tensor rate =
        (Tensor::arange(c.head() / 2).cast(DType::F32) * (-std::log(1e4) * 2 / double(c.head())))
            .exp();
    Tensor angle = Tensor::arange(c.cache).cast(DType::F32).unsqueeze(1) * rate;
    cosine = angle.cos().realize();
    sine = angle.sin().realize();
  }

  Tensor next(const Tensor& token, const Variable& p) const {
    Tensor x = table.embedding(token), c = cosine[p], s = sine[p];
    for (const Block& block : blocks) x = block.next(x, p, c, s);
    return word(x);
  }
  Tensor all(const Tensor& tokens) const {
    const Slice so_far(0, tokens.shape(0));
    Tensor x = table.embedding(tokens), c = cosine[so_far], s = sine[so_far];
    for (const Block& block : blocks) x = block.all(x, c, s);
    return word(x);
  }
  Tensor word(const Tensor& x) const {
    return Block::norm(x).matmul(table.T()).argmax(-1).cast(DType::I32);
  }

  Tensor table, cosine, sine;
  std::vector<Block> blocks;
};

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  CLI::App app("decodes with a key/value cache and one capture");
  Config config;
  int64_t tokens = 0;
  bool check = false;
  app.add_option("--layers", config.layers);
  app.add_option("--width", config.width);
  app.add_option("--cache", config.cache, "positions of the cache");
  app.add_option("--tokens", tokens, "how many; 0: as many as the cache holds");
  app.add_flag("--check", check, "compares each token with a pass over all tokens so far");
  return training::run_main("decode", app, argc, argv, [&] {
    if (tokens <= 0) tokens = config.cache;
    Tensor::manual_seed(1);
    const Model model(config);
    Variable pos("pos", 0, config.cache - 1);
    Jit step = [&](Tensor token, Variable p) { return model.next(token, p); };

    std::vector<int32_t> made{7};
    auto add = [&](const HostCopy& read) {
      const auto position = made.size() - 1;
      const auto now = read.item<int32_t>();
      const int32_t expected = check ? model.all(Tensor(made)).to_vector<int32_t>().back() : now;
      if (now != expected)
        throw UserError(fmt::format("position {}: {} is not {}", position, now, expected));
      made.push_back(now);
    };
    Tensor token({7});
    HostCopy last;
    auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < tokens; ++i) {
      token = step(token, pos.bind(i));
      const HostCopy next = token.copy_to_host();
      if (i > 0) add(last);  // which the host need not wait for: the step for the next one runs
      last = next;
      constexpr int64_t kTimed = 32;  // tokens up to the positions that are told
      for (int64_t at : {10, 100, 1000, 2000, 4000}) {
        if (i == at) begin = std::chrono::steady_clock::now();
        if (i != at + kTimed || check) continue;
        const std::chrono::duration<double, std::milli> took =
            std::chrono::steady_clock::now() - begin;
        std::cout << fmt::format("position {:5}: {:.3f} ms per token\n", at, took.count() / kTimed);
      }
    }
    add(last);
    std::cout << fmt::format("{} tokens{}\n", tokens,
                             check ? ", each as a pass over all makes it" : "");
  });
}
