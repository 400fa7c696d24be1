// Arithmetic on positions in files. The loaders use nothing else, and core/base/sizes.h for shapes:
// a sum or a product that wraps is how a reader ends up outside of its buffer.
#pragma once
#include <cstdint>
#include <optional>

#include "core/base/sizes.h"

namespace tinyshard::io {

inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace tinyshard::io
