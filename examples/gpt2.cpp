// Trains GPT-2, from scratch or from the published weights, on every device it is given:
//
//   ./gpt2 --tokens fineweb.bin --batch 64               124M in bf16, one device
//   mpirun -n 8 ./gpt2 --model 1558M --tokens fineweb.bin --batch 64 --accumulate 4
//     --checkpoint-activations --shard-optimizer
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
#include "examples/gpt2_tokens.h"
#include "examples/training.h"

using namespace tinyshard;

struct Flags {
  std::string model = "124M", weights, save_weights, tokens, dtype = "bf16", reduce_dtype = "f32",
              schedule = "cosine", checkpoint, log, summary;
  std::optional<int64_t> layers, width, heads, context;
  int64_t steps = 1000, batch = 8, accumulate = 1, warmup = 100, eval_batches = 8,
          checkpoint_every = 1000;
  double lr = 6e-4, weight_decay = 0.1, clip = 1;
  uint64_t seed = 1;
  training::DeviceFlags where;
  bool resume = false, shard_optimizer = false, checkpoint_activations = false, plan = false,
       items = false, quiet = false;
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

// What a run has in common with the checkpoint that it goes on from.
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
double peak_flops(const Target& target) {
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
    if (target.cpu.starts_with(known.cpu) && target.multiprocessors == known.multiprocessors)
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
    Runtime& runtime = Runtime::get();
    for (int i : runtime.local_positions(mesh))
      devices_.push_back(&runtime.device(mesh.devices()[size_t(i)]));
    peak_ = peak_flops(devices_.at(0)->target()) * double(mesh.size());
  }

  // The end of a step; seconds that it took.
  double step() {
    if (seconds_.empty()) first_ = seconds_since_start();
    Clock::time_point now = Clock::now();
    seconds_.push_back(std::chrono::duration<double>(now - begin_).count());
    begin_ = now;
    return seconds_.back();
  }
  // What happens between steps does not count.
  void restart() { begin_ = Clock::now(); }

  double tokens_per_s(double seconds) const { return tokens_ / seconds; }
  // Model FLOPs per second as a share of the peak, "-" where that is not known.
  std::string mfu(double seconds) const {
    if (peak_ == 0) return "-";
    return fmt::format("{:.1f} %", 100 * share_of_peak(seconds));
  }
  int64_t peak_bytes() const {
    int64_t most = 0;
    for (const Device* d : devices_) most = std::max(most, d->memory().peak);
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
  std::vector<Device*> devices_;
};

// --- a step --------------------------------------------------------------------------------------

// AdamW that decays matrices only, after clipping.
class Optimizer {
 public:
  Optimizer(const gpt2::Model& model, const Flags& f)
      : clip_(f.clip),
        reduce_type_(dtype_from_name(f.reduce_dtype)),
        decayed_(of_rank(model, true), options(f, f.weight_decay)),
        others_(of_rank(model, false), options(f, 0)),
        all_(decayed_, others_) {}

  std::vector<Tensor> params() const { return all_.params(); }
  nn::StateDict state() const {
    nn::StateDict state = nn::state_dict(decayed_, "optimizer.decayed");
    state.merge(nn::state_dict(others_, "optimizer.others"));
    return state;
  }
  void set_lr(double lr) const {
    decayed_.set_lr(lr);
    others_.set_lr(lr);
  }
  void zero_grad() const { all_.zero_grad(); }
  // Returns the norm of all gradients before clipping.
  Tensor step() {
    all_.place_grad(reduce_type_);
    Tensor norm = nn::clip_grad_norm(params(), clip_);
    all_.step();
    return norm;
  }

 private:
  static std::vector<Tensor> of_rank(const gpt2::Model& model, bool matrices) {
    std::vector<Tensor> list = nn::parameters(model);
    std::erase_if(list, [&](const Tensor& p) { return (p.ndim() >= 2) != matrices; });
    return list;
  }
  static nn::optim::AdamWOptions options(const Flags& f, double decay) {
    return {.lr = f.lr,
            .b1 = 0.9,
            .b2 = 0.95,
            .weight_decay = decay,
            .shard_axis = f.shard_optimizer ? "data" : ""};
  }

  double clip_;
  DType reduce_type_;
  nn::optim::AdamW decayed_, others_;
  nn::optim::OptimizerGroup all_;
};

// One optimizer step: in one piece, or, with --accumulate, a captured part that is called for each
// micro-batch and a captured update.
class Step {
 public:
  Step(const gpt2::Model& model, Optimizer& optim, const Mesh& mesh, int64_t accumulate)
      : model_(model),
        optim_(optim),
        mesh_(mesh),
        accumulate_(accumulate),
        sum_(optim.params()),
        total_(Tensor::zeros({}).shard(mesh).clone()) {}

  // {loss, norm}, which the devices may still be computing.
  Tensor operator()(const std::vector<Tensor>& batches) {
    if (accumulate_ == 1) return whole_(batches.at(0));
    for (const Tensor& batch : batches) part_(batch);
    return update_();
  }

  std::string explain(const Tensor& batch, bool items) {
    if (accumulate_ == 1) {
      whole_(batch);
      return tinyshard::explain(whole_.schedule(), items);
    }
    part_(batch);
    update_();
    return fmt::format("each of {} parts of a step\n{}the update\n{}", accumulate_,
                       tinyshard::explain(part_.schedule(), items),
                       tinyshard::explain(update_.schedule(), items));
  }

  Tensor loss_of(const Tensor& batch) const {
    return model_.loss(batch.shard(mesh_, {{"data", Shard(0)}}));
  }

 private:
  Tensor whole(const Tensor& batch) {
    TrainingMode on;
    optim_.zero_grad();
    Tensor loss = loss_of(batch).backward();
    return stack({loss, optim_.step()});
  }
  void part(const Tensor& batch) {
    TrainingMode on;
    optim_.zero_grad();
    total_ += loss_of(batch).backward();
    sum_.add();
  }
  Tensor update() {
    TrainingMode on;
    sum_.take(1.0 / double(accumulate_));
    Tensor result = stack({total_ / double(accumulate_), optim_.step()});
    total_.assign(0.0);
    return result;
  }

  const gpt2::Model& model_;
  Optimizer& optim_;
  Mesh mesh_;
  int64_t accumulate_;
  nn::GradientSum sum_;
  Tensor total_;  // of the losses of the parts

  struct Whole {
    Step* self;
    Tensor operator()(const Tensor& batch) const { return self->whole(batch); }
  };
  struct Part {
    Step* self;
    void operator()(const Tensor& batch) const { self->part(batch); }
  };
  struct Update {
    Step* self;
    Tensor operator()() const { return self->update(); }
  };
  Jit<Whole> whole_{Whole{this}};
  Jit<Part> part_{Part{this}};
  Jit<Update> update_{Update{this}};
};

// --- the run -------------------------------------------------------------------------------------

void train(const Flags& f) {
  training::DeviceFlags where = f.where;
  if (f.plan) {
    where.devices_per_rank = std::max(1, where.devices_per_rank);
    where.devices = {"NULL"};
  }
  Runtime::configure({.devices = where.devices, .devices_per_rank = where.devices_per_rank});
  const Mesh mesh = Mesh::world({{"data", -1}});
  const bool first = world().rank == 0;
  std::ostream out(first && !f.quiet ? std::cout.rdbuf() : nullptr);

  training::check_batch(f.batch, mesh);
  const gpt2::Tokens tokens(f.plan ? "random" : f.tokens);
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
  if (!f.weights.empty()) gpt2::load_weights(model, f.weights);
  nn::data_parallel(model, mesh, "data");
  Optimizer optim(model, f);
  Step step(model, optim, mesh, f.accumulate);

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
    bool last = i + 1 == f.steps;
    if (keeps && (last || (i + 1) % std::max<int64_t>(f.checkpoint_every, 1) == 0)) {
      saved = nn::save_checkpoint(state, folder, i + 1, {.metadata = settings(f, config)});
      speed.restart();
    }
  }
  bar.finish();

  out << speed.summary();
  if (first && !f.summary.empty()) speed.write(f.summary);
  if (f.eval_batches > 0) out << fmt::format("held out    loss {:.4f}\n", held_out_loss());
  if (!f.save_weights.empty()) gpt2::save_weights(model, f.save_weights);
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
  app.add_option("--weight-decay", f.weight_decay, "Of matrices")->check(CLI::NonNegativeNumber);
  app.add_option("--clip", f.clip, "Largest norm of all gradients")->check(CLI::PositiveNumber);
  app.add_option("--seed", f.seed, "Of the weights and the batches");
  app.add_option("--reduce-dtype", f.reduce_dtype, "In which gradients travel between devices")
      ->check(CLI::IsMember({"f64", "f32", "bf16", "f16"}));
  group("Memory");
  app.add_flag("--checkpoint-activations", f.checkpoint_activations,
               "Keep what enters a block, compute the rest again");
  app.add_flag("--shard-optimizer", f.shard_optimizer,
               "Keep each device's part of the optimizer state only");
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
