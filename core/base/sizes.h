// Sizes of arrays. Shapes come from callers and out of files, and a product of dims that wraps is
// how a reader ends up outside of its buffer: every count of elements or bytes is made here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

namespace tinyshard {

// Counts of elements and of bytes stay below this, so that the sum of two of them does not wrap.
inline constexpr int64_t kSizeLimit = int64_t{1} << 62;

// Bytes of an array, or nothing when a dim is negative or when the product reaches the limit. A
// zero does not excuse the other dims: strides computed from them later must not wrap either.
inline std::optional<uint64_t> checked_bytes(std::span<const int64_t> shape, uint64_t itemsize) {
  uint64_t bytes = itemsize;
  bool empty = false;
  for (int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    empty |= dim == 0;
    if (dim != 0 && __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes))
      return std::nullopt;
    if (bytes >= static_cast<uint64_t>(kSizeLimit)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

// Sums and products of sizes that callers chose. They stop at the limit, on either side, so that a
// shape made of them is refused instead of being another one.
inline int64_t limited(__int128 size) {
  return static_cast<int64_t>(std::clamp<__int128>(size, -kSizeLimit, kSizeLimit));
}
inline int64_t add_sizes(int64_t a, int64_t b) { return limited(static_cast<__int128>(a) + b); }
inline int64_t multiply_sizes(int64_t a, int64_t b) {
  return limited(static_cast<__int128>(a) * b);
}

}  // namespace tinyshard
