// Which value goes where: an optimizer's state by the names of parameters, tied weights, what a load
// leaves out, and parts of a checkpoint that are no tensors.
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/nn.h"
#include "tests/devices.h"
#include "tests/io/temp_folder.h"

namespace tinyshard::state_names_test {
namespace {

using test::TempFolder;
using Floats = std::vector<float>;

Floats values(const Tensor& t) { return t.to_vector<float>(); }

std::string message(const auto& call) {
  try {
    call();
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}
bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Tensor parameter(float value) { return Tensor::full({4}, value).clone().is_param_(); }

// Takes a step of a loss whose gradients are `a` and `b`.
void step(nn::optim::Optimizer& optim, const Tensor& x, const Tensor& y, float a, float b) {
  TrainingMode on;
  optim.zero_grad();
  (x * a + y * b).sum().backward();
  optim.step();
}

// The same two weights, in two orders.
struct Pair {
  Tensor x = parameter(1), y = parameter(2);
  TS_FIELDS(x, y)
};
struct Turned {
  Tensor x = parameter(1), y = parameter(2);
  TS_FIELDS(y, x)
};

TEST(StateNames, StateGoesByTheNamesOfParameters) {
  Pair pair;
  nn::optim::AdamW optim(nn::parameters(pair));
  const nn::StateDict dict = nn::state_dict(optim, "optim");
  EXPECT_TRUE(dict.contains("optim.m.x") && dict.contains("optim.v.y"));
  step(optim, pair.x, pair.y, 1, 100);

  const TempFolder folder;
  safe_save(nn::state_dict(optim), folder / "optim.safetensors");
  nn::save_checkpoint(nn::state_dict(optim), folder / "run", 1);
  auto check = [&](const auto& load) {
    Turned turned;
    nn::optim::AdamW other(nn::parameters(turned));
    load(nn::state_dict(other));
    EXPECT_EQ(values(other.m[0]), values(optim.m[1]));
    EXPECT_EQ(values(other.m[1]), values(optim.m[0]));
    EXPECT_EQ(values(other.v[0]), values(optim.v[1]));
    EXPECT_EQ(values(other.b1_t), values(optim.b1_t));
  };
  check([&](const nn::StateDict& into) { nn::load(into, nn::state_dict(optim)); });
  check(
      [&](const nn::StateDict& into) { nn::load(into, safe_load(folder / "optim.safetensors")); });
  check([&](const nn::StateDict& into) { nn::load_checkpoint(into, folder / "run"); });
}

TEST(StateNames, StateOfOneProcessGoesByTheParameters) {
  Tensor x = parameter(1), y = parameter(2);
  nn::optim::AdamW optim({x, y}), turned({y, x});
  step(optim, x, y, 1, 100);
  nn::load_state_dict(turned, nn::state_dict(optim));
  EXPECT_EQ(values(turned.v[0]), values(optim.v[1])) << "of y";
  EXPECT_EQ(values(turned.v[1]), values(optim.v[0])) << "of x";

  Tensor z = parameter(3);
  nn::optim::SGD of_two({x, z}, {.momentum = 0.5}), of_others({y, x}, {.momentum = 0.5});
  const std::string text = message([&] { nn::load_state_dict(of_others, nn::state_dict(of_two)); });
  EXPECT_TRUE(says(text, "missing: momentum.0") && says(text, "unexpected: momentum.1")) << text;
}

// Programs before this one wrote numbers; the order of parameters is then all there is.
TEST(StateNames, NumbersOfOlderFilesAreTaken) {
  Pair pair;
  nn::optim::AdamW optim(nn::parameters(pair));
  nn::StateDict old{{"lr", Tensor(0.5f)}, {"b1_t", Tensor(0.25f)}, {"b2_t", Tensor(0.125f)}};
  for (const char* kind : {"m.", "v."}) {
    old.emplace(kind + std::string("0"), Tensor::full({4}, 10.f).clone());
    old.emplace(kind + std::string("1"), Tensor::full({4}, 11.f).clone());
  }
  const TempFolder folder;
  nn::save_checkpoint(old, folder / "run", 1);
  auto check = [&](const auto& load) {
    Pair other;
    nn::optim::AdamW fresh(nn::parameters(other));
    load(nn::state_dict(fresh));
    EXPECT_EQ(values(fresh.m[0]), Floats(4, 10));
    EXPECT_EQ(values(fresh.v[1]), Floats(4, 11));
  };
  check([&](const nn::StateDict& into) { nn::load(into, old); });
  check([&](const nn::StateDict& into) { nn::load_checkpoint(into, folder / "run"); });
  old["m.1"] = Tensor::zeros({5});
  const std::string text = message([&] { nn::load_state_dict(optim, old); });
  EXPECT_TRUE(says(text, "shapes differ: m.y (model [4], file [5])")) << text;
  old.erase("m.1");
  EXPECT_TRUE(says(message([&] { nn::load_state_dict(optim, old); }), "missing: m.y"));
}

TEST(StateNames, NamesThatTwoParametersHaveAreNumbers) {
  Pair one, other;
  std::vector<Tensor> both = nn::parameters(one);
  for (const Tensor& t : nn::parameters(other)) both.push_back(t);
  const nn::StateDict dict = nn::state_dict(nn::optim::AdamW(both));
  EXPECT_TRUE(dict.contains("m.0") && dict.contains("m.3"));
  EXPECT_EQ(dict.size(), 3u + 2 * 4);
}

TEST(StateNames, ResumesBitForBit) {
  const TempFolder folder;
  auto train = [](Pair& pair, nn::optim::Optimizer& optim, int from, int to) {
    for (int i = from; i < to; ++i) step(optim, pair.x, pair.y, float(i + 1), float(3 - i));
  };
  Pair whole, half, resumed;
  nn::optim::AdamW a(nn::parameters(whole)), b(nn::parameters(half)), c(nn::parameters(resumed));
  train(whole, a, 0, 6);
  train(half, b, 0, 3);
  auto state = [](const Pair& pair, const nn::optim::AdamW& optim) {
    nn::StateDict dict = nn::state_dict(pair);
    dict.merge(nn::state_dict(optim, "optim"));
    return dict;
  };
  nn::save_checkpoint(state(half, b), folder / "run", 3);
  nn::load_checkpoint(state(resumed, c), folder / "run");
  train(resumed, c, 3, 6);
  for (const auto& [name, tensor] : state(whole, a))
    EXPECT_EQ(tensor.data(), state(resumed, c).at(name).data()) << name;
}

TEST(StateNames, AThawedWeightIsToldOf) {
  Pair pair;
  pair.y.is_param_(false);
  nn::optim::SGD optim(nn::parameters(pair), {.lr = 1, .momentum = 0.5});
  step(optim, pair.x, pair.y, 1, 1);
  pair.y.is_param_();
  const Floats before = values(pair.x);
  const std::string text = message([&] { step(optim, pair.x, pair.y, 1, 1); });
  EXPECT_TRUE(says(text, "y, f32[4]") && says(text, "make the optimizer again")) << text;
  EXPECT_EQ(values(pair.x), before);
  nn::optim::SGD fresh(nn::parameters(pair), {.lr = 1, .momentum = 0.5});
  nn::load_state_dict(fresh, nn::state_dict(optim), {.strict = false});
  step(fresh, pair.x, pair.y, 1, 1);
  EXPECT_EQ(values(pair.x), Floats(4, before[0] - 1.5f)) << "the momentum went on";
  EXPECT_EQ(values(pair.y), Floats(4, 1));
}

// --- tied weights ---

struct Tied {
  nn::Embedding embed{3, 2};
  nn::Linear head{2, 3, {.bias = false}};
  TS_FIELDS(embed, head)
  Tied() { head.weight = embed.weight; }
};

TEST(StateNames, OneNameOfTiedWeightsIsEnough) {
  const Tensor a = Tensor::arange(6).reshape({3, 2}).cast(DType::F32), b = a + 1;
  const TempFolder folder;
  safe_save({{"embed.weight", a}, {"head.weight", b}}, folder / "two.safetensors");
  safe_save({{"embed.weight", a}, {"head.weight", a}}, folder / "one.safetensors");
  for (const char* name : {"embed.weight", "head.weight"}) {
    Tied net;
    nn::load_state_dict(net, {{name, b}});
    EXPECT_EQ(values(net.embed.weight), values(b)) << name;
    safe_save({{name, a}}, folder / "single.safetensors");
    nn::load_state_dict(net, safe_load(folder / "single.safetensors"));
    EXPECT_EQ(values(net.head.weight), values(a)) << name;
    nn::save_checkpoint({{name, b}}, folder / name, 1);
    nn::load_checkpoint(nn::state_dict(net), folder / name);
    EXPECT_EQ(values(net.head.weight), values(b)) << name;
  }
  Tied net;
  const Floats before = values(net.embed.weight);
  nn::save_checkpoint({{"embed.weight", a}, {"head.weight", b}}, folder / "differ", 1);
  for (const std::string& text :
       {message([&] { nn::load_state_dict(net, {{"embed.weight", a}, {"head.weight", b}}); }),
        message([&] { nn::load_state_dict(net, safe_load(folder / "two.safetensors")); }),
        message([&] { nn::load_checkpoint(nn::state_dict(net), folder / "differ"); })})
    EXPECT_TRUE(says(text, "embed.weight and head.weight are one tensor of the model")) << text;
  EXPECT_EQ(values(net.embed.weight), before) << "nothing is written";

  nn::load_state_dict(net, {{"embed.weight", a}, {"head.weight", a + 0}});
  EXPECT_EQ(values(net.head.weight), values(a));
  nn::load_state_dict(net, safe_load(folder / "one.safetensors"));
  nn::load_state_dict(net, nn::state_dict(net));
  nn::save_checkpoint(nn::state_dict(net), folder / "equal", 1);
  nn::load_checkpoint(nn::state_dict(net), folder / "equal");
  EXPECT_EQ(values(net.head.weight), values(a));
  const Tensor nan = Tensor::full({3, 2}, NAN).clone();
  nn::load_state_dict(net, {{"embed.weight", nan}, {"head.weight", nan + 0}});
}

// --- what a load leaves out ---

TEST(StateNames, ALoadTellsWhatItLeftOut) {
  Pair pair;
  nn::optim::AdamW optim(nn::parameters(pair));
  nn::StateDict all = nn::state_dict(pair);
  all.merge(nn::state_dict(optim, "optim"));
  const TempFolder folder;
  nn::save_checkpoint(all, folder / "run", 1);
  EXPECT_TRUE(says(message([&] { nn::load_checkpoint(nn::state_dict(pair), folder / "run"); }),
                   "unexpected: optim.b1_t"));
  const nn::CheckpointInfo info =
      nn::load_checkpoint(nn::state_dict(pair), folder / "run", {.ignore_unexpected = true});
  EXPECT_EQ(info.names.unexpected.size(), 3u + 2 * 2);
  EXPECT_TRUE(info.names.missing.empty());

  const nn::LoadReport report =
      nn::load_state_dict(pair, {{"x", pair.y}, {"z", pair.y}}, {.strict = false});
  EXPECT_EQ(report.missing, std::vector<std::string>{"y"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"z"});
  EXPECT_TRUE(says(message([&] {
                     nn::load_state_dict(pair, {{"x", pair.y}, {"z", pair.y}},
                                         {.ignore_unexpected = true});
                   }),
                   "missing: y"));
  const std::string text =
      message([&] { nn::load_state_dict(pair, {{"model.x", pair.y}}, {.strict = false}); });
  EXPECT_TRUE(says(text, "no name is known: the model has x, y, the values are model.x")) << text;
}

TEST(StateNames, PartsOfACheckpointAreNoTensors) {
  TINYSHARD_NEED_DEVICES(2);
  const TempFolder folder;
  const Tensor w = Tensor::arange(8).cast(DType::F32).shard(device_names(2), 0);
  const auto path = nn::save_checkpoint({{"w", w}, {"b", Tensor::zeros({2})}}, folder / "run", 1);
  EXPECT_TRUE(says(message([&] { safe_load(path); }), "nn::load_checkpoint puts them together"));
  const auto whole = nn::save_checkpoint({{"b", Tensor::ones({2})}}, folder / "whole", 1);
  EXPECT_EQ(values(safe_load(whole).at("b")), Floats(2, 1));
}

// --- where safe_save writes ---

TEST(StateNames, APathWithAnExtensionIsAFile) {
  const TempFolder folder;
  const nn::StateDict dict{{"w", Tensor::ones({2})}};
  for (const char* name : {"a.st", "test.safetensor", "B.SAFETENSORS", "c.bin"}) {
    safe_save(dict, folder / name);
    EXPECT_TRUE(std::filesystem::is_regular_file(folder / name)) << name;
    safe_save({{"w", Tensor::zeros({3})}}, folder / name);  // over it
    EXPECT_EQ(values(safe_load(folder / name).at("w")), Floats(3, 0)) << name;
  }
  safe_save(dict, folder / "model");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "model"));
  safe_save(dict, folder / "model.v1", {}, {.folder = true});
  EXPECT_TRUE(std::filesystem::is_directory(folder / "model.v1"));
  safe_save(dict, folder / "model.v1");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "model.v1")) << "it is a folder by now";
  safe_save(dict, (folder / "model.v2").native() + "/");
  EXPECT_EQ(values(safe_load(folder / "model.v2").at("w")), Floats(2, 1));
  test::put(folder / "plain", "text");
  safe_save(dict, folder / "plain");
  EXPECT_EQ(values(safe_load(folder / "plain").at("w")), Floats(2, 1));
}

// --- frozen weights of a model that is divided ---

struct Adapted {
  nn::Linear base{64, 64}, down{64, 4}, up{4, 64};
  nn::BatchNorm norm{64};
  TS_FIELDS(base, down, up, norm)
  Tensor operator()(const Tensor& x) const { return norm(base(x) + up(down(x))); }
};

TEST(StateNames, FrozenWeightsAreDividedToo) {
  TINYSHARD_NEED_DEVICES(4);
  const Mesh mesh = Mesh::of(device_names(4), "data");
  auto losses = [&](bool divided, bool frozen_first) {
    Tensor::manual_seed(5);
    Adapted net;
    std::vector<Tensor> all = nn::parameters(net);
    Tensor::realize(all);
    auto freeze = [&] {
      net.base.weight.is_param_(false);
      net.base.bias.is_param_(false);
    };
    if (frozen_first) freeze();
    if (divided) {
      nn::fully_shard(net, mesh);
      EXPECT_EQ(net.base.weight.sharding().placements[0], Shard(0));
      EXPECT_EQ(net.norm.running_mean.sharding().placements[0], Replicate);
    }
    if (!frozen_first) freeze();
    nn::optim::SGD optim(nn::parameters(net), {.lr = 0.1});
    Floats list;
    for (int i = 0; i < 3; ++i) {
      TrainingMode on;
      Tensor x = (Tensor::arange(8 * 64) * (3 + i) % 17).reshape({8, 64}).cast(DType::F32) * 0.1f;
      if (divided) x = x.shard(mesh, {{"data", Shard(0)}});
      optim.zero_grad();
      const Tensor loss = (net(x) - 1).square().mean().backward();
      optim.step();
      list.push_back(loss.item<float>());
    }
    list.push_back(net.norm.running_mean.square().sum().item<float>());
    return list;
  };
  const Floats expected = losses(false, true);
  for (const bool frozen_first : {true, false}) {
    const Floats got = losses(true, frozen_first);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-4 * expected[i]);
  }
  nn::Linear whole(64, 64);
  whole.weight.is_param_(false);
  nn::fully_shard(whole, mesh, "data", {.frozen = false});
  EXPECT_EQ(whole.weight.sharding().placements[0], Replicate);
}

// LoRA's memory: a device holds its part of the base, and of the adapter, which alone is trained.
TEST(StateNames, AFrozenBaseTakesItsPartOfEachDevice) {
  TINYSHARD_NEED_DEVICES(4);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(4), .devices_per_rank = 0});
  const Mesh mesh({{"data", 4}});
  auto held = [] { return Runtime::get().devices().at(1).bytes; };
  const int64_t before = held();
  nn::Linear base(512, 512, {.bias = false});
  base.weight.is_param_(false);
  nn::fully_shard(base, mesh);
  Tensor::realize({base.weight});
  constexpr int64_t kPart = 512 * 512 * 4 / 4;
  EXPECT_GE(held() - before, kPart);
  EXPECT_LE(held() - before, kPart + (64 << 10));
  Runtime::shutdown();
}

}  // namespace
}  // namespace tinyshard::state_names_test
