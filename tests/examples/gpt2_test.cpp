// GPT-2 as a program: it learns in every type, the same losses whatever the devices and however the
// batch is divided, weights with the published names, and a sentence for each mistake.
#include <tinyshard/tinyshard.h>

#include "tests/examples/training_program.h"

namespace tinyshard::test::gpt2_test {
namespace {

const std::string kProgram = GPT2;
const std::string kSmall =
    " --layers 2 --width 32 --heads 2 --context 32 --tokens text.txt --eval-batches 1 "
    "--checkpoint-every 0 --warmup 2 --lr 3e-3 --quiet ";

class Gpt2 : public TrainingProgram {
 protected:
  Gpt2() : TrainingProgram(kProgram + kSmall) {}

  void save(const std::string& name, const nn::StateDict& tensors) {
    nn::safe_save(tensors, temp_.path() / name);
  }
  // Returns the loss of the last line that `run` prints about held-out tokens.
  double held_out(const std::string& flags) {
    std::string loud = command_ + flags;
    loud.erase(loud.find("--quiet"), std::string("--quiet").size());
    Outcome o = run(loud);
    EXPECT_EQ(o.code, 0) << o.err;
    static constexpr std::string_view kLabel = "held out    loss ";
    size_t at = o.out.find(kLabel);
    return at == std::string::npos ? 0 : std::strtod(o.out.c_str() + at + kLabel.size(), nullptr);
  }
};

TEST_F(Gpt2, LearnsInEveryType) {
  std::vector<double> exact = losses("f64", "", "--steps 40 --dtype f64");
  ASSERT_EQ(exact.size(), 40u);
  EXPECT_LT(exact.back(), 0.8 * exact.front());
  expect_close(exact, losses("f32", "", "--steps 40 --dtype f32"), 1e-4, "f32");
  expect_close(exact, losses("bf16", "", "--steps 40 --dtype bf16"), 1e-2, "bf16");
  expect_close(exact, losses("f16", "", "--steps 40 --dtype f16"), 1e-2, "f16");
}

TEST_F(Gpt2, LossesDoNotDependOnTheDevices) { expect_same_on_all_layouts(30, "--dtype f32", 1e-4); }

// Closer than rounding to f32 would leave it: gradients travel in their own type.
TEST_F(Gpt2, ParametersMayBeDividedOverDevices) {
  const std::string common = "--steps 8 --dtype f64 --batch 8 ";
  const std::vector<double> one = losses("one", "", common);
  ASSERT_EQ(one.size(), 8u);
  const std::string two = " --devices CPU:0,CPU:1", four = two + ",CPU:2,CPU:3";
  std::vector<Layout> layouts = {
      {"fsdp", "", two + " --fsdp 2"},
      {"tp", "", two + " --tp 2"},
      {"fsdp x tp, all of it", "",
       four + " --fsdp 2 --tp 2 --checkpoint-activations --batch 4 --accumulate 2"},
      {"data x fsdp, sharded optimizer", "", four + " --fsdp 2 --shard-optimizer"},
      {"data x tp", "", four + " --tp 2"},
      {"pp", "", two + " --pp 2"},
      {"pp x fsdp, in parts", "",
       four + " --pp 2 --fsdp 2 --micro-batches 2 --batch 4 --accumulate 2"},
  };
  for (const auto& [name, two_ranks, four_ranks] : launchers()) {
    layouts.push_back({name + ", fsdp", two_ranks, " --fsdp 2"});
    layouts.push_back({name + ", fsdp x tp", four_ranks, " --fsdp 2 --tp 2"});
    layouts.push_back({name + ", pp x tp", four_ranks, " --pp 2 --tp 2"});
  }
  int run = 0;
  for (const Layout& l : layouts)
    expect_close(one, losses("run" + std::to_string(run++), l.launch, common + l.flags), 1e-12,
                 l.name);
}

// Parameters and the optimizer's state, as the plan says.
TEST_F(Gpt2, EachDeviceHoldsItsPartOfWhatIsDivided) {
  auto held = [&](const std::string& flags) {
    Outcome o =
        run(kProgram + " --plan --layers 2 --batch 8 --context 64 --devices-per-rank 4" + flags);
    EXPECT_EQ(o.code, 0) << o.err;
    const size_t line = o.out.find("peak memory"), colon = o.out.find("device: ", line);
    return colon == std::string::npos ? 0 : std::strtod(o.out.c_str() + colon + 8, nullptr);  // MiB
  };
  const double whole = held("");
  EXPECT_GT(whole, 100);
  for (const char* flags : {" --fsdp 4", " --tp 4", " --fsdp 2 --tp 2"}) {
    EXPECT_GT(held(flags), 0.24 * whole) << flags;
    EXPECT_LT(held(flags), 0.26 * whole) << flags;
  }
}

// Saved by four devices that hold parts, read by one, and the other way round.
TEST_F(Gpt2, ACheckpointOfPartsGoesOnOnOtherDevices) {
  const std::string parts = " --devices CPU:0,CPU:1,CPU:2,CPU:3 --fsdp 2 --tp 2";
  auto [whole, resumed] = stopped_halfway(8, "--dtype f64 --batch 8", parts, "");
  expect_close(whole, resumed, 1e-9, "parts, then one device");
}

// Each rank of the first job saved its parts; those of the second find theirs among them.
TEST_F(Gpt2, ACheckpointOfRanksGoesOnWithOtherRanks) {
  const std::string common = "--steps 8 --checkpoint-every 4 --dtype f64 --batch 8 ";
  int run = 0;
  for (const auto& [name, two_ranks, four_ranks] : launchers()) {
    const Layout one = {"one device", "", ""};
    const Layout two = {"two ranks", two_ranks, "--devices-per-rank 2 --fsdp 4"};
    const Layout four = {"four ranks", four_ranks, "--fsdp 2 --tp 2"};
    for (const auto& [from, others] :
         {std::pair(four, std::vector{two, one}), {two, {four}}, {one, {four}}}) {
      const std::string whole = "whole" + std::to_string(run);
      std::vector<double> rest = losses(whole, from.launch, common + from.flags);
      ASSERT_EQ(rest.size(), 8u) << name << ", " << from.name;
      rest.erase(rest.begin(), rest.begin() + 4);
      for (const Layout& to : others) {
        const std::string stopped = "stopped" + std::to_string(run++);
        keep_step(4, whole, stopped);
        expect_close(rest, losses(stopped, to.launch, common + "--resume " + to.flags), 1e-9,
                     name + ", from " + from.name + " to " + to.name);
      }
    }
  }
}

TEST_F(Gpt2, ABatchMayComeInParts) {
  std::vector<double> whole = losses("whole", "", "--steps 20 --dtype f64 --batch 8");
  ASSERT_EQ(whole.size(), 20u);
  int run = 0;
  std::string parts = "--steps 20 --dtype f64 --batch 2 --accumulate 4";
  expect_close(whole, losses("parts", "", parts), 1e-9, "one device");
  for (const char* flags : {" --devices CPU:0,CPU:1", " --devices CPU:0,CPU:1 --shard-optimizer"}) {
    expect_close(whole, losses("run" + std::to_string(run++), "", parts + flags), 1e-9, flags);
  }
}

TEST_F(Gpt2, GradientsMayTravelInBf16) {
  int run = 0;
  for (const char* flags : {"", " --shard-optimizer", " --accumulate 2 --shard-optimizer"}) {
    std::string common = std::string("--steps 20 --devices CPU:0,CPU:1") + flags;
    std::vector<double> wide = losses("wide" + std::to_string(run), "", common);
    std::vector<double> narrow =
        losses("narrow" + std::to_string(run++), "", common + " --reduce-dtype bf16");
    expect_close(wide, narrow, 1e-2, flags);
    EXPECT_NE(wide, narrow) << flags;
  }
}

TEST_F(Gpt2, CheckpointedActivationsChangeNoBit) {
  for (const char* dtype : {"--steps 10 --dtype f32", "--steps 10 --dtype bf16 --accumulate 2"}) {
    std::string name = std::string(dtype).substr(19, 2), flags = dtype;
    EXPECT_EQ(losses("kept" + name, "", flags),
              losses("again" + name, "", flags + " --checkpoint-activations"));
  }
}

TEST_F(Gpt2, AResumedRunGivesTheBitsOfOneThatNeverStopped) {
  auto [whole, resumed] = stopped_halfway(20, "--dtype bf16 --accumulate 2 --batch 4");
  EXPECT_EQ(whole, resumed);
}

TEST_F(Gpt2, WeightsHaveThePublishedNames) {
  std::string flags =
      "--dtype f32 --batch 8 --eval-batches 8 --layers 1 --save-weights w.safetensors";
  double trained = held_out(flags + " --steps 20");
  nn::StateDict weights = safe_load(temp_.path() / "w.safetensors");
  EXPECT_EQ(weights.at("wte.weight").shape(), (Dims{256, 32}));
  EXPECT_EQ(weights.at("wpe.weight").shape(), (Dims{32, 32}));
  EXPECT_EQ(weights.at("h.0.attn.c_attn.weight").shape(), (Dims{32, 96}));
  EXPECT_EQ(weights.at("h.0.attn.c_proj.bias").shape(), (Dims{32}));
  EXPECT_EQ(weights.at("h.0.mlp.c_fc.weight").shape(), (Dims{32, 128}));
  EXPECT_EQ(weights.at("h.0.mlp.c_proj.weight").shape(), (Dims{128, 32}));
  EXPECT_EQ(weights.at("h.0.ln_2.bias").shape(), (Dims{32}));
  EXPECT_EQ(weights.at("ln_f.weight").shape(), (Dims{32}));
  EXPECT_EQ(weights.size(), 16u);

  // With the prefix and the tensors that such files have besides the weights.
  nn::StateDict published;
  for (const auto& [name, tensor] : weights) published["transformer." + name] = tensor;
  published["transformer.h.0.attn.bias"] = Tensor::ones({1, 1, 32, 32});
  published["lm_head.weight"] = weights.at("wte.weight");
  save("published.safetensors", published);
  std::string again =
      "--dtype f32 --batch 8 --eval-batches 8 --layers 1 --lr 0 --steps 1 --weights ";
  EXPECT_DOUBLE_EQ(held_out(again + "w.safetensors"), trained);
  EXPECT_DOUBLE_EQ(held_out(again + "published.safetensors"), trained);

  nn::StateDict odd = weights;
  odd.erase("ln_f.bias");
  odd["h.0.mlp.c_fc.weight"] = Tensor::ones({128, 32});
  odd["h.7.ln_1.bias"] = Tensor::ones({32});
  save("odd.safetensors", odd);
  expect_one_sentence({"--layers 1 --weights odd.safetensors",
                       {"odd.safetensors", "ln_f.bias", "h.7.ln_1.bias",
                        "h.0.mlp.c_fc.weight (model [32, 128], file [128, 32])"}});
}

// 50257 tokens need rows that no token has: they must not take part.
TEST_F(Gpt2, TheTableIsPaddedWithoutEffect) {
  std::vector<uint16_t> tokens;
  for (int i = 0; i < 4000; ++i) tokens.push_back(uint16_t(i * i % 50257));
  std::ofstream(temp_.path() / "tokens.bin")
      .write(reinterpret_cast<const char*>(tokens.data()), long(tokens.size() * 2));
  const std::string sizes = " --layers 1 --width 8 --heads 1 --context 16 ";
  // Zeros score all tokens alike.
  nn::StateDict zeros;
  ASSERT_EQ(run(kProgram + sizes +
                "--tokens tokens.bin --batch 2 --steps 1 --checkpoint-every 0 --eval-batches 0 "
                "--save-weights any.safetensors")
                .code,
            0);
  for (const auto& [name, tensor] : safe_load(temp_.path() / "any.safetensors"))
    zeros[name] = tensor.zeros_like();
  save("zeros.safetensors", zeros);
  Outcome o = run(kProgram + sizes +
                  "--weights zeros.safetensors --batch 2 --tokens tokens.bin "
                  "--steps 3 --dtype f32 --checkpoint-every 0 --eval-batches 1 --log log.jsonl "
                  "--json speed.json --save-weights w.safetensors");
  ASSERT_EQ(o.code, 0) << o.err;
  std::ifstream log(temp_.path() / "log.jsonl");
  std::string line;
  std::getline(log, line);
  EXPECT_NEAR(double(nlohmann::json::parse(line).at("loss")), std::log(50257.0),
              1e-4);  // of 50304: 9e-4 more
  EXPECT_EQ(safe_load(temp_.path() / "w.safetensors").at("wte.weight").shape(), (Dims{50257, 8}));
  for (const char* part : {"first step", "tokens/s", "MFU -", "GiB per device"})
    EXPECT_NE(o.out.find(part), std::string::npos) << part << " is missing in\n" << o.out;
  auto speed = nlohmann::json::parse(std::ifstream(temp_.path() / "speed.json"));
  EXPECT_EQ(speed.at("steps"), 3);
  EXPECT_EQ(speed.at("mfu"), 0);
  for (const char* part : {"first_step_s", "tokens_per_s", "ms", "ms_p10", "ms_p90", "peak_bytes"})
    EXPECT_GT(double(speed.at(part)), 0) << part;
}

TEST_F(Gpt2, PlansWithoutADevice) {
  Outcome o = run(kProgram + " --plan --batch 4");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("peak memory"), std::string::npos) << o.out;
}

TEST_F(Gpt2, MistakesAreOneSentence) {
  std::ofstream(temp_.path() / "odd.bin") << "abc";
  const uint16_t large[] = {60000};
  std::ofstream file(temp_.path() / "large.bin");
  for (int i = 0; i < 1000; ++i) file.write(reinterpret_cast<const char*>(large), 2);
  file.close();
  const Mistake mistakes[] = {
      {"--tokens nowhere.txt", {"nowhere.txt"}},
      {"--tokens nowhere.bin", {"nowhere.bin"}},
      {"--tokens odd.bin", {"odd.bin", "3 bytes"}},
      {"--tokens large.bin", {"large.bin", "60000", "50257"}},
      {"--tokens ''", {"--tokens"}},
      {"--weights nowhere.safetensors", {"nowhere.safetensors"}},
      {"--batch 8 --devices CPU:0,CPU:1,CPU:2", {"8", "3"}},
      {"--devices CPU:0,CPU:1 --fsdp 4", {"--fsdp 4", "--tp 1", "2 devices"}},
      {"--devices CPU:0,CPU:1 --pp 4", {"--pp 4", "2 devices"}},
      {"--devices CPU:0,CPU:1 --pp 2 --micro-batches 3", {"--batch 8", "--micro-batches 3"}},
      {"--devices CPU:0,CPU:1 --tp 3", {"--tp 3", "2 devices"}},
      {"--width 30 --heads 4", {"30", "4"}},
      {"--dtype f12", {"f12"}},
      {"--context 100000", {"100000"}},
  };
  for (const Mistake& m : mistakes) expect_one_sentence(m);
  EXPECT_EQ(run(kProgram + " --model 125M").code, 2);
}

}  // namespace
}  // namespace tinyshard::test::gpt2_test
