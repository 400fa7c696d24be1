// The GPT example as a program: the same losses whatever the devices, the same bits when stopped
// and resumed, and a sentence for each mistake.
#include "tests/examples/training_program.h"

namespace tinyshard::test::train_gpt_test {
namespace {

const std::string kProgram = TRAIN_GPT;
const std::string kSmall =
    " --layers 2 --width 32 --heads 2 --context 32 --batch 8 --eval-batches 1 --sample 0 --corpus "
    "text.txt --quiet";

class TrainGpt : public TrainingProgram {
 protected:
  TrainGpt() : TrainingProgram(kProgram + kSmall) {}
};

TEST_F(TrainGpt, LossesDoNotDependOnTheDevicesInF64) {
  std::vector<double> one = expect_same_on_all_layouts(50, "--dtype f64 --seed 3", 1e-9);
  EXPECT_LT(one.back(), 0.8 * one.front()) << "it does not learn";
}

TEST_F(TrainGpt, LossesDoNotDependOnTheDevicesInF32) {
  expect_same_on_all_layouts(50, "--seed 3", 1e-4);
}

TEST_F(TrainGpt, TheSameRunGivesTheSameBits) {
  int run = 0;
  for (const Layout& l : layouts()) {
    std::string n = std::to_string(run++), flags = " --steps 10" + l.flags;
    EXPECT_EQ(losses("a" + n, l.launch, flags), losses("b" + n, l.launch, flags)) << l.name;
  }
}

TEST_F(TrainGpt, AResumedRunGivesTheBitsOfOneThatNeverStopped) {
  auto [whole, resumed] = stopped_halfway(20, "--warmup 5");
  EXPECT_EQ(whole, resumed);
}

TEST_F(TrainGpt, ACheckpointMayGoOnOnOtherDevices) {
  auto [whole, resumed] =
      stopped_halfway(20, "--dtype f64", "--devices CPU:0,CPU:1 --shard-optimizer",
                      "--devices CPU:0,CPU:1,CPU:2,CPU:3");
  expect_close(whole, resumed, 1e-9, "resumed on four devices");
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
  for (const Mistake& m : mistakes) expect_one_sentence(m);
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
}  // namespace tinyshard::test::train_gpt_test
