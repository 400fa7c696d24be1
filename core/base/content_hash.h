// A hash of some of the bytes of a value: all of a small one, pieces of a large one. Values that
// differ in the pieces have different hashes as good as always; equal hashes say little. For values
// that change as a whole, such as a batch, at the cost of a microsecond.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/hash.h"

namespace tinyshard {

// Of all bytes.
inline uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0) {
  uint64_t h = combine(seed, bytes.size());
  for (; bytes.size() >= sizeof(uint64_t); bytes = bytes.subspan(sizeof(uint64_t))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes.data(), bytes.size());
  return mix(h ^ rest);
}

// Of at most 16 KiB; never 0.
inline uint64_t sample_hash(std::span<const std::byte> bytes) {
  constexpr size_t kPieces = 16, kPiece = 1024;
  uint64_t h = bytes.size();
  if (bytes.size() <= kPieces * kPiece) {
    h = hash_bytes(bytes, h);
  } else {
    const size_t stride = (bytes.size() - kPiece) / (kPieces - 1);
    for (size_t i = 0; i < kPieces; ++i) h = hash_bytes(bytes.subspan(i * stride, kPiece), h);
  }
  return std::max<uint64_t>(h, 1);
}

}  // namespace tinyshard
