// Each step finds ranges that match or lie between matches, and a behavior says which of them are
// pieces and which are joined:
//
//   "a--b" by "-"    Isolated "a" "-" "-" "b"   Removed "a" "b"   Contiguous "a" "--" "b"
//                    MergedWithPrevious "a-" "-" "b"   MergedWithNext "a" "-" "-b"
#include "io/tokenizers/pre_tokenizer.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "io/tokenizers/pattern.h"
#include "io/tokenizers/unicode.h"

namespace tinyshard::tokenizers {
namespace {

// Classes of characters such as \p{L} take up to 3 KiB for each byte of a pattern, and what one
// pattern leaves is cut by the next, one inside of the other. Models have less than 2 KiB in all.
constexpr size_t kMaxPatternBytes = 16 << 10, kMaxPatterns = 100, kMaxSteps = 256;

// GPT-2's words; what ByteLevel cuts by itself.
constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
enum class Behavior { Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext };

std::optional<Behavior> behavior_named(const std::string& name) {
  if (name == "Isolated") return Behavior::Isolated;
  if (name == "Removed") return Behavior::Removed;
  if (name == "Contiguous") return Behavior::Contiguous;
  if (name == "MergedWithPrevious") return Behavior::MergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::MergedWithNext;
  return std::nullopt;
}

struct Range {
  size_t begin, end;
  bool match;
};

// Joins ranges as the behavior says. Isolated and Removed join nothing.
std::vector<Range> joined(const std::vector<Range>& ranges, Behavior behavior) {
  std::vector<Range> out;
  if (behavior == Behavior::MergedWithNext) {
    bool match_before = false;
    for (auto it = ranges.rbegin(); it != ranges.rend(); ++it) {
      if (it->match && !match_before && !out.empty())
        out.back().begin = it->begin;
      else
        out.push_back(*it);
      match_before = it->match;
    }
    std::ranges::reverse(out);
    return out;
  }
  bool match_before = false;
  for (const Range& range : ranges) {
    const bool joins = behavior == Behavior::Contiguous
                           ? !out.empty() && range.match == match_before
                           : range.match && !match_before;
    if (joins && !out.empty())
      out.back().end = range.end;
    else
      out.push_back(range);
    match_before = range.match;
  }
  return out;
}

// Makes a step of what finds ranges. find(text, visit) calls visit(begin, end, match) in order.
template <class Find>
auto splitting(Find find, Behavior behavior, bool invert = false) {
  return [find = std::move(find), behavior, invert](std::string_view text, bool first,
                                                    const auto& next) {
    const auto give = [&](size_t begin, size_t end) {
      if (end > begin) next(text.substr(begin, end - begin), first && begin == 0);
    };
    const bool at_once = behavior == Behavior::Isolated || behavior == Behavior::Removed;
    std::vector<Range> ranges;
    find(text, [&](size_t begin, size_t end, bool match) {
      match = match != invert;
      if (!at_once)
        ranges.push_back({begin, end, match});
      else if (behavior == Behavior::Isolated || !match)
        give(begin, end);
    });
    if (!at_once) {
      for (const Range& range : joined(ranges, behavior)) give(range.begin, range.end);
    }
  };
}

// Finds the characters that `is` says yes to, each a match of its own.
template <class Is>
auto characters(Is is) {
  return [is](std::string_view text, const auto& visit) {
    size_t from = 0;
    for (size_t at = 0; at < text.size();) {
      const Letter letter = letter_at(text, at);
      const size_t end = at + letter.size;
      if (is(letter.code)) {
        if (at > from) visit(from, at, false);
        visit(at, end, true);
        from = end;
      }
      at = end;
    }
    if (from < text.size()) visit(from, text.size(), false);
  };
}

auto matches_of(std::shared_ptr<const Pattern> pattern) {
  return [pattern = std::move(pattern)](std::string_view text, const auto& visit) {
    pattern->cut(text, visit);
  };
}

}  // namespace

PreTokenizer::PreTokenizer(const Part& part) { add(part); }

void PreTokenizer::run(std::string_view text, bool first, size_t step, const Word& word) const {
  if (text.empty()) return;
  if (step == steps_.size()) return word(text);
  steps_[step](text, first, [&](std::string_view piece, bool is_first) {
    run(piece, is_first, step + 1, word);
  });
}

void PreTokenizer::count_pattern(const Part& part, size_t bytes) {
  pattern_bytes_ += bytes;
  if (pattern_bytes_ > kMaxPatternBytes || ++patterns_ > kMaxPatterns)
    throw part.error(fmt::format("its pre_tokenizer has more than {} patterns or {} bytes of them",
                                 kMaxPatterns, kMaxPatternBytes));
}

void PreTokenizer::add(const Part& part) {
  if (part.missing()) return;
  const std::string type = part.type();
  if (type == "Sequence") {
    for (const Part& each : part["pretokenizers"].items()) add(each);
    return;
  }
  if (steps_.size() > kMaxSteps)
    throw part.error(fmt::format("its pre_tokenizer has more than {} steps", kMaxSteps));
  if (type == "ByteLevel") return add_byte_level(part);
  if (type == "Metaspace") return add_metaspace(part);
  if (type == "Split") return add_split(part);
  if (type == "Whitespace") {
    steps_.emplace_back(splitting(characters(is_space), Behavior::Removed));
    steps_.emplace_back(splitting(characters(is_word), Behavior::Contiguous));
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back(splitting(characters(is_space), Behavior::Removed));
  } else if (type == "BertPreTokenizer") {
    steps_.emplace_back(splitting(characters(is_space), Behavior::Removed));
    steps_.emplace_back(splitting(characters(is_punctuation), Behavior::Isolated));
  } else if (type == "Digits") {
    const bool each = part.flag("individual_digits", false);
    steps_.emplace_back(
        splitting(characters(is_numeric), each ? Behavior::Isolated : Behavior::Contiguous));
  } else if (type == "Punctuation") {
    const auto behavior = behavior_named(part.text("behavior", "Isolated"));
    if (!behavior) throw part.error("its Punctuation has a behavior that is not known");
    steps_.emplace_back(splitting(characters(is_punctuation), *behavior));
  } else if (type == "CharDelimiterSplit") {
    const uint32_t delimiter = letter_at(part.character("delimiter", ""), 0).code;
    steps_.emplace_back(splitting(
        characters([delimiter](uint32_t code) { return code == delimiter; }), Behavior::Removed));
  } else {
    throw part.error(
        fmt::format("its pre_tokenizer has {}, which is not known", io::in_quotes(type)));
  }
}

void PreTokenizer::add_split(const Part& part) {
  const auto behavior = behavior_named(part.text("behavior"));
  if (!behavior)
    throw part.error(fmt::format("a Split that is {}", io::in_quotes(part.text("behavior"))));
  const Part pattern = part["pattern"];
  count_pattern(part, pattern.text("Regex", pattern.text("String")).size());
  auto compiled = std::make_shared<const Pattern>(Pattern::of(pattern));
  steps_.emplace_back(
      splitting(matches_of(std::move(compiled)), *behavior, part.flag("invert", false)));
}

// Spaces become a visible letter, which begins words.
void PreTokenizer::add_metaspace(const Part& part) {
  const std::string mark = part.character("replacement", "\xe2\x96\x81");
  const std::string scheme =
      part.flag("add_prefix_space", true) ? part.text("prepend_scheme", "always") : "never";
  if (scheme != "always" && scheme != "first" && scheme != "never")
    throw part.error(fmt::format("its Metaspace prepends {}", io::in_quotes(scheme)));
  steps_.emplace_back([mark, scheme](std::string_view text, bool first, const auto& next) {
    std::string out;
    const bool begins = text.starts_with(mark) || text.starts_with(' ');
    if (!begins && (scheme == "always" || (scheme == "first" && first))) out = mark;
    for (const char c : text) {
      if (c == ' ')
        out += mark;
      else
        out += c;
    }
    next(out, first);
  });
  if (!part.flag("split", true)) return;
  const uint32_t code = letter_at(mark, 0).code;
  steps_.emplace_back(
      splitting(characters([code](uint32_t c) { return c == code; }), Behavior::MergedWithNext));
}

void PreTokenizer::add_byte_level(const Part& part) {
  byte_level_ = true;
  if (part.flag("add_prefix_space", true)) {
    steps_.emplace_back([](std::string_view text, bool first, const auto& next) {
      if (text.starts_with(' ')) return next(text, first);
      next(" " + std::string(text), first);
    });
  }
  if (part.flag("use_regex", true)) {
    auto words = std::make_shared<const Pattern>(kGpt2Words, part.label());
    steps_.emplace_back(splitting(matches_of(std::move(words)), Behavior::Isolated));
  }
  steps_.emplace_back([](std::string_view text, bool first, const auto& next) {
    next(in_byte_letters(text), first);
  });
}

}  // namespace tinyshard::tokenizers
