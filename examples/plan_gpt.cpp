// Plans a data-parallel training step of a GPT for any number of devices, on a machine that has
// none of them: NULL devices take no memory and run nothing.
//
//   ./plan_gpt --devices 1024                 GPT-2 124M
//   ./plan_gpt --devices 1024 --shard-optimizer --items
#include <chrono>
#include <iostream>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

using namespace tinyshard;

struct Config {
  int64_t layers = 12, width = 768, heads = 12, context = 1024, vocabulary = 50257;
};

struct Block {
  explicit Block(const Config& c)
      : heads(c.heads),
        norm1(c.width),
        norm2(c.width),
        qkv(c.width, 3 * c.width),
        out(c.width, c.width),
        up(c.width, 4 * c.width),
        down(4 * c.width, c.width) {}

  int64_t heads;
  nn::LayerNorm norm1, norm2;
  nn::Linear qkv, out, up, down;
  TS_FIELDS(norm1, norm2, qkv, out, up, down)

  Tensor operator()(const Tensor& x) const {
    auto by_head = [&](const Tensor& t) { return t.unflatten(-1, {heads, -1}).transpose(1, 2); };
    std::vector<Tensor> part = qkv(norm1(x)).chunk(3, -1);
    Tensor y = by_head(part[0]).scaled_dot_product_attention(by_head(part[1]), by_head(part[2]), {},
                                                             {.is_causal = true});
    Tensor h = x + out(y.transpose(1, 2).flatten(2));
    return h + down(up(norm2(h)).gelu());
  }
};

struct Gpt {
  explicit Gpt(const Config& c)
      : tokens(c.vocabulary, c.width),
        positions(c.context, c.width),
        blocks(nn::layers<Block>(c.layers, c)),
        norm(c.width) {}

  nn::Embedding tokens, positions;
  std::vector<Block> blocks;
  nn::LayerNorm norm;
  TS_FIELDS(tokens, positions, blocks, norm)

  Tensor operator()(const Tensor& text) const {
    Tensor x = tokens(text) + positions.weight;
    for (const Block& block : blocks) x = block(x);
    return norm(x).matmul(tokens.weight.transpose(0, 1));  // the head shares the tokens' weights
  }
};

int main(int argc, char** argv) {
  try {
    Config config;
    int devices = 1024;
    int64_t batch = 4;
    bool shard_optimizer = false, items = false;
    CLI::App app(
        "Plans a data-parallel training step of a GPT: kernels, collectives, bytes and peak "
        "memory.");
    app.option_defaults()->always_capture_default();
    app.add_option("--devices", devices, "Devices of the mesh")->check(CLI::PositiveNumber);
    app.add_option("--batch", batch, "Sequences of each device")->check(CLI::PositiveNumber);
    app.add_option("--layers", config.layers, "Transformer blocks")->check(CLI::PositiveNumber);
    app.add_option("--width", config.width, "Size of a token's vector")->check(CLI::PositiveNumber);
    app.add_option("--heads", config.heads, "Attention heads")->check(CLI::PositiveNumber);
    app.add_option("--context", config.context, "Tokens of a sequence")->check(CLI::PositiveNumber);
    app.add_option("--vocabulary", config.vocabulary, "Different tokens")
        ->check(CLI::PositiveNumber);
    app.add_flag("--shard-optimizer", shard_optimizer,
                 "Each device keeps its part of the optimizer state");
    app.add_flag("--items", items, "Print every item of the schedule");
    CLI11_PARSE(app, argc, argv);
    Runtime::configure({.devices = {"NULL"}, .devices_per_rank = devices});
    Mesh mesh = Mesh::world({{"data", -1}});
    auto start = std::chrono::steady_clock::now();
    Gpt model(config);
    nn::data_parallel(model, mesh, "data");
    nn::optim::AdamW optim(nn::parameters(model),
                           {.lr = 3e-4, .shard_axis = shard_optimizer ? "data" : ""});
    Jit step = [&](Tensor text, Tensor labels) {
      TrainingMode on;
      optim.zero_grad();
      Tensor loss = model(text).sparse_categorical_crossentropy(labels).backward();
      optim.step();
      return loss;
    };
    Ints shape{batch * devices, config.context};
    auto tokens = [&] {
      return Tensor::empty(shape, DType::I32).shard(mesh, {{"data", Shard(0)}});
    };
    step(tokens(), tokens());
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    int64_t parameters = 0;
    for (const Tensor& p : optim.params()) parameters += p.numel();
    std::cout << fmt::format("{} parameters, {} sequences of {} tokens, planned in {:.2f} s\n",
                             parameters, shape[0], config.context, seconds)
              << explain(step.schedule(), items);
  } catch (const std::exception& error) {
    std::cerr << "plan_gpt: " << error.what() << '\n';
    return 1;
  }
}
