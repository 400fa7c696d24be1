// Shared parts of the training programs, beyond the library: numbers drawn for a place in the
// run, checkpoint folders, what is said of devices and of how to go on, and main.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/run_main.h"

namespace training {

using namespace tinyshard;

// Random numbers that depend on their arguments only: the batch of a step does not depend on the
// steps before it, nor on how many devices share it.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
inline uint64_t random_number(uint64_t seed, uint64_t step, uint64_t place) {
  return mix(mix(mix(seed) + step) + place);
}

// --- devices -------------------------------------------------------------------------------------

struct DeviceFlags {
  std::vector<std::string> devices;
  int devices_per_rank = 0;
};

inline void add_device_options(CLI::App& app, DeviceFlags& f) {
  app.add_option("--devices", f.devices, "Devices of each process, such as CPU:0,CPU:1 or CUDA")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--devices-per-rank", f.devices_per_rank, "The same as a number of devices")
      ->check(CLI::PositiveNumber);
}

inline std::string device_names(const Mesh& mesh) {
  constexpr int64_t kShown = 8;
  std::string text;
  for (int64_t i = 0; i < std::min(mesh.size(), kShown); ++i) {
    text += fmt::format("{}{}", i > 0 ? ", " : "", mesh.devices()[size_t(i)].to_string());
  }
  return fmt::format("{} in {} {}: {}{}", mesh.size(), world().ranks,
                     world().ranks == 1 ? "process" : "processes", text,
                     mesh.size() > kShown ? ", ..." : "");
}

inline void check_batch(int64_t batch, const Mesh& mesh) {
  if (batch % mesh.size() == 0) return;
  throw UserError(fmt::format("--batch {} does not divide among {} devices", batch, mesh.size()));
}
inline void check_heads(int64_t width, int64_t heads) {
  if (width % heads == 0) return;
  throw UserError(fmt::format("--width {} does not divide among --heads {}", width, heads));
}
inline void check_finite(double loss, int64_t step, double lr) {
  if (std::isfinite(loss)) return;
  throw UserError(fmt::format("the loss is {} at step {}; lower --lr {}", loss, step, lr));
}

// --- checkpoints ---------------------------------------------------------------------------------

// Settings that a run must share with the checkpoint that it goes on from, by their flags' names.
using Settings = std::map<std::string, std::string>;

// Where this run's checkpoints are. Runs do not mix: where no folder is given, a new run takes the
// first free one of checkpoints/<name>, checkpoints/<name>-2..., and --resume the last in use.
inline std::filesystem::path checkpoint_folder(const std::string& name, const std::string& given,
                                               bool resume) {
  if (!given.empty()) {
    if (resume || !nn::has_checkpoint(given)) return given;
    throw UserError(fmt::format(
        "--checkpoint {}: there is a run in this folder already; go on with --resume, or "
        "give another folder",
        given));
  }
  std::filesystem::path last, next = "checkpoints/" + name;
  for (int run = 2; nn::has_checkpoint(next); ++run) {
    last = next;
    next = fmt::format("checkpoints/{}-{}", name, run);
  }
  if (resume && last.empty()) {
    throw UserError(fmt::format(
        "--resume: there is no checkpoint in checkpoints/{}; name a folder with --checkpoint",
        name));
  }
  return resume ? last : next;
}

// Puts the state of the newest checkpoint in place; returns the number of steps done until then.
inline int64_t resume(const nn::StateDict& state, const std::filesystem::path& folder,
                      const Settings& settings, int64_t steps) {
  nn::CheckpointInfo found = nn::checkpoint_info(folder);
  for (const auto& [name, value] : settings) {
    if (found.metadata[name] == value) continue;
    throw UserError(fmt::format("--resume: {} was trained with --{} {}, this run has {}",
                                found.path.string(), name, found.metadata[name], value));
  }
  if (found.step >= steps) {
    throw UserError(fmt::format("--resume: {} has {} steps done, --steps {} asks for no more",
                                found.path.string(), found.step, steps));
  }
  nn::load_checkpoint(state, found.path);
  return found.step;
}

// Returns the command that goes on for as many steps: the command line without --resume, --steps
// and --checkpoint, and with mpirun where it was used.
inline std::string command_to_go_on(const std::vector<std::string>& arguments,
                                    const std::filesystem::path& folder, int64_t steps) {
  std::string text = launcher_command() + shell_word(arguments[0]);
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& a = arguments[i];
    if (a == "--resume" || a.starts_with("--steps=") || a.starts_with("--checkpoint=")) continue;
    if (a == "--steps" || a == "--checkpoint") {
      ++i;
      continue;
    }
    text += " " + shell_word(a);
  }
  return fmt::format("{} --checkpoint {} --resume --steps {}", text, folder.string(), 2 * steps);
}

// --- main ----------------------------------------------------------------------------------------

inline void set_defaults(CLI::App& app) {
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
}

}  // namespace training
