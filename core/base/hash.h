// 64-bit mixing for interning and structural keys. Not for untrusted input, not stable across
// versions of tinyshard: disk caches add the version to their key.
#pragma once
#include <bit>
#include <cstdint>
#include <string_view>

namespace tinyshard {

inline uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return x ^ (x >> 32);
}

inline uint64_t combine(uint64_t seed, uint64_t value) {
  return mix(seed * 0x9e3779b97f4a7c15ull + value + 0x165667b19e3779f9ull);
}

inline uint64_t hash_text(std::string_view text, uint64_t seed = 0) {
  uint64_t h = combine(seed, text.size());
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return mix(h);
}

}  // namespace tinyshard
