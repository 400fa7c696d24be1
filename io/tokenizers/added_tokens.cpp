// Tokens are listed by their first byte, the longest first, so the first
// that fits is the longest. One that has to stand alone and does not is
// passed over as a whole: no shorter token is found inside of it.
#include "io/tokenizers/added_tokens.h"

#include <algorithm>

#include "io/tokenizers/unicode.h"

namespace tinyshard::tokenizers {
namespace {

// Returns where the character begins that ends at `end`.
size_t before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80 && end - at < 4) --at;
  return at;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool left = begin == 0 || !is_word(letter_at(text, before(text, begin)).code);
  const bool right = end == text.size() || !is_word(letter_at(text, end).code);
  return left && right;
}

}  // namespace

void AddedTokens::add(AddedToken token) {
  if (token.content.empty()) return;
  auto& same_first = by_first_[static_cast<unsigned char>(token.content[0])];
  const auto behind_longer = std::upper_bound(
      same_first.begin(), same_first.end(), token.content.size(),
      [](size_t size, const AddedToken& other) { return size > other.content.size(); });
  same_first.insert(behind_longer, std::move(token));
}

const AddedToken* AddedTokens::find(std::string_view text, size_t at) const {
  const auto& here = by_first_[static_cast<unsigned char>(text[at])];
  const auto found = std::ranges::find_if(
      here, [&](const AddedToken& token) { return text.substr(at).starts_with(token.content); });
  return found == here.end() ? nullptr : &*found;
}

void AddedTokens::cut(std::string_view text,
                      const std::function<void(std::string_view text, size_t begin)>& plain,
                      const std::function<void(int32_t id)>& token) const {
  size_t from = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* const found = find(text, at);
    if (!found) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + found->content.size();
    if (found->single_word && !stands_alone(text, begin, end)) {
      at = end;
      continue;
    }
    while (found->lstrip && begin > from) {
      const size_t left = before(text, begin);
      if (left < from || !is_space(letter_at(text, left).code)) break;
      begin = left;
    }
    while (found->rstrip && end < text.size() && is_space(letter_at(text, end).code))
      end += letter_at(text, end).size;
    if (begin > from) plain(text.substr(from, begin - from), from);
    token(found->id);
    from = at = end;
  }
  if (from < text.size()) plain(text.substr(from), from);
}

}  // namespace tinyshard::tokenizers
