// A text is cut into clusters, characters with their marks. Clusters of up to
// five bytes are looked up as they are, and otherwise character by character;
// the shortest entry that begins a text counts, as in the reference library.
// All places in the table are checked, since it comes from a file.
#include "io/tokenizers/charsmap.h"

#include <utf8proc.h>

#include "io/tokenizers/unicode.h"

namespace tinyshard::tokenizers {
namespace {

// Longer clusters of characters are replaced character by character, as in the reference library.
constexpr size_t kMaxCluster = 5;

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count);
  }
  return out;
}

uint32_t read_u32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i)
    value |= uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return value;
}

bool has_value(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7fffffff; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000ff; }
uint32_t children_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

}  // namespace

std::optional<Charsmap> Charsmap::parse(std::string_view base64) {
  const auto bytes = decode_base64(base64);
  if (!bytes || bytes->size() < 8) return std::nullopt;
  const size_t size = read_u32(*bytes, 0);
  if (size % 4 != 0 || size == 0 || size > bytes->size() - 4) return std::nullopt;
  Charsmap out;
  for (size_t at = 4; at < 4 + size; at += 4) out.units_.push_back(read_u32(*bytes, at));
  out.texts_ = bytes->substr(4 + size) + '\0';
  return out;
}

std::optional<std::string_view> Charsmap::find(std::string_view text) const {
  size_t at = children_of(units_[0]);
  for (const char c : text) {
    const uint32_t byte = static_cast<unsigned char>(c);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || label_of(units_[at]) != byte) return std::nullopt;
    const bool ends = has_value(units_[at]);
    at ^= children_of(units_[at]);
    if (!ends) continue;
    if (at >= units_.size() || value_of(units_[at]) >= texts_.size()) return std::nullopt;
    return std::string_view(texts_.c_str() + value_of(units_[at]));
  }
  return std::nullopt;
}

std::string Charsmap::operator()(std::string_view text) const {
  std::string out;
  const auto put = [&](std::string_view cluster) {
    if (cluster.size() <= kMaxCluster) {
      if (const auto found = find(cluster)) return out.append(*found), void();
    }
    for (size_t at = 0; at < cluster.size();) {
      const std::string_view letter = cluster.substr(at, letter_at(cluster, at).size);
      out += find(letter).value_or(letter);
      at += letter.size();
    }
  };
  size_t begin = 0;
  utf8proc_int32_t state = 0, before = -1;
  for (size_t at = 0; at < text.size();) {
    const Letter letter = letter_at(text, at);
    const auto code = static_cast<utf8proc_int32_t>(letter.code);
    if (before >= 0 && utf8proc_grapheme_break_stateful(before, code, &state)) {
      put(text.substr(begin, at - begin));
      begin = at;
    }
    before = code;
    at += letter.size;
  }
  put(text.substr(begin));
  return out;
}

}  // namespace tinyshard::tokenizers
