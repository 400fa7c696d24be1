// The Llama example as a program, on a folder of random weights: cached tokens are those of a pass
// over all, on one device and divided over two, and each mistake is a sentence.
#include <cmath>
#include <fstream>
#include <functional>
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/codegen/codegen.h"
#include "examples/llama_model.h"
#include "examples/llama_sample.h"
#include "tests/examples/gguf_writer.h"
#include "tests/examples/launchers.h"
#include "tests/examples/run_program.h"
#include "tests/message_of.h"

namespace tinyshard::test::llama_test {
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
  // The same model as a GGUF file, whose keys and tensors `change` may add to or write over: rows of
  // queries and keys turn in pairs of neighbours there.
  using Change = std::function<void(GgufWriter&)>;
  void make_gguf(const std::string& folder, const std::string& file,
                 const std::string& architecture = "llama", const std::string& words = "gpt2",
                 const Change& change = {}, const std::string& pre = "llama-bpe") {
    const ModelConfig c = read_config(temp_.path() / folder);
    GgufWriter out;
    out.text("general.architecture", architecture);
    out.whole("llama.block_count", uint32_t(c.layers));
    out.whole("llama.embedding_length", uint32_t(c.width));
    out.whole("llama.feed_forward_length", uint32_t(c.hidden));
    out.whole("llama.attention.head_count", uint32_t(c.heads));
    out.whole("llama.attention.head_count_kv", uint32_t(c.kv_heads));
    out.whole("llama.attention.key_length", uint32_t(c.head_width));
    out.whole("llama.context_length", uint32_t(c.context));
    out.real("llama.attention.layer_norm_rms_epsilon", float(c.norm_epsilon));
    out.real("llama.rope.freq_base", float(c.rope_base));
    const auto json = nlohmann::json::parse(std::ifstream(TOKENIZERS "/llama3.json"));
    std::vector<std::string> tokens(kWords), merges;
    std::vector<int32_t> types(kWords, 1);
    for (const auto& [token, id] : json.at("model").at("vocab").items()) tokens.at(id) = token;
    for (const auto& token : json.at("added_tokens")) {
      tokens.at(token.at("id")) = token.at("content");
      types.at(token.at("id")) = 3;
    }
    for (const auto& merge : json.at("model").at("merges"))
      merges.push_back(std::string(merge.at(0)) + " " + std::string(merge.at(1)));
    out.text("tokenizer.ggml.model", words);
    out.text("tokenizer.ggml.pre", pre);
    out.texts("tokenizer.ggml.tokens", tokens);
    out.wholes("tokenizer.ggml.token_type", types);
    out.texts("tokenizer.ggml.merges", merges);
    out.whole("tokenizer.ggml.bos_token_id", 0);
    const std::pair<std::string, std::string> names[] = {{"model.embed_tokens", "token_embd"},
                                                         {"model.norm", "output_norm"},
                                                         {"lm_head", "output"},
                                                         {"model.layers", "blk"},
                                                         {"self_attn.q_proj", "attn_q"},
                                                         {"self_attn.k_proj", "attn_k"},
                                                         {"self_attn.v_proj", "attn_v"},
                                                         {"self_attn.o_proj", "attn_output"},
                                                         {"mlp.gate_proj", "ffn_gate"},
                                                         {"mlp.up_proj", "ffn_up"},
                                                         {"mlp.down_proj", "ffn_down"},
                                                         {"post_attention_layernorm", "ffn_norm"},
                                                         {"input_layernorm", "attn_norm"}};
    for (const auto& [name, value] : safe_load(temp_.path() / folder)) {
      std::string there = name;
      for (const auto& [from, to] : names) {
        if (const size_t at = there.find(from); at != std::string::npos)
          there.replace(at, from.size(), to);
      }
      Tensor stored = value;
      if (there.find("attn_q") != std::string::npos || there.find("attn_k") != std::string::npos)
        stored = value.unflatten(0, {-1, 2, c.head_width / 2}).transpose(1, 2).flatten(0, 2);
      const Dims shape = stored.shape();
      out.tensor(there, {shape.begin(), shape.end()}, stored.to_vector<float>());
    }
    if (change) change(out);
    out.write(temp_.path() / file);
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
    for (const Launcher& launcher : launchers()) {
      Outcome ranks = run(flags, launcher.two);
      EXPECT_EQ(ranks.code, 0) << launcher.name << "\n" << ranks.err;
      EXPECT_EQ(one.out, ranks.out) << launcher.name;
    }
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

// In many draws each word has the share that its probability says, within four standard deviations;
// words that top_k or top_p leave out have none.
TEST(Llama, WordsAreDrawnByTheirProbabilities) {
  constexpr int64_t kDraws = 20000;
  const std::vector<double> scores = {0.5, 2, -1, 1.5, 0, 1};
  const std::vector<size_t> best_first = {1, 3, 5, 0, 4, 2};
  struct Case {
    llama::Sampling sampling;
    size_t kept;  // of the best ones
  };
  const Case cases[] = {{{1, 0, 1}, 6},   {{0.5, 0, 1}, 6}, {{3, 4, 1}, 4},    {{1, 100, 1}, 6},
                        {{1, 0, 0.7}, 3}, {{1, 2, 0.5}, 1}, {{1, 0, 1e-9}, 1}, {{1, 1, 1}, 1}};
  for (const auto& [sampling, kept] : cases) {
    SCOPED_TRACE(fmt::format("temperature {}, top_k {}, top_p {}", sampling.temperature,
                             sampling.top_k, sampling.top_p));
    double sum = 0;
    for (size_t i = 0; i < kept; ++i) sum += std::exp(scores[best_first[i]] / sampling.temperature);
    Tensor::manual_seed(11);
    const Tensor rows = Tensor(scores).cast(DType::F32).unsqueeze(0).expand({kDraws, 6});
    std::vector<double> share(scores.size());
    for (int32_t word : llama::drawn(rows, sampling).to_vector<int32_t>())
      share.at(size_t(word)) += 1.0 / kDraws;
    for (size_t i = 0; i < best_first.size(); ++i) {
      const size_t word = best_first[i];
      const double p = i < kept ? std::exp(scores[word] / sampling.temperature) / sum : 0;
      EXPECT_NEAR(share[word], p, 4 * std::sqrt(p * (1 - p) / kDraws) + 1e-9) << "word " << word;
    }
  }
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

// The tokenizer in the folder ends a text with a token, that of a GGUF file does not.
TEST_F(LlamaProgram, ReadsGguf) {
  struct Case {
    std::string name, fields;
    Change change;
  };
  const std::vector<Case> cases = {
      {"plain", R"(, "rope_theta": 500.0)", {}},
      {"linear", R"(, "rope_scaling": {"rope_type": "linear", "factor": 4.0})",
       [](GgufWriter& out) {
         out.text("llama.rope.scaling.type", "linear");
         out.real("llama.rope.scaling.factor", 4);
       }},
      {"divided",
       R"(, "rope_theta": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0})",
       [](GgufWriter& out) { out.tensor("rope_freqs.weight", {4}, {2, 2, 2, 2}); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    make(c.name, c.fields, c.name == "linear");
    make_gguf(c.name, c.name + ".gguf", "llama", "gpt2", c.change);
    const Tokenizer tokenizer(temp_.path() / c.name);
    std::vector<int32_t> tokens = tokenizer.encode("a mesh of shards");
    tokens.pop_back();
    const ModelConfig config = read_config(temp_.path() / c.name);
    const llama::Model model(config);
    nn::load_state_dict(model, safe_load(temp_.path() / c.name));
    const Tensor wanted = model.all(
        Tensor(tokens), llama::turns(config, int64_t(tokens.size()), Mesh::of({"CPU:0"}, "model")));
    for (const char* where : {"", " --devices CPU:0,CPU:1"}) {
      Outcome o = run("--prompt 'a mesh of shards' --scores s.safetensors --model " + c.name +
                      ".gguf" + where);
      ASSERT_EQ(o.code, 0) << o.err;
      const nn::StateDict found = safe_load(temp_.path() / "s.safetensors");
      EXPECT_EQ(found.at("tokens").to_vector<int32_t>(), tokens);
      EXPECT_TRUE(found.at("scores").allclose(wanted, 1e-4, 1e-4)) << where;
    }
  }
  Outcome text = run("--model plain.gguf --prompt mesh --tokens 8 --temperature 0 --check");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(text.out.starts_with("mesh")) << text.out;
  Outcome other = run("--model plain.gguf --tokenizer plain --prompt mesh --tokens 2");
  EXPECT_EQ(other.code, 0) << other.err;
}

// Digits are cut out first there, so that the spaces before one are a word: "  5" is "  ", "5".
TEST_F(LlamaProgram, CutsTheWordsOfAGgufFile) {
  make("m", "");
  make_gguf("m", "m.gguf", "llama", "gpt2", {}, "smollm");
  auto root = nlohmann::json::parse(std::ifstream(TOKENIZERS "/llama3.json"));
  root["model"]["ignore_merges"] = false;
  root["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = R"(\p{N})";
  root["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true;
  const Tokenizer tokenizer = Tokenizer::parse(root.dump(), "tokenizer.json");
  const std::string text = "a mesh   of  5  or 64 shards";
  Outcome o = run("--scores s.safetensors --model m.gguf --prompt '" + text + "'");
  ASSERT_EQ(o.code, 0) << o.err;
  std::vector<int32_t> wanted = tokenizer.encode(text);
  wanted.pop_back();
  EXPECT_EQ(safe_load(temp_.path() / "s.safetensors").at("tokens").to_vector<int32_t>(), wanted);
}

TEST_F(LlamaProgram, SaysWhatItCannotReadOfGguf) {
  make("m", "");
  make_gguf("m", "arch.gguf", "mamba");
  make_gguf("m", "pieces.gguf", "llama", "llama");
  make_gguf("m", "yarn.gguf", "llama", "gpt2", [](GgufWriter& out) {
    out.text("llama.rope.scaling.type", "yarn");
    out.real("llama.rope.scaling.factor", 4);
  });
  make_gguf("m", "more.gguf", "llama", "gpt2",
            [](GgufWriter& out) { out.tensor("blk.0.attn_q.bias", {2}, {1, 2}); });
  make_gguf("m", "type.gguf", "llama", "gpt2",
            [](GgufWriter& out) { out.tensor("blk.0.other", {2}, {1, 2}, 99); });
  make_gguf("m", "freqs.gguf", "llama", "gpt2",
            [](GgufWriter& out) { out.tensor("rope_freqs.weight", {3}, {1, 2, 0}); });
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"arch.gguf", {"mamba", "not \"llama\""}},
      {"pieces.gguf", {"its tokenizer is \"llama\"", "--tokenizer"}},
      {"yarn.gguf", {"yarn", "linear"}},
      {"more.gguf", {"blk.0.attn_q.bias"}},
      {"type.gguf", {"blk.0.other", "ggml type 99"}},
      {"freqs.gguf", {"rope_freqs.weight", "4 numbers"}},
      {"m/config.json", {"config.json", "GGUF"}},
  };
  for (const auto& [file, parts] : cases) {
    Outcome o = run(std::string("--prompt a --model ") + file);
    EXPECT_EQ(o.code, 1) << file << o.out;
    for (const char* part : parts)
      EXPECT_NE(o.err.find(part), std::string::npos) << file << ": " << o.err;
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
  for (const char* how : {"--temperature 3 --dtype f64", "--top-k 40 --top-p 0.9 --dtype f64"}) {
    const std::string one = run(flags + how).out;
    EXPECT_EQ(run(flags + how + " --devices CPU:0,CPU:1").out, one) << how;
    EXPECT_EQ(run(flags + how, launchers()[0].two).out, one) << how;
  }
}

TEST_F(LlamaProgram, MistakesAreOneSentence) {
  make("m", "");
  make("scaled", R"(, "rope_scaling": {"factor": 8.0, "rope_type": "yarn"})");
  make("other", R"(, "hidden_act": "gelu")");
  make("deep", "");
  auto config = nlohmann::json::parse(std::ifstream(temp_.path() / "deep" / "config.json"));
  config["num_hidden_layers"] = 1000000000;
  std::ofstream(temp_.path() / "deep" / "config.json") << config;
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"--model nowhere --prompt a", {"nowhere"}},
      {"--model m --prompt a --tokens 20 --cache 10", {"20", "10"}},
      {"--model m --prompt a --tokens 100", {"more than the 64"}},
      {"--model scaled --prompt a", {"rope_scaling", "yarn", "llama3"}},
      {"--model other --prompt a", {"gelu", "silu"}},
      {"--model deep --prompt a", {"1000000000 layers", "model.layers.999999999.*"}},
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
}  // namespace tinyshard::test::llama_test
