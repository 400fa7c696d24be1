// `tinyshard top`: what the ranks of running jobs do, as a table that renews itself.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transport/recorder/activity.h"
#include "transport/recorder/ring_reader.h"

namespace CLI {
class App;
}

namespace tinyshard::cli {

// A job as it is shown.
struct JobFigures {
  std::string name, program, folder;
  struct Rank {
    int rank = 0;
    int64_t pid = 0, memory = -1;  // bytes in RAM; -1: out of sight
    std::string host, state, does;
    recorder::RankActivity activity;
  };
  std::vector<Rank> ranks;
  struct Log {
    std::string path;
    std::vector<std::pair<std::string, double>> numbers;  // of its last line
    double steps_per_s = 0;                               // between two looks; 0: not known
  };
  std::vector<Log> logs;  // JSON lines that ranks of this host have open
  std::vector<std::string> problems;
  int slowest = -1;  // the index of the rank that the others wait for
};

JobFigures figures_of(const recorder::JobRings& job, const std::string& folder, int64_t now_ns);
// The table of one job, a line each, and its JSON. Characters that a terminal obeys are replaced.
std::string text_of(const JobFigures& job);
std::string json_of(const std::vector<JobFigures>& jobs);

// Adds the subcommand; its exit status is written to `status`.
void add_top(CLI::App& app, int& status);

}  // namespace tinyshard::cli
