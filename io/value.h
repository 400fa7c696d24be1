// Plain values out of files, beside their tensors: hyperparameters of a GGUF file, the numbers and
// texts of a torch checkpoint.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace tinyshard::io {

struct Value;
using Values = std::vector<Value>;

// Nothing (None), a bool, a whole number, a number, a text or a list.
struct Value : std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Values> {
  using variant::variant;
  bool is_none() const { return index() == 0; }
};

using ValueMap = std::map<std::string, Value>;

}  // namespace tinyshard::io
