// Which value of a file or a state dict each tensor of a model takes.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/exec/tensor_state.h"
#include "core/nn/state_dict.h"

namespace tinyshard::nn {

struct FoundValue {
  Dims shape;
  std::optional<TensorState::KeptFor> kept_for = {};  // of a tensor of this process
};

struct NameMatch {
  std::map<std::string, std::string> source;  // the value of each tensor that has one, by names
  // Values of one tensor that has two names: the caller compares them.
  std::vector<std::pair<std::string, std::string>> twice;
  LoadReport report;
};

// A value is found by its name. Of an optimizer's state:
//
//   m.fc.weight   by the parameter itself, where the value is of the same one: its name may be another
//   m.3           by its number, where the value has no name because an older program saved it
//
// Fails the running call (UserError) with all differences in names that the options do not allow and
// all in shapes, and where no name at all is known.
NameMatch match_names(const StateDict& into, const std::map<std::string, FoundValue>& found,
                      const LoadOptions& options);

// Fails the running call: one tensor, two names and two values.
[[noreturn]] void fail_of_tied(const std::string& one, const std::string& other);

}  // namespace tinyshard::nn
