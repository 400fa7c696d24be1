// A step changes the list of spellings. Tokens of bytes that follow each
// other are joined by a step of their own, as one character may take several
// of them. Without a decoder in the file tokens are joined by spaces.
#include "io/tokenizers/decoder.h"

#include <array>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "io/tokenizers/pattern.h"
#include "io/tokenizers/unicode.h"

namespace tinyshard::tokenizers {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
    text.replace(at, from.size(), to);
}

// Undoes the spaces that words of English were cut by.
void clean_up(std::string& text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules{
      {{" .", "."},
       {" ?", "?"},
       {" !", "!"},
       {" ,", ","},
       {" ' ", "'"},
       {" n't", "n't"},
       {" 'm", "'m"},
       {" do not", " don't"},
       {" 's", "'s"},
       {" 've", "'ve"},
       {" 're", "'re"}}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

// Returns the byte that a token such as <0xE5> stands for.
std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : {token[3], token[4]}) {
    const bool digit = c >= '0' && c <= '9', upper = c >= 'A' && c <= 'F',
               lower = c >= 'a' && c <= 'f';
    if (!digit && !upper && !lower) return std::nullopt;
    value = value * 16 + (digit ? c - '0' : (upper ? c - 'A' : c - 'a') + 10);
  }
  return static_cast<char>(value);
}

// Makes one token of bytes that follow each other: <0xC3> <0xA9> is é.
void join_bytes(std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  bool in_bytes = false;
  for (std::string& token : tokens) {
    const auto byte = byte_of(token);
    if (byte && in_bytes)
      out.back() += *byte;
    else
      out.push_back(byte ? std::string(1, *byte) : std::move(token));
    in_bytes = byte.has_value();
  }
  tokens = std::move(out);
}

}  // namespace

Decoder::Decoder(const Part& part) : joins_(!part.missing()) { add(part); }

void Decoder::add_each(
    std::function<std::string(const std::string& token, bool first, bool last)> change) {
  steps_.emplace_back([change = std::move(change)](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = change(tokens[i], i == 0, i + 1 == tokens.size());
  });
}

void Decoder::add(const Part& part) {
  if (part.missing()) return;
  const std::string type = part.type();
  if (type == "Sequence") {
    for (const Part& each : part["decoders"].items()) add(each);
  } else if (type == "ByteLevel") {
    add_each([](const std::string& token, bool, bool) { return from_byte_letters(token); });
  } else if (type == "ByteFallback") {
    steps_.emplace_back(join_bytes);
  } else if (type == "Fuse") {
    steps_.emplace_back([](std::vector<std::string>& tokens) {
      std::string all;
      for (const std::string& token : tokens) all += token;
      tokens = {std::move(all)};
    });
  } else if (type == "Metaspace") {
    const bool never =
        !part.flag("add_prefix_space", true) || part.text("prepend_scheme", "always") == "never";
    add_each([mark = part.character("replacement", "\xe2\x96\x81"), never](std::string token,
                                                                           bool first, bool) {
      replace_all(token, mark, first && !never ? "" : " ");
      return token;
    });
  } else if (type == "WordPiece") {
    const std::string prefix = part.text("prefix", "##");
    const bool cleans = part.flag("cleanup", true);
    add_each([prefix, cleans](std::string token, bool first, bool) {
      if (!first) token = token.starts_with(prefix) ? token.substr(prefix.size()) : " " + token;
      if (cleans) clean_up(token);
      return token;
    });
  } else if (type == "BPEDecoder") {
    add_each([suffix = part.text("suffix", "</w>")](std::string token, bool, bool last) {
      replace_all(token, suffix, last ? "" : " ");
      return token;
    });
  } else if (type == "Strip") {
    const std::string letter = part.character("content", " ");
    const int64_t start = part.number("start", 0), stop = part.number("stop", 0);
    add_each([letter, start, stop](std::string token, bool, bool) {
      for (int64_t i = 0; i < start && token.starts_with(letter); ++i)
        token.erase(0, letter.size());
      for (int64_t i = 0; i < stop && token.ends_with(letter); ++i)
        token.resize(token.size() - letter.size());
      return token;
    });
  } else if (type == "Replace") {
    auto pattern = std::make_shared<const Pattern>(Pattern::of(part["pattern"]));
    add_each([pattern, content = part.text("content")](const std::string& token, bool, bool) {
      if (valid_utf8(token) < token.size()) return token;  // a piece of a character
      std::string out;
      pattern->cut(token, [&](size_t begin, size_t end, bool match) {
        out += match ? content : token.substr(begin, end - begin);
      });
      return out;
    });
  } else {
    throw part.error(fmt::format("its decoder has {}, which is not known", io::in_quotes(type)));
  }
}

std::string Decoder::operator()(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) step(tokens);
  std::string out;
  for (const std::string& token : tokens) {
    if (!joins_ && !out.empty()) out += ' ';
    out += token;
  }
  return out;
}

}  // namespace tinyshard::tokenizers
