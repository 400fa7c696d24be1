// Trains GPT-2, from scratch or from the published weights, on every device it is given:
//
//   ./gpt2 --tokens fineweb.bin --batch 64               124M in bf16, one device
//   mpirun -n 8 ./gpt2 --model 1558M --tokens fineweb.bin --batch 64 --accumulate 4
//     --checkpoint-activations --shard-optimizer
//   mpirun -n 8 ./gpt2 --model 1558M --tokens fineweb.bin --fsdp 4 --tp 2
//   mpirun -n 8 ./gpt2 --model 1558M --tokens fineweb.bin --batch 32 --pp 4 --fsdp 2
//   ./gpt2 --weights gpt2.safetensors --tokens book.bin --lr 3e-5
//   ./gpt2 --plan --batch 64                             what a step takes, without a device
//
// The same seed and batches give the same losses for any number of devices.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/gpt2_model.h"
#include "examples/gpt2_step.h"
#include "examples/parallel.h"
#include "examples/tokens.h"
#include "examples/training.h"

using namespace tinyshard;

struct Flags : gpt2::OptimizerFlags, gpt2::MeshFlags {
  std::string model = "124M", weights, save_weights, tokens, dtype = "bf16", schedule = "cosine",
              checkpoint, log, summary;
  std::optional<int64_t> layers, width, heads, context;
  int64_t steps = 1000, batch = 8, accumulate = 1, warmup = 100, eval_batches = 8,
          checkpoint_every = 1000;
  uint64_t seed = 1;
  training::DeviceFlags where;
  bool resume = false, checkpoint_activations = false, plan = false, items = false, quiet = false;
  std::vector<std::string> arguments;  // of the program, as they were typed
};

gpt2::Config config_of(const Flags& f, int64_t vocabulary) {
  gpt2::Config c;
  for (const auto& [name, config] : gpt2::sizes()) {
    if (name == f.model) c = config;
  }
  c.layers = f.layers.value_or(c.layers);
  c.width = f.width.value_or(c.width);
  c.heads = f.heads.value_or(c.heads);
  c.context = f.context.value_or(c.context);
  c.vocabulary = vocabulary;
  c.compute = dtype_from_name(f.dtype);
  c.checkpoint_activations = f.checkpoint_activations;
  training::check_heads(c.width, c.heads);
  return c;
}

// Settings that a run must have in common with the checkpoint that it goes on from.
training::Settings settings(const Flags& f, const gpt2::Config& c) {
  return {{"layers", std::to_string(c.layers)},         {"width", std::to_string(c.width)},
          {"heads", std::to_string(c.heads)},           {"context", std::to_string(c.context)},
          {"batch", std::to_string(f.batch)},           {"seed", std::to_string(f.seed)},
          {"accumulate", std::to_string(f.accumulate)}, {"dtype", f.dtype}};
}

// --- how fast ------------------------------------------------------------------------------------

// Since the kernel made this process.
double seconds_since_start() {
  std::ifstream stat("/proc/self/stat"), uptime("/proc/uptime");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  std::istringstream fields(text.substr(std::min(text.rfind(')'), text.size() - 1) + 1));
  std::string skipped;
  constexpr int kBeforeStart = 19;  // fields between the name and the time of the start
  for (int i = 0; i < kBeforeStart; ++i) fields >> skipped;
  double ticks = 0, now = 0;
  fields >> ticks;
  uptime >> now;
  return now - ticks / double(sysconf(_SC_CLK_TCK));
}

// Floating point operations of a second that a device has for dense bf16 products; 0 if not known.
double peak_flops(const DeviceInfo& device) {
  struct Known {
    const char* cpu;
    int multiprocessors;
    double flops;
  };
  constexpr Known kKnown[] = {
      {"sm_90", 132, 989.4e12},  // H100 and H200
      {"sm_90", 114, 756e12},    // H100 PCIe
      {"sm_80", 108, 312e12},    // A100
  };
  for (const Known& known : kKnown) {
    if (device.processor.starts_with(known.cpu) && device.multiprocessors == known.multiprocessors)
      return known.flops;
  }
  return 0;
}

class Speed {
 public:
  Speed(const gpt2::Config& c, int64_t parameters, const Mesh& mesh, int64_t tokens_a_step)
      : tokens_(double(tokens_a_step)), begin_(Clock::now()) {
    double attention = 12.0 * double(c.layers * c.context * c.width);
    flops_a_token_ = 6.0 * double(parameters) + attention;
    peak_ = peak_flops(Runtime::get().devices().at(0)) * double(mesh.size());
  }

  // The end of a step; seconds that it took.
  double step() {
    if (seconds_.empty()) first_ = seconds_since_start();
    Clock::time_point now = Clock::now();
    seconds_.push_back(std::chrono::duration<double>(now - begin_).count());
    begin_ = now;
    return seconds_.back();
  }
  // Starts anew: time between steps does not count.
  void restart() { begin_ = Clock::now(); }

  double tokens_per_s(double seconds) const { return tokens_ / seconds; }
  // Model FLOPs per second as a share of the peak, "-" where that is not known.
  std::string mfu(double seconds) const {
    if (peak_ == 0) return "-";
    return fmt::format("{:.1f} %", 100 * share_of_peak(seconds));
  }
  int64_t peak_bytes() const {
    int64_t most = 0;
    for (const DeviceInfo& d : Runtime::get().devices()) most = std::max(most, d.peak);
    return most;
  }
  std::string summary() const {
    return fmt::format(
        "first step  {:.2f} s after the start of the process\n"
        "speed       {:.0f} tokens/s, MFU {}, {:.2f} ms a step (medians)\n"
        "memory      {:.2f} GiB per device at the peak\n",
        first_, tokens_per_s(median()), mfu(median()), 1e3 * median(),
        double(peak_bytes()) / double(1 << 30));
  }
  // The same for programs; an MFU of 0 is not known.
  void write(const std::string& path) const {
    std::filesystem::remove(path);
    JsonlLog(path).write({{"steps", seconds_.size()},
                          {"first_step_s", first_},
                          {"tokens_per_s", tokens_per_s(median())},
                          {"mfu", peak_ > 0 ? share_of_peak(median()) : 0.0},
                          {"ms", 1e3 * median()},
                          {"ms_p10", 1e3 * quantile(0.1)},
                          {"ms_p90", 1e3 * quantile(0.9)},
                          {"peak_bytes", peak_bytes()}});
  }

 private:
  double share_of_peak(double seconds) const {
    return flops_a_token_ * tokens_per_s(seconds) / peak_;
  }
  double median() const { return quantile(0.5); }
  double quantile(double part) const {
    std::vector<double> sorted = seconds_;
    if (sorted.size() > 2) sorted.erase(sorted.begin(), sorted.begin() + 2);
    std::ranges::sort(sorted);
    return sorted.at(size_t(part * double(sorted.size())));
  }

  using Clock = std::chrono::steady_clock;
  double tokens_, flops_a_token_ = 0, peak_ = 0, first_ = 0;
  Clock::time_point begin_;
  std::vector<double> seconds_;
};

// --- the run -------------------------------------------------------------------------------------

void train(const Flags& f) {
  training::DeviceFlags where = f.where;
  if (f.plan) {
    where.devices_per_rank = std::max(1, where.devices_per_rank);
    where.devices = {"NULL"};
  }
  Runtime::configure({.devices = where.devices, .devices_per_rank = where.devices_per_rank});
  const Mesh mesh = gpt2::mesh_of(f);
  const bool first = world().rank == 0;
  std::ostream out(first && !f.quiet ? std::cout.rdbuf() : nullptr);

  training::check_batch(f.batch, mesh, f);
  const training::Tokens tokens(f.plan ? "random" : f.tokens);
  const gpt2::Config config = config_of(f, tokens.vocabulary());
  set_default_float(promote(config.compute, DType::F32));
  const int64_t length = config.context + 1;
  auto batches_of = [&](int64_t step) {
    std::vector<Tensor> batches;
    for (int64_t i = 0; i < f.accumulate; ++i)
      batches.push_back(tokens.draw(false, f.batch, length, f.seed, step, i * f.batch));
    return batches;
  };

  Tensor::manual_seed(f.seed);
  const gpt2::Model model(config);
  std::optional<nn::Pipeline> stages = gpt2::divide(model, mesh, f);
  if (!f.weights.empty()) gpt2::load_weights(model, f.weights);
  gpt2::Optimizer optim(nn::parameters(model), f);
  gpt2::Step step(model, optim, mesh, f.accumulate, std::move(stages));

  int64_t parameters = 0;
  for (const Tensor& p : optim.params()) parameters += p.numel();
  const int64_t tokens_a_step = f.batch * f.accumulate * config.context;
  out << fmt::format("devices     {}\n", training::device_names(mesh))
      << fmt::format("model       {} layers, {} wide, {} heads, context {}: {} parameters, {}\n",
                     config.layers, config.width, config.heads, config.context, parameters, f.dtype)
      << fmt::format("tokens      {}\n", tokens.describe())
      << fmt::format("step        {} x {} sequences, {} tokens\n", f.accumulate, f.batch,
                     tokens_a_step)
      << std::flush;
  if (f.plan) {
    out << step.explain(batches_of(0)[0], f.items);
    return;
  }

  nn::StateDict state = nn::state_dict(model, "model");
  state.merge(optim.state());
  const bool keeps = f.checkpoint_every > 0 || f.resume;
  std::filesystem::path folder;
  int64_t start = 0;
  if (keeps) {
    expect_termination();
    folder = training::checkpoint_folder("gpt2", f.checkpoint, f.resume);
    if (f.resume) start = training::resume(state, folder, settings(f, config), f.steps);
    nn::prepare_checkpoints(folder);
  }
  if (start > 0) out << fmt::format("resumed     after step {} from {}\n", start, folder.string());

  Jit evaluate = [&](Tensor batch) { return step.loss_of(batch); };
  auto held_out_loss = [&] {
    double sum = 0;
    for (int64_t i = 0; i < f.eval_batches; ++i)
      sum += evaluate(tokens.draw(true, f.batch, length, 0, i, 0)).item<double>();
    return sum / double(f.eval_batches);
  };

  std::optional<JsonlLog> log;
  if (first && !f.log.empty()) log.emplace(f.log, JsonlOptions{.from_step = start});
  std::filesystem::path saved;
  auto bar =
      progress(f.steps, "train", {.enabled = first && !f.quiet, .start = start, .unit = "step"});
  std::vector<Tensor> batches = batches_of(start);
  Speed speed(config, parameters, mesh, tokens_a_step);
  bool told = false;  // to end: saves first
  for (int64_t i : bar) {
    double lr = nn::cosine_lr(i, {.peak = f.lr,
                                  .floor = f.schedule == "cosine" ? f.lr / 10 : f.lr,
                                  .warmup = f.warmup,
                                  .steps = f.steps});
    optim.set_lr(lr);
    Tensor done = step(batches);
    batches = batches_of(i + 1);  // while the devices work
    std::vector<double> result = done.to_vector<double>();
    double loss = result[0], seconds = speed.step();
    training::check_finite(loss, i, f.lr);

    bar.show("loss", loss);
    bar.show("tokens/s", speed.tokens_per_s(seconds));
    bar.show("MFU", speed.mfu(seconds));
    if (log) {
      log->write({{"step", i},
                  {"loss", loss},
                  {"norm", result[1]},
                  {"lr", lr},
                  {"tokens_per_s", speed.tokens_per_s(seconds)},
                  {"ms", seconds * 1e3}});
    }
    told = keeps && nn::any_rank_is_to_end();
    const bool last = told || i + 1 == f.steps;
    if (keeps && (last || (i + 1) % std::max<int64_t>(f.checkpoint_every, 1) == 0)) {
      saved = nn::save_checkpoint(state, folder, i + 1,
                                  {.metadata = settings(f, config), .asynchronous = !last});
      speed.restart();
    }
    if (told) break;
  }
  bar.finish();

  out << speed.summary();
  if (first && !f.summary.empty()) speed.write(f.summary);
  if (f.eval_batches > 0 && !told) out << fmt::format("held out    loss {:.4f}\n", held_out_loss());
  if (!f.save_weights.empty() && !told) gpt2::save_weights(model, f.save_weights);
  if (keeps) {
    out << fmt::format("checkpoint  {}\n", saved.string())
        << fmt::format("go on with  {}\n",
                       training::command_to_go_on(f.arguments, folder, f.steps));
  }
}

void add_options(CLI::App& app, Flags& f) {
  std::vector<std::string> models;
  for (const auto& [name, config] : gpt2::sizes()) models.push_back(name);
  auto group = [&](const char* name) { app.option_defaults()->group(name); };
  group("Model");
  app.add_option("--model", f.model, "Size")->check(CLI::IsMember(models));
  app.add_option("--layers", f.layers, "Blocks, other than the model's");
  app.add_option("--width", f.width, "Size of a token's vector");
  app.add_option("--heads", f.heads, "Attention heads; they divide the width");
  app.add_option("--context", f.context, "Tokens that the model sees at once");
  app.add_option("--weights", f.weights, "safetensors with the published names to start from");
  app.add_option("--save-weights", f.save_weights, "Such a file to write at the end");
  app.add_option("--dtype", f.dtype, "bf16 or f16, with weights kept in f32; f32; f64");
  group("Training");
  app.add_option("--tokens", f.tokens, ".bin of 16-bit tokens, text, or \"random\"");
  app.add_option("--steps", f.steps, "In all, those before --resume included")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch", f.batch, "Sequences at once, over all devices")
      ->check(CLI::PositiveNumber);
  app.add_option("--accumulate", f.accumulate, "Batches a step")->check(CLI::PositiveNumber);
  app.add_option("--lr", f.lr, "Learning rate at its peak")->check(CLI::NonNegativeNumber);
  app.add_option("--schedule", f.schedule, "After the peak: cosine down to a tenth, or constant")
      ->check(CLI::IsMember({"cosine", "constant"}));
  app.add_option("--warmup", f.warmup, "Steps until the peak")->check(CLI::NonNegativeNumber);
  training::add_optimizer_options(app, f);
  app.add_option("--seed", f.seed, "Of the weights and the batches");
  group("Memory");
  app.add_flag("--checkpoint-activations", f.checkpoint_activations,
               "Keep what enters a block, compute the rest again");
  app.add_flag("--shard-optimizer", f.shard_optimizer,
               "Keep each device's part of the optimizer state only");
  training::add_mesh_options(app, f);
  group("Run");
  training::add_device_options(app, f.where);
  app.add_option("--eval-batches", f.eval_batches, "Batches of held-out tokens at the end")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--log", f.log, "File for a JSON object a step");
  app.add_option("--json", f.summary, "File for what the run measured");
  app.add_option("--checkpoint", f.checkpoint, "Folder [checkpoints/gpt2, gpt2-2...]");
  app.add_option("--checkpoint-every", f.checkpoint_every, "Steps between checkpoints; 0: none")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--resume", f.resume, "Go on from the newest checkpoint");
  app.add_flag("--plan", f.plan, "Tell what a step takes; run nothing");
  app.add_flag("--items", f.items, "With --plan: list everything it does");
  app.add_flag("--quiet", f.quiet, "Print nothing but errors");
}

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Flags f;
  CLI::App app("Trains GPT-2.");
  training::set_defaults(app);
  add_options(app, f);
  f.arguments.assign(argv, argv + argc);
  return training::run_main("gpt2", app, argc, argv, [&] {
    if (f.tokens.empty() && !f.plan) {
      throw UserError("what to train on? --tokens FILE.bin, a file or folder of text, or random");
    }
    train(f);
  });
}
