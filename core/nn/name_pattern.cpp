// Segments are matched from left to right with backtracking, where *
// alone tries one segment first, then more: so the beginning found is
// the shortest. A * within a text tries all its lengths in the same way.
#include "core/nn/name_pattern.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard::nn {
namespace {

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    size_t end = std::min(text.find(at), text.size());
    parts.push_back(text.substr(0, end));
    if (end == text.size()) return parts;
    text.remove_prefix(end + 1);
  }
}

bool is_like(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] != '*')
    return !text.empty() && text[0] == pattern[0] && is_like(pattern.substr(1), text.substr(1));
  for (size_t i = 0; i <= text.size(); ++i) {
    if (is_like(pattern.substr(1), text.substr(i))) return true;
  }
  return false;
}

constexpr size_t kNoMatch = size_t(-1);

}  // namespace

NamePattern::NamePattern(std::string_view text) : text_(text) {
  for (std::string_view segment : split(text, '.')) {
    Segment& choices = segments_.emplace_back();
    for (std::string_view choice : split(segment, '|')) {
      if (choice.empty())
        throw UserError(fmt::format("the pattern \"{}\" has an empty part", text));
      choices.emplace_back(choice);
    }
  }
}

// Matches the pattern's segments from `segment` on with those of the name from `from` on. Returns
// where in the name the match ends, or kNoMatch.
size_t NamePattern::matched(size_t segment, const std::vector<std::string_view>& name,
                            size_t from) const {
  if (segment == segments_.size()) return from;
  if (from == name.size()) return kNoMatch;
  const Segment& choices = segments_[segment];
  auto fits = [&](const std::string& choice) { return is_like(choice, name[from]); };
  if (std::ranges::none_of(choices, fits)) return kNoMatch;
  const size_t most = choices == Segment{"*"} ? name.size() : from + 1;
  for (size_t next = from + 1; next <= most; ++next) {
    if (size_t end = matched(segment + 1, name, next); end != kNoMatch) return end;
  }
  return kNoMatch;
}

std::optional<std::string> NamePattern::beginning_of(std::string_view name) const {
  const std::vector<std::string_view> segments = split(name, '.');
  const size_t count = matched(0, segments, 0);
  if (count == kNoMatch) return {};
  std::string beginning;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) beginning += '.';
    beginning += segments[i];
  }
  return beginning;
}

}  // namespace tinyshard::nn
