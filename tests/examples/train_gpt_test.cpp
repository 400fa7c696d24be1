// The GPT example as a program: the same losses whatever the devices, the same bits when stopped
// and resumed, and a sentence for each mistake.
#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/examples/run_program.h"

namespace tinyshard::testing {
namespace {

const std::string kProgram = TRAIN_GPT;
const std::string kSmall =
    " --layers 2 --width 32 --heads 2 --context 32 --batch 8 --eval-batches 1 --sample 0 --corpus "
    "text.txt --quiet";

class TrainGpt : public ::testing::Test {
 protected:
  void SetUp() override {
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
    Outcome o = run(launch + kProgram + kSmall + " --checkpoint " + name + " --log " + name +
                    ".jsonl " + flags);
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

  TempFolder temp_;
};

struct Layout {
  const char* name;
  std::string launch, flags;
};
std::vector<Layout> layouts() {
  std::vector<Layout> all = {
      {"1x2", "", " --devices CPU:0,CPU:1"},
      {"1x4", "", " --devices CPU:0,CPU:1,CPU:2,CPU:3"},
      {"1x2 sharded optimizer", "", " --devices CPU:0,CPU:1 --shard-optimizer"}};
#ifdef MPIRUN_2
  all.push_back({"2x1", std::string(MPIRUN_2) + " ", ""});
  all.push_back({"4x1", std::string(MPIRUN_4) + " ", ""});
  all.push_back({"2x2", std::string(MPIRUN_2) + " ", " --devices-per-rank 2"});
  all.push_back({"2x1 sharded optimizer", std::string(MPIRUN_2) + " ", " --shard-optimizer"});
#endif
  return all;
}

TEST_F(TrainGpt, LossesDoNotDependOnTheDevicesInF64) {
  std::string flags = " --steps 50 --dtype f64 --seed 3";
  std::vector<double> one = losses("one", "", flags);
  ASSERT_EQ(one.size(), 50u);
  EXPECT_LT(one.back(), 0.8 * one.front()) << "it does not learn";
  int run = 0;
  for (const Layout& l : layouts()) {
    expect_close(one, losses("run" + std::to_string(run++), l.launch, flags + l.flags), 1e-9,
                 l.name);
  }
}

TEST_F(TrainGpt, LossesDoNotDependOnTheDevicesInF32) {
  std::string flags = " --steps 50 --seed 3";
  std::vector<double> one = losses("one", "", flags);
  ASSERT_EQ(one.size(), 50u);
  int run = 0;
  for (const Layout& l : layouts()) {
    expect_close(one, losses("run" + std::to_string(run++), l.launch, flags + l.flags), 1e-4,
                 l.name);
  }
}

TEST_F(TrainGpt, TheSameRunGivesTheSameBits) {
  int run = 0;
  for (const Layout& l : layouts()) {
    std::string n = std::to_string(run++), flags = " --steps 10" + l.flags;
    EXPECT_EQ(losses("a" + n, l.launch, flags), losses("b" + n, l.launch, flags)) << l.name;
  }
}

TEST_F(TrainGpt, AResumedRunGivesTheBitsOfOneThatNeverStopped) {
  std::string flags = " --steps 20 --checkpoint-every 10 --warmup 5";
  std::vector<double> whole = losses("whole", "", flags);
  ASSERT_EQ(whole.size(), 20u);
  keep_step(10, "whole", "stopped");
  std::vector<double> rest = losses("stopped", "", flags + " --resume");
  EXPECT_EQ(rest, std::vector<double>(whole.begin() + 10, whole.end()));
}

TEST_F(TrainGpt, ACheckpointMayGoOnOnOtherDevices) {
  std::string flags = " --steps 20 --checkpoint-every 10 --dtype f64";
  std::vector<double> whole =
      losses("whole", "", flags + " --devices CPU:0,CPU:1 --shard-optimizer");
  ASSERT_EQ(whole.size(), 20u);
  keep_step(10, "whole", "stopped");
  std::vector<double> rest =
      losses("stopped", "", flags + " --resume --devices CPU:0,CPU:1,CPU:2,CPU:3");
  expect_close({whole.begin() + 10, whole.end()}, rest, 1e-9, "resumed on four devices");
}

TEST_F(TrainGpt, OtherTypesTrainToo) {
  for (const char* dtype : {"bf16", "f16"}) {
    std::vector<double> list = losses(dtype, "", std::string(" --steps 50 --dtype ") + dtype);
    ASSERT_EQ(list.size(), 50u);
    EXPECT_LT(list.back(), 0.85 * list.front()) << dtype;
  }
}

TEST_F(TrainGpt, SaysWhatItDoesAndHowToGoOn) {
  Outcome o = run(kProgram +
                  " --layers 1 --width 16 --heads 2 --context 16 --batch 2 --steps 5 "
                  "--eval-batches 1 --sample 10 "
                  "--corpus text.txt --checkpoint here --plot loss.svg --prompt shard");
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part :
       {"CPU:0", "parameters", "validation loss", "here/step-00000005", "--resume", "shard"}) {
    EXPECT_NE(o.out.find(part), std::string::npos) << part << " is missing in\n" << o.out;
  }
  EXPECT_TRUE(file_text(temp_.path() / "loss.svg").starts_with("<svg"));
}

struct Mistake {
  const char* flags;
  std::vector<std::string> values;  // that the sentence names
};

TEST_F(TrainGpt, MistakesAreOneSentence) {
  const Mistake mistakes[] = {
      {"--corpus nowhere.txt", {"nowhere.txt"}},
      {"--batch 8 --devices CPU:0,CPU:1,CPU:2", {"8", "3"}},
      {"--devices GPU:0", {"GPU:0"}},
      {"--width 30 --heads 4", {"30", "4"}},
      {"--resume --checkpoint empty", {"empty"}},
      {"--checkpoint /proc/nothing", {"/proc/nothing"}},
      {"--dtype f12", {"f12"}},
      {"--context 100000", {"100000"}},
  };
  for (const Mistake& m : mistakes) {
    Outcome o = run(kProgram + kSmall + " --steps 2 " + m.flags);
    EXPECT_EQ(o.code, 1) << m.flags << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << m.flags << ": " << o.err;
    for (const std::string& value : m.values)
      EXPECT_NE(o.err.find(value), std::string::npos) << m.flags << ": " << o.err;
  }
}

TEST_F(TrainGpt, DoesNotMixRunsInOneFolder) {
  losses("run", "", " --steps 3");
  Outcome again = run(kProgram + kSmall + " --steps 3 --checkpoint run");
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("--resume"), std::string::npos) << again.err;
  for (const char* flags : {"--seed 9", "--layers 3", "--dtype f64"}) {
    Outcome other = run(kProgram + kSmall + " --steps 5 --checkpoint run --resume " + flags);
    EXPECT_EQ(other.code, 1);
    EXPECT_NE(other.err.find("was trained with " + std::string(flags).substr(0, 7)),
              std::string::npos)
        << other.err;
  }
}

TEST_F(TrainGpt, UsageErrorsEndWithTwo) {
  EXPECT_EQ(run(kProgram + " --no-such-flag").code, 2);
  EXPECT_EQ(run(kProgram + " --steps many").code, 2);
  Outcome help = run(kProgram + " --help");
  EXPECT_EQ(help.code, 0);
  for (const char* flag : {"--layers", "--resume", "--devices-per-rank", "--shard-optimizer",
                           "--plot", "--temperature"}) {
    EXPECT_NE(help.out.find(flag), std::string::npos) << flag;
  }
}

}  // namespace
}  // namespace tinyshard::testing
