// Trains a plan's model in one of many ways, which differ in where values lie and in what is captured.
#pragma once
#include <string>
#include <vector>

#include "tests/fuzz_training/plan.h"

namespace fuzz_training {

// Data: a copy on each device. Sharded: parts by fully_shard. Hybrid: copies over one axis, parts over the other.
// Tensor: layers divided. TensorSharded: both. State: copies whose optimizer keeps its state in parts. Stages: a
// pipeline. StagesSharded: one whose stages are sharded. Mapped: the loss by shard_map.
enum class Place : uint8_t {
  One,
  Data,
  Sharded,
  Hybrid,
  Tensor,
  TensorSharded,
  State,
  Stages,
  StagesSharded,
  Mapped
};
inline constexpr int kPlaces = int(Place::Mapped) + 1;
const char* name(Place place);

struct Way {
  Place place = Place::One;
  bool captured = false;
  std::vector<int> devices = {0};  // numbers of those that are used, in the order of the mesh
  uint64_t seed = 0;               // of smaller choices, such as how layers are divided
};
std::string to_text(const Way& way);

// Tells whether the plan can be trained in that way at all.
bool is_possible(const Plan& plan, Place place, int devices);

// The loss of each step, norms and other losses as they come, and each parameter behind the last step.
struct Outcome {
  std::vector<std::string> names;
  std::vector<std::vector<double>> values;
};
Outcome train(const Plan& plan, const Way& way);

// Empty where both agree, else what differs first.
std::string difference(const Outcome& expected, const Outcome& got);

}  // namespace fuzz_training
