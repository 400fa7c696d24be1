// The training of the Llama example as a program: the losses of one device however layers, sequences,
// parameters and stages are divided, the same bits when stopped and resumed, and a folder that the
// other half of the example continues texts with.
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>

#include "tests/examples/training_program.h"

namespace tinyshard::test::llama_train_test {
namespace {

const std::string kProgram = LLAMA;
const std::string kSmall =
    " train --layers 2 --width 32 --heads 4 --kv-heads 2 --context 16 --batch 8 --tokens text.txt "
    "--eval-batches 1 --checkpoint-every 0 --warmup 2 --lr 3e-3 --quiet ";
const std::string kTwo = " --devices CPU:0,CPU:1 ", kFour = " --devices-per-rank 4 ",
                  kEight = " --devices-per-rank 8 ";

class LlamaTraining : public TrainingProgram {
 protected:
  LlamaTraining() : TrainingProgram(kProgram + kSmall) {}

  void expect_losses_of_one_device(const std::string& common, const std::vector<Layout>& layouts,
                                   double relative) {
    auto run = [&](const Layout& l) {
      return losses("run" + std::to_string(runs_++), l.launch, common + " " + l.flags);
    };
    const std::vector<double> one = run({"one device", "", ""});
    EXPECT_LT(one.back(), one.front());
    for (const Layout& l : layouts) expect_close(one, run(l), relative, l.name);
  }

  int runs_ = 0;
};

TEST_F(LlamaTraining, LearnsInEveryType) {
  const std::vector<double> exact = losses("f64", "", "--steps 30 --dtype f64");
  ASSERT_EQ(exact.size(), 30u);
  EXPECT_LT(exact.back(), 0.8 * exact.front());
  expect_close(exact, losses("f32", "", "--steps 30 --dtype f32"), 1e-5, "f32");
  expect_close(exact, losses("bf16", "", "--steps 30 --dtype bf16"), 1e-2, "bf16");
  expect_close(exact, losses("f16", "", "--steps 30 --dtype f16"), 1e-2, "f16");
}

TEST_F(LlamaTraining, LossesDoNotDependOnTheDevices) {
  expect_same_on_all_layouts(8, "--dtype f64", 1e-9);
}

TEST_F(LlamaTraining, OneKindOfDivision) {
  expect_losses_of_one_device("--steps 6 --dtype f64",
                              {{"fsdp", "", kTwo + "--fsdp 2"},
                               {"tp", "", kTwo + "--tp 2"},
                               {"tp, sp", "", kTwo + "--tp 2 --sp"},
                               {"pp", "", kTwo + "--pp 2 --micro-batches 2"},
                               {"fsdp of eight", "", kEight + "--fsdp 8"},
                               {"pp of four", "", kFour + "--pp 4 --micro-batches 2"}},
                              1e-9);
}

TEST_F(LlamaTraining, TwoKindsOfDivision) {
  expect_losses_of_one_device(
      "--steps 6 --dtype f64",
      {{"fsdp x tp, sp", "", kFour + "--fsdp 2 --tp 2 --sp"},
       {"data x tp", "", kFour + "--tp 2"},
       {"data x fsdp, sharded optimizer", "", kFour + "--fsdp 2 --shard-optimizer"},
       {"pp x fsdp", "", kFour + "--pp 2 --fsdp 2 --micro-batches 2"},
       {"pp x tp, sp", "", kFour + "--pp 2 --tp 2 --sp --micro-batches 2"}},
      1e-9);
}

TEST_F(LlamaTraining, ThreeKindsOfDivision) {
  const std::string all = "--pp 2 --fsdp 2 --tp 2 --sp --micro-batches 2 ";
  expect_losses_of_one_device(
      "--steps 6 --dtype f64",
      {{"data x fsdp x tp, sp", "", kEight + "--fsdp 2 --tp 2 --sp"},
       {"data x pp x tp, sp", "", kEight + "--pp 2 --tp 2 --sp --micro-batches 2"},
       {"pp x fsdp x tp, sp", "", kEight + all + "--checkpoint-activations"}},
      1e-9);
  expect_losses_of_one_device("--steps 6 --dtype f32", {{"f32", "", kEight + all}}, 1e-5);
}

TEST_F(LlamaTraining, ATableThatIsAlsoTheHeadMayBeDivided) {
  expect_losses_of_one_device("--tied --steps 4 --dtype f64",
                              {{"fsdp x tp, sp", "", kFour + "--fsdp 2 --tp 2 --sp"},
                               {"pp x tp", "", kFour + "--pp 2 --tp 2 --micro-batches 2"}},
                              1e-9);
}

// Tokens of a vocabulary that does not divide.
TEST_F(LlamaTraining, RandomTokens) {
  const std::string common = "--tokens random --vocabulary 331 --steps 3 --dtype f64";
  expect_close(losses("one", "", common), losses("four", "", common + kFour + "--tp 2 --sp"), 1e-9,
               "331 words");
}

TEST_F(LlamaTraining, RanksDivideIt) {
  std::vector<Layout> layouts;
  for (const auto& [name, two, four] : launchers()) {
    layouts.push_back({name + ", fsdp x tp, sp", four, "--fsdp 2 --tp 2 --sp"});
    layouts.push_back({name + ", pp", two, "--pp 2 --micro-batches 2"});
    layouts.push_back(
        {name + ", pp x tp, sp", two, "--devices-per-rank 2 --pp 2 --tp 2 --sp --micro-batches 2"});
  }
  expect_losses_of_one_device("--steps 6 --dtype f64", layouts, 1e-9);
}

// Parameters and the optimizer's state, as the plan says.
TEST_F(LlamaTraining, EachDeviceHoldsItsPart) {
  auto held = [&](const std::string& flags) {
    const Outcome o = run(kProgram +
                          " train --plan --layers 4 --width 256 --context 64 --batch 32 "
                          "--vocabulary 4096 --devices-per-rank 8 --micro-batches 2 " +
                          flags);
    EXPECT_EQ(o.code, 0) << o.err;
    const size_t line = o.out.find("peak memory"), colon = o.out.find("device: ", line);
    return colon == std::string::npos ? 0 : std::strtod(o.out.c_str() + colon + 8, nullptr);  // MiB
  };
  const double whole = held("");
  EXPECT_GT(whole, 50);
  for (const char* flags : {"--fsdp 8", "--fsdp 4 --tp 2 --sp", "--pp 2 --fsdp 2 --tp 2 --sp"}) {
    EXPECT_GT(held(flags), 0.12 * whole) << flags;
    EXPECT_LT(held(flags), 0.14 * whole) << flags;
  }
}

// The costs of ways to divide an op are remembered from layer to layer and from attempt to attempt.
TEST_F(LlamaTraining, RememberedCostsAreThoseFoundAnew) {
  for (const char* flags :
       {"--fsdp 4 --tp 2 --sp", "--pp 2 --fsdp 2 --tp 2 --sp --micro-batches 2", "--tp 8"}) {
    const Outcome o =
        run("TS_CHECK=costs " + kProgram +
            " train --plan --layers 4 --width 256 --heads 8 --kv-heads 8 --context 64 "
            "--batch 32 --vocabulary 4096 --devices-per-rank 8 " +
            flags);
    EXPECT_EQ(o.code, 0) << flags << ": " << o.err;
  }
}

// A step of several batches is one of all their sequences, on one device and divided.
TEST_F(LlamaTraining, BatchesThatAreSummedUp) {
  const std::string common = "--steps 6 --dtype f64 ";
  const std::vector<double> whole = losses("whole", "", common);
  const Layout layouts[] = {
      {"one device", "", "--batch 2 --accumulate 4"},
      {"fsdp x tp", "", kFour + "--fsdp 2 --tp 2 --batch 4 --accumulate 2"},
      {"pp", "", kTwo + "--pp 2 --micro-batches 2 --batch 4 --accumulate 2"},
  };
  for (const Layout& l : layouts)
    expect_close(whole, losses("parts" + std::to_string(runs_++), l.launch, common + l.flags), 1e-9,
                 l.name);
}

TEST_F(LlamaTraining, CheckpointedActivationsChangeNoBit) {
  const std::string flags = "--steps 6 --dtype bf16 ";
  EXPECT_EQ(losses("kept", "", flags), losses("again", "", flags + "--checkpoint-activations"));
}

TEST_F(LlamaTraining, AResumedRunGivesTheBitsOfOneThatNeverStopped) {
  const std::string divided = kFour + "--fsdp 2 --tp 2 --sp ";
  auto [whole, resumed] = stopped_halfway(12, "--dtype bf16", divided, divided);
  EXPECT_EQ(whole, resumed);
}

TEST_F(LlamaTraining, ACheckpointMayGoOnInAnotherDivision) {
  auto [whole, resumed] = stopped_halfway(8, "--dtype f64", kFour + "--fsdp 2 --tp 2 --sp",
                                          kTwo + "--pp 2 --micro-batches 2");
  expect_close(whole, resumed, 1e-9, "parts, then stages");
}

// The folder has what Hugging Face's have, wherever the model was.
TEST_F(LlamaTraining, WhatWasTrainedContinuesTexts) {
  const std::string ask = " --prompt 'the mesh' --tokens 8 --temperature 0 --check --model ";
  std::string said;
  int run_number = 0;
  for (const std::string& where :
       {std::string(), kFour + "--fsdp 2 --tp 2 --sp", kTwo + "--pp 2 --micro-batches 2"}) {
    const std::string folder = "out" + std::to_string(run_number++);
    Outcome o = run(fmt::format("{}--steps 40 --save {}{}", command_, folder, where));
    ASSERT_EQ(o.code, 0) << o.err;
    o = run(fmt::format("{}{}{}", kProgram, ask, folder));
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_TRUE(o.out.starts_with("the mesh")) << o.out;
    if (said.empty()) said = o.out;
    EXPECT_EQ(o.out, said) << where;
  }
  const nn::StateDict saved = safe_load(temp_.path() / "out1");
  EXPECT_EQ(saved.at("model.layers.1.mlp.gate_proj.weight").shape(), (Dims{96, 32}));
  EXPECT_EQ(saved.at("lm_head.weight").shape(), (Dims{256, 32}));
  EXPECT_EQ(saved.size(), 21u);
  std::vector<int32_t> bytes;
  for (int b = 0; b < 256; ++b) bytes.push_back(b);
  const Tokenizer tokenizer(temp_.path() / "out0");
  EXPECT_EQ(tokenizer.vocab_size(), 256);
  EXPECT_EQ(tokenizer.decode(bytes).size(), 256u);
  for (int b = 0; b < 256; ++b) EXPECT_EQ(int(uint8_t(tokenizer.decode(bytes)[size_t(b)])), b);
  EXPECT_EQ(tokenizer.encode("\xc3\xa9 z\n").size(), 5u);
}

TEST_F(LlamaTraining, SaysWhatItDoesAndHowToGoOn) {
  std::string loud = command_;
  loud.erase(loud.find("--quiet"), std::string("--quiet").size());
  const Outcome o =
      run(loud + "--steps 4 --checkpoint-every 4 --checkpoint here" + kTwo + "--tp 2");
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part : {"CPU:1", "mesh(data=1, model=2)", "2 layers", "text.txt", "held out",
                           "here/step-00000004", "llama train --layers 2", "--resume --steps 8"})
    EXPECT_NE(o.out.find(part), std::string::npos) << part << " is missing in\n" << o.out;
  const Outcome other = run(command_ + "--steps 8 --checkpoint here --resume --kv-heads 4");
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.err.find("was trained with --kv-heads 2, this run has 4"), std::string::npos)
      << other.err;
}

TEST_F(LlamaTraining, MistakesAreOneSentence) {
  const Mistake mistakes[] = {
      {"--tokens nowhere.txt", {"nowhere.txt"}},
      {"--devices CPU:0,CPU:1,CPU:2", {"--batch 8", "3 devices"}},
      {"--devices-per-rank 4 --tp 4", {"--kv-heads 2", "--tp 4"}},
      {"--devices-per-rank 2 --fsdp 3", {"--fsdp 3", "2 devices"}},
      {"--devices-per-rank 8 --pp 8 --micro-batches 1", {"4 parts", "8 stages"}},
      {"--sp", {"--sp", "--tp"}},
      {"--width 30", {"30", "4"}},
      {"--kv-heads 3", {"4 heads", "3 heads"}},
      {"--context 100000", {"100000"}},
      {"--dtype f12", {"f12"}},
      {"--resume --checkpoint empty", {"empty"}},
  };
  for (const Mistake& m : mistakes) expect_one_sentence(m);
}

TEST_F(LlamaTraining, UsageErrorsEndWithTwo) {
  EXPECT_EQ(run(kProgram + " train --fsdp none").code, 2);
  const Outcome zero = run(kProgram + " train --batch 0");
  EXPECT_EQ(zero.code, 2);
  EXPECT_NE(zero.err.find("--batch: Value 0 is not what it takes"), std::string::npos) << zero.err;
  EXPECT_LT(zero.err.size(), 160u) << zero.err;
  EXPECT_EQ(run(kProgram + " train --model m").code, 2);
  EXPECT_EQ(run(kProgram).code, 2);
  const Outcome help = run(kProgram + " train --help");
  EXPECT_EQ(help.code, 0);
  for (const char* flag : {"--fsdp", "--tp", "--sp", "--pp", "--micro-batches", "--kv-heads",
                           "--resume", "--save", "--plan", "--accumulate"})
    EXPECT_NE(help.out.find(flag), std::string::npos) << flag;
}

}  // namespace
}  // namespace tinyshard::test::llama_train_test
