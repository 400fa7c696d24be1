// The loop around the steps of a training program: options that all have, the checkpoint it goes on
// from, learning rate, progress, log, checkpoints, and what is said at the end.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/training.h"

namespace training {

struct RunFlags {
  int64_t steps = 200, warmup = 20, checkpoint_every = 250;
  double lr = 0.1;
  uint64_t seed = 1;
  std::string dtype = "f32", checkpoint, log;
  bool resume = false, quiet = false;
  DeviceFlags where;
  std::vector<std::string> arguments;  // of the program, as they were typed
};

// `name` is that of the folder of checkpoints.
inline void add_run_options(CLI::App& app, RunFlags& f, const std::string& name) {
  app.add_option("--steps", f.steps, "In all, those before --resume included")
      ->check(CLI::PositiveNumber);
  app.add_option("--lr", f.lr, "Learning rate at its peak")->check(CLI::NonNegativeNumber);
  app.add_option("--warmup", f.warmup, "Steps until the peak; after it a cosine down to a tenth")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", f.seed, "Of the weights and the batches");
  app.add_option("--dtype", f.dtype, "f32; f64; bf16 or f16, with weights kept in f32");
  add_device_options(app, f.where);
  app.add_option("--checkpoint", f.checkpoint,
                 fmt::format("Folder of the checkpoints [checkpoints/{0}, {0}-2...]", name));
  app.add_option("--checkpoint-every", f.checkpoint_every, "Steps between checkpoints; 0: none")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--resume", f.resume, "Go on from the newest checkpoint");
  app.add_option("--log", f.log, "File for a JSON object a step");
  app.add_flag("--quiet", f.quiet, "Print nothing but errors");
}

class Run {
 public:
  // `state` is what a checkpoint holds. With --resume, puts the newest one in place. Who is told to end
  // saves first.
  Run(const std::string& name, const RunFlags& f, nn::StateDict state, Settings settings)
      : f_(f),
        state_(std::move(state)),
        settings_(std::move(settings)),
        first_(world().rank == 0),
        out_(first_ && !f.quiet ? std::cout.rdbuf() : nullptr) {
    if (!keeps()) return;
    expect_termination();
    folder_ = checkpoint_folder(name, f.checkpoint, f.resume);
    if (f.resume) start_ = resume(state_, folder_, settings_, f.steps);
    nn::prepare_checkpoints(folder_);
  }

  // Steps that were done before.
  int64_t start() const { return start_; }

  // Prints on the first rank, unless that is to be quiet, and nowhere else.
  std::ostream& out() { return out_; }

  // The job was told to end: nothing but the way to go on is left to say.
  bool was_told_to_end() const { return told_; }

  // Calls work(i, lr) for each step that is left, which does it and returns its loss. A step has so
  // many things of that name: images, tokens.
  template <class Work>
  void train(const std::string& thing, int64_t things_a_step, const Work& work) {
    if (start_ > 0)
      out_ << fmt::format("resumed     after step {} from {}\n", start_, folder_.string());
    out_ << std::flush;
    std::optional<JsonlLog> log;
    if (first_ && !f_.log.empty()) log.emplace(f_.log, JsonlOptions{.from_step = start_});
    auto bar = progress(f_.steps, "train",
                        {.enabled = first_ && !f_.quiet, .start = start_, .unit = "step"});
    bar_ = &bar;
    for (int64_t i : bar) {
      using Clock = std::chrono::steady_clock;
      const Clock::time_point begin = Clock::now();
      const double lr = nn::cosine_lr(
          i, {.peak = f_.lr, .floor = f_.lr / 10, .warmup = f_.warmup, .steps = f_.steps});
      const double loss = work(i, lr);
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      const double speed = double(things_a_step) / seconds;
      check_finite(loss, i, f_.lr);
      bar.show("loss", loss);
      bar.show(thing + "/s", speed);
      if (log) {
        log->write({{"step", i},
                    {"loss", loss},
                    {"lr", lr},
                    {thing + "_per_s", speed},
                    {"ms", seconds * 1e3}});
      }
      told_ = keeps() && nn::any_rank_is_to_end();
      const bool last = told_ || i + 1 == f_.steps;
      if (keeps() && (last || (i + 1) % std::max<int64_t>(f_.checkpoint_every, 1) == 0))
        saved_ = nn::save_checkpoint(state_, folder_, i + 1,
                                     {.metadata = settings_, .asynchronous = !last});
      if (told_) break;
    }
    bar.finish();
    bar_ = nullptr;
  }

  // A line above the bar.
  void print(const std::string& line) {
    if (bar_ != nullptr) bar_->print(line);
  }

  void say_how_to_go_on() {
    if (!keeps()) return;
    out_ << fmt::format("checkpoint  {}\n", saved_.string())
         << fmt::format("go on with  {}\n", command_to_go_on(f_.arguments, folder_, f_.steps));
  }

 private:
  bool keeps() const { return f_.checkpoint_every > 0 || f_.resume; }

  const RunFlags& f_;
  nn::StateDict state_;
  Settings settings_;
  bool first_;
  std::ostream out_;
  std::filesystem::path folder_, saved_;
  int64_t start_ = 0;
  Progress* bar_ = nullptr;
  bool told_ = false;
};

}  // namespace training
