// Layers and optimizers by their documented names and arguments.
#include "tests/golden/layers.h"

#include <fmt/format.h>

#include "core/nn/nn.h"

namespace tinyshard::golden {
namespace {

// Sets the layer's parameters, which are the last inputs, and calls it with those before. What else
// it holds, running statistics, goes where the inputs are.
template <class Layer>
Tensors apply(Case& c, const Layer& layer) {
  const std::vector<std::string> names = c.all().at("params");
  const nn::StateDict dict = nn::state_dict(layer);
  if (names.size() > c.inputs()) throw Mismatch("more parameters than inputs");
  const size_t first = c.inputs() - names.size();
  for (const auto& [name, tensor] : dict) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      tensor.replace(c.where().replicate(tensor));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    auto found = dict.find(names[i]);
    if (found == dict.end()) throw Mismatch("the layer has no " + names[i]);
    const Tensor& given = c.in(first + i);
    if (found->second.shape() != given.shape()) throw Mismatch(names[i] + " has another shape");
    found->second.replace(given);
    c.replace_input(first + i, found->second);
  }
  Tensors outputs;
  if constexpr (std::is_same_v<Layer, nn::LSTMCell>) {
    auto [h, cell] = layer(c.in(), c.optional_in(1), c.optional_in(2));
    outputs = {h, cell};
  } else {
    outputs = {layer(c.in())};
  }
  for (size_t i = outputs.size(); i < c.all().at("outputs").size(); ++i) {
    outputs.push_back(dict.at(c.all().at("output_names").at(i).get<std::string>()));
  }
  return outputs;
}

nn::ConvLayerOptions conv_options(const Case& c) {
  nn::ConvLayerOptions o;
  o.stride = c.ints("stride", 1);
  o.dilation = c.ints("dilation", 1);
  o.groups = c.integer("groups", 1);
  o.bias = c.flag("bias", true);
  if (c.has("padding") && c.argument("padding").is_string()) {
    std::string padding = c.text("padding");
    for (char& letter : padding)
      letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    if (padding != "same") throw Refused("padding is a number, or `same` is set");
    o.same = true;
  } else {
    o.padding = c.ints("padding", 0);
  }
  return o;
}

nn::ConvTransposeLayerOptions transpose_options(const Case& c) {
  return {.stride = c.ints("stride", 1),
          .padding = c.ints("padding", 0),
          .output_padding = c.ints("output_padding", 0),
          .dilation = c.ints("dilation", 1),
          .groups = c.integer("groups", 1),
          .bias = c.flag("bias", true)};
}

bool affine(const Case& c, const char* name) { return c.flag(name, true); }

Tensors layer(Case& c) {
  const std::string& op = c.op();
  const nn::BiasOption bias{.bias = c.flag("bias", true)};
  if (op == "nn.Linear")
    return apply(c, nn::Linear(c.integer("in_features"), c.integer("out_features"), bias));
  if (op == "nn.Embedding")
    return apply(c, nn::Embedding(c.integer("vocab_size"), c.integer("embed_size")));
  if (op == "nn.Conv2d") {
    return apply(c, nn::Conv2d(c.integer("in_channels"), c.integer("out_channels"),
                               c.ints("kernel_size"), conv_options(c)));
  }
  if (op == "nn.Conv1d") {
    return apply(c, nn::Conv1d(c.integer("in_channels"), c.integer("out_channels"),
                               c.ints("kernel_size")[0], conv_options(c)));
  }
  if (op == "nn.ConvTranspose2d") {
    return apply(c, nn::ConvTranspose2d(c.integer("in_channels"), c.integer("out_channels"),
                                        c.ints("kernel_size"), transpose_options(c)));
  }
  if (op == "nn.ConvTranspose1d") {
    return apply(c, nn::ConvTranspose1d(c.integer("in_channels"), c.integer("out_channels"),
                                        c.ints("kernel_size")[0], transpose_options(c)));
  }
  if (op == "nn.LayerNorm" || op == "nn.LayerNorm2d") {
    const nn::NormOptions options{c.real("eps", 1e-5), affine(c, "elementwise_affine")};
    if (op == "nn.LayerNorm") return apply(c, nn::LayerNorm(c.ints("normalized_shape"), options));
    return apply(c, nn::LayerNorm2d(c.ints("normalized_shape"), options));
  }
  if (op == "nn.RMSNorm") {
    return apply(
        c, nn::RMSNorm(c.integer("dim"), {c.real("eps", 1e-6), affine(c, "elementwise_affine")}));
  }
  if (op == "nn.GroupNorm") {
    return apply(c, nn::GroupNorm(c.integer("num_groups"), c.integer("num_channels"),
                                  {c.real("eps", 1e-5), affine(c, "affine")}));
  }
  if (op == "nn.InstanceNorm") {
    return apply(
        c, nn::InstanceNorm(c.integer("num_features"), {c.real("eps", 1e-5), affine(c, "affine")}));
  }
  if (op == "nn.BatchNorm" || op == "nn.BatchNorm2d" || op == "nn.BatchNorm3d") {
    return apply(c, nn::BatchNorm(c.integer("sz"),
                                  {.eps = c.real("eps", 1e-5),
                                   .affine = affine(c, "affine"),
                                   .track_running_stats = c.flag("track_running_stats", true),
                                   .momentum = c.real("momentum", 0.1)}));
  }
  if (op == "nn.LSTMCell")
    return apply(c, nn::LSTMCell(c.integer("input_size"), c.integer("hidden_size"), bias));
  throw Mismatch("no such layer: " + op);
}

template <class Optimizer, class Options>
Tensors steps(const Case& c, const Options& options) {
  const auto n = static_cast<size_t>(c.integer("n_params")),
             count = static_cast<size_t>(c.integer("steps"));
  Tensors params;
  for (size_t i = 0; i < n; ++i) params.push_back(c.in(i).clone().is_param_());
  Optimizer optimizer(params, options);
  TrainingMode on;
  for (size_t s = 0; s < count; ++s) {
    for (size_t i = 0; i < n; ++i) params[i].set_grad(c.in(n + s * n + i));
    optimizer.step();
  }
  return params;
}

std::optional<nn::optim::NewtonSchulz> newton_schulz(const Case& c, int64_t otherwise) {
  nn::optim::NewtonSchulz out;
  out.steps = c.integer("ns_steps", otherwise);
  if (c.has("ns_coefficients"))
    out.coefficients = c.argument("ns_coefficients").get<std::vector<double>>();
  if (out.steps == 0) return std::nullopt;
  return out;
}

Tensors optimizer(const Case& c) {
  using namespace nn::optim;
  c.ignore("fused");  // the same values, computed in fewer kernels
  c.ignore("device");
  const std::string& op = c.op();
  const double lr = c.real("lr", 0.001);
  if (op == "nn.optim.SGD") {
    return steps<SGD>(c, SgdOptions{.lr = lr,
                                    .momentum = c.real("momentum", 0),
                                    .weight_decay = c.real("weight_decay", 0),
                                    .nesterov = c.flag("nesterov"),
                                    .classic = c.flag("classic")});
  }
  if (op == "nn.optim.LARS") {
    return steps<LARS>(c, LarsOptions{.lr = lr,
                                      .momentum = c.real("momentum", 0.9),
                                      .weight_decay = c.real("weight_decay", 1e-4),
                                      .nesterov = c.flag("nesterov"),
                                      .classic = c.flag("classic", true),
                                      .pre_decay = c.flag("pre_wd", true),
                                      .trust = c.real("tcoef", 0.001),
                                      .orthogonal = newton_schulz(c, 0)});
  }
  if (op == "nn.optim.Muon") {
    MuonOptions options{.lr = lr,
                        .momentum = c.real("momentum", 0.95),
                        .weight_decay = c.real("weight_decay", 0.1),
                        .nesterov = c.flag("nesterov", true)};
    if (const auto orthogonal = newton_schulz(c, 5)) {
      options.orthogonal = *orthogonal;
    } else {
      options.orthogonal.steps = 0;
    }
    return steps<Muon>(c, options);
  }
  const double b1 = c.real("b1", 0.9), b2 = c.real("b2", 0.999);
  if (op == "nn.optim.Adam") {
    return steps<Adam>(c, AdamOptions{.lr = lr, .b1 = b1, .b2 = b2, .eps = c.real("eps", 1e-8)});
  }
  if (op == "nn.optim.AdamW") {
    return steps<AdamW>(c, AdamWOptions{.lr = lr,
                                        .b1 = b1,
                                        .b2 = b2,
                                        .eps = c.real("eps", 1e-8),
                                        .weight_decay = c.real("weight_decay", 0.01)});
  }
  if (op == "nn.optim.LAMB") {
    return steps<LAMB>(c, LambOptions{.lr = lr,
                                      .b1 = b1,
                                      .b2 = b2,
                                      .eps = c.real("eps", 1e-6),
                                      .weight_decay = c.real("weight_decay", 0),
                                      .adam = c.flag("adam")});
  }
  throw Mismatch("no such optimizer: " + op);
}

// Parameters are made in the type of the last input, as the recorded ones are.
class DefaultFloat {
 public:
  explicit DefaultFloat(const Case& c) {
    for (size_t i = c.inputs(); i-- > 0;) {
      if (c.has_input(i) && is_float(c.in(i).dtype())) {
        set_default_float(c.in(i).dtype());
        break;
      }
    }
  }
  DefaultFloat(const DefaultFloat&) = delete;
  DefaultFloat& operator=(const DefaultFloat&) = delete;
  ~DefaultFloat() { set_default_float(before_); }

 private:
  DType before_ = default_float();
};

}  // namespace

Tensors run_layer(Case& c) {
  const DefaultFloat type(c);
  return c.op().starts_with("nn.optim.") ? optimizer(c) : layer(c);
}

}  // namespace tinyshard::golden
