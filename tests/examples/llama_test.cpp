// The Llama example as a program, on a folder of random weights: cached tokens are those of a pass
// over all, on one device and divided over two, and each mistake is a sentence.
#include <fstream>
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/codegen/codegen.h"
#include "examples/llama_model.h"
#include "tests/examples/run_program.h"
#include "tests/message_of.h"

namespace tinyshard::testing {
namespace {

constexpr int64_t kWords = 330;  // of the tokenizer

class LlamaProgram : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("TS_DEVICES"); }  // these runs say themselves where they run

  // A model in the folder `name`; `more` are further fields of config.json.
  void make(const std::string& name, const std::string& more, bool tied = false) {
    const std::filesystem::path folder = temp_.path() / name;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << fmt::format(
        R"({{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
        "max_position_embeddings": 64, "vocab_size": {},
        "tie_word_embeddings": {}{}}})",
        kWords, tied, more);
    std::filesystem::copy_file(TOKENIZERS "/llama3.json", folder / "tokenizer.json");
    Tensor::manual_seed(5);
    const llama::Model model(read_config(folder));
    for (const auto& [name_, t] : nn::state_dict(model)) {
      // Far from one another, so that the best word does not hang on rounding.
      if (t.ndim() == 2) t.replace((Tensor::randn(t.shape()) * 0.5).realize());
    }
    safe_save(nn::state_dict(model), folder / "model.safetensors");
  }
  static ModelConfig read_config(const std::filesystem::path& folder) {
    return io::read_model_config(folder);
  }
  Outcome run(const std::string& flags, const std::string& launch = "") {
    return run_program(launch + LLAMA + " " + flags, temp_.path());
  }

  TempFolder temp_;
};

TEST_F(LlamaProgram, CachedTokensAreThoseOfAPassOverAll) {
  make("untied", "");
  make("tied", R"(, "rope_theta": 500.0, "head_dim": 16)", true);
  make("scaled", R"(, "rope_parameters": {"rope_theta": 500.0, "rope_type": "llama3",
      "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8})");
  for (const char* model : {"untied", "tied", "scaled"}) {
    const std::string flags = fmt::format(
        "--model {} --prompt 'the shard of a mesh' --tokens 8 --temperature 0 --check "
        "--dtype f64",
        model);
    Outcome one = run(flags);
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_TRUE(one.out.starts_with("the shard of a mesh")) << one.out;
    EXPECT_NE(one.out.find("that of a pass over all"), std::string::npos) << one.out;
    Outcome two = run(flags + " --devices CPU:0,CPU:1");
    EXPECT_EQ(two.code, 0) << two.err;
    EXPECT_EQ(one.out, two.out);
#ifdef MPIRUN_2
    Outcome ranks = run(flags, std::string(MPIRUN_2) + " ");
    EXPECT_EQ(ranks.code, 0) << ranks.err;
    EXPECT_EQ(one.out, ranks.out);
#endif
  }
}

// Rates as transformers 5.24 gives them for these scalings (bench/peers/transformers_llama.py
// compares whole models).
TEST(Llama, ScaledPositionsTurnSlower) {
  ModelConfig c;
  c.head_width = 8, c.rope_base = 500;
  const double plain[] = {1, 0.2114743, 0.0447214, 0.0094574};
  auto expect_rates = [&](const std::vector<double>& factors) {
    for (int64_t pair = 0; pair < 4; ++pair)
      EXPECT_NEAR(llama::rate(c, pair), plain[pair] * factors[size_t(pair)], 1e-6) << pair;
  };
  expect_rates({1, 1, 1, 1});
  RopeScaling scaling;
  scaling.kind = "linear", scaling.factor = 2.5;
  c.rope_scaling = scaling;
  expect_rates({0.4, 0.4, 0.4, 0.4});
  // In 64 positions the pairs turn 10.19, 2.154, 0.4555 and 0.0963 times.
  c.rope_scaling =
      RopeScaling{.kind = "llama3", .factor = 8, .slow_turns = 1, .fast_turns = 4, .context = 64};
  const double part = (64 * plain[1] / 6.2831853 - 1) / 3;
  expect_rates({1, part + (1 - part) / 8, 0.125, 0.125});
}

// On one device and on two: the scores of all positions, and no kernel after the first tokens.
TEST(Llama, OneCaptureServesAllPositions) {
  constexpr int64_t kPositions = 24;
  ModelConfig config;
  config.layers = 2, config.width = 32, config.heads = 4, config.kv_heads = 2;
  config.head_width = 8, config.hidden = 48, config.vocabulary = 50, config.tied = false;
  for (int devices : {1, 2}) {
    SCOPED_TRACE(devices);
    std::vector<std::string> names = {"CPU:0", "CPU:1"};
    names.resize(size_t(devices));
    const Mesh mesh = Mesh::of(names, "model");
    Tensor::manual_seed(3);
    const llama::Model model(config);
    llama::place(model, config, mesh, "model");
    const llama::Turns turns = llama::turns(config, kPositions, mesh);
    const std::vector<llama::Cache> caches = llama::caches(config, kPositions, mesh, "model");
    Variable pos("pos", 0, kPositions - 1);
    int traced = 0;
    Jit step = [&](Tensor token, Variable p) {
      ++traced;
      return model.next(token.shard(mesh), p, turns, caches);
    };
    std::vector<int32_t> tokens;
    std::vector<float> made;
    int64_t kernels = 0;
    auto made_kernels = [] {
      const CodegenStatistics s = codegen_statistics();
      return s.compiled + s.disk_hits;
    };
    for (int64_t i = 0; i < kPositions; ++i) {
      tokens.push_back(int32_t(i * 7 % config.vocabulary));
      const std::vector<float> row = step(Tensor({tokens.back()}), pos.bind(i)).to_vector<float>();
      made.insert(made.end(), row.begin(), row.end());
      if (i == 1) kernels = made_kernels();
    }
    EXPECT_EQ(made_kernels(), kernels);
    EXPECT_EQ(traced, 1);
    const std::vector<float> all = model.all(Tensor(tokens).shard(mesh), turns).to_vector<float>();
    ASSERT_EQ(made.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_NEAR(made[i], all[i], 1e-4 * (1 + std::abs(all[i]))) << "position " << i / 50;
    const std::string said = test::message_of<UserError>([&] { pos.bind(kPositions); });
    EXPECT_NE(said.find("24"), std::string::npos) << said;
    EXPECT_NE(said.find("23"), std::string::npos) << said;
  }
}

TEST_F(LlamaProgram, WritesTheScoresOfThePrompt) {
  make("m", "");
  for (const char* where : {"", " --devices CPU:0,CPU:1"}) {
    Outcome o = run(std::string("--model m --prompt 'a mesh' --scores s.safetensors") + where);
    ASSERT_EQ(o.code, 0) << o.err;
    const nn::StateDict found = safe_load(temp_.path() / "s.safetensors");
    const std::vector<int32_t> tokens = Tokenizer(temp_.path() / "m").encode("a mesh");
    EXPECT_EQ(found.at("tokens").to_vector<int32_t>(), tokens);
    const llama::Model model(read_config(temp_.path() / "m"));
    nn::load_state_dict(model, safe_load(temp_.path() / "m"));
    const Mesh here = Mesh::of({"CPU:0"}, "model");
    const Tensor wanted = model.all(Tensor(tokens), llama::turns(read_config(temp_.path() / "m"),
                                                                 int64_t(tokens.size()), here));
    EXPECT_TRUE(found.at("scores").allclose(wanted, 1e-4, 1e-4)) << where;
  }
}

TEST_F(LlamaProgram, DrawsBySeedAndBounds) {
  make("m", R"(, "torch_dtype": "bfloat16")");
  const std::string flags = "--model m --prompt mesh --tokens 16 ";
  const std::string best = run(flags + "--temperature 0").out;
  EXPECT_EQ(run(flags + "--top-k 1").out, best);
  EXPECT_EQ(run(flags + "--top-p 0").out, best);
  const std::string drawn = run(flags + "--temperature 3 --seed 2").out;
  EXPECT_EQ(run(flags + "--temperature 3 --seed 2").out, drawn);
  EXPECT_NE(run(flags + "--temperature 3 --seed 3").out, drawn);
}

TEST_F(LlamaProgram, MistakesAreOneSentence) {
  make("m", "");
  make("scaled", R"(, "rope_scaling": {"factor": 8.0, "rope_type": "yarn"})");
  make("other", R"(, "hidden_act": "gelu")");
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"--model nowhere --prompt a", {"nowhere"}},
      {"--model m --prompt a --tokens 20 --cache 10", {"20", "10"}},
      {"--model m --prompt a --tokens 100", {"more than the 64"}},
      {"--model scaled --prompt a", {"rope_scaling", "yarn", "llama3"}},
      {"--model other --prompt a", {"gelu", "silu"}},
      {"--model m/config.json --prompt a", {"config.json is a file", "GGUF"}},
      {"--model m --prompt a --devices CPU:0,CPU:1,CPU:2 --tokens 4", {"2 heads", "3 devices"}},
      {"--model m --prompt a --tokens 4 --dtype f12", {"f12"}},
  };
  for (const auto& [flags, parts] : cases) {
    Outcome o = run(flags);
    EXPECT_EQ(o.code, 1) << flags << o.out;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << flags << ": " << o.err;
    for (const char* part : parts)
      EXPECT_NE(o.err.find(part), std::string::npos) << flags << ": " << o.err;
  }
}

TEST_F(LlamaProgram, UsageErrorsEndWithTwo) {
  EXPECT_EQ(run("--prompt a").code, 2);
  EXPECT_EQ(run("--model m --top-p 2").code, 2);
  Outcome help = run("--help");
  EXPECT_EQ(help.code, 0);
  for (const char* flag : {"--model", "--temperature", "--top-k", "--top-p", "--seed", "--cache"})
    EXPECT_NE(help.out.find(flag), std::string::npos) << flag;
}

}  // namespace
}  // namespace tinyshard::testing
