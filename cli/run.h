// `tinyshard run` and the agent that it starts on each host.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "launch/job.h"

namespace tinyshard::cli {

struct RunOptions {
  int ranks = 0;
  std::string hosts, host_file, log_folder, remote_shell = JobOptions().remote_shell, bind,
                                            color = "auto", cores = "auto";
  int devices_per_rank = 0, restarts = 0;
  std::string elastic;  // "MIN" or "MIN:MAX"; empty: each rank is needed
  double timeout_s = 0, grace_s = std::chrono::duration<double>(JobOptions().grace).count();
  std::vector<std::string> environment;
  bool no_prefix = false;
  std::string view;  // file of events that becomes a page; empty: none
};
// Runs the program to its end; returns the exit status. UserError where the options make no sense.
int run(const RunOptions& options, const std::vector<std::string>& words);

std::string own_path();  // of this program

// Fails where the first word of a command line, which is to be a program, looks like an option.
void need_no_option(const std::vector<std::string>& words);

// Adds both to the command. `program` are the words behind "--"; `status` is what the process shall
// end with.
void add_run(CLI::App& app, std::vector<std::string> program, int& status);

}  // namespace tinyshard::cli
