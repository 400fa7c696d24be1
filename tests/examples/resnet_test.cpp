// The ResNet example as a program: it learns in every type, the same losses and accuracy whatever the
// devices and however images and channels are divided, the same bits when stopped and resumed.
#include "tests/examples/training_program.h"
#include "tests/test_data.h"

namespace tinyshard::test::resnet_test {
namespace {

const std::string kProgram = RESNET;
const std::string kSmall =
    " --model 8 --width 8 --size 16 --images 256 --held-out 40 --batch 32 --warmup 2 --eval-every "
    "0 "
    "--checkpoint-every 0 --quiet ";

class ResNet : public TrainingProgram {
 protected:
  ResNet() : TrainingProgram(kProgram + kSmall) {}

  // Results on the images that are held out, from the last line.
  struct HeldOut {
    double loss = 0, accuracy = 0;
  };
  HeldOut held_out(const std::string& flags, const std::string& launch = "") {
    std::string loud = command_ + flags;
    loud.erase(loud.find("--quiet"), std::string("--quiet").size());
    const Outcome o = run(launch + loud);
    EXPECT_EQ(o.code, 0) << o.err;
    HeldOut found;
    const size_t at = o.out.rfind("held out loss ");
    EXPECT_NE(at, std::string::npos) << o.out;
    if (at != std::string::npos)
      std::sscanf(o.out.c_str() + at, "held out loss %lf, accuracy %lf", &found.loss,
                  &found.accuracy);
    return found;
  }
};

TEST_F(ResNet, LearnsInEveryType) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    const HeldOut h = held_out(std::string("--steps 60 --dtype ") + dtype);
    EXPECT_GT(h.accuracy, 60) << dtype;
    EXPECT_LT(h.loss, 1.5) << dtype;
  }
}

// Beyond some steps only in f64: rounding moves a value across the bend of a ReLU now and then.
TEST_F(ResNet, LossesDoNotDependOnTheDevices) {
  const std::vector<double> one = expect_same_on_all_layouts(20, "--dtype f64", 1e-9);
  EXPECT_LT(one.back(), 0.8 * one.front()) << "it does not learn";
  expect_same_on_all_layouts(2, "--dtype f32", 1e-6);
}

TEST_F(ResNet, RowsAndChannelsMayBeDivided) {
  const std::string common = "--steps 8 --dtype f64 ", two = " --devices CPU:0,CPU:1",
                    four = two + ",CPU:2,CPU:3", eight = four + ",CPU:4,CPU:5,CPU:6,CPU:7";
  const std::vector<double> one = losses("one", "", common);
  ASSERT_EQ(one.size(), 8u);
  std::vector<Layout> layouts = {
      {"space", "", two + " --space 2"},
      {"channels", "", two + " --tp 2"},
      {"space of four", "", four + " --space 4"},
      {"data x channels, sharded optimizer", "", four + " --tp 2 --shard-optimizer"},
      {"data x space x channels", "", eight + " --space 2 --tp 2"},
  };
  for (const Launcher& launcher : launchers()) {
    layouts.push_back({launcher.name + ", space", launcher.two, " --space 2"});
    layouts.push_back({launcher.name + ", space x channels", launcher.two,
                       " --devices-per-rank 2 --space 2 --tp 2"});
  }
  int run = 0;
  for (const Layout& l : layouts)
    expect_close(one, losses("run" + std::to_string(run++), l.launch, common + l.flags), 1e-9,
                 l.name);
}

TEST_F(ResNet, TheOtherModelsTrainToo) {
  const std::string four = " --devices CPU:0,CPU:1,CPU:2,CPU:3 --space 2 --tp 2";
  int run = 0;
  for (const char* model : {"--model 50 --width 4", "--model 18 --width 4 --size 96 --images 32"}) {
    const std::string flags = std::string("--steps 3 --batch 8 --dtype f64 ") + model,
                      name = std::to_string(run++);
    expect_close(losses("one" + name, "", flags), losses("four" + name, "", flags + four), 1e-9,
                 model);
  }
}

// Norms have learned the same, too, and the filling of the last batch changes nothing.
TEST_F(ResNet, AccuracyDoesNotDependOnTheDevices) {
  const std::string flags = "--steps 10 --dtype f64";
  const HeldOut one = held_out(flags);
  auto expect_same = [&](const HeldOut& other, const char* what) {
    EXPECT_DOUBLE_EQ(other.loss, one.loss) << what;
    EXPECT_DOUBLE_EQ(other.accuracy, one.accuracy) << what;
  };
  expect_same(held_out(flags + " --devices CPU:0,CPU:1,CPU:2,CPU:3 --space 2"), "four devices");
  for (const Launcher& launcher : launchers())
    expect_same(held_out(flags, launcher.two), launcher.name.c_str());
}

TEST_F(ResNet, AResumedRunGivesTheBitsOfOneThatNeverStopped) {
  auto [whole, resumed] = stopped_halfway(20, "--augment 2");  // 8 steps are an epoch
  EXPECT_EQ(whole, resumed);
}

TEST_F(ResNet, ACheckpointMayGoOnOnOtherDevices) {
  auto [whole, resumed] = stopped_halfway(8, "--dtype f64", "--devices CPU:0,CPU:1 --tp 2",
                                          "--devices CPU:0,CPU:1,CPU:2,CPU:3 --shard-optimizer");
  expect_close(whole, resumed, 1e-9, "channels, then whole");
}

TEST_F(ResNet, ReadsBatchesOfCifar) {
  const std::filesystem::path folder = temp_.path() / "cifar";
  std::filesystem::create_directories(folder);
  // An image of a class is of one brightness, more or less.
  uint64_t random = 1;
  for (const auto& [name, images] :
       {std::pair{"data_batch_1.bin", 40}, {"data_batch_2.bin", 24}, {"test_batch.bin", 20}}) {
    std::ofstream file(folder / name, std::ios::binary);
    for (int i = 0; i < images; ++i) {
      file.put(char(i % 10));
      for (int p = 0; p < 3072; ++p) {
        random = random * 6364136223846793005 + 1442695040888963407;
        file.put(char(uint64_t(i % 10 * 24) + (random >> 60)));
      }
    }
  }
  const std::string flags = kProgram + kSmall + "--data cifar --steps 3 --log log.jsonl";
  std::string loud = flags;
  loud.erase(loud.find("--quiet"), std::string("--quiet").size());
  const Outcome o = run(loud);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("64 and 20 held out, 3 x 32 x 32"), std::string::npos) << o.out;
  std::filesystem::resize_file(folder / "test_batch.bin", 3072);
  expect_one_sentence({"--data cifar", {"test_batch.bin", "3072 bytes"}});
}

TEST_F(ResNet, LearnsDigits) {
  const std::filesystem::path data = test::test_data() / "data";
  if (!std::filesystem::exists(data / "t10k-images-idx3-ubyte.gz"))
    GTEST_SKIP() << "no digits in " << data;
  const HeldOut h =
      held_out("--data '" + data.string() + "' --steps 60 --batch 128 --width 16 --lr 0.05");
  EXPECT_GT(h.accuracy, 60);
}

TEST_F(ResNet, SaysWhatItDoesAndHowToGoOn) {
  std::string loud = command_;
  loud.erase(loud.find("--quiet"), std::string("--quiet").size());
  const Outcome o = run(loud + "--steps 4 --checkpoint-every 4 --checkpoint here --eval-every 2");
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part : {"CPU:0", "ResNet-8", "256 and 40 held out", "accuracy",
                           "here/step-00000004", "--resume --steps 8"})
    EXPECT_NE(o.out.find(part), std::string::npos) << part << " is missing in\n" << o.out;
  EXPECT_NE(o.err.find("step 2: held out loss"), std::string::npos) << o.err;
  const Outcome other = run(loud + "--steps 8 --checkpoint here --resume --width 16");
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.err.find("was trained with --width 8, this run has 16"), std::string::npos)
      << other.err;
}

TEST_F(ResNet, MistakesAreOneSentence) {
  const Mistake mistakes[] = {
      {"--data nowhere", {"nowhere"}},
      {"--devices CPU:0,CPU:1,CPU:2", {"--batch 32", "3 devices"}},
      {"--devices CPU:0,CPU:1,CPU:2 --space 2", {"--space 2", "3 devices"}},
      {"--batch 512", {"512", "256 images"}},
      {"--resume --checkpoint empty", {"empty"}},
      {"--dtype f12", {"f12"}},
  };
  for (const Mistake& m : mistakes) expect_one_sentence(m);
}

TEST_F(ResNet, UsageErrorsEndWithTwo) {
  EXPECT_EQ(run(kProgram + " --model 19").code, 2);
  EXPECT_EQ(run(kProgram + " --steps many").code, 2);
  const Outcome help = run(kProgram + " --help");
  EXPECT_EQ(help.code, 0);
  for (const char* flag : {"--data", "--augment", "--space", "--tp", "--resume", "--dtype"})
    EXPECT_NE(help.out.find(flag), std::string::npos) << flag;
}

}  // namespace
}  // namespace tinyshard::test::resnet_test
