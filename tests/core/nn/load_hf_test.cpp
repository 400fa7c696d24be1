// Folders as Hugging Face lays them out: what config.json says, and where rules put tensors.
#include "core/nn/load_hf.h"

#include <fstream>
#include <numeric>

#include <gtest/gtest.h>

#include "core/nn/nn.h"
#include "io/errors.h"
#include "tests/devices.h"
#include "tests/io/temp_folder.h"
#include "tests/message_of.h"

namespace tinyshard::load_hf_test {
namespace {

constexpr const char* kLlama = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
  "intermediate_size": 176, "num_attention_heads": 8, "num_hidden_layers": 2,
  "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 320,
  "rms_norm_eps": 1e-06, "rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16",
  "bos_token_id": 1, "eos_token_id": [2, 3], "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "pretraining_tp": 1})";

TEST(ModelConfig, ReadsALlama) {
  const io::ModelConfig c = io::parse_model_config(kLlama, "config.json");
  EXPECT_EQ(c.family, "llama");
  EXPECT_EQ(c.architectures, std::vector<std::string>{"LlamaForCausalLM"});
  EXPECT_EQ((std::vector{c.layers, c.width, c.heads, c.kv_heads, c.head_width, c.hidden,
                         c.vocabulary, c.context}),
            (std::vector<int64_t>{2, 64, 8, 2, 8, 176, 320, 512}));
  EXPECT_EQ(c.norm_epsilon, 1e-6);
  EXPECT_EQ(c.rope_base, 500000);
  EXPECT_EQ(c.activation, "silu");
  EXPECT_FALSE(c.tied);
  EXPECT_EQ(c.dtype, DType::BF16);
  EXPECT_EQ(c.begin_token, 1);
  EXPECT_EQ(c.end_tokens, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(c.rope_scaling,
            (io::RopeScaling{
                .kind = "llama3", .factor = 8, .slow_turns = 1, .fast_turns = 4, .context = 8192}));
  EXPECT_EQ(c.other, (std::map<std::string, std::string>{{"pretraining_tp", "1"}}));
}

TEST(ModelConfig, ReadsHowPositionsTurn) {
  auto read = [](const std::string& fields) {
    return io::parse_model_config(R"({"model_type": "llama", )" + fields + "}", "config.json");
  };
  io::ModelConfig c = read(R"("rope_parameters": {"rope_theta": 5e5, "rope_type": "default"})");
  EXPECT_EQ(c.rope_base, 500000);
  EXPECT_FALSE(c.rope_scaling);
  c = read(R"("rope_scaling": {"type": "linear", "factor": 2.5}, "rope_theta": 100)");
  EXPECT_EQ(c.rope_base, 100);
  ASSERT_TRUE(c.rope_scaling);
  EXPECT_EQ(c.rope_scaling->kind, "linear");
  EXPECT_EQ(c.rope_scaling->factor, 2.5);
  EXPECT_FALSE(read(R"("rope_scaling": null)").rope_scaling);
}

TEST(ModelConfig, ReadsAGpt2) {
  const io::ModelConfig c = io::parse_model_config(
      R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_inner": null,
          "n_positions": 1024, "n_ctx": 1024, "vocab_size": 50257, "layer_norm_epsilon": 1e-05,
          "activation_function": "gelu_new", "eos_token_id": 50256})",
      "config.json");
  EXPECT_EQ((std::vector{c.layers, c.width, c.heads, c.kv_heads, c.head_width, c.hidden,
                         c.vocabulary, c.context}),
            (std::vector<int64_t>{12, 768, 12, 12, 64, 3072, 50257, 1024}));
  EXPECT_TRUE(c.tied);
  EXPECT_EQ(c.dtype, std::nullopt);
  EXPECT_EQ(c.end_tokens, std::vector<int64_t>{50256});
  EXPECT_TRUE(c.other.empty());
}

TEST(ModelConfig, ReadsSizesByLayer) {
  const io::ModelConfig c = io::parse_model_config(
      R"({"model_type": "openelm", "num_transformer_layers": 3, "model_dim": 1280, "head_dim": 64,
          "num_query_heads": [12, 12, 16], "num_kv_heads": [4, 4, 4], "torch_dtype": "auto",
          "ffn_multipliers": [0.5, 4.0], "max_context_length": 2048})",
      "config.json");
  EXPECT_EQ((std::vector{c.layers, c.width, c.heads, c.kv_heads, c.head_width, c.context}),
            (std::vector<int64_t>{3, 1280, 0, 4, 64, 2048}));
  EXPECT_EQ(c.by_layer, (std::map<std::string, std::vector<int64_t>>{{"heads", {12, 12, 16}}}));
  EXPECT_EQ(c.dtype, std::nullopt);
}

TEST(ModelConfig, ReadsATextModelWhoseLayersTurnDifferently) {
  const io::ModelConfig c = io::parse_model_config(
      R"({"model_type": "gemma3", "hidden_size": null, "vision_config": {"hidden_size": 1152},
          "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34,
            "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}})",
      "config.json");
  EXPECT_EQ(c.family, "gemma3");
  EXPECT_EQ((std::vector{c.layers, c.width}), (std::vector<int64_t>{34, 2560}));
  EXPECT_EQ(c.layer_ropes.at("full_attention").base, 1e6);
  EXPECT_EQ(c.layer_ropes.at("full_attention").scaling->factor, 8);
  EXPECT_EQ(c.layer_ropes.at("sliding_attention"), (io::LayerRope{1e4, std::nullopt}));
  EXPECT_EQ(c.rope_scaling, std::nullopt);
  EXPECT_EQ(c.other.count("vision_config"), 1u);
}

TEST(ModelConfig, ReadsNumbersThatOnlyPythonWrites) {
  const io::ModelConfig c = io::parse_model_config(
      R"({"time_step_limit": [0.0, Infinity, -Infinity, NaN], "a": "\"Infinity", "b\\": NaN})",
      "config.json");
  EXPECT_EQ(c.other.at("time_step_limit"), R"([0.0,"Infinity","-Infinity","NaN"])");
  EXPECT_EQ(c.other.at("a"), R"("\"Infinity")");
  EXPECT_EQ(c.other.at("b\\"), R"("NaN")");
}

TEST(ModelConfig, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"[1]", "it holds no JSON object"},
      {"{", "c.json: "},
      {R"({"hidden_size": 0})", "hidden_size is \"0\", not a size"},
      {R"({"n_embd": "64"})", "n_embd is \"\"64\"\", not a size"},
      {R"({"hidden_size": 18446744073709551615})", "not a size"},
      {R"({"num_attention_heads": [8, 0]})", "not a size"},
      {R"({"num_attention_heads": []})", "not a size"},
      {R"({"rms_norm_eps": Infinity})", "not a number"},
      {R"({"rope_theta": []})", "rope_theta is \"[]\", not a number"},
      {R"({"rope_scaling": 2})", "rope_scaling is \"2\", not an object"},
      {R"({"rope_scaling": {"factor": 2}})", "not a scaling with a rope_type"},
      {R"({"rope_parameters": {"rope_type": "linear", "factor": 0}})",
       "not a scaling with a factor"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})", "not a llama3 scaling"},
      {R"({"hidden_act": 3})", "hidden_act is \"3\", not a text"},
      {R"({"architectures": "a"})", "not a list of texts"},
      {R"({"torch_dtype": "int8"})", "not a type of floats"},
      {R"({"eos_token_id": ["a"]})", "not the number of a token"},
      {R"({"tie_word_embeddings": 1})", "not true or false"},
  };
  for (const auto& [text, part] : cases) {
    const std::string said =
        test::message_of<io::FormatError>([&, t = text] { io::parse_model_config(t, "c.json"); });
    EXPECT_NE(said.find(part), std::string::npos) << text << ": " << said;
  }
}

TEST(LoadHf, PutsTensorsWhereRulesSay) {
  TINYSHARD_NEED_DEVICES(4);
  test::TempFolder folder;
  std::ofstream(folder / "config.json") << kLlama;
  nn::StateDict dict;
  float from = 0;
  for (const auto& [name, shape] :
       std::vector<std::pair<std::string, Dims>>{{"model.embed_tokens.weight", {10, 6}},
                                                 {"model.layers.0.self_attn.q_proj.weight", {8, 6}},
                                                 {"model.layers.0.self_attn.q_proj.bias", {8}},
                                                 {"model.layers.0.self_attn.o_proj.weight", {6, 8}},
                                                 {"model.layers.0.self_attn.o_proj.bias", {6}},
                                                 {"model.norm.weight", {6}}}) {
    std::vector<float> values(static_cast<size_t>(product(shape)));
    std::iota(values.begin(), values.end(), from += 100);
    dict.emplace(name, Tensor(values, shape));
  }
  safe_save(dict, folder.path(), {}, {.shard_bytes = 300});
  const Mesh mesh({{"data", 2}, {"model", 2}},
                  {parse_device(device_name(0)), parse_device(device_name(1)),
                   parse_device(device_name(2)), parse_device(device_name(3))});
  const auto [config, tensors] = load_hf(folder.path(), mesh,
                                         {{"model.layers.*.o_proj", {{"model", Shard(1)}}},
                                          {"model.layers", {{"model", Shard(0)}}},
                                          {"*.embed_tokens", {{"data", Shard(1)}}}});
  EXPECT_EQ(config.layers, 2);
  ASSERT_EQ(tensors.size(), dict.size());
  for (const auto& [name, t] : tensors)
    EXPECT_EQ(t.to_vector<float>(), dict.at(name).to_vector<float>()) << name;
  auto where = [&tensors = tensors](const char* name) {
    return tensors.at(name).sharding().to_string();
  };
  EXPECT_EQ(where("model.embed_tokens.weight"), "f32[10, 6@data:2]");
  EXPECT_EQ(where("model.layers.0.self_attn.q_proj.weight"), "f32[8@model:2, 6]");
  EXPECT_EQ(where("model.layers.0.self_attn.q_proj.bias"), "f32[8@model:2]");
  EXPECT_EQ(where("model.layers.0.self_attn.o_proj.weight"), "f32[6, 8@model:2]");
  EXPECT_EQ(where("model.layers.0.self_attn.o_proj.bias"), "f32[6]");
  EXPECT_EQ(where("model.norm.weight"), "f32[6]");

  auto refusal = [&](const std::vector<nn::PlacementRule>& rules) {
    return test::message_of<UserError>([&] { load_hf(folder.path(), mesh, rules); });
  };
  EXPECT_NE(refusal({{"model.blocks", {}}}).find("has a name like \"model.blocks\""),
            std::string::npos);
  EXPECT_NE(refusal({{"model", {{"rows", Shard(0)}}}}).find("rows"), std::string::npos);
  EXPECT_NE(refusal({{"model", {{"data", Partial()}}}}).find("no terms of a sum"),
            std::string::npos);
}

}  // namespace
}  // namespace tinyshard::load_hf_test
