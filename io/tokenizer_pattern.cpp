#include "io/tokenizer_pattern.h"

#include <algorithm>
#include <string_view>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>

#include "io/errors.h"

namespace tinyshard::io {
namespace {

// The letters that \s, \h and \w stand for, written as between the brackets of a set.
constexpr std::string_view kSpace = R"(\p{Z}\t-\r\x{85})";
constexpr std::string_view kHex = "0-9a-fA-F";
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9})"
    R"(\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

struct Letters {
  char letter, others;
  std::string_view set;
};
constexpr Letters kLetters[] = {{'s', 'S', kSpace}, {'h', 'H', kHex}, {'w', 'W', kWord}};

struct NamedSet {
  std::string_view name, set;
};
constexpr NamedSet kNamedSets[] = {{"space", kSpace}, {"xdigit", kHex}, {"digit", R"(\p{Nd})"}};

constexpr std::string_view kAlike = "AzZtnrfaedDpPkRx";  // letters behind a backslash
constexpr int kMaxSets = 16;                             // inside of each other

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Rewriter {
 public:
  Rewriter(std::string_view text, const std::string& label) : text_(text), label_(label) {}

  std::string run() {
    while (at_ < text_.size()) {
      switch (text_[at_]) {
        case '\\':
          escape(false);
          break;
        case '[':
          set(0);
          break;
        case '(':
          group();
          break;
        case '{':
          interval();
          break;
        default:
          copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  FormatError fail(std::string_view what) const {
    return {label_, fmt::format("its pattern {} has {}, at byte {}, which is not known here",
                                in_quotes(text_), what, at_)};
  }
  bool next_is(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  void copy(size_t count) {
    out_ += text_.substr(at_, count);
    at_ = std::min(at_ + count, text_.size());
  }

  // Whether it stands for many letters, as none at the ends of a range does.
  bool escape(bool in_set) {
    if (at_ + 1 == text_.size()) throw fail("a backslash at its end");
    const char letter = text_[at_ + 1];
    for (const Letters& known : kLetters) {
      if (letter == known.letter) {
        put(in_set ? std::string(known.set) : fmt::format("[{}]", known.set));
        return true;
      }
      if (letter != known.others) continue;
      if (in_set && letter != 'S') throw fail(fmt::format("\\{} in a set", letter));
      put(in_set ? R"(\S\x{180e})" : fmt::format("[^{}]", known.set));
      return true;
    }
    if (!in_set && (letter == 'b' || letter == 'B')) {
      put(fmt::format("(?:(?<=[{0}])(?{1}[{0}])|(?<![{0}])(?{2}[{0}]))", kWord,
                      letter == 'b' ? '!' : '=', letter == 'b' ? '=' : '!'));
      return true;
    }
    if (letter == 'v') return put(R"(\x0b)"), false;
    if (letter == 'u') return number(), false;
    if (letter == 'p' || letter == 'P') return property(), true;
    const bool alike = kAlike.find(letter) != kAlike.npos || (in_set && letter == 'b');
    if (is_letter(letter) && !alike) throw fail(fmt::format("\\{}", letter));
    copy(2);
    if (letter == 'x' && next_is("{")) copy(std::min(text_.find('}', at_), text_.size()) - at_);
    return letter == 'd' || letter == 'D' || letter == 'R';
  }
  void put(std::string_view in_place_of_an_escape) {
    out_ += in_place_of_an_escape;
    at_ += 2;
  }

  void number() {
    for (size_t i = 2; i < 6; ++i) {
      if (at_ + i >= text_.size() || !is_hex(text_[at_ + i])) throw fail("\\u without four digits");
    }
    out_ += fmt::format("\\x{{{}}}", text_.substr(at_ + 2, 4));
    at_ += 6;
  }

  void property() {
    copy(2);
    if (!next_is("{")) return;
    copy(next_is("{^") ? 2 : 1);
#if PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40
    // Categories have one or two letters, scripts more.
    const size_t end = text_.find('}', at_);
    if (end != text_.npos && end - at_ > 2 && text_.substr(at_, end - at_) != "Any") out_ += "sc:";
#endif
  }

  // (?m: and its like. The flag m is s in PCRE2; others mean the same.
  void group() {
    if (next_is("(?#")) return copy(std::min(text_.find(')', at_), text_.size()) - at_);
    copy(1);
    if (!next_is("?")) return;
    size_t end = at_ + 1;
    while (end < text_.size() && (is_letter(text_[end]) || text_[end] == '-')) ++end;
    if (end == text_.size() || (text_[end] != ':' && text_[end] != ')')) return;
    for (; at_ < end; ++at_) out_ += text_[at_] == 'm' ? 's' : text_[at_];
  }

  void interval() {
    size_t end = at_ + 1;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    const bool from = end > at_ + 1, list = end < text_.size() && text_[end] == ',';
    if (list) ++end;
    const size_t second = end;
    while (list && end < text_.size() && is_digit(text_[end])) ++end;
    const bool to = end > second;
    if (end == text_.size() || text_[end] != '}' || (!from && !to)) return copy(1);
    const char next = end + 1 < text_.size() ? text_[end + 1] : '\0';
    if (next == '+' || (next == '?' && !list)) throw fail("a repetition of a repetition");
    out_ += from ? "{" : "{0";
    ++at_;
    copy(end + 1 - at_);
  }

  // A set, or what lies between the brackets of one inside of another.
  void set(int depth) {
    if (depth == kMaxSets) throw fail("sets nested too deeply");
    const bool negated = next_is("[^");
    if (negated && depth > 0) throw fail("a negated set in a set");
    if (depth == 0) out_ += negated ? "[^" : "[";
    at_ += negated ? 2 : 1;
    bool first = true, many = true;  // of the item before: no range can begin with it
    for (; at_ < text_.size() && (first || text_[at_] != ']'); first = false) {
      if (next_is("&&")) throw fail("an intersection of sets");
      if (next_is("[")) {
        if (!named_set()) set(depth + 1);
        many = true;
      } else if (next_is("\\")) {
        many = escape(true);
      } else if (next_is("]")) {
        out_ += "\\]", ++at_, many = false;
      } else if (next_is("-") && (many || next_is("-]") || next_is("-["))) {
        out_ += "\\-", ++at_, many = false;
      } else {
        copy(1), many = false;
      }
    }
    if (at_ == text_.size()) throw fail("a set without an end");
    ++at_;
    if (depth == 0) out_ += ']';
  }

  bool named_set() {
    if (!next_is("[:")) return false;
    const size_t end = text_.find(":]", at_);
    if (end == text_.npos) return false;
    const std::string_view name = text_.substr(at_ + 2, end - at_ - 2);
    for (const NamedSet& known : kNamedSets) {
      if (known.name != name) continue;
      out_ += known.set;
      at_ = end + 2;
      return true;
    }
    throw fail(fmt::format("[:{}:]", name));
  }

  std::string_view text_;
  const std::string& label_;
  std::string out_;
  size_t at_ = 0;
};

}  // namespace

std::string pattern_for_pcre2(const std::string& pattern, const std::string& label) {
  return Rewriter(pattern, label).run();
}

}  // namespace tinyshard::io
