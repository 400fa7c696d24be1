// Trains a Llama from random weights: the flags become a config, a model and a mesh, and a step is
// captured at its first call. With --plan the devices are NULL ones, which plan and compute nothing: what a
// step would take on any number of devices is printed instead. Batches of the next step are drawn
// while the devices work on this one; what is random follows from the seed and the number of the step,
// so that a run that goes on from a checkpoint sees the batches that it would have seen.
#include "examples/llama_train.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "examples/llama_save.h"
#include "examples/tokens.h"
#include "examples/training.h"
#include "examples/training_step.h"

namespace llama {

namespace {

// As large models have it: two thirds of four times the width, rounded up to a multiple of 32.
int64_t usual_hidden(int64_t width) { return (8 * width / 3 + 31) / 32 * 32; }

ModelConfig config_of(const TrainFlags& f, int64_t vocabulary) {
  training::check_heads(f.width, f.heads);
  ModelConfig c;
  c.family = "llama";
  c.layers = f.layers;
  c.width = f.width;
  c.heads = f.heads;
  c.kv_heads = f.kv_heads;
  c.head_width = f.width / f.heads;
  c.hidden = f.hidden > 0 ? f.hidden : usual_hidden(f.width);
  c.vocabulary = vocabulary;
  c.context = f.context;
  c.tied = f.tied;
  check_config(c, "llama train");
  return c;
}

// Settings that a run must have in common with the checkpoint that it goes on from.
training::Settings settings(const TrainFlags& f, const ModelConfig& c) {
  return {{"layers", std::to_string(c.layers)}, {"width", std::to_string(c.width)},
          {"heads", std::to_string(c.heads)},   {"kv-heads", std::to_string(c.kv_heads)},
          {"hidden", std::to_string(c.hidden)}, {"context", std::to_string(c.context)},
          {"batch", std::to_string(f.batch)},   {"accumulate", std::to_string(f.accumulate)},
          {"seed", std::to_string(f.seed)},     {"dtype", f.dtype},
          {"tied", c.tied ? "true" : "false"}};
}

std::string tokens_of(const TrainFlags& f) {
  return f.tokens.empty() ? io::default_corpus().string() : f.tokens;
}

}  // namespace

void train(const TrainFlags& f) {
  training::DeviceFlags where = f.where;
  if (f.plan) {
    where.devices_per_rank = std::max(1, where.devices_per_rank);
    const bool planned = !where.devices.empty() && where.devices[0].starts_with("NULL");
    if (!planned) where.devices = {"NULL"};
  }
  Runtime::configure({.devices = where.devices, .devices_per_rank = where.devices_per_rank});
  const Division& division = f.division;
  const Mesh mesh = training::mesh_of(division);
  training::check_batch(f.batch, mesh, division);
  const DType compute = dtype_from_name(f.dtype);
  set_default_float(promote(compute, DType::F32));
  const training::Tokens tokens(f.plan ? "random" : tokens_of(f), f.vocabulary);
  const ModelConfig config = config_of(f, tokens.vocabulary());
  const int64_t length = config.context + 1;
  auto batches_of = [&](int64_t step) {
    std::vector<Tensor> batches;
    for (int64_t i = 0; i < f.accumulate; ++i)
      batches.push_back(tokens.draw(false, f.batch, length, f.seed, step, i * f.batch));
    return batches;
  };

  Tensor::manual_seed(f.seed);
  const Model model(config, compute);
  begin(model, config);
  const Training training(model, config, mesh, division);
  training::Optimizer optim(nn::parameters(model), f.optimizer);
  training::Step step([&](const Tensor& batch) { return training.backward(batch); }, optim, mesh,
                      f.accumulate, training.staged());

  const int64_t tokens_a_step = f.accumulate * f.batch * config.context;
  int64_t parameters = 0;
  for (const Tensor& p : optim.params()) parameters += p.numel();
  auto introduce = [&](std::ostream& out) {
    out << fmt::format("devices     {}, {}\n", training::device_names(mesh), mesh.to_string())
        << fmt::format(
               "model       {} layers, {} wide, {} hidden, {} heads on {} of keys, "
               "context {}: {} parameters, {}\n",
               config.layers, config.width, config.hidden, config.heads, config.kv_heads,
               config.context, parameters, f.dtype)
        << fmt::format("tokens      {}\n", tokens.describe())
        << fmt::format("step        {} x {} sequences, {} tokens\n", f.accumulate, f.batch,
                       tokens_a_step);
  };
  if (f.plan) {
    introduce(std::cout);
    std::cout << step.explain(batches_of(0)[0], f.items);
    return;
  }

  nn::StateDict state = nn::state_dict(model, "model");
  state.merge(optim.state());
  training::Run run("llama", f, std::move(state), settings(f, config));
  introduce(run.out());
  std::vector<Tensor> batches = batches_of(run.start());
  run.train("tokens", tokens_a_step, [&](int64_t i, double lr) {
    optim.set_lr(lr);
    const Tensor done = step(batches);
    batches = batches_of(i + 1);  // while the devices work
    return done.to_vector<double>()[0];
  });
  if (f.eval_batches > 0 && !run.was_told_to_end()) {
    Jit evaluate = [&](Tensor held_out) { return training.loss(held_out); };
    double sum = 0;
    for (int64_t i = 0; i < f.eval_batches; ++i)
      sum += evaluate(tokens.draw(true, f.batch, length, 0, i, 0)).item<double>();
    run.out() << fmt::format("held out    loss {:.4f}\n", sum / double(f.eval_batches));
  }
  if (!f.save.empty() && !run.was_told_to_end()) {
    save(model, config, tokens.are_bytes(), f.save);
    run.out() << fmt::format("saved       {}\n", f.save);
  }
  run.say_how_to_go_on();
}

void add_train_options(CLI::App& app, TrainFlags& f) {
  auto group = [&](const char* name) { app.option_defaults()->group(name); };
  group("Model");
  app.add_option("--layers", f.layers, "Blocks")->check(CLI::PositiveNumber);
  app.add_option("--width", f.width, "Size of a token's vector")->check(CLI::PositiveNumber);
  app.add_option("--heads", f.heads, "Of queries; they divide the width")
      ->check(CLI::PositiveNumber);
  app.add_option("--kv-heads", f.kv_heads, "Of keys and values; they divide the heads")
      ->check(CLI::PositiveNumber);
  app.add_option("--hidden", f.hidden, "Units between a block's layers; 0: as the width asks for")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--context", f.context, "Tokens that the model sees at once")
      ->check(CLI::PositiveNumber);
  app.add_option("--vocabulary", f.vocabulary, "Of random tokens and of a .bin file")
      ->check(CLI::PositiveNumber);
  app.add_flag("--tied", f.tied, "The head is the table of the embedding");
  group("Training");
  app.add_option("--tokens", f.tokens,
                 ".bin of 16-bit tokens, text, or \"random\" [the C++ standard library's headers]");
  app.add_option("--batch", f.batch, "Sequences at once, over all devices")
      ->check(CLI::PositiveNumber);
  app.add_option("--accumulate", f.accumulate, "Batches a step")->check(CLI::PositiveNumber);
  training::add_optimizer_options(app, f.optimizer);
  app.add_option("--eval-batches", f.eval_batches, "Batches of held-out tokens at the end")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--save", f.save, "Folder for the trained model, which --model takes");
  group("Division");
  training::add_mesh_options(app, f.division);
  app.add_flag("--sp", f.division.sequence,
               "Divide sequences between layers over the devices of --tp");
  app.add_flag(
      "--shard-optimizer", f.optimizer.shard_optimizer,
      "Keep each device's part of the optimizer state only, over those that the others leave");
  app.add_flag("--checkpoint-activations", f.division.checkpoint_activations,
               "Keep what enters a block, compute the rest again");
  group("Run");
  training::add_run_options(app, f, "llama");
  app.add_flag("--plan", f.plan, "Tell what a step takes; run nothing");
  app.add_flag("--items", f.items, "With --plan: list everything it does");
}

}  // namespace llama
