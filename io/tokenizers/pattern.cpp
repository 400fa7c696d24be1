// A text is cut where matches begin and end. The pattern \d+ cuts "ab12c" into
//
//   visit(0, 2, false)   visit(2, 4, true)   visit(4, 5, false)       "ab"  "12"  "c"
#include "io/tokenizers/pattern.h"

#include <algorithm>
#include <array>
#include <climits>
#include <new>
#include <oniguruma.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "io/errors.h"

namespace tinyshard::tokenizers {
namespace {

// How often one search may go back to try something else. The reference library has this bound for
// each place where a match may begin; here it is for all of them, and each byte adds a little.
constexpr size_t kMaxRetries = 10'000'000, kRetriesPerByte = 16;
// How many places to go back to a search may remember, of 32 bytes each. A word needs one or two
// for each of its characters.
constexpr size_t kMaxStack = 1 << 20, kStackPerByte = 16;

// Letters that stand for something else in a regular expression.
constexpr std::string_view kSpecialLetters = R"(\.+*?()|[]{}^$#&-~)";

const OnigUChar* bytes(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

// Made once for the process, as Oniguruma wants it; many threads may compile and search afterwards.
OnigSyntaxType* syntax() {
  static OnigSyntaxType ours = [] {
    OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    check_internal(onig_initialize(&utf8, 1) == ONIG_NORMAL, "Oniguruma has UTF-8");
    // Oniguruma reads groups inside of groups by recursion. With its own limit of 4096 levels, a
    // pattern can overflow the stack of a thread that has 1 MiB.
    onig_set_parse_depth_limit(250);
    OnigSyntaxType out;
    onig_copy_syntax(&out, ONIG_SYNTAX_ONIGURUMA);
    // (?L) and (?I) meant something else before version 6.9.9, which the reference library has.
    onig_set_syntax_behavior(&out, onig_get_syntax_behavior(&out) & ~ONIG_SYN_WHOLE_OPTIONS);
    return out;
  }();
  return &ours;
}

// Without the part of the pattern that is to blame, which would have to be made safe to print.
std::string message_of(int error) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  OnigUChar nothing = 0;
  OnigErrorInfo part{ONIG_ENCODING_UTF8, &nothing, &nothing};
  const int size = onig_error_code_to_str(text.data(), error, &part);
  return {reinterpret_cast<const char*>(text.data()), static_cast<size_t>(size)};
}

struct Refused {
  std::string_view text, what;
  int known_since;  // version of Oniguruma
};
constexpr Refused kRefused[] = {
    // \g<name> repeats the pattern of another group. Ten groups of which each calls the next ten
    // times take years to compile, and Oniguruma has no limit for that.
    {"\\g", "a call of a group", INT_MAX},
    // Since 6.9.9 symbols such as $ and + are punctuation, too.
    {":punct:]", "[:punct:]", 60909},
    {":^punct:]", "[:^punct:]", 60909}};

const Refused* refused(std::string_view pattern) {
  for (size_t at = 0; at < pattern.size(); at += pattern[at] == '\\' ? 2 : 1) {
    for (const Refused& r : kRefused) {
      if (ONIGURUMA_VERSION_INT < r.known_since && pattern.substr(at).starts_with(r.text))
        return &r;
    }
  }
  return nullptr;
}

bool is_inside_of_character(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
}

// A Search owns the memory that matching writes to, and its limits. Each thread has its own.
class Search {
 public:
  Search(OnigRegex regex, std::string_view text)
      : regex_(regex), text_(text), found_(onig_region_new()), limits_(onig_new_match_param()) {
    if (!found_ || !limits_) throw std::bad_alloc();
    const size_t stack = std::min<size_t>(kMaxStack + kStackPerByte * text.size(), INT_MAX);
    onig_set_match_stack_limit_size_of_match_param(limits_.get(), static_cast<unsigned>(stack));
    onig_set_retry_limit_in_match_of_match_param(limits_.get(), kMaxRetries);
    onig_set_retry_limit_in_search_of_match_param(limits_.get(),
                                                  kMaxRetries + kRetriesPerByte * text.size());
  }

  // Where the next match begins or an error, negative.
  int next(size_t from) {
    const OnigUChar *first = bytes(text_), *end = first + text_.size();
    return onig_search_with_param(regex_, first, end, first + from, end, found_.get(),
                                  ONIG_OPTION_NONE, limits_.get());
  }
  int begin() const { return found_->beg[0]; }
  int end() const { return found_->end[0]; }

 private:
  struct Free {
    void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
    void operator()(OnigMatchParam* limits) const { onig_free_match_param(limits); }
  };
  OnigRegex regex_;
  std::string_view text_;
  std::unique_ptr<OnigRegion, Free> found_;
  std::unique_ptr<OnigMatchParam, Free> limits_;
};

}  // namespace

Pattern Pattern::of(const Part& part) {
  if (const std::string regex = part.text("Regex"); !regex.empty()) return {regex, part.label()};
  std::string escaped;
  for (const char c : part.text("String")) {
    if (kSpecialLetters.find(c) != kSpecialLetters.npos) escaped += '\\';
    escaped += c;
  }
  if (escaped.empty()) throw part.error("it has a pattern without text");
  return {escaped, part.label()};
}

void Pattern::Free::operator()(re_pattern_buffer* regex) const { onig_free(regex); }

Pattern::Pattern(std::string_view pattern, std::string label) : label_(std::move(label)) {
  const auto fail = [&](std::string_view why) {
    return io::FormatError(label_, fmt::format("its pattern {} {}", io::in_quotes(pattern), why));
  };
  if (const Refused* r = refused(pattern))
    throw fail(fmt::format("has {}, which is not known here", r->what));
  OnigRegex regex = nullptr;
  const int error = onig_new(&regex, bytes(pattern), bytes(pattern) + pattern.size(),
                             ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, syntax(), nullptr);
  if (error == ONIGERR_MEMORY) throw std::bad_alloc();
  if (error != ONIG_NORMAL) throw fail("is no regular expression: " + message_of(error));
  regex_.reset(regex);
}

void Pattern::cut(std::string_view text, const Visit& visit) const {
  if (text.size() > INT_MAX)
    throw UserError(
        fmt::format("{}: a text of {} bytes, the most are {}", label_, text.size(), INT_MAX));
  Search search(regex_.get(), text);
  const auto fail = [&](std::string_view why) {
    return UserError(fmt::format("{}: its pattern cannot be matched: {}", label_, why));
  };
  size_t at = 0, from = 0;
  while (from <= text.size() && !text.empty()) {
    const int found = search.next(from);
    if (found == ONIG_MISMATCH) break;
    if (found < 0) throw fail(message_of(found));
    const auto begin = static_cast<size_t>(search.begin()), end = static_cast<size_t>(search.end());
    // \K in a look-behind can put the beginning before the match that was last.
    if (begin < at || end < begin || is_inside_of_character(text, begin) ||
        is_inside_of_character(text, end))
      throw fail(fmt::format("it matches from byte {} to byte {}", begin, end));
    if (begin > at) visit(at, begin, false);
    if (end > begin) visit(begin, end, true);
    at = from = end;
    if (end > begin) continue;
    do ++from;  // behind a match of nothing
    while (is_inside_of_character(text, from));
  }
  if (at < text.size()) visit(at, text.size(), false);
}

}  // namespace tinyshard::tokenizers
