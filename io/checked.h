// Arithmetic on sizes that come out of files. The loaders use nothing else: a sum or a product that
// wraps is how a reader ends up outside of its buffer.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

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

// Bytes of an array, or nothing when a dimension is negative or when a product wraps. A zero does
// not excuse the other dimensions: strides computed from them later must not wrap either.
inline std::optional<uint64_t> checked_bytes(std::span<const int64_t> shape, uint64_t itemsize) {
  uint64_t bytes = itemsize;
  bool empty = false;
  for (int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    empty |= dim == 0;
    const auto product = checked_mul(bytes, dim == 0 ? 1 : static_cast<uint64_t>(dim));
    if (!product || *product > INT64_MAX) return std::nullopt;
    bytes = *product;
  }
  return empty ? 0 : bytes;
}

}  // namespace tinyshard::io
