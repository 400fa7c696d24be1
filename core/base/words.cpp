// The distance of two words, row by row: distance("tidi", "tidy") is 1.
#include "core/base/words.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace tinyshard {
namespace {

size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known) {
  return *std::ranges::min_element(known, {},
                                   [&](std::string_view other) { return edits(word, other); });
}

}  // namespace tinyshard
