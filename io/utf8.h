// Texts of files that have to be UTF-8.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tinyshard::io {

// Tells if `text` is UTF-8, without letters in more bytes than they need and without surrogates.
inline bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const size_t bytes = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (bytes == 0 || lead > 0xf4 || bytes > text.size() - at) return false;
    uint32_t letter = bytes == 1 ? lead : lead & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      if ((next & 0xc0) != 0x80) return false;
      letter = letter << 6 | (next & 0x3fu);
    }
    if ((bytes == 3 && letter < 0x800) || (bytes == 4 && letter < 0x10000) || letter > 0x10ffff ||
        (letter >= 0xd800 && letter < 0xe000))
      return false;
    at += bytes;
  }
  return true;
}

}  // namespace tinyshard::io
