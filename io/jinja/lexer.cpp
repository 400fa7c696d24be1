// Brackets inside of a tag are counted, so that the braces of a dict do not end it: {{ {"a": {}} }}
// is one tag. Lines end with a newline alone, and the newline at the end of a template is dropped.
#include "io/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "io/jinja/value.h"
#include "io/tokenizers/unicode.h"

namespace tinyshard::jinja {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_space(char c) { return is_blank(c) || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) || (c & 0x80);
}

void append_escape(std::string_view source, size_t& at, std::string& out) {
  const char c = source[at++];
  const std::string_view known = "nrtbfav\\'\"", meant = "\n\r\t\b\f\a\v\\'\"";
  if (const size_t found = known.find(c); found != known.npos) {
    out += meant[found];
  } else if (c == 'x' || c == 'u' || c == 'U') {
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    const std::string_view hex = source.substr(at, digits);
    uint32_t code = 0;
    const auto end = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16).ptr;
    if (hex.size() != digits || end != hex.data() + digits || code > 0x10ffff)
      fail("a text has an escape that is no character");
    tokenizers::append_utf8(out, code);
    at += digits;
  } else {
    out.append(1, '\\').append(1, c);
  }
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
      source_ += source[i] == '\r' ? '\n' : source[i];
    }
    if (source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<Piece> run() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag(at_);
      put_text(tag);
      if (tag == source_.size()) break;
      at_ = tag + 2;
      const char kind = source_[tag + 1];
      if (kind == '#')
        skip_comment();
      else
        read_tag(kind == '{' ? Piece::Print : Piece::Block);
    }
    return std::move(out_);
  }

 private:
  size_t next_tag(size_t from) const {
    for (size_t at = from; at + 1 < source_.size(); ++at) {
      const char next = source_[at + 1];
      if (source_[at] == '{' && (next == '{' || next == '%' || next == '#')) return at;
    }
    return source_.size();
  }

  size_t line() {
    for (; counted_ < at_; ++counted_) line_ += source_[counted_] == '\n' ? 1 : 0;
    return line_;
  }

  // Puts the text before a tag, as the tag's signs leave it.
  void put_text(size_t tag) {
    size_t end = tag;
    if (tag < source_.size()) {
      const char kind = source_[tag + 1], sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      if (sign == '-') {
        while (end > at_ && is_space(source_[end - 1])) --end;
      } else if (kind != '{' && sign != '+') {
        size_t blank = tag;
        while (blank > at_ && is_blank(source_[blank - 1])) --blank;
        // The text before may end inside of a line whose beginning was a tag.
        const bool begins_line = blank == 0 || source_[blank - 1] == '\n';
        if (begins_line && (blank > at_ || at_line_begin_ || blank == 0)) end = blank;
      }
    }
    if (end > at_) out_.push_back({Piece::Text, source_.substr(at_, end - at_), {}, line()});
  }

  // Takes white space behind a tag that ends at at_.
  void behind(bool takes_all, bool trims) {
    if (takes_all) {
      while (at_ < source_.size() && is_space(source_[at_])) ++at_;
    } else if (trims && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    at_line_begin_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  void skip_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == source_.npos) fail("a comment {# has no end #}");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    at_ = end + 2;
    behind(sign == '-', sign != '+');
  }

  void read_tag(Piece::Kind kind) {
    Piece piece{kind, "", {}, line()};
    const std::string_view close = kind == Piece::Print ? "}}" : "%}";
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
    for (size_t open = 0;;) {
      while (at_ < source_.size() && is_space(source_[at_])) ++at_;
      if (at_ >= source_.size()) fail(fmt::format("a tag has no end {}", close));
      const std::string_view rest = std::string_view(source_).substr(at_);
      const bool sign = (rest[0] == '-' || rest[0] == '+') && rest.substr(1).starts_with(close);
      if (open == 0 && (sign || rest.starts_with(close))) {
        at_ += close.size() + (sign ? 1 : 0);
        piece.tokens.push_back({});
        const bool raw = kind == Piece::Block && piece.tokens[0].text == "raw";
        behind(sign && rest[0] == '-', kind == Piece::Block && !(sign && rest[0] == '+'));
        if (raw) return read_raw();
        out_.push_back(std::move(piece));
        return;
      }
      piece.tokens.push_back(token());
      const Token& last = piece.tokens.back();
      if (last.kind != Token::Operator) continue;
      if (last.text == "(" || last.text == "[" || last.text == "{") ++open;
      if ((last.text == ")" || last.text == "]" || last.text == "}") && open > 0) --open;
    }
  }

  // Puts what stands before {% endraw %} as it is.
  void read_raw() {
    for (size_t tag = at_; tag < source_.size(); tag = source_.find("{%", tag + 1)) {
      std::string_view rest = std::string_view(source_).substr(tag);
      if (!rest.starts_with("{%")) continue;
      const size_t end = rest.find("%}");
      if (end == rest.npos) break;
      std::string inner;
      for (const char c : rest.substr(2, end - 2)) inner += is_space(c) ? "" : std::string(1, c);
      if (inner != "endraw" && inner != "-endraw" && inner != "endraw-" && inner != "-endraw-")
        continue;
      put_text(tag);
      at_ = tag + end + 2;
      behind(inner.ends_with('-'), true);
      return;
    }
    fail("{% raw %} has no {% endraw %}");
  }

  Token token() {
    const char c = source_[at_];
    if (c == '\'' || c == '"') return text();
    if (is_digit(c)) return number();
    if (is_name(c)) {
      const size_t begin = at_;
      while (at_ < source_.size() && is_name(source_[at_])) ++at_;
      return {Token::Name, source_.substr(begin, at_ - begin)};
    }
    constexpr std::array<std::string_view, 7> kPairs{"==", "!=", "<=", ">=", "//", "**", "->"};
    const std::string_view rest = std::string_view(source_).substr(at_);
    for (const std::string_view pair : kPairs) {
      if (!rest.starts_with(pair)) continue;
      at_ += 2;
      return {Token::Operator, std::string(pair)};
    }
    if (std::string_view("+-*/%~|.,:()[]{}<>=").find(c) == std::string_view::npos)
      fail(fmt::format("{} has no meaning in a tag", Value(std::string(1, c)).repr()));
    ++at_;
    return {Token::Operator, std::string(1, c)};
  }

  Token text() {
    const char quote = source_[at_++];
    Token out{Token::Text, ""};
    while (at_ < source_.size() && source_[at_] != quote) {
      const char c = source_[at_++];
      if (c == '\\' && at_ < source_.size())
        append_escape(source_, at_, out.text);
      else
        out.text += c;
    }
    if (at_ == source_.size()) fail("a text has no end");
    ++at_;
    return out;
  }

  // Returns whether 5, +5 or -5 stands there.
  bool is_exponent(size_t at) const {
    if (at < source_.size() && (source_[at] == '+' || source_[at] == '-')) ++at;
    return at < source_.size() && is_digit(source_[at]);
  }

  Token number() {
    Token out{Token::Integer, ""};
    bool has_exponent = false;
    while (at_ < source_.size()) {
      const char c = source_[at_], next = at_ + 1 < source_.size() ? source_[at_ + 1] : ' ';
      const bool point = c == '.' && is_digit(next) && out.kind == Token::Integer;
      if (c == '_') {
        ++at_;
        continue;
      }
      const bool exponent = (c == 'e' || c == 'E') && is_exponent(at_ + 1) && !has_exponent;
      if (!is_digit(c) && !point && !exponent) break;
      if (point || exponent) out.kind = Token::Float;
      if (exponent) {
        has_exponent = true;
        out.text += c;
        if (!is_digit(next)) out.text += next, ++at_;
        ++at_;
        continue;
      }
      out.text += c;
      ++at_;
    }
    return out;
  }

  std::string source_;
  size_t at_ = 0;
  size_t counted_ = 0, line_ = 1;  // the line where counted_ is
  bool at_line_begin_ = true;
  std::vector<Piece> out_;
};

}  // namespace

std::vector<Piece> cut_template(std::string_view source) { return Lexer(source).run(); }

}  // namespace tinyshard::jinja
