// Trains a byte-level GPT on text, on every device it is given:
//
//   ./train_gpt                               one device
//   ./train_gpt --devices CPU:0,CPU:1         several devices of one process
//   mpirun -n 4 ./train_gpt                   a device for each rank
//   mpirun -n 2 ./train_gpt --devices-per-rank 2
//
// The same seed and batch give the same losses for all of these, and a run that was stopped goes on
// (--resume) as if it had not been.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/train_gpt_model.h"
#include "examples/training.h"

using namespace tinyshard;
using training::random_number;

// --- the text ------------------------------------------------------------------------------------

// `batch` pieces of the text, `length` bytes each.
Tensor draw(std::string_view text, int64_t batch, int64_t length, uint64_t seed, int64_t step) {
  std::vector<int32_t> bytes;
  bytes.reserve(size_t(batch * length));
  for (int64_t i = 0; i < batch; ++i) {
    size_t start =
        random_number(seed, uint64_t(step), uint64_t(i)) % (text.size() - size_t(length) + 1);
    for (char c : text.substr(start, size_t(length)))
      bytes.push_back(static_cast<unsigned char>(c));
  }
  return Tensor(bytes, {batch, length});
}

// --- the run -------------------------------------------------------------------------------------

struct Flags {
  gpt::Config model;
  int64_t steps = 1500, batch = 8, warmup = 20, eval_batches = 8, checkpoint_every = 250,
          sample = 300;
  double lr = 2e-3, temperature = 0.8;
  uint64_t seed = 1;
  std::string dtype = "f32", corpus, checkpoint, prompt = "\n", log, plot;
  training::DeviceFlags where;
  bool resume = false, shard_optimizer = false, quiet = false;
  std::vector<std::string> arguments;  // of the program, as they were typed
};

// Settings that a run must have in common with the checkpoint that it goes on from.
training::Settings settings(const Flags& f) {
  return {
      {"layers", std::to_string(f.model.layers)},   {"width", std::to_string(f.model.width)},
      {"heads", std::to_string(f.model.heads)},     {"context", std::to_string(f.model.context)},
      {"batch", std::to_string(f.batch)},           {"seed", std::to_string(f.seed)},
      {"dtype", std::string(name(default_float()))}};
}

std::filesystem::path corpus_path(const Flags& f) {
  return f.corpus.empty() ? io::default_corpus() : std::filesystem::path(f.corpus);
}

// The next byte, drawn by the scores; temperature 0 takes the best.
char pick(const std::vector<float>& scores, double temperature, uint64_t random) {
  size_t best = size_t(std::ranges::max_element(scores) - scores.begin());
  if (temperature <= 0) return char(best);
  std::vector<double> sums;
  sums.reserve(scores.size());
  double sum = 0;
  for (float score : scores) sums.push_back(sum += std::exp((score - scores[best]) / temperature));
  double where = std::ldexp(double(random >> 11), -53) * sum;
  return char(std::ranges::upper_bound(sums, where) - sums.begin());
}

std::string sample(const gpt::Model& model, const Mesh& mesh, const Flags& f) {
  Variable last("last", 0, f.model.context - 1);
  Jit next = [&](Tensor text, Variable at) { return model(text.shard(mesh))[{0, at}]; };
  std::string text = f.prompt.empty() ? "\n" : f.prompt;
  for (int64_t i = 0; i < f.sample; ++i) {
    size_t context = size_t(f.model.context), seen = std::min(text.size(), context);
    std::vector<int32_t> bytes(context);
    for (size_t k = 0; k < seen; ++k)
      bytes[k] = static_cast<unsigned char>(text[text.size() - seen + k]);
    Tensor scores = next(Tensor(bytes, {1, f.model.context}), last.bind(int64_t(seen) - 1));
    text += pick(scores.to_vector<float>(), f.temperature, random_number(f.seed, uint64_t(i), 0));
  }
  return text;
}

void print_plan(std::ostream& out, const Flags& f, const Mesh& mesh, const io::Corpus& corpus,
                const std::vector<Tensor>& parameters) {
  int64_t count = 0;
  for (const Tensor& p : parameters) count += p.numel();
  const gpt::Config& m = f.model;
  out << fmt::format("devices     {}\n", training::device_names(mesh))
      << fmt::format("model       {} layers, {} wide, {} heads, context {}: {} parameters, {}\n",
                     m.layers, m.width, m.heads, m.context, count, name(default_float()))
      << fmt::format("corpus      {}: {} bytes of {} {}\n", corpus_path(f).string(),
                     corpus.text.size(), corpus.files.size(),
                     corpus.files.size() == 1 ? "file" : "files")
      << fmt::format("step        {} sequences, {} tokens\n", f.batch, f.batch * m.context);
}

void train(const Flags& f) {
  Runtime::configure({.devices = f.where.devices, .devices_per_rank = f.where.devices_per_rank});
  set_default_float(dtype_from_name(f.dtype));
  const Mesh mesh = Mesh::world({{"data", -1}});
  const bool first = world().rank == 0;
  std::ostream out(first && !f.quiet ? std::cout.rdbuf() : nullptr);

  training::check_batch(f.batch, mesh);
  training::check_heads(f.model.width, f.model.heads);
  const io::Corpus corpus = io::read_corpus(corpus_path(f));
  const int64_t length = f.model.context + 1;
  const std::string_view all = corpus.text, text = all.substr(0, all.size() / 10 * 9),
                         held_out = all.substr(text.size());
  if (int64_t(held_out.size()) < length) {
    throw UserError(fmt::format("the corpus has {} bytes; --context {} needs at least {}",
                                all.size(), f.model.context, 10 * length));
  }

  Tensor::manual_seed(f.seed);
  gpt::Model model(f.model);
  nn::data_parallel(model, mesh, "data");
  nn::optim::AdamW optim(
      nn::parameters(model),
      {.lr = f.lr, .weight_decay = 0.1, .shard_axis = f.shard_optimizer ? "data" : ""});
  nn::StateDict state = nn::state_dict(model, "model");
  state.merge(nn::state_dict(optim, "optimizer"));

  expect_termination();
  const std::filesystem::path folder = training::checkpoint_folder("gpt", f.checkpoint, f.resume);
  const int64_t start = f.resume ? training::resume(state, folder, settings(f), f.steps) : 0;
  nn::prepare_checkpoints(folder);

  auto loss_of = [&](const Tensor& batch) {
    return model.loss(batch.shard(mesh, {{"data", Shard(0)}}));
  };
  Jit step = [&](Tensor batch) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = loss_of(batch).backward();
    optim.step();
    return loss;
  };
  Jit evaluate = [&](Tensor batch) { return loss_of(batch); };
  auto validation_loss = [&] {
    double sum = 0;
    for (int64_t i = 0; i < f.eval_batches; ++i)
      sum += evaluate(draw(held_out, f.batch, length, 0, i)).item<double>();
    return sum / double(f.eval_batches);
  };

  print_plan(out, f, mesh, corpus, optim.params());
  if (start > 0) out << fmt::format("resumed     after step {} from {}\n", start, folder.string());
  if (f.eval_batches > 0)
    out << fmt::format("validation loss {:.4f}\n", validation_loss()) << std::flush;

  std::optional<JsonlLog> log;
  if (first && !f.log.empty()) log.emplace(f.log, JsonlOptions{.from_step = start});
  JsonlSeries losses;
  std::filesystem::path saved;
  auto bar =
      progress(f.steps, "train", {.enabled = first && !f.quiet, .start = start, .unit = "step"});
  bool told = false;  // to end: saves first
  for (int64_t i : bar) {
    using Clock = std::chrono::steady_clock;
    Clock::time_point begin = Clock::now();
    optim.set_lr(
        nn::cosine_lr(i, {.peak = f.lr, .floor = f.lr / 10, .warmup = f.warmup, .steps = f.steps}));
    double loss = step(draw(text, f.batch, length, f.seed, i)).item<double>();
    double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    double tokens_per_s = double(f.batch * f.model.context) / seconds;
    training::check_finite(loss, i, f.lr);

    bar.show("loss", loss);
    bar.show("tokens/s", tokens_per_s);
    if (log)
      log->write(
          {{"step", i}, {"loss", loss}, {"tokens_per_s", tokens_per_s}, {"ms", seconds * 1e3}});
    losses.x.push_back(double(i));
    losses.y.push_back(loss);
    told = nn::any_rank_is_to_end();
    const bool last = told || i + 1 == f.steps;
    if (last || (f.checkpoint_every > 0 && (i + 1) % f.checkpoint_every == 0)) {
      saved = nn::save_checkpoint(state, folder, i + 1,
                                  {.metadata = settings(f), .asynchronous = !last});
    }
    if (told) break;
  }
  bar.finish();

  if (f.eval_batches > 0 && !told)
    out << fmt::format("validation loss {:.4f}\n", validation_loss());
  if (f.sample > 0 && !told) out << "\n" << sample(model, mesh, f) << "\n\n";
  if (first && !f.plot.empty()) {
    if (log) losses = read_series(f.log, "step", "loss");  // with those before --resume
    LineChart({.title = "Training loss", .x_label = "step", .y_label = "loss", .smooth = 0.9})
        .add("loss", losses.x, losses.y)
        .save(f.plot);
  }
  out << fmt::format("checkpoint  {}\n", saved.string())
      << fmt::format("go on with  {}\n", training::command_to_go_on(f.arguments, folder, f.steps));
}

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Flags f;
  CLI::App app("Trains a byte-level GPT on text.");
  training::set_defaults(app);
  app.add_option("--layers", f.model.layers, "Transformer blocks")->check(CLI::PositiveNumber);
  app.add_option("--width", f.model.width, "Size of a byte's vector")->check(CLI::PositiveNumber);
  app.add_option("--heads", f.model.heads, "Attention heads; they divide the width")
      ->check(CLI::PositiveNumber);
  app.add_option("--context", f.model.context, "Bytes that the model sees at once")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", f.steps, "Steps in all, those before --resume included")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch", f.batch, "Sequences a step, over all devices")
      ->check(CLI::PositiveNumber);
  app.add_option("--lr", f.lr, "Learning rate at its peak")->check(CLI::NonNegativeNumber);
  app.add_option("--warmup", f.warmup, "Steps until the peak; after it a cosine down to a tenth")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", f.seed, "Of the weights, the batches and the sample");
  app.add_option("--dtype", f.dtype, "f32, f64, bf16 or f16");
  app.add_option("--corpus", f.corpus,
                 "A file or a folder of text [the C++ standard library's headers]");
  app.add_option("--eval-batches", f.eval_batches,
                 "Batches of held-out text in the validation loss")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--checkpoint", f.checkpoint,
                 "Folder of the checkpoints [checkpoints/gpt, gpt-2...]");
  app.add_option("--checkpoint-every", f.checkpoint_every,
                 "Steps between checkpoints; 0: only at the end")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--resume", f.resume, "Go on from the newest checkpoint");
  app.add_option("--sample", f.sample, "Bytes to generate at the end")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--prompt", f.prompt, "What the sample begins with");
  app.add_option("--temperature", f.temperature, "Of the sample; 0 takes the most likely byte")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--log", f.log, "File for a JSON object a step: step, loss, tokens_per_s, ms");
  app.add_option("--plot", f.plot, "File for a picture (SVG) of the loss");
  training::add_device_options(app, f.where);
  app.add_flag("--shard-optimizer", f.shard_optimizer,
               "Keep each device's part of the optimizer state only");
  app.add_flag("--quiet", f.quiet, "Print nothing but errors");
  f.arguments.assign(argv, argv + argc);
  return training::run_main("train_gpt", app, argc, argv, [&] { train(f); });
}
