// Four lanes take 8 bytes each of a block of 32; what is left of a block waits for the next update.
// At the end the lanes are mixed, then the rest by 8, 4 and 1 bytes.
#include "io/digest.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

namespace tinyshard::io {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and so are we");

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ull, kPrime2 = 0xC2B2AE3D27D4EB4Full,
                   kPrime3 = 0x165667B19E3779F9ull, kPrime4 = 0x85EBCA77C2B2AE63ull,
                   kPrime5 = 0x27D4EB2F165667C5ull;

template <class T>
uint64_t load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint64_t round_of(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

}  // namespace

void Digest::update(std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  const size_t held = static_cast<size_t>(length_ % 32);
  length_ += left;
  auto block = [this](const std::byte* p) {
    for (size_t i = 0; i < 4; ++i) lanes_[i] = round_of(lanes_[i], load<uint64_t>(p + 8 * i));
  };
  if (held != 0) {
    const size_t take = std::min(left, 32 - held);
    std::memcpy(pending_.data() + held, at, take);
    at += take;
    left -= take;
    if (held + take < 32) return;
    block(pending_.data());
  }
  for (; left >= 32; at += 32, left -= 32) block(at);
  if (left != 0) std::memcpy(pending_.data(), at, left);
}

uint64_t Digest::value() const {
  uint64_t h = lanes_[2] + kPrime5;
  if (length_ >= 32) {
    h = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
        std::rotl(lanes_[3], 18);
    for (uint64_t lane : lanes_) h = (h ^ round_of(0, lane)) * kPrime1 + kPrime4;
  }
  h += length_;
  const std::byte* at = pending_.data();
  size_t left = static_cast<size_t>(length_ % 32);
  for (; left >= 8; at += 8, left -= 8) {
    h = std::rotl(h ^ round_of(0, load<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    h = std::rotl(h ^ (load<uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4, left -= 4;
  }
  for (; left > 0; ++at, --left) h = std::rotl(h ^ (load<uint8_t>(at) * kPrime5), 11) * kPrime1;
  h = (h ^ (h >> 33)) * kPrime2;
  h = (h ^ (h >> 29)) * kPrime3;
  return h ^ (h >> 32);
}

uint64_t digest_of(std::span<const std::byte> bytes) {
  Digest digest;
  digest.update(bytes);
  return digest.value();
}

uint64_t digest_of(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text.data(), text.size())));
}

std::string digest_text(uint64_t digest) { return fmt::format("{:016x}", digest); }

bool parse_digest(std::string_view text, uint64_t& digest) {
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != text.npos) return false;
  return std::from_chars(text.data(), text.data() + text.size(), digest, 16).ec == std::errc();
}

}  // namespace tinyshard::io
