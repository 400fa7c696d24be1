// Dims whose size is known when a captured step runs. In the graph such a dim is as long as it can
// become, and nothing but the name of the tensor's value tells how much of it counts: the passes
// see plain shapes. Whoever builds ops keeps what lies behind the size out of every result
// (core/tensor/sizes.h).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard {

struct SymbolicSize {
  UOp node;           // i64[]: a sum of variables times numbers; equal sizes are equal nodes
  int64_t low, high;  // bounds, both inclusive; the dim is `high` long
  std::string text;   // "1 + pos"
};

struct SymbolicShape {
  std::vector<std::optional<SymbolicSize>> dims;
};

// Returns the sizes of a tensor's value; null when all of them are plain numbers.
inline const SymbolicShape* symbolic_shape(const UOp& value) {
  return value.op() == Op::Identity ? static_cast<const SymbolicShape*>(value->payload.get())
                                    : nullptr;
}

}  // namespace tinyshard
