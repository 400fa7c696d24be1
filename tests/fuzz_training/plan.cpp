// Plans are drawn so that each of their parts comes up often, alone and with each other part. A simpler plan lacks one
// block or one habit; a finding is told by the simplest plan that still shows it.
#include "tests/fuzz_training/plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "tests/fuzz/profile.h"

namespace fuzz_training {
namespace {

using fuzz::Choices;

Block draw_block(Choices& c, int64_t width) {
  static constexpr Layer kOften[] = {Layer::Linear, Layer::Linear, Layer::Activation,
                                     Layer::Attention, Layer::LayerNorm};
  Block block;
  block.layer = c.chance(50) ? kOften[c.pick(0, 4)] : Layer(c.pick(0, kLayers - 1));
  block.out = block.layer == Layer::Linear && c.chance(50) ? 2 * c.pick(2, 6) : width;
  block.variant = c.pick(0, 3);
  block.residual = block.out == width && c.chance(40);
  block.checkpoint = c.chance(15);
  block.frozen = c.chance(10);
  return block;
}

}  // namespace

const char* name(Layer layer) {
  static constexpr const char* kNames[] = {"linear",   "activation", "layer_norm",
                                           "rms_norm", "batch_norm", "attention",
                                           "conv",     "experts",    "dropout"};
  return kNames[int(layer)];
}

const char* name(Rule rule) {
  static constexpr const char* kNames[] = {"sgd",  "momentum", "nesterov", "adam",    "adamw",
                                           "lamb", "lars",     "muon",     "rmsprop", "adagrad"};
  return kNames[int(rule)];
}

bool Plan::has(Layer layer) const {
  return std::ranges::find(blocks, layer, &Block::layer) != blocks.end();
}

Plan draw(uint64_t seed) {
  Choices c(seed);
  Plan p;
  p.seed = seed;
  p.width = 2 * c.pick(2, 6);
  p.batch = c.chance(70) ? 4 * c.pick(1, 3) : c.pick(3, 9);
  p.length = c.pick(1, 7);
  p.classes = c.pick(2, 11);
  p.ids = c.chance(60);
  p.regression = c.chance(25);
  p.tied = p.ids && !p.regression && c.chance(25);
  p.temperature = c.chance(20);
  p.ignored = !p.regression && c.chance(25);
  p.rule = Rule(c.pick(0, kRules - 1));
  if (c.chance(40)) p.decay = 0.1;
  if (c.chance(35)) p.clip = c.chance(50) ? 0.1 : 10;
  p.accumulate = c.chance(25) ? c.pick(2, 3) : 1;
  p.steps = c.chance(95) ? c.pick(2, 5) : 200;
  p.schedule = c.chance(40);
  p.evaluates = c.chance(35);
  p.looks = c.chance(30);
  if (c.chance(20)) p.restart = c.pick(1, std::min(p.steps, 5) - 1);
  int64_t width = p.width;
  for (int i = c.pick(1, 6); i > 0; --i) {
    p.blocks.push_back(draw_block(c, width));
    width = p.blocks.back().out;
  }
  // Muon takes matrices. In front of a BatchNorm the gradient of a bias is 0 but for rounding, which is what rules that
  // divide a whole layer by its norm would learn from.
  if (p.rule == Rule::Muon) p.temperature = false;
  if (p.has(Layer::BatchNorm) &&
      (p.rule == Rule::Lamb || p.rule == Rule::Lars || p.rule == Rule::Muon))
    p.rule = Rule::AdamW;
  if (p.tied && width != p.width) p.blocks.push_back({Layer::Linear, p.width});
  return p;
}

std::string to_text(const Plan& p) {
  std::string text = fmt::format(
      "seed {}: {}x{}, width {}, {} {}{}{}{}; {} decay {} clip {}, {} step(s) of {} "
      "batch(es){}{}{}",
      p.seed, p.batch, p.length, p.width, p.ids ? "ids" : "numbers",
      p.regression ? "squares" : fmt::format("{} classes", p.classes), p.tied ? " tied" : "",
      p.temperature ? " temperature" : "", p.ignored ? " ignored" : "", name(p.rule), p.decay,
      p.clip, p.steps, p.accumulate, p.schedule ? ", schedule" : "",
      p.evaluates ? ", evaluates" : "", p.looks ? ", looks at gradients" : "");
  if (p.restart > 0) text += fmt::format(", restart before step {}", p.restart);
  for (const Block& b : p.blocks)
    text += fmt::format("\n  {} {} -> {}{}{}{}", name(b.layer), b.variant, b.out,
                        b.residual ? " residual" : "", b.checkpoint ? " checkpoint" : "",
                        b.frozen ? " frozen" : "");
  return text;
}

std::vector<Plan> simpler(const Plan& plan) {
  std::vector<Plan> list;
  auto add = [&](auto change) {
    Plan p = plan;
    change(p);
    if (to_text(p) != to_text(plan)) list.push_back(std::move(p));
  };
  for (size_t i = 0; i < plan.blocks.size(); ++i) {
    const int64_t in = i == 0 ? plan.width : plan.blocks[i - 1].out;
    if (plan.blocks[i].out == in)
      add([&](Plan& p) { p.blocks.erase(p.blocks.begin() + int64_t(i)); });
    add([&](Plan& p) { p.blocks[i].residual = false; });
    add([&](Plan& p) { p.blocks[i].checkpoint = false; });
    add([&](Plan& p) { p.blocks[i].frozen = false; });
  }
  add([](Plan& p) { p.steps = std::max({2, p.restart + 1, p.steps / 2}); });
  add([](Plan& p) { p.restart = 0; });
  add([](Plan& p) { p.accumulate = 1; });
  add([](Plan& p) { p.clip = 0; });
  add([](Plan& p) { p.decay = 0; });
  add([](Plan& p) { p.rule = Rule::Sgd; });
  add([](Plan& p) { p.tied = false; });
  add([](Plan& p) { p.temperature = false; });
  add([](Plan& p) { p.ignored = false; });
  add([](Plan& p) { p.schedule = false; });
  add([](Plan& p) { p.evaluates = false; });
  add([](Plan& p) { p.looks = false; });
  return list;
}

}  // namespace fuzz_training
