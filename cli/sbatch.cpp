// The script only asks Slurm for hosts and starts the program with srun: ranks and where they meet
// come from the variables of its step (launch/environment.h).
#include "cli/sbatch.h"

#include <iostream>
#include <memory>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/run.h"
#include "core/base/error.h"
#include "launch/command_line.h"

namespace tinyshard::cli {
namespace {

constexpr int kMost = 1 << 20;  // hosts, ranks, GPUs or cores

struct BatchOptions {
  int nodes = 1, ranks = 1, gpus_per_rank = 0, cores_per_rank = 0;
  std::string time, partition, account, name, log_folder;
};

// A value in a line of the script ends with the line: it must be one word.
void check_word(const char* option, std::string_view value) {
  constexpr std::string_view kGood =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.,:/@+";
  if (value.find_first_not_of(kGood) != std::string_view::npos)
    throw UserError(fmt::format("sbatch: {} \"{}\" is not one plain word", option, value));
}

std::string script(const BatchOptions& options, const std::vector<std::string>& program) {
  if (program.empty())
    throw UserError("sbatch: no program is named; tinyshard sbatch -n 8 -- ./program");
  std::string text = "#!/bin/bash\n";
  const auto ask = [&](const char* option, const std::string& value) {
    check_word(option, value);
    if (!value.empty() && value != "0") text += fmt::format("#SBATCH {}={}\n", option, value);
  };
  ask("--nodes", std::to_string(options.nodes));
  ask("--ntasks", std::to_string(options.ranks));
  ask("--gpus-per-task", std::to_string(options.gpus_per_rank));
  ask("--cpus-per-task", std::to_string(options.cores_per_rank));
  ask("--time", options.time);
  ask("--partition", options.partition);
  ask("--account", options.account);
  ask("--job-name", options.name);
  text += "set -euo pipefail\n";
  if (!options.log_folder.empty())
    text += "export TS_RECORD=" + shell_word(options.log_folder) + "\n";
  // Slurm hands the cores of a task to its step only when it is told again.
  text += "srun --kill-on-bad-exit=1";
  if (options.cores_per_rank > 0)
    text += fmt::format(" --cpus-per-task={}", options.cores_per_rank);
  for (const std::string& word : program) text += " " + shell_word(word);
  return text + "\n";
}

}  // namespace

void add_sbatch(CLI::App& app, std::vector<std::string> program) {
  auto options = std::make_shared<BatchOptions>();
  CLI::App* command =
      app.add_subcommand("sbatch", "prints a batch script for Slurm that starts a program");
  command->prefix_command();
  command->footer(
      "  tinyshard sbatch --nodes 2 -n 16 --gpus-per-rank 1 -- ./train > train.sbatch\n"
      "  sbatch train.sbatch");
  command->add_option("--nodes", options->nodes, "Hosts")->check(CLI::Range(1, kMost));
  command->add_option("-n,--ranks", options->ranks, "Ranks")->check(CLI::Range(1, kMost));
  command->add_option("--gpus-per-rank", options->gpus_per_rank)->check(CLI::Range(0, kMost));
  command->add_option("--cores-per-rank", options->cores_per_rank)->check(CLI::Range(0, kMost));
  command->add_option("--time", options->time, "Limit, as Slurm reads it: 01:30:00");
  command->add_option("--partition", options->partition);
  command->add_option("--account", options->account);
  command->add_option("--name", options->name, "Of the job");
  command->add_option("--log-dir", options->log_folder,
                      "Folder for the rings of the ranks, for tinyshard blame");
  command->callback([command, options, program = std::move(program)] {
    std::vector<std::string> words = command->remaining();
    need_no_option(words);
    words.insert(words.end(), program.begin(), program.end());
    std::cout << script(*options, words);
  });
}

}  // namespace tinyshard::cli
