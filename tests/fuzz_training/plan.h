// A random training as data: the layers of a model, what is trained how, and what happens between steps. The same
// training is run in several ways (train.h) that must all give the same numbers.
//
//   width 6 batch 4 length 5 classes 7 ids 1 optimizer 3 ... steps 4
//   block attention heads=2 residual=1 ...
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fuzz_training {

enum class Layer : uint8_t {
  Linear,
  Activation,
  LayerNorm,
  RmsNorm,
  BatchNorm,
  Attention,
  Conv,
  Experts,
  Dropout
};
inline constexpr int kLayers = int(Layer::Dropout) + 1;
const char* name(Layer layer);

struct Block {
  Layer layer = Layer::Linear;
  int64_t out = 0;          // width behind it
  int variant = 0;          // which activation, how many heads or groups, with a bias or not
  bool residual = false;    // x + block(x)
  bool checkpoint = false;  // computed again in the backward pass
  bool frozen = false;      // not trained
};

enum class Rule : uint8_t {
  Sgd,
  Momentum,
  Nesterov,
  Adam,
  AdamW,
  Lamb,
  Lars,
  Muon,
  RmsProp,
  Adagrad
};
inline constexpr int kRules = int(Rule::Adagrad) + 1;
const char* name(Rule rule);

struct Plan {
  uint64_t seed = 0;
  int64_t width = 6, batch = 4, length = 5, classes = 7;
  bool ids = true;    // the input is token numbers, with an embedding in front
  bool tied = false;  // the head reads the embedding's table
  bool temperature =
      false;  // divides the logits by a parameter that belongs to no layer and is placed nowhere
  bool ignored = false;     // some labels are ignored
  bool regression = false;  // a mean of squares instead of classes
  Rule rule = Rule::Adam;
  double decay = 0, clip = 0;  // 0: none
  int accumulate = 1;          // batches of a step
  int steps = 3;
  bool schedule = false;   // the learning rate changes between steps
  bool evaluates = false;  // the step's function is also called outside of training
  bool looks = false;      // gradients are read behind each step
  int restart =
      0;  // before this step model and optimizer are saved, made anew and loaded; 0: never
  std::vector<Block> blocks;

  bool has(Layer layer) const;
};

// The same seed, the same plan.
Plan draw(uint64_t seed);
std::string to_text(const Plan& plan);
// Plans with one thing less each, to find what a finding needs.
std::vector<Plan> simpler(const Plan& plan);

}  // namespace fuzz_training
