// XXH64, the digest of checkpoints: 64 bits, the same on every machine, checkable with other tools
// (xxhsum -H64). It detects rot and torn writes; it is no protection against an attacker.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tinyshard::io {

class Digest {
 public:
  void update(std::span<const std::byte> bytes);
  uint64_t value() const;

 private:
  // The four lanes of XXH64 for seed 0.
  std::array<uint64_t, 4> lanes_ = {0x60EA27EEADC0B5D6ull, 0xC2B2AE3D27D4EB4Full, 0,
                                    0x61C8864E7A143579ull};
  std::array<std::byte, 32> pending_;
  uint64_t length_ = 0;
};

uint64_t digest_of(std::span<const std::byte> bytes);
uint64_t digest_of(std::string_view text);

// 16 lower-case hex digits, and back; nothing but 16 such digits is accepted.
std::string digest_text(uint64_t digest);
bool parse_digest(std::string_view text, uint64_t& digest);

}  // namespace tinyshard::io
