// Reads tokens into a tree by recursive descent, in the order of Jinja's precedences:
//
//   a if b else c    or    and    not    == < in    + -    ~    * / // %    **    -x    x.y x[1] x(2) x|f
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "core/base/error.h"
#include "io/jinja/ast.h"
#include "io/jinja/lexer.h"

namespace tinyshard::jinja {
namespace {

// Nesting of expressions and of blocks, so that no template overflows a stack.
constexpr int kMaxDepth = 200;

ExpressionPtr make(Expression::Kind kind, std::string name = "", ExpressionPtr a = nullptr,
                   ExpressionPtr b = nullptr) {
  auto out = std::make_shared<Expression>();
  out->kind = kind;
  out->name = std::move(name);
  if (a) out->items.push_back(std::move(a));
  if (b) out->items.push_back(std::move(b));
  return out;
}

ExpressionPtr constant(Value value) {
  auto out = make(Expression::Constant);
  out->value = std::move(value);
  return out;
}

class Depth {
 public:
  explicit Depth(int& depth) : depth_(depth) {
    if (++depth_ > kMaxDepth) fail(fmt::format("nested more than {} deep", kMaxDepth));
  }
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  int& depth_;
};

// Reads the expressions of one tag.
class Expressions {
 public:
  explicit Expressions(const std::vector<Token>& tokens) : tokens_(tokens) {}

  const Token& now() const { return tokens_[at_]; }
  bool is(std::string_view text) const {
    return (now().kind == Token::Operator || now().kind == Token::Name) && now().text == text;
  }
  bool take(std::string_view text) {
    if (!is(text)) return false;
    ++at_;
    return true;
  }
  void need(std::string_view text) {
    if (!take(text)) fail(fmt::format("\"{}\" is missing before {}", text, shown()));
  }
  std::string name() {
    if (now().kind != Token::Name) fail(fmt::format("a name is missing before {}", shown()));
    return tokens_[at_++].text;
  }
  void end() const {
    if (now().kind != Token::End) fail(fmt::format("{} is not expected", shown()));
  }
  std::string shown() const {
    return now().kind == Token::End ? "the end of the tag" : "\"" + now().text + "\"";
  }

  // A list without brackets where commas follow.
  ExpressionPtr tuple() {
    ExpressionPtr first = choice();
    if (!is(",")) return first;
    auto list = make(Expression::ListOf, "", std::move(first));
    while (take(",")) {
      if (now().kind == Token::End || is(")") || is("=")) break;
      list->items.push_back(choice());
    }
    return list;
  }

  ExpressionPtr choice() {
    const Depth nested(depth_);
    ExpressionPtr out = any();
    while (take("if")) {
      auto choice_of = make(Expression::Choice, "", any(), std::move(out));
      if (take("else")) choice_of->items.push_back(choice());
      out = std::move(choice_of);
    }
    return out;
  }

  ExpressionPtr any() {
    ExpressionPtr out = all();
    while (take("or")) out = make(Expression::Binary, "or", std::move(out), all());
    return out;
  }

  ExpressionPtr filters(ExpressionPtr out) {
    while (true) {
      if (take("|")) {
        std::string filter = name();
        while (take(".")) filter += "." + name();
        out = with_arguments(make(Expression::Filter, filter, std::move(out)));
      } else if (take("is")) {
        const bool no = take("not");
        std::string test = name();
        out = test_arguments(make(Expression::Test, std::move(test), std::move(out)));
        if (no) out = make(Expression::Unary, "not", std::move(out));
      } else if (is("(")) {
        out = postfix(std::move(out));
      } else {
        return out;
      }
    }
  }

  void arguments(Expression& out) {
    need("(");
    while (!take(")")) {
      const bool named = now().kind == Token::Name && tokens_[at_ + 1].kind == Token::Operator &&
                         tokens_[at_ + 1].text == "=";
      if (named) {
        std::string key = name();
        need("=");
        out.named.emplace_back(std::move(key), choice());
      } else {
        out.arguments.push_back(choice());
      }
      if (!is(")")) need(",");
    }
  }

 private:
  ExpressionPtr all() {
    ExpressionPtr out = negation();
    while (take("and")) out = make(Expression::Binary, "and", std::move(out), negation());
    return out;
  }

  ExpressionPtr negation() {
    const Depth nested(depth_);
    if (take("not")) return make(Expression::Unary, "not", negation());
    return comparison();
  }

  // a < b < c is a < b and b < c.
  ExpressionPtr comparison() {
    ExpressionPtr left = sum(), out;
    while (const auto op = comparing()) {
      const ExpressionPtr right = sum();
      ExpressionPtr one = make(Expression::Binary, *op, left, right);
      out = out ? make(Expression::Binary, "and", out, one) : one;
      left = right;
    }
    return out ? out : left;
  }
  bool is_comparing() const {
    constexpr std::array<std::string_view, 7> kOps{"==", "!=", "<", "<=", ">", ">=", "in"};
    const bool not_in = is("not") && tokens_[at_ + 1].text == "in";
    return not_in || std::ranges::any_of(kOps, [&](std::string_view op) { return is(op); });
  }
  std::optional<std::string> comparing() {
    if (!is_comparing()) return std::nullopt;
    if (take("not")) {
      ++at_;
      return "not in";
    }
    return tokens_[at_++].text;
  }

  template <size_t N>
  ExpressionPtr left_to_right(const std::array<std::string_view, N>& ops,
                              ExpressionPtr (Expressions::*operand)()) {
    ExpressionPtr out = (this->*operand)();
    while (true) {
      const auto op = std::ranges::find_if(ops, [&](std::string_view o) { return is(o); });
      if (op == ops.end()) return out;
      ++at_;
      out = make(Expression::Binary, std::string(*op), std::move(out), (this->*operand)());
    }
  }
  ExpressionPtr sum() {
    return left_to_right(std::array<std::string_view, 2>{"+", "-"}, &Expressions::joined);
  }
  ExpressionPtr joined() {
    return left_to_right(std::array<std::string_view, 1>{"~"}, &Expressions::product);
  }
  ExpressionPtr product() {
    return left_to_right(std::array<std::string_view, 4>{"*", "/", "//", "%"}, &Expressions::power);
  }
  ExpressionPtr power() {
    return left_to_right(std::array<std::string_view, 1>{"**"}, &Expressions::unary);
  }

  ExpressionPtr unary() { return filters(signed_operand()); }
  ExpressionPtr signed_operand() {
    const Depth nested(depth_);
    for (const char* sign : {"-", "+"}) {
      if (take(sign)) return make(Expression::Unary, sign, signed_operand());
    }
    return postfix(primary());
  }

  ExpressionPtr primary() {
    const Token token = now();
    if (token.kind == Token::Name) {
      ++at_;
      if (token.text == "true" || token.text == "True") return constant(true);
      if (token.text == "false" || token.text == "False") return constant(false);
      if (token.text == "none" || token.text == "None") return constant(None());
      return make(Expression::Name, token.text);
    }
    if (token.kind == Token::Text) {
      std::string text;
      while (now().kind == Token::Text) text += tokens_[at_++].text;
      return constant(std::move(text));
    }
    if (token.kind == Token::Integer || token.kind == Token::Float) return number();
    if (take("(")) {
      if (take(")")) return constant(List());
      ExpressionPtr out = tuple();
      need(")");
      return out;
    }
    if (take("[")) return list_of();
    if (take("{")) return dict_of();
    fail(fmt::format("a value is missing before {}", shown()));
  }

  ExpressionPtr number() {
    const Token& token = tokens_[at_++];
    if (token.kind == Token::Float) return constant(std::stod(token.text));
    int64_t value = 0;
    const auto end = token.text.data() + token.text.size();
    if (std::from_chars(token.text.data(), end, value).ec != std::errc())
      fail(fmt::format("{} does not fit 64 bits", token.text));
    return constant(value);
  }

  ExpressionPtr list_of() {
    auto out = make(Expression::ListOf);
    while (!take("]")) {
      out->items.push_back(choice());
      if (!is("]")) need(",");
    }
    return out;
  }

  ExpressionPtr dict_of() {
    auto out = make(Expression::DictOf);
    while (!take("}")) {
      out->items.push_back(choice());
      need(":");
      out->items.push_back(choice());
      if (!is("}")) need(",");
    }
    return out;
  }

  ExpressionPtr postfix(ExpressionPtr out) {
    while (true) {
      if (take(".")) {
        if (now().kind == Token::Integer)
          out = make(Expression::Item, "", std::move(out), number());
        else
          out = make(Expression::Attribute, name(), std::move(out));
      } else if (take("[")) {
        out = item_of(std::move(out));
      } else if (is("(")) {
        out = make(Expression::Call, "", std::move(out));
        arguments(*out);
      } else {
        return out;
      }
    }
  }

  ExpressionPtr item_of(ExpressionPtr whole) {
    ExpressionPtr begin = is(":") ? nullptr : choice();
    if (take("]")) return make(Expression::Item, "", std::move(whole), std::move(begin));
    auto out = make(Expression::SliceOf, "", std::move(whole));
    out->items.push_back(std::move(begin));
    for (int i = 0; i < 2; ++i) {
      const bool colon = take(":");
      out->items.push_back(colon && !is(":") && !is("]") ? choice() : nullptr);
    }
    need("]");
    return out;
  }

  ExpressionPtr with_arguments(ExpressionPtr out) {
    if (is("(")) arguments(*out);
    return out;
  }

  // A test may have one argument without brackets: x is divisibleby 3.
  ExpressionPtr test_arguments(ExpressionPtr out) {
    if (is("(")) {
      arguments(*out);
      return out;
    }
    constexpr std::array<std::string_view, 6> kNone{"else", "or", "and", "is", "if", "in"};
    const Token& next = now();
    const bool begins = next.kind == Token::Text || next.kind == Token::Integer ||
                        next.kind == Token::Float || is("[") || is("{") ||
                        (next.kind == Token::Name && next.text != "not" &&
                         std::ranges::find(kNone, next.text) == kNone.end());
    if (begins) out->arguments.push_back(postfix(primary()));
    return out;
  }

  const std::vector<Token>& tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

class Parser {
 public:
  explicit Parser(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  Body run() {
    try {
      Body out = body({});
      if (at_ < pieces_.size()) fail("{% " + word() + " %} ends nothing");
      return out;
    } catch (const UserError& error) {
      const size_t line = pieces_.empty() ? 1 : pieces_[std::min(at_, pieces_.size() - 1)].line;
      throw UserError(fmt::format("line {}: {}", line, error.what()));
    }
  }

 private:
  // The first word of the block that is next.
  std::string word() const { return pieces_[at_].tokens[0].text; }
  bool is_block(std::initializer_list<const char*> words) const {
    return at_ < pieces_.size() && pieces_[at_].kind == Piece::Block &&
           std::ranges::any_of(words, [&](const char* w) { return word() == w; });
  }

  // Reads up to a block that begins with one of these words, which is not taken.
  Body body(std::initializer_list<const char*> ends) {
    const Depth nested(depth_);
    Body out;
    while (at_ < pieces_.size() && !is_block(ends)) {
      const Piece& piece = pieces_[at_];
      if (piece.kind == Piece::Text) {
        out.push_back(of(Statement::Text));
        out.back().text = piece.text;
        ++at_;
      } else if (piece.kind == Piece::Print) {
        Statement print = of(Statement::Print);
        Expressions tag(piece.tokens);
        print.expression = tag.tuple();
        tag.end();
        out.push_back(std::move(print));
        ++at_;
      } else if (!block(out)) {
        return out;
      }
    }
    if (at_ == pieces_.size() && ends.size() > 0)
      fail(fmt::format("{{% {} %}} is missing", *(ends.end() - 1)));
    return out;
  }

  Statement of(Statement::Kind kind) const {
    Statement out;
    out.kind = kind;
    out.line = pieces_[at_].line;
    return out;
  }

  // Returns false where the block begins nothing, and so ends something.
  bool block(Body& out) {
    const std::string kind = word();
    if (kind == "if")
      out.push_back(read_if());
    else if (kind == "for")
      out.push_back(read_for());
    else if (kind == "set")
      out.push_back(read_set());
    else if (kind == "macro")
      out.push_back(read_macro());
    else if (kind == "filter")
      out.push_back(read_filter());
    else if (kind == "generation")
      read_generation(out);
    else if (kind == "break" || kind == "continue") {
      out.push_back(of(kind == "break" ? Statement::Break : Statement::Continue));
      ++at_;
    } else if (kind.starts_with("end") || kind == "else" || kind == "elif") {
      return false;
    } else {
      fail(fmt::format("{{% {} %}} is not known here", kind));
    }
    return true;
  }

  // Marks what an assistant said, for training; the text is the same.
  void read_generation(Body& out) {
    ++at_;
    Body inner = body({"endgeneration"});
    ++at_;
    for (Statement& each : inner) out.push_back(std::move(each));
  }

  Statement read_if() {
    Statement out = of(Statement::If);
    Expressions tag(pieces_[at_].tokens);
    tag.name();
    out.expression = tag.tuple();
    tag.end();
    ++at_;
    out.body = body({"elif", "else", "endif"});
    if (is_block({"elif"})) {
      const Depth nested(depth_);
      out.otherwise.push_back(read_if());  // which takes the endif
      return out;
    }
    if (is_block({"else"})) {
      ++at_;
      out.otherwise = body({"endif"});
    }
    ++at_;
    return out;
  }

  Statement read_for() {
    Statement out = of(Statement::For);
    Expressions tag(pieces_[at_].tokens);
    tag.name();
    const bool brackets = tag.take("(");
    do out.names.push_back(tag.name());
    while (tag.take(","));
    if (brackets) tag.need(")");
    tag.need("in");
    out.expression = tag.any();
    while (tag.is(",")) fail("a loop over several values needs brackets");
    if (tag.take("if")) out.condition = tag.choice();
    tag.end();
    ++at_;
    out.body = body({"else", "endfor"});
    if (is_block({"else"})) {
      ++at_;
      out.otherwise = body({"endfor"});
    }
    ++at_;
    return out;
  }

  Statement read_set() {
    Statement out = of(Statement::Set);
    Expressions tag(pieces_[at_].tokens);
    tag.name();
    do out.names.push_back(tag.name());
    while (tag.take(","));
    if (tag.take(".")) out.field = tag.name();
    if (tag.take("=")) {
      out.expression = tag.tuple();
      tag.end();
      ++at_;
      return out;
    }
    out.kind = Statement::SetBlock;
    out.expression = tag.filters(make(Expression::Name, kBlockText));
    tag.end();
    ++at_;
    out.body = body({"endset"});
    ++at_;
    return out;
  }

  Statement read_macro() {
    Statement out = of(Statement::Macro);
    Expressions tag(pieces_[at_].tokens);
    tag.name();
    out.text = tag.name();
    tag.need("(");
    while (!tag.take(")")) {
      out.names.push_back(tag.name());
      out.defaults.push_back(tag.take("=") ? tag.choice() : nullptr);
      if (!tag.is(")")) tag.need(",");
    }
    tag.end();
    ++at_;
    out.body = body({"endmacro"});
    ++at_;
    return out;
  }

  Statement read_filter() {
    Statement out = of(Statement::FilterBlock);
    Expressions tag(pieces_[at_].tokens);
    tag.name();
    auto first = make(Expression::Filter, tag.name(), make(Expression::Name, kBlockText));
    if (tag.is("(")) tag.arguments(*first);
    out.expression = tag.filters(std::move(first));
    tag.end();
    ++at_;
    out.body = body({"endfilter"});
    ++at_;
    return out;
  }

  std::vector<Piece> pieces_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Body parse_template(std::string_view source) { return Parser(cut_template(source)).run(); }

}  // namespace tinyshard::jinja
