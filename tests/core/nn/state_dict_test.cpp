// Copying values into a model by name, and files of them.
#include "core/nn/state_dict.h"

#include <filesystem>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/nn.h"

namespace tinyshard::state_dict_test {
namespace {

struct Net {
  nn::Linear first{3, 4}, second{4, 2};
  TS_FIELDS(first, second)
};

std::vector<float> values(const Tensor& t) { return t.to_vector<float>(); }

std::string message(const auto& call) {
  try {
    call();
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}

class StateDictTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("tinyshard-state-dict-" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(StateDictTest, LoadsWhatAnotherModelHolds) {
  Net a, b;
  EXPECT_NE(values(a.first.weight), values(b.first.weight));
  nn::load_state_dict(b, nn::state_dict(a));
  for (const auto& [name, tensor] : nn::state_dict(a)) {
    EXPECT_EQ(values(tensor), values(nn::state_dict(b).at(name))) << name;
  }
  EXPECT_NE(a.first.weight.state(), b.first.weight.state());
}

TEST_F(StateDictTest, WritesOverTheStorageThatOptimizersAndStepsKnow) {
  Net a, b;
  b.first.weight.realize();
  UOp before = b.first.weight.state()->value;
  nn::load_state_dict(b, nn::state_dict(a));
  EXPECT_EQ(b.first.weight.state()->value, before);
  EXPECT_TRUE(b.first.weight.is_param());
}

TEST_F(StateDictTest, SurvivesAFile) {
  Net a, b;
  safe_save(nn::state_dict(a), folder_ / "net.safetensors", {{"epoch", "3"}});
  nn::StateDict loaded = safe_load(folder_ / "net.safetensors");
  EXPECT_EQ(loaded.size(), 4u);
  nn::load_state_dict(b, loaded);
  EXPECT_EQ(values(a.second.bias), values(b.second.bias));
  EXPECT_EQ(values(a.first.weight), values(b.first.weight));
}

TEST_F(StateDictTest, ConvertsToTheTypesOfTheModel) {
  Net net;
  nn::StateDict dict = nn::state_dict(Net());
  for (auto& [name, tensor] : dict) tensor = tensor.cast(DType::F64);
  nn::load_state_dict(net, dict);
  EXPECT_EQ(net.first.weight.dtype(), DType::F32);
  EXPECT_EQ(values(net.first.weight), values(dict.at("first.weight")));
}

TEST_F(StateDictTest, NamesEverythingThatDoesNotFit) {
  Net net;
  std::vector<float> before = values(net.first.weight);
  nn::StateDict dict = nn::state_dict(Net());
  dict.erase("second.bias");
  dict.emplace("third.weight", Tensor::zeros(1));
  dict["first.bias"] = Tensor::zeros(5);
  std::string text = message([&] { nn::load_state_dict(net, dict); });
  EXPECT_TRUE(
      text.starts_with("load_state_dict: missing: second.bias; unexpected: third.weight; "
                       "shapes differ: first.bias (model [4], file [5])"))
      << text;
  EXPECT_EQ(values(net.first.weight), before) << "nothing is written when something does not fit";
}

TEST_F(StateDictTest, LoadsAPartWhenNotStrict) {
  Net net;
  std::vector<float> kept = values(net.second.bias);
  nn::StateDict dict = nn::state_dict(Net());
  dict.erase("second.bias");
  dict.emplace("third.weight", Tensor::zeros(1));
  nn::load_state_dict(net, dict, {.strict = false});
  EXPECT_EQ(values(net.first.weight), values(dict.at("first.weight")));
  EXPECT_EQ(values(net.second.bias), kept);
}

TEST_F(StateDictTest, HoldsOptimizersToo) {
  Net net;
  auto optim = nn::optim::AdamW(nn::parameters(net));
  nn::StateDict dict = nn::state_dict(optim, "optimizer");
  EXPECT_EQ(dict.size(), 3u + 2 * 4);
  EXPECT_TRUE(dict.contains("optimizer.lr"));
  EXPECT_TRUE(dict.contains("optimizer.b1_t"));
  EXPECT_EQ(dict.at("optimizer.m.second.weight").shape(), net.second.weight.shape());
}

TEST_F(StateDictTest, CheckpointsCarryTheirStep) {
  Net a, b;
  auto path =
      nn::save_checkpoint(nn::state_dict(a), folder_ / "run", 7, {.metadata = {{"seed", "1"}}});
  EXPECT_TRUE(std::filesystem::exists(path));
  nn::save_checkpoint(nn::state_dict(b), folder_ / "run", 9);
  nn::CheckpointInfo newest = nn::load_checkpoint(nn::state_dict(a), folder_ / "run");
  EXPECT_EQ(newest.step, 9);
  EXPECT_EQ(values(a.first.weight), values(b.first.weight));
  nn::CheckpointInfo older = nn::load_checkpoint(nn::state_dict(b), path);
  EXPECT_EQ(older.step, 7);
  EXPECT_EQ(older.metadata.at("seed"), "1");
  EXPECT_EQ(nn::checkpoint_info(folder_ / "run").step, 9);
  EXPECT_NE(values(a.first.weight), values(b.first.weight));
}

TEST_F(StateDictTest, AnAsynchronousCheckpointHoldsWhatWasThere) {
  Net a, b;
  const std::vector<float> then = values(a.first.weight);
  const auto path =
      nn::save_checkpoint(nn::state_dict(a), folder_ / "run", 3, {.asynchronous = true});
  a.first.weight.assign(Tensor::zeros({4, 3})).realize();
  nn::wait_for_checkpoints();
  EXPECT_TRUE(std::filesystem::exists(path / "manifest.json"));
  EXPECT_EQ(nn::load_checkpoint(nn::state_dict(b), folder_ / "run").path, path);
  EXPECT_EQ(values(b.first.weight), then);
  // Saves the same step again, and without waiting: the load waits.
  const auto again =
      nn::save_checkpoint(nn::state_dict(a), folder_ / "run", 3, {.asynchronous = true});
  EXPECT_NE(again, path);
  EXPECT_EQ(nn::load_checkpoint(nn::state_dict(b), folder_ / "run").path, again);
  EXPECT_EQ(values(b.first.weight), std::vector<float>(12, 0.0f));
}

TEST_F(StateDictTest, AnAsynchronousCheckpointThatFailsSaysSoLater) {
  const Tensor big = Tensor::zeros(1 << 20).clone().realize();
  nn::save_checkpoint({{"x", big}}, folder_ / "run", 1);
  for (bool by_next_save : {false, true}) {
    rlimit before;
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit little{1 << 20, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
    nn::save_checkpoint({{"x", big}}, folder_ / "run", 2, {.asynchronous = true});
    const std::string text = message([&] {
      if (!by_next_save) return nn::wait_for_checkpoints();
      nn::save_checkpoint({{"x", Tensor::zeros(1)}}, folder_ / "run", 3);
    });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_NE(text.find("File too large"), std::string::npos) << text;
    EXPECT_EQ(nn::checkpoint_info(folder_ / "run").step, 1);
    nn::wait_for_checkpoints();  // once said is enough
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "run"))
    EXPECT_FALSE(entry.path().native().ends_with(".tinyshard-tmp")) << entry.path();
}

TEST_F(StateDictTest, CheckpointsKeepTheRandomState) {
  Tensor::manual_seed(5);
  Tensor::rand({10}).realize();
  nn::save_checkpoint({{"x", Tensor::zeros(1)}}, folder_ / "run", 1);
  std::vector<float> next = values(Tensor::rand({4}));
  Tensor::manual_seed(6);
  nn::load_checkpoint({{"x", Tensor::zeros(1).clone()}}, folder_ / "run");
  EXPECT_EQ(values(Tensor::rand({4})), next);
}

TEST_F(StateDictTest, AFolderThatCannotBeWrittenIsToldAtOnce) {
  nn::prepare_checkpoints(folder_ / "new" / "run");
  const std::filesystem::directory_iterator entries(folder_ / "new" / "run");
  for (const auto& entry : entries) EXPECT_EQ(entry.path().filename(), ".tinyshard-lock");
  EXPECT_NE(message([] { nn::prepare_checkpoints("/proc/nothing"); }).find("/proc/nothing"),
            std::string::npos);
}

TEST_F(StateDictTest, ALinkThatLeadsNowhereIsTold) {
  std::filesystem::create_symlink(folder_ / "gone", folder_ / "link");
  const std::string says = (folder_ / "link").native() + " is a link to " +
                           (folder_ / "gone").native() + ", which does not exist";
  const nn::StateDict one{{"w", Tensor::ones({2})}};
  for (const std::string& text : {message([&] { nn::prepare_checkpoints(folder_ / "link"); }),
                                  message([&] { nn::save_checkpoint(one, folder_ / "link", 1); }),
                                  message([&] { nn::safe_save(one, folder_ / "link"); })})
    EXPECT_NE(text.find(says), std::string::npos) << text;
}

}  // namespace
}  // namespace tinyshard::state_dict_test
