// The nearest of the known names, for messages about a misspelt one.
#pragma once
#include <span>
#include <string_view>

namespace tinyshard {

// The one of `known` (not empty) that takes the fewest insertions, deletions and replacements of
// letters to become `word`.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

}  // namespace tinyshard
