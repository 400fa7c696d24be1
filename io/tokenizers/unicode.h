// Characters of UTF-8 texts and what Unicode says of them, as far as tokenizers ask.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tinyshard::tokenizers {

// Counts the bytes of the longest valid UTF-8 at the beginning.
size_t valid_utf8(std::string_view text);

// A character and the bytes that spell it. A byte that begins no valid character stands alone, with
// the code kNoCharacter.
inline constexpr uint32_t kNoCharacter = 0xffffffff;
struct Letter {
  uint32_t code;
  size_t size;
};
Letter letter_at(std::string_view text, size_t at);

void append_utf8(std::string& out, uint32_t code);

bool is_space(uint32_t code);        // White_Space
bool is_word(uint32_t code);         // letters, marks, decimal digits, connectors
bool is_numeric(uint32_t code);      // category N
bool is_punctuation(uint32_t code);  // category P, and ASCII's symbols
bool is_nonspacing_mark(uint32_t code);
bool is_other(uint32_t code);  // controls, formats, private use
uint32_t lower(uint32_t code);
uint32_t upper(uint32_t code);

// The letter that spells each byte in a byte-level vocabulary: visible bytes stand for themselves,
// the others for 256 and on (a space is Ġ), so that a vocabulary is readable text.
const std::array<uint32_t, 256>& byte_letters();
std::string in_byte_letters(std::string_view bytes);
// Returns the bytes that a token's letters spell; a token with a letter that spells no byte is itself.
std::string from_byte_letters(const std::string& token);

}  // namespace tinyshard::tokenizers
