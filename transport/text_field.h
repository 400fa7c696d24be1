// Texts in fields of a fixed size, as headers, cards and rings hold them: cut where they are too long,
// and nobody who reads one relies on its end being there.
#pragma once
#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace tinyshard {

// The field is all zeros before.
template <size_t n>
void put_text(char (&field)[n], std::string_view text) {
  text.copy(field, n - 1);
}
template <size_t n>
void put_text(std::array<char, n>& field, std::string_view text) {
  text.copy(field.data(), n - 1);
}

template <size_t n>
std::string_view text_in(const char (&field)[n]) {
  return {field, strnlen(field, n)};
}
template <size_t n>
std::string_view text_in(const std::array<char, n>& field) {
  return {field.data(), strnlen(field.data(), n)};
}

}  // namespace tinyshard
