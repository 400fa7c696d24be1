// Layers and optimizers against recorded results (golden/manifest.json of the test data; skipped
// where it is absent; TINYSHARD_TEST_DATA names another folder).
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/nn/nn.h"
#include "io/safetensors.h"

namespace tinyshard {
namespace {

using nlohmann::json;
using Tensors = std::vector<Tensor>;

std::filesystem::path golden() {
  const char* set = std::getenv("TINYSHARD_TEST_DATA");
  return std::filesystem::path(set ? set : TINYSHARD_TEST_DATA_DIR) / "golden";
}

// The padding that keeps a size is `same = true`; a text is no padding, says the compiler already.
template <class Options, class Padding>
concept PaddedBy = requires(Padding p) { Options{.padding = p}; };
static_assert(PaddedBy<nn::ConvLayerOptions, int> && !PaddedBy<nn::ConvLayerOptions, const char*>);
const char* const kRefusedByTheCompiler = "nn.Conv2d/bad_padding_string";

const std::vector<json>& all_cases() {
  static const std::vector<json> cases = [] {
    std::vector<json> list;
    std::ifstream file(golden() / "manifest.json");
    if (!file) return list;
    const json manifest = json::parse(file);
    for (const json& c : manifest.at("cases")) {
      bool here = c.at("op").get<std::string>().starts_with("nn.");
      if (here && c.at("name") != kRefusedByTheCompiler) list.push_back(c);
    }
    return list;
  }();
  return cases;
}

Tensor stored(const json& key) {
  if (key.is_null()) return {};
  static const io::SafetensorsFile file(golden() / "tensors.safetensors");
  const io::TensorEntry& entry = file.at(key.get<std::string>());
  return Tensor(entry.bytes, Ints(entry.shape), entry.dtype);
}

Ints ints(const json& args, const char* name, int64_t otherwise) {
  if (!args.contains(name)) return otherwise;
  const json& value = args.at(name);
  return value.is_array() ? Ints(value.get<Dims>()) : Ints(value.get<int64_t>());
}

class NnGolden : public ::testing::TestWithParam<json> {
 protected:
  void TearDown() override { set_default_float(DType::F32); }

  const json& args() const { return GetParam().at("args"); }
  int64_t number(const char* name) const { return args().at(name).get<int64_t>(); }

  void expect_close(const Tensor& got, const json& key, const std::string& what) const {
    Tensor expected = stored(key);
    ASSERT_EQ(got.shape(), expected.shape()) << what;
    EXPECT_EQ(got.dtype(), expected.dtype()) << what;
    double rtol = GetParam().at("rtol"), atol = GetParam().at("atol");
    std::vector<double> a = got.to_vector<double>(), b = expected.to_vector<double>();
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
      ASSERT_LE(std::abs(a[i] - b[i]), atol + rtol * std::abs(b[i]))
          << what << ", element " << i << ": " << a[i];
    }
  }

  // Sets the layer's parameters, calls it with the other inputs, and compares outputs and
  // gradients.
  template <class Layer>
  void check(const Layer& layer) {
    const json& c = GetParam();
    std::vector<std::string> names = c.at("params");
    nn::StateDict dict = nn::state_dict(layer);
    Tensors inputs;
    for (const json& key : c.at("inputs")) inputs.push_back(stored(key));
    const Tensor original = inputs[0];
    for (const json& step : c.value("pre", json::array())) {
      ASSERT_EQ(step[0], "permute");
      inputs[0] = inputs[0].permute(step[1].get<Dims>());
    }
    size_t first = inputs.size() - names.size();
    for (size_t i = 0; i < names.size(); ++i) {
      ASSERT_EQ(dict.at(names[i]).shape(), inputs[first + i].shape()) << names[i];
      dict.at(names[i]).replace(inputs[first + i]);
      inputs[first + i] = dict.at(names[i]);
    }
    Tensors outputs;
    if constexpr (std::is_same_v<Layer, nn::LSTMCell>) {
      auto [h, cell] = layer(inputs[0], inputs[1], inputs[2]);
      outputs = {h, cell};
    } else {
      outputs = {layer(inputs[0])};
    }
    for (size_t i = outputs.size(); i < c.at("outputs").size(); ++i) {
      outputs.push_back(dict.at(c.at("output_names")[i].get<std::string>()));
    }
    if (c.contains("grads")) {
      json weights =
          c.at("cotangent").is_array() ? c.at("cotangent") : json::array({c.at("cotangent")});
      Tensor sum;
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (weights[i].is_null()) continue;
        Tensor term = (outputs[i] * stored(weights[i])).sum();
        sum = sum.defined() ? sum + term : term;
      }
      Tensors targets;
      json wanted = json::array();
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (c.at("grads")[i].is_null()) continue;
        targets.push_back(i == 0 ? original : inputs[i]);
        wanted.push_back(c.at("grads")[i]);
      }
      Tensors gradients = sum.gradient(targets);
      for (size_t i = 0; i < targets.size(); ++i) {
        expect_close(gradients[i], wanted[i], "gradient " + std::to_string(i));
      }
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      expect_close(outputs[i], c.at("outputs")[i], "output " + std::to_string(i));
    }
  }

  nn::ConvLayerOptions conv_options() const {
    nn::ConvLayerOptions o;
    o.stride = ints(args(), "stride", 1);
    o.dilation = ints(args(), "dilation", 1);
    o.groups = args().value("groups", 1);
    o.bias = args().value("bias", true);
    if (args().contains("padding") && args().at("padding").is_string()) {
      o.same = true;
    } else {
      o.padding = ints(args(), "padding", 0);
    }
    return o;
  }
  nn::ConvTransposeLayerOptions transpose_options() const {
    return {.stride = ints(args(), "stride", 1),
            .padding = ints(args(), "padding", 0),
            .output_padding = ints(args(), "output_padding", 0),
            .dilation = ints(args(), "dilation", 1),
            .groups = args().value("groups", 1),
            .bias = args().value("bias", true)};
  }
  nn::NormOptions norm_options() const {
    return {.eps = args().value("eps", 1e-5), .affine = args().value("affine", true)};
  }

  void optimize(const auto& make) {
    const json& c = GetParam();
    size_t n = args().at("n_params"), steps = args().at("steps");
    Tensors inputs, params;
    for (const json& key : c.at("inputs")) inputs.push_back(stored(key));
    for (size_t i = 0; i < n; ++i) params.push_back(inputs[i].clone().is_param_());
    auto optimizer = make(params);
    TrainingMode on;
    for (size_t s = 0; s < steps; ++s) {
      for (size_t i = 0; i < n; ++i) params[i].set_grad(inputs[n + s * n + i]);
      optimizer.step();
    }
    for (size_t i = 0; i < n; ++i)
      expect_close(params[i], c.at("outputs")[i], "parameter " + std::to_string(i));
  }

  void run() {
    const json& a = args();
    std::string op = GetParam().at("op");
    TrainingMode mode(GetParam().value("training", false));
    const json& keys = GetParam().at("inputs");
    set_default_float(keys.empty() ? DType::F32
                                   : stored(keys.back()).dtype());  // of the parameters
    nn::BiasOption bias{.bias = a.value("bias", true)};
    if (op == "nn.Linear")
      return check(nn::Linear(number("in_features"), number("out_features"), bias));
    if (op == "nn.Embedding")
      return check(nn::Embedding(number("vocab_size"), number("embed_size")));
    if (op == "nn.Conv2d") {
      return check(nn::Conv2d(number("in_channels"), number("out_channels"),
                              ints(a, "kernel_size", 0), conv_options()));
    }
    if (op == "nn.Conv1d") {
      return check(nn::Conv1d(number("in_channels"), number("out_channels"), number("kernel_size"),
                              conv_options()));
    }
    if (op == "nn.ConvTranspose2d") {
      return check(nn::ConvTranspose2d(number("in_channels"), number("out_channels"),
                                       ints(a, "kernel_size", 0), transpose_options()));
    }
    if (op == "nn.ConvTranspose1d") {
      return check(nn::ConvTranspose1d(number("in_channels"), number("out_channels"),
                                       number("kernel_size"), transpose_options()));
    }
    if (op == "nn.LayerNorm")
      return check(nn::LayerNorm(ints(a, "normalized_shape", 0), norm_options()));
    if (op == "nn.LayerNorm2d")
      return check(nn::LayerNorm2d(ints(a, "normalized_shape", 0), norm_options()));
    if (op == "nn.GroupNorm") {
      return check(nn::GroupNorm(number("num_groups"), number("num_channels"), norm_options()));
    }
    if (op == "nn.InstanceNorm")
      return check(nn::InstanceNorm(number("num_features"), norm_options()));
    if (op == "nn.RMSNorm") {
      return check(nn::RMSNorm(number("dim"),
                               {.eps = a.value("eps", 1e-6), .affine = a.value("affine", true)}));
    }
    if (op == "nn.BatchNorm") {
      return check(
          nn::BatchNorm(number("sz"), {.eps = a.value("eps", 1e-5),
                                       .affine = a.value("affine", true),
                                       .track_running_stats = a.value("track_running_stats", true),
                                       .momentum = a.value("momentum", 0.1)}));
    }
    if (op == "nn.LSTMCell")
      return check(nn::LSTMCell(number("input_size"), number("hidden_size"), bias));

    double lr = a.value("lr", 0.001), eps = a.value("eps", 1e-8);
    double b1 = a.value("b1", 0.9), b2 = a.value("b2", 0.999);
    using namespace nn::optim;
    if (op == "nn.optim.SGD") {
      return optimize([&](const Tensors& p) {
        return SGD(p, {.lr = lr,
                       .momentum = a.value("momentum", 0.0),
                       .weight_decay = a.value("weight_decay", 0.0),
                       .nesterov = a.value("nesterov", false),
                       .classic = a.value("classic", false)});
      });
    }
    if (op == "nn.optim.LARS") {
      return optimize([&](const Tensors& p) {
        return LARS(p, {.lr = lr,
                        .momentum = a.value("momentum", 0.9),
                        .weight_decay = a.value("weight_decay", 1e-4),
                        .nesterov = a.value("nesterov", false),
                        .classic = a.value("classic", true),
                        .trust = a.value("tcoef", 0.001)});
      });
    }
    if (op == "nn.optim.Muon") {
      return optimize([&](const Tensors& p) {
        return Muon(p, {.lr = lr,
                        .momentum = a.value("momentum", 0.95),
                        .weight_decay = a.value("weight_decay", 0.1),
                        .nesterov = a.value("nesterov", true)});
      });
    }
    if (op == "nn.optim.Adam") {
      return optimize(
          [&](const Tensors& p) { return Adam(p, {.lr = lr, .b1 = b1, .b2 = b2, .eps = eps}); });
    }
    if (op == "nn.optim.AdamW") {
      double decay = a.value("weight_decay", 0.01);
      return optimize([&](const Tensors& p) {
        return AdamW(p, {.lr = lr, .b1 = b1, .b2 = b2, .eps = eps, .weight_decay = decay});
      });
    }
    if (op == "nn.optim.LAMB") {
      return optimize([&](const Tensors& p) {
        return LAMB(p, {.lr = lr,
                        .b1 = b1,
                        .b2 = b2,
                        .eps = a.value("eps", 1e-6),
                        .weight_decay = a.value("weight_decay", 0.0),
                        .adam = a.value("adam", false)});
      });
    }
    FAIL() << "no such layer: " << op;
  }
};

TEST_P(NnGolden, Agrees) {
  if (GetParam().at("check") == "error") {
    EXPECT_THROW(run(), UserError);
  } else {
    run();
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NnGolden);
INSTANTIATE_TEST_SUITE_P(Cases, NnGolden, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  std::string name = info.param.at("name");
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

TEST(NnGoldenData, IsThere) {
  if (all_cases().empty()) GTEST_SKIP() << "no " << golden() / "manifest.json";
  EXPECT_GT(all_cases().size(), 50u);
}

}  // namespace
}  // namespace tinyshard
