// A model of drawn layers, trained as a user would write it for one device; the ways differ in the few lines that place
// it. All is in f64, so that two ways agree to many digits whatever the order of their sums.
#include "tests/fuzz_training/train.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <tinyshard/tinyshard.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace fuzz_training {
namespace {

using namespace tinyshard;

// A layer of any kind: those that it is not are absent.
struct DrawnLayer {
  Block block;
  std::optional<nn::Linear> linear;
  std::optional<nn::LayerNorm> layer_norm;
  std::optional<nn::RMSNorm> rms_norm;
  std::optional<nn::BatchNorm> batch_norm;
  std::optional<nn::MultiheadAttention> attention;
  std::optional<nn::Conv1d> conv;
  std::optional<nn::MixtureOfExperts> experts;
  TS_FIELDS(linear, layer_norm, rms_norm, batch_norm, attention, conv, experts)

  DrawnLayer(const Block& b, int64_t in) : block(b) {
    switch (b.layer) {
      case Layer::Linear:
        linear.emplace(in, b.out, nn::BiasOption{b.variant != 0});
        break;
      case Layer::LayerNorm:
        layer_norm.emplace(in);
        break;
      case Layer::RmsNorm:
        rms_norm.emplace(in);
        break;
      case Layer::BatchNorm:
        batch_norm.emplace(in);
        break;
      case Layer::Attention:
        attention.emplace(in, b.variant < 2 ? 1 : 2);
        break;
      case Layer::Conv:
        conv.emplace(in, in, b.variant % 2 == 0 ? 3 : 1,
                     nn::ConvLayerOptions{.same = true, .groups = b.variant < 2 ? 1 : 2});
        break;
      case Layer::Experts:
        experts.emplace(
            in, 2 * in, 4,
            nn::MixtureOfExpertsOptions{.top_k = 1 + b.variant % 2, .capacity_factor = {}});
        break;
      case Layer::Activation:
      case Layer::Dropout:
        break;
    }
    if (b.frozen) {
      for (const Tensor& t : nn::parameters(*this)) {
        if (t.is_param()) t.is_param_(false);
      }
    }
  }

  Tensor operator()(const Tensor& x) const {
    Tensor y = block.checkpoint ? nn::checkpoint_activations(
                                      [this](const Tensor& in) { return computed(in); }, x)
                                : computed(x);
    return block.residual ? x + y : y;
  }

 private:
  Tensor computed(const Tensor& x) const {
    switch (block.layer) {
      case Layer::Linear:
        return (*linear)(x);
      case Layer::Activation:
        return block.variant == 0   ? x.gelu()
               : block.variant == 1 ? x.silu()
               : block.variant == 2 ? x.tanh()
                                    : x.sigmoid() * x.softplus();
      case Layer::LayerNorm:
        return (*layer_norm)(x);
      case Layer::RmsNorm:
        return (*rms_norm)(x);
      case Layer::BatchNorm:
        return (*batch_norm)(x.transpose(1, 2)).transpose(1, 2);
      case Layer::Attention:
        return (*attention)(x, {.is_causal = block.variant % 2 == 1});
      case Layer::Conv:
        return (*conv)(x.transpose(1, 2)).transpose(1, 2);
      case Layer::Experts: {
        auto [y, balance] = (*experts)(x);
        return y + balance * 0.01;
      }
      case Layer::Dropout:
        return x.dropout(0.25);
    }
    return x;
  }
};

struct Model {
  Plan plan;
  std::optional<nn::Embedding> embed;
  std::vector<DrawnLayer> layers;
  std::optional<nn::Linear> head;
  TS_FIELDS(embed, layers, head)

  explicit Model(const Plan& p) : plan(p) {
    if (p.ids) embed.emplace(p.classes, p.width);
    int64_t width = p.width;
    for (const Block& block : p.blocks) {
      layers.emplace_back(block, width);
      width = block.out;
    }
    if (!p.tied) head.emplace(width, p.regression ? 3 : p.classes);
  }

  Tensor first(const Tensor& x) const { return embed ? (*embed)(x) : x; }
  Tensor last(const Tensor& x) const { return head ? (*head)(x) : x.matmul(embed->weight.T()); }
  Tensor operator()(const Tensor& in) const {
    Tensor x = first(in);
    for (const DrawnLayer& layer : layers) x = layer(x);
    return last(x);
  }

  std::vector<nn::PipelineStage> stages(int64_t count) const {
    std::vector<nn::PipelineStage> parts;
    auto begin = [*this](const Tensor& x) { return first(x); };
    if (embed) parts.emplace_back(begin, *embed);
    for (const DrawnLayer& layer : layers)
      parts.emplace_back([layer](const Tensor& x) { return layer(x); }, layer);
    auto end = [*this](const Tensor& x) { return last(x); };
    if (head) parts.emplace_back(end, *head);
    if (!head) parts.emplace_back(end, embed->weight);
    return nn::join_stages(std::move(parts), count);
  }
};

template <class O, class Options>
std::unique_ptr<nn::optim::Optimizer> made(const std::vector<Tensor>& params, Options options,
                                           const Plan& plan, const std::string& shard_axis) {
  if constexpr (requires { options.weight_decay; }) options.weight_decay = plan.decay;
  options.lr = 0.01;
  options.shard_axis = shard_axis;
  return std::make_unique<O>(params, options);
}

std::unique_ptr<nn::optim::Optimizer> make_optimizer(const Plan& plan,
                                                     const std::vector<Tensor>& params,
                                                     const std::string& axis) {
  using namespace nn::optim;
  switch (plan.rule) {
    case Rule::Sgd:
      return made<SGD>(params, SgdOptions{}, plan, axis);
    case Rule::Momentum:
      return made<SGD>(params, SgdOptions{.momentum = 0.9}, plan, axis);
    case Rule::Nesterov:
      return made<SGD>(params, SgdOptions{.momentum = 0.9, .nesterov = true}, plan, axis);
    case Rule::Adam:
      return made<Adam>(params, AdamOptions{.eps = 1e-3}, plan, axis);
    case Rule::AdamW:
      return made<AdamW>(params, AdamWOptions{.eps = 1e-3}, plan, axis);
    case Rule::Lamb:
      return made<LAMB>(params, LambOptions{}, plan, axis);
    case Rule::Lars:
      return made<LARS>(params, LarsOptions{}, plan, axis);
    case Rule::Muon:
      return made<Muon>(params, MuonOptions{}, plan, axis);
    case Rule::RmsProp:
      return made<RMSprop>(params, RmspropOptions{.eps = 1e-3, .momentum = 0.9, .centered = true},
                           plan, axis);
    case Rule::Adagrad:
      return made<Adagrad>(params, AdagradOptions{.eps = 1e-3}, plan, axis);
  }
  return {};
}

// Returns all that an optimizer keeps, whichever it is.
nn::StateDict state_of(const Plan& plan, const nn::optim::Optimizer& optimizer) {
  using namespace nn::optim;
  switch (plan.rule) {
    case Rule::RmsProp:
      return nn::state_dict(dynamic_cast<const RMSprop&>(optimizer));
    case Rule::Adagrad:
      return nn::state_dict(dynamic_cast<const Adagrad&>(optimizer));
    case Rule::Adam:
    case Rule::AdamW:
    case Rule::Lamb:
      return nn::state_dict(dynamic_cast<const LAMB&>(optimizer));
    default:
      return nn::state_dict(dynamic_cast<const LARS&>(optimizer));
  }
}

class Training {
 public:
  Training(const Plan& plan, const Way& way) : plan_(plan), way_(way), random_(way.seed) {
    std::vector<DeviceRef> devices;
    for (int number : way.devices) devices.push_back({.index = number});
    const int64_t n = int64_t(devices.size());
    if (way.place == Place::One) return;
    if (has_two_axes()) {
      const int64_t inner =
          way.place == Place::StagesSharded || way.place == Place::TensorSharded ? 2 : n / 2;
      mesh_.emplace(std::vector<MeshAxis>{{"data", n / inner}, {"inner", inner}}, devices);
    } else {
      mesh_.emplace(
          std::vector<MeshAxis>{
              {way.place == Place::Tensor || way.place == Place::Stages ? "inner" : "data", n}},
          devices);
    }
  }

  Outcome run() {
    Tensor::manual_seed(plan_.seed);
    make();
    const int middle = plan_.restart > 0 ? plan_.restart : plan_.steps;
    steps(0, middle);
    if (middle < plan_.steps) {
      restart();
      steps(middle, plan_.steps);
    }
    for (const auto& [name, tensor] : nn::state_dict(*model_)) add(name, tensor);
    if (plan_.temperature) add("temperature", temperature_);
    return std::move(outcome_);
  }

 private:
  bool has_two_axes() const {
    return way_.place == Place::Hybrid || way_.place == Place::TensorSharded ||
           way_.place == Place::StagesSharded;
  }
  bool is_staged() const {
    return way_.place == Place::Stages || way_.place == Place::StagesSharded;
  }

  void steps(int from, int to) {
    Jit one = [this](const Tensor& x, const Tensor& y) { return step({x}, {y}); };
    Jit two = [this](const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d) {
      return step({a, b}, {c, d});
    };
    Jit outside = [this](const Tensor& x, const Tensor& y) { return loss_of(x, y); };
    for (int s = from; s < to; ++s) {
      if (plan_.schedule) optimizer_->set_lr(0.02 / (1 + s));
      std::vector<Tensor> x, y;
      for (int b = 0; b < plan_.accumulate; ++b) {
        x.push_back(batch(10 * s + b));
        y.push_back(targets(10 * s + b));
      }
      const std::vector<Tensor> made = !way_.captured || plan_.accumulate > 2 ? step(x, y)
                                       : plan_.accumulate == 2 ? two(x[0], x[1], y[0], y[1])
                                                               : one(x[0], y[0]);
      for (const Tensor& value : made) add(fmt::format("step {}", s), value);
      if (plan_.evaluates) {
        const Tensor in = batch(10 * s + 7), labels = targets(10 * s + 7);
        add("loss outside of training", way_.captured ? outside(in, labels) : loss_of(in, labels));
      }
    }
  }

  void make() {
    model_.emplace(plan_);
    params_ = nn::parameters(*model_);
    if (plan_.temperature) temperature_ = Tensor::full({}, 1.5).is_param_().realize();
    place();
    std::vector<Tensor> all = params_;
    if (plan_.temperature) all.push_back(temperature_);
    optimizer_ = make_optimizer(plan_, all, way_.place == Place::State ? "data" : "");
  }

  void place() {
    switch (way_.place) {
      case Place::One:
        break;
      case Place::Data:
      case Place::State:
        nn::data_parallel(*model_, *mesh_);
        break;
      case Place::Sharded:
        nn::fully_shard(*model_, *mesh_, "data", {.keep = random_() % 2 == 0});
        break;
      case Place::Hybrid:
        nn::fully_shard(*model_, *mesh_, "inner");
        break;
      case Place::Tensor:
        nn::tensor_parallel(*model_, *mesh_, "inner", rules());
        break;
      case Place::TensorSharded:
        nn::tensor_parallel(*model_, *mesh_, "inner", rules());
        nn::fully_shard(*model_, *mesh_, "data");
        break;
      case Place::Stages:
      case Place::StagesSharded: {
        const int64_t stages = mesh_->axes()[size_t(mesh_->axis("inner"))].size;
        int64_t parts = way_.seed % 2 == 0 ? 1 : 2;
        if (plan_.batch % parts != 0) parts = 1;
        pipeline_.emplace(*mesh_, "inner", model_->stages(stages),
                          nn::PipelineOptions{.micro_batches = parts});
        if (way_.place == Place::StagesSharded) nn::fully_shard(*model_, *mesh_, "data");
        break;
      }
      case Place::Mapped:
        break;
    }
  }

  // Each linear layer by columns, by rows or whole.
  std::vector<nn::TensorParallelRule> rules() {
    std::vector<nn::TensorParallelRule> list;
    for (size_t i = 0; i < plan_.blocks.size(); ++i) {
      if (plan_.blocks[i].layer != Layer::Linear) continue;
      const auto kind = random_() % 3;
      if (kind == 2) continue;
      list.push_back({fmt::format("layers.{}.linear", i), kind == 0 ? Column : Row});
    }
    if (model_->head && random_() % 2 == 0 && !plan_.regression)
      list.push_back({"head", Vocabulary});
    return list;
  }

  // Numbers that look random and are the same everywhere.
  Tensor numbers(int number, const Ints& shape, int64_t count) const {
    return ((Tensor::arange(count) * (2 * number + 7) + number * number) % 23).reshape(shape);
  }
  Tensor batch(int number) const {
    const int64_t count = plan_.batch * plan_.length;
    Tensor x = plan_.ids
                   ? numbers(number, {plan_.batch, plan_.length}, count) % plan_.classes
                   : numbers(number, {plan_.batch, plan_.length, plan_.width}, count * plan_.width)
                                 .cast(DType::F64) /
                             9.0 -
                         1.0;
    return placed(x.realize());
  }
  Tensor targets(int number) const {
    const int64_t count = plan_.batch * plan_.length;
    if (plan_.regression)
      return placed(
          (numbers(number + 3, {plan_.batch, plan_.length, 3}, count * 3).cast(DType::F64) / 11.0)
              .realize());
    Tensor y = numbers(number + 5, {plan_.batch, plan_.length}, count);
    // Each row keeps labels: a micro-batch of nothing but ignored ones has no mean.
    return placed((plan_.ignored && !is_staged() ? (y % 5 == 4).where(-100, y % plan_.classes)
                                                 : y % plan_.classes)
                      .realize());
  }
  Tensor placed(const Tensor& x) const {
    switch (way_.place) {
      case Place::One:
        return x;
      case Place::Tensor:
        return x.shard(*mesh_);
      case Place::Hybrid:
        return x.shard(*mesh_, {{"data", Shard(0)}, {"inner", Shard(0)}});
      case Place::Stages:
        return x;
      default:
        return x.shard(*mesh_, {{"data", Shard(0)}});
    }
  }

  Tensor criterion(const Tensor& result, const Tensor& y) const {
    const Tensor out = plan_.temperature ? result / temperature_ : result;
    if (plan_.regression) return (out - y).square().mean();
    return plan_.ignored ? out.sparse_categorical_crossentropy(y, {.ignore_index = -100})
                         : out.sparse_categorical_crossentropy(y);
  }
  Tensor loss_of(const Tensor& x, const Tensor& y) const {
    if (is_staged())
      return pipeline_->loss(
          x, y, [this](const Tensor& out, const Tensor& next) { return criterion(out, next); });
    if (way_.place != Place::Mapped) return criterion((*model_)(x), y);
    const double share = 1.0 / double(mesh_->size());
    auto mapped = shard_map(*mesh_,
                            [&](const Tensor& a, const Tensor& b) {
                              return all_reduce(criterion((*model_)(a), b) * share, "data");
                            },
                            {.in = {{{"data", Shard(0)}}, {{"data", Shard(0)}}}, .out = {{}}});
    return mapped(x, y);
  }

  // Returns the loss, the norm of the gradients where they are clipped, and the gradients where the plan looks at them.
  std::vector<Tensor> step(const std::vector<Tensor>& x, const std::vector<Tensor>& y) {
    const TrainingMode on;
    optimizer_->zero_grad();
    Tensor sum;
    for (size_t i = 0; i < x.size(); ++i) {
      Tensor loss;
      if (is_staged())
        loss = pipeline_->backward(x[i], y[i], [this](const Tensor& out, const Tensor& next) {
          return criterion(out, next);
        });
      else
        loss = loss_of(x[i], y[i]).backward();
      sum = sum.defined() ? sum + loss : loss;
    }
    std::vector<Tensor> made{sum};
    if (plan_.clip > 0) {
      if (way_.seed % 2 == 0) optimizer_->place_grad();
      made.push_back(nn::clip_grad_norm(optimizer_->params(), plan_.clip));
    }
    for (const Tensor& p : params_) {
      if (plan_.looks && p.is_param()) made.push_back(p.grad());
    }
    optimizer_->step();
    return made;
  }

  // A file each, and new objects that begin with other values.
  void restart() {
    const auto folder =
        std::filesystem::temp_directory_path() / fmt::format("ts-training-{}", ::getpid());
    std::filesystem::create_directories(folder);
    nn::StateDict state = state_of(plan_, *optimizer_);
    nn::safe_save(nn::state_dict(*model_), folder / "model.safetensors");
    nn::safe_save(state, folder / "optimizer.safetensors");
    const Tensor temperature = temperature_;
    pipeline_.reset();
    make();
    nn::load_state_dict(*model_, safe_load(folder / "model.safetensors"));
    nn::load(state_of(plan_, *optimizer_), safe_load(folder / "optimizer.safetensors"));
    if (plan_.temperature) temperature_.assign(temperature).realize();
    std::filesystem::remove_all(folder);
  }

  void add(const std::string& name, const Tensor& value) {
    outcome_.names.push_back(name);
    outcome_.values.push_back(value.cast(DType::F64).to_vector<double>());
  }

  const Plan& plan_;
  const Way& way_;
  std::mt19937_64 random_;
  std::optional<Mesh> mesh_;
  std::optional<Model> model_;
  std::optional<nn::Pipeline> pipeline_;
  std::vector<Tensor> params_;
  Tensor temperature_;
  std::unique_ptr<nn::optim::Optimizer> optimizer_;
  Outcome outcome_;
};

}  // namespace

const char* name(Place place) {
  static constexpr const char* kNames[] = {"one device",    "data parallel", "fully sharded",
                                           "hybrid",        "tensor",        "tensor, sharded",
                                           "sharded state", "pipeline",      "pipeline, sharded",
                                           "shard_map"};
  return kNames[int(place)];
}

std::string to_text(const Way& way) {
  return fmt::format("{}{} on {} (choices {})", name(way.place), way.captured ? ", captured" : "",
                     fmt::join(way.devices, ","), way.seed);
}

bool is_possible(const Plan& plan, Place place, int devices) {
  const bool two_axes =
      place == Place::Hybrid || place == Place::TensorSharded || place == Place::StagesSharded;
  if (place == Place::One) return devices == 1;
  if (devices < 2 || (two_axes && devices != 4)) return false;
  if (place == Place::Tensor || place == Place::TensorSharded) {
    // Devices without a row or column are refused.
    return plan.width >= 4 && plan.classes >= devices &&
           std::ranges::all_of(plan.blocks, [&](const Block& b) { return b.out >= 4; });
  }
  if (place == Place::Stages || place == Place::StagesSharded) {
    const auto parts = int(plan.blocks.size()) + 1 + int(plan.ids);
    const int stages = place == Place::Stages ? devices : 2;
    return parts >= stages && !plan.has(Layer::Dropout) && !plan.has(Layer::BatchNorm) &&
           !plan.has(Layer::Experts) && !plan.ignored && !plan.temperature;  // of no stage
  }
  if (place == Place::Mapped) {
    return plan.batch % devices == 0 && !plan.has(Layer::Dropout) && !plan.has(Layer::BatchNorm) &&
           !plan.has(Layer::Experts) && !plan.ignored;
  }
  return true;
}

Outcome train(const Plan& plan, const Way& way) { return Training(plan, way).run(); }

std::string difference(const Outcome& expected, const Outcome& got) {
  if (expected.names != got.names) return "other values were read";
  for (size_t i = 0; i < expected.names.size(); ++i) {
    const auto &a = expected.values[i], &b = got.values[i];
    if (a.size() != b.size())
      return fmt::format("{}: {} elements, not {}", expected.names[i], b.size(), a.size());
    double most = 1e-2;
    for (double value : a) most = std::max(most, std::abs(value));
    for (size_t k = 0; k < a.size(); ++k) {
      if (std::isnan(a[k]) && std::isnan(b[k])) continue;
      if (!(std::abs(a[k] - b[k]) <= 1e-7 * most))
        return fmt::format("value {}, {}[{}]: {} instead of {}", i, expected.names[i], k, b[k],
                           a[k]);
    }
  }
  return {};
}

}  // namespace fuzz_training
