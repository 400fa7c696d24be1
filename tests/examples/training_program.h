// Shared by the tests of the training programs: a text to learn, runs and the losses they log.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/examples/launchers.h"
#include "tests/examples/run_program.h"

namespace tinyshard::test {

// Where a program may run: how it is launched, and its flags.
struct Layout {
  std::string name, launch, flags;
};
inline std::vector<Layout> layouts() {
  std::vector<Layout> all = {
      {"1x2", "", " --devices CPU:0,CPU:1"},
      {"1x4", "", " --devices CPU:0,CPU:1,CPU:2,CPU:3"},
      {"1x2 sharded optimizer", "", " --devices CPU:0,CPU:1 --shard-optimizer"}};
  for (const auto& [name, two, four] : launchers()) {
    all.push_back({name + " 2x1", two, ""});
    all.push_back({name + " 4x1", four, ""});
    all.push_back({name + " 2x2", two, " --devices-per-rank 2"});
    all.push_back({name + " 2x1 sharded optimizer", two, " --shard-optimizer"});
  }
  return all;
}

class TrainingProgram : public ::testing::Test {
 protected:
  // `command` is the program with the flags that all runs have.
  explicit TrainingProgram(std::string command) : command_(std::move(command)) {}
  void SetUp() override {
    unsetenv("TS_DEVICES");  // these runs say themselves where they run
    // Words of a small vocabulary: something to learn in a few steps.
    static constexpr const char* kWords[] = {"tensor", "shard", "mesh", "graph",
                                             "kernel", "the",   "of",   "a"};
    std::ofstream text(temp_.path() / "text.txt");
    uint64_t state = 1;
    for (int i = 0; i < 6000; ++i) {
      state = state * 6364136223846793005 + 1442695040888963407;
      text << kWords[state >> 61] << (i % 11 == 10 ? ".\n" : " ");
    }
  }

  Outcome run(const std::string& command) { return run_program(command, temp_.path()); }

  // The losses of a run of this many steps; a test failure when it fails.
  std::vector<double> losses(const std::string& name, const std::string& launch,
                             const std::string& flags) {
    Outcome o =
        run(launch + command_ + " --checkpoint " + name + " --log " + name + ".jsonl " + flags);
    EXPECT_EQ(o.code, 0) << name << ": " << o.err;
    std::vector<double> list;
    std::ifstream log(temp_.path() / (name + ".jsonl"));
    for (std::string line; std::getline(log, line);)
      list.push_back(nlohmann::json::parse(line).at("loss"));
    return list;
  }

  void expect_close(const std::vector<double>& a, const std::vector<double>& b, double relative,
                    const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_LE(std::abs(a[i] - b[i]), relative * std::abs(a[i]))
          << what << ", step " << i << ": " << a[i] << ", " << b[i];
    }
  }

  // A copy of a run's checkpoints as they were after this step.
  void keep_step(int step, const std::string& from, const std::string& to) {
    std::filesystem::create_directories(temp_.path() / to);
    for (const auto& entry : std::filesystem::directory_iterator(temp_.path() / from)) {
      std::string name = entry.path().filename();
      if (!name.ends_with("-" + std::string(8 - std::to_string(step).size(), '0') +
                          std::to_string(step)))
        continue;
      std::filesystem::copy(entry.path(), temp_.path() / to / name,
                            std::filesystem::copy_options::recursive);
    }
  }

  // Gives the losses on one device.
  std::vector<double> expect_same_on_all_layouts(size_t steps, const std::string& more,
                                                 double relative) {
    std::string flags = "--steps " + std::to_string(steps) + " " + more;
    std::vector<double> one = losses("one", "", flags);
    EXPECT_EQ(one.size(), steps);
    int run = 0;
    for (const Layout& l : layouts()) {
      expect_close(one, losses("run" + std::to_string(run++), l.launch, flags + l.flags), relative,
                   l.name);
    }
    return one;
  }

  // The losses of the second half of a run, and of one that stopped before it and was resumed.
  struct Halves {
    std::vector<double> whole, resumed;
  };
  Halves stopped_halfway(int steps, const std::string& more, const std::string& first = "",
                         const std::string& second = "") {
    const int half = steps / 2;
    std::string flags = "--steps " + std::to_string(steps) + " --checkpoint-every " +
                        std::to_string(half) + " " + more + " ";
    std::vector<double> whole = losses("whole", "", flags + first);
    if (whole.size() != size_t(steps)) {
      ADD_FAILURE() << whole.size() << " losses of " << steps << " steps";
      return {};
    }
    keep_step(half, "whole", "stopped");
    return {{whole.begin() + half, whole.end()},
            losses("stopped", "", flags + "--resume " + second)};
  }

  struct Mistake {
    const char* flags;
    std::vector<std::string> values;  // that the sentence names
  };
  void expect_one_sentence(const Mistake& m) {
    Outcome o = run(command_ + " --steps 2 " + m.flags);
    EXPECT_EQ(o.code, 1) << m.flags << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << m.flags << ": " << o.err;
    for (const std::string& value : m.values)
      EXPECT_NE(o.err.find(value), std::string::npos) << m.flags << ": " << o.err;
  }

  TempFolder temp_;
  std::string command_;
};

}  // namespace tinyshard::test
