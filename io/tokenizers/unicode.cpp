// UTF-8 is read strictly: overlong forms, surrogates and numbers beyond 10ffff are no characters,
// and each bad byte is one place without a character. GPT-2 writes bytes as letters: visible ones
// as themselves, others as letters from U+0100 on in their order, so that a space is U+0120.
#include "io/tokenizers/unicode.h"

#include <algorithm>
#include <unordered_map>
#include <utf8proc.h>

namespace tinyshard::tokenizers {
namespace {

utf8proc_category_t category(uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

Letter letter_at(std::string_view text, size_t at) {
  constexpr Letter kNone{kNoCharacter, 1};
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t size = lead < 0x80                   ? 1
                      : lead >= 0xc2 && lead < 0xe0 ? 2
                      : lead >= 0xe0 && lead < 0xf0 ? 3
                      : lead >= 0xf0 && lead < 0xf5 ? 4
                                                    : 0;
  if (size == 0 || size > text.size() - at) return kNone;
  uint32_t code = size == 1 ? lead : lead & (0xffu >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    const auto next = static_cast<unsigned char>(text[at + i]);
    if ((next & 0xc0) != 0x80) return kNone;
    code = code << 6 | (next & 0x3f);
  }
  const bool overlong = (size == 3 && code < 0x800) || (size == 4 && code < 0x10000);
  if (overlong || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return kNone;
  return {code, size};
}

size_t valid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Letter letter = letter_at(text, at);
    if (letter.code == kNoCharacter) break;
    at += letter.size;
  }
  return at;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12);
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
    }
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

bool is_space(uint32_t code) {
  return (code >= 9 && code <= 13) || code == ' ' || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_word(uint32_t code) {
  if (code == kNoCharacter) return false;
  const bool joins = code == 0x200c || code == 0x200d;
  const bool circled = (code >= 0x24b6 && code <= 0x24e9) || (code >= 0x1f130 && code <= 0x1f149) ||
                       (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189);
  const auto c = category(code);
  const bool letter =
      c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL;  // marks and digits, too
  return letter || c == UTF8PROC_CATEGORY_PC || joins || circled;
}

bool is_numeric(uint32_t code) {
  const auto c = category(code);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(uint32_t code) {
  if (code < 0x80)
    return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') ||
           (code >= '[' && code <= '`') || (code >= '{' && code <= '~');
  const auto c = category(code);
  return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool is_nonspacing_mark(uint32_t code) { return category(code) == UTF8PROC_CATEGORY_MN; }

bool is_other(uint32_t code) {
  const auto c = category(code);
  return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO;
}

uint32_t lower(uint32_t code) {
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

uint32_t upper(uint32_t code) {
  return static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}

const std::array<uint32_t, 256>& byte_letters() {
  static const std::array<uint32_t, 256> all = [] {
    std::array<uint32_t, 256> out{};
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool visible = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      out[b] = visible ? b : next++;
    }
    return out;
  }();
  return all;
}

std::string in_byte_letters(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(out, byte_letters()[static_cast<unsigned char>(c)]);
  return out;
}

std::string from_byte_letters(const std::string& token) {
  static const std::unordered_map<uint32_t, char> bytes = [] {
    std::unordered_map<uint32_t, char> out;
    for (size_t b = 0; b < 256; ++b) out.emplace(byte_letters()[b], static_cast<char>(b));
    return out;
  }();
  std::string out;
  for (size_t at = 0; at < token.size();) {
    const Letter letter = letter_at(token, at);
    const auto found = bytes.find(letter.code);
    if (found == bytes.end()) return token;
    out += found->second;
    at += letter.size;
  }
  return out;
}

}  // namespace tinyshard::tokenizers
