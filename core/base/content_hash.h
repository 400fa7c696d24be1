// Hashes of the bytes of values: of all of them, or of pieces of a large value. Values that differ in
// the pieces have different hashes as good as always; equal hashes of pieces say little.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/hash.h"

namespace tinyshard {

// Hashes all bytes. Four words are mixed side by side, some ten bytes in a nanosecond.
inline uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0) {
  constexpr size_t kLanes = 4, kWord = sizeof(uint64_t);
  const auto word_at = [](const std::byte* at) {
    uint64_t word = 0;
    std::memcpy(&word, at, kWord);
    return word;
  };
  const auto step = [](uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
  };
  uint64_t h = combine(seed, bytes.size());
  if (bytes.size() >= kLanes * kWord) {
    uint64_t lanes[kLanes] = {h, h + 1, h + 2, h + 3};
    for (; bytes.size() >= kLanes * kWord; bytes = bytes.subspan(kLanes * kWord)) {
      for (size_t l = 0; l < kLanes; ++l) lanes[l] = step(lanes[l], word_at(&bytes[l * kWord]));
    }
    for (uint64_t lane : lanes) h = combine(h, lane);
  }
  for (; bytes.size() >= kWord; bytes = bytes.subspan(kWord)) h = step(h, word_at(bytes.data()));
  uint64_t rest = 0;
  if (!bytes.empty()) std::memcpy(&rest, bytes.data(), bytes.size());
  return mix(h ^ rest);
}

// Hashes all of a value of at most `most` bytes, 64 pieces of a larger one that are as long together
// and begin at equal distances, from the first byte to the last; never 0.
inline uint64_t sample_hash(std::span<const std::byte> bytes, size_t most = size_t{4} << 20) {
  constexpr size_t kPieces = 64;
  uint64_t h = bytes.size();
  if (bytes.size() <= most) {
    h = hash_bytes(bytes, h);
  } else {
    const size_t piece = most / kPieces, stride = (bytes.size() - piece) / (kPieces - 1);
    for (size_t i = 0; i < kPieces; ++i) h = hash_bytes(bytes.subspan(i * stride, piece), h);
  }
  return std::max<uint64_t>(h, 1);
}

}  // namespace tinyshard
