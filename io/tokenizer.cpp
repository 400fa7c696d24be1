// Encoding has three steps:
//
//   "Hi there<|end|>"    special tokens are cut out          "Hi there", <|end|>
//   "Hi there"           a regular expression cuts words     "Hi", " there"
//   " there"             bytes as letters, then merges       Ġ t h e r e -> Ġt he re -> Ġthe re
//
// Bytes are spelled as letters (a space is Ġ), so that a vocabulary is readable text. Of the merges
// that are possible in a word the one that stands first in the file is done, the leftmost of them
// first, until none is left. A heap of candidates over a linked list of pieces makes that
// O(n log n) for words of any length.
#include "io/tokenizer.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "io/errors.h"
#include "io/json.h"
#include "io/tokenizer_normalizer.h"
#include "io/tokenizer_pattern.h"

namespace tinyshard {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxFile = 1 << 30;
// Classes of characters such as \p{L} take up to 3 KiB for each byte of a pattern, and what one
// pattern leaves is cut by the next, one inside of the other. Models have less than 2 KiB in all.
constexpr size_t kMaxPatternBytes = 16 << 10, kMaxPatterns = 100;

// GPT-2's words; what a ByteLevel pre-tokenizer cuts by itself.
constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Letters that stand for something else in a regular expression.
constexpr std::string_view kSpecialLetters = R"(\.+*?()|[]{}^$#&-~)";

void append_utf8(std::string& out, uint32_t letter) {
  if (letter < 0x80) {
    out += static_cast<char>(letter);
  } else {
    out += static_cast<char>(0xc0 | letter >> 6);
    out += static_cast<char>(0x80 | (letter & 0x3f));
  }
}

// The letter of each byte: visible ones stand for themselves, the others for 256 and on.
const std::array<uint32_t, 256>& letters() {
  static const std::array<uint32_t, 256> all = [] {
    std::array<uint32_t, 256> out{};
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool visible = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      out[b] = visible ? b : next++;
    }
    return out;
  }();
  return all;
}

// How long the longest valid UTF-8 at the beginning is.
size_t valid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xc2 && lead < 0xe0 ? 2
                          : lead >= 0xe0 && lead < 0xf0 ? 3
                          : lead >= 0xf0 && lead < 0xf5 ? 4
                                                        : 0;
    if (length == 0 || at + length > text.size()) return at;
    uint32_t letter = length == 1 ? lead : lead & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      if ((next & 0xc0) != 0x80) return at;
      letter = letter << 6 | (next & 0x3f);
    }
    const bool overlong = (length == 3 && letter < 0x800) || (length == 4 && letter < 0x10000);
    if (overlong || letter > 0x10ffff || (letter >= 0xd800 && letter < 0xe000)) return at;
    at += length;
  }
  return at;
}

// Reads vocabulary and merges piece by piece, and the rest, which is short, as a tree.
class TokenizerReader final : public io::JsonReader {
 public:
  std::unordered_map<std::string, int32_t> vocab;
  std::vector<std::pair<std::string, std::string>> merges;
  json rest;

  bool null() override { return put(json()); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return number(v); }
  bool number_unsigned(number_unsigned_t v) override {
    return v <= INT64_MAX ? number(static_cast<int64_t>(v)) : fail("a number beyond 2^63");
  }
  bool number_float(number_float_t v, const string_t&) override { return put(v); }
  bool string(string_t& text) override {
    if (!in_merges()) return put(std::move(text));
    if (path_.size() == 4) {
      pair_.push_back(std::move(text));
      return pair_.size() <= 2 || fail("a merge of more than two");
    }
    const size_t space = text.find(' ');
    if (space == text.npos) return fail("a merge that is not two tokens with a space between them");
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }
  bool key(string_t& text) override {
    key_ = std::move(text);
    return true;
  }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override {
    if (in_merges() && path_.size() == 4) {
      if (pair_.size() != 2) return fail("a merge of less than two");
      merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      pair_.clear();
    }
    return close();
  }

 private:
  // Where we are: the names above, "" for items of arrays. {"model": {"vocab": {... is
  // ["", "model", "vocab"].
  bool in(const char* name) const {
    return path_.size() >= 3 && path_[1] == "model" && path_[2] == name;
  }
  bool in_vocab() const { return in("vocab"); }
  bool in_merges() const { return in("merges"); }

  bool number(int64_t value) {
    if (!in_vocab()) return put(value);
    if (value < 0 || value > INT32_MAX)
      return fail(fmt::format("token {} has number {}", io::in_quotes(key_), value));
    vocab.emplace(key_, static_cast<int32_t>(value));
    return true;
  }
  bool put(json value) {
    if (in_vocab()) return fail("a token without a number");
    if (in_merges()) return fail("a merge that is no text");
    if (nodes_.empty()) return fail("it is no object");
    return add(std::move(value)), true;
  }
  json* add(json value) {
    json& parent = *nodes_.back();
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    return &(parent[key_] = std::move(value));
  }
  bool open(json empty) {
    const bool aside = in_vocab() || in_merges();
    if (aside && !(in_merges() && path_.size() == 3 && empty.is_array()))
      return fail("vocabulary or merges hold something else");
    path_.push_back(path_.empty() || (!nodes_.empty() && nodes_.back()->is_array()) ? "" : key_);
    if (aside) return true;
    if (nodes_.empty()) {
      rest = std::move(empty);
      nodes_.push_back(&rest);
    } else {
      nodes_.push_back(add(std::move(empty)));
    }
    return true;
  }
  bool close() {
    if (!(in_merges() && path_.size() == 4)) nodes_.pop_back();
    path_.pop_back();
    return true;
  }

  std::vector<std::string> path_;
  std::vector<json*> nodes_;
  std::vector<std::string> pair_;
  std::string key_;
};

struct Cut {
  TokenizerPattern pattern;
  bool keep_matches = true, keep_rest = true;  // as words of their own
};

struct Merge {
  int32_t rank, result;
};

// Tokens that are cut out of texts as they stand there: the first that begins, and of several at
// one place the longest.
class AddedTokens {
 public:
  void add(const std::string& content, int32_t id) {
    auto& same_first = by_first_[static_cast<unsigned char>(content[0])];
    const auto behind_longer =
        std::upper_bound(same_first.begin(), same_first.end(), content.size(),
                         [](size_t size, const auto& other) { return size > other.first.size(); });
    same_first.emplace(behind_longer, content, id);
  }

  // Calls token(id) for each of them, and plain(text) for what lies between two.
  template <class Plain, class Token>
  void cut(std::string_view text, Plain plain, Token token) const {
    size_t from = 0;
    for (size_t at = 0; at < text.size();) {
      const auto& here = by_first_[static_cast<unsigned char>(text[at])];
      const auto found = std::find_if(here.begin(), here.end(), [&](const auto& known) {
        return text.substr(at).starts_with(known.first);
      });
      if (found == here.end()) {
        ++at;
        continue;
      }
      if (at > from) plain(text.substr(from, at - from));
      token(found->second);
      from = at += found->first.size();
    }
    if (from < text.size()) plain(text.substr(from));
  }

 private:
  std::array<std::vector<std::pair<std::string, int32_t>>, 256> by_first_;
};

}  // namespace

struct Tokenizer::Data {
  std::string label;
  std::unordered_map<std::string, int32_t> vocab;
  std::unordered_map<uint64_t, Merge> merges;  // by the pair of tokens
  std::vector<std::string> spelling;           // of each token: its bytes
  std::vector<bool> special;
  // Added tokens that the file calls normalized are looked for in the text that the others leave.
  AddedTokens added, added_normalized;
  std::unordered_set<int32_t> beside_model;  // added tokens that its vocabulary does not have
  TokenizerNormalizer normalizer;
  std::vector<Cut> cuts;
  size_t byte_level_cut = 0;  // the first one that is ByteLevel's
  std::array<int32_t, 256> byte_token{};
  bool add_prefix_space = false, ignore_merges = false;
  std::vector<int32_t> before, after;  // what the template adds

  static uint64_t pair(int32_t a, int32_t b) { return uint64_t(uint32_t(a)) << 32 | uint32_t(b); }

  io::FormatError fail(const std::string& why) const {
    return {label, "not a tokenizer that can be used: " + why};
  }

  // What is called `type` in a part of the file that may be null.
  static std::string type_of(const json& part) {
    return part.is_object() && part.contains("type") && part.at("type").is_string()
               ? part.at("type").get<std::string>()
               : "";
  }
  static bool flag(const json& part, const char* name, bool otherwise) {
    return part.contains(name) && part.at(name).is_boolean() ? part.at(name).get<bool>()
                                                             : otherwise;
  }

  void read(TokenizerReader reader) {
    const json& root = reader.rest;
    const auto part = [&](const char* name) {
      return root.contains(name) ? root.at(name) : json();
    };
    const json model = part("model");
    if (type_of(model) != "BPE")
      throw fail(fmt::format("its model is {}, only BPE is read", io::in_quotes(type_of(model))));
    for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      if (model.contains(name) && !model.at(name).is_null() && model.at(name) != "" &&
          model.at(name) != 0)
        throw fail(fmt::format("its model has {}", name));
    }
    if (flag(model, "byte_fallback", false)) throw fail("its model has byte_fallback");
    ignore_merges = flag(model, "ignore_merges", false);
    read_normalizer(part("normalizer"));
    if (type_of(part("decoder")) != "ByteLevel") throw fail("its decoder is not ByteLevel");
    vocab = std::move(reader.vocab);
    read_added(part("added_tokens"));
    read_words(part("pre_tokenizer"), true);
    read_template(part("post_processor"));
    int32_t size = 0;
    for (const auto& [token, id] : vocab) size = std::max(size, id);
    if (vocab.empty() || static_cast<size_t>(size) > 16 * vocab.size() + 1024)
      throw fail(fmt::format("{} tokens have numbers up to {}", vocab.size(), size));
    spelling.resize(static_cast<size_t>(size) + 1);
    special.resize(spelling.size());
    for (const auto& [token, id] : vocab) spelling[static_cast<size_t>(id)] = bytes_of(token);
    for (const auto& [token, id] : added_spelling_) spelling[static_cast<size_t>(id)] = token;
    for (const int32_t id : specials_) special[static_cast<size_t>(id)] = true;
    for (size_t b = 0; b < 256; ++b) {
      std::string letter;
      append_utf8(letter, letters()[b]);
      const auto found = vocab.find(letter);
      byte_token[b] = found == vocab.end() ? -1 : found->second;
      // The token for what is unknown stands for nothing where each byte has its own.
      const json unknown = model.value("unk_token", json());
      if (byte_token[b] < 0 && !unknown.is_null() && unknown != "")
        throw fail(fmt::format("its model has unk_token, and no token for byte 0x{:02x}", b));
    }
    int32_t rank = 0;
    for (const auto& [left, right] : reader.merges) {
      const auto a = vocab.find(left), b = vocab.find(right), c = vocab.find(left + right);
      if (a == vocab.end() || b == vocab.end() || c == vocab.end())
        throw fail(fmt::format("merge {} and {} is not in its vocabulary", io::in_quotes(left),
                               io::in_quotes(right)));
      merges.insert_or_assign(pair(a->second, b->second), Merge{rank++, c->second});
    }
  }

  void read_added(const json& list) {
    if (list.is_null()) return;
    if (!list.is_array()) throw fail("its added_tokens are no list");
    for (const json& token : list) {
      if (!token.is_object() || !token.contains("content") || !token.at("content").is_string() ||
          !token.contains("id") || !token.at("id").is_number_integer() || token.at("id") < 0 ||
          token.at("id") > INT32_MAX) {
        throw fail("an added token has no content or no number");
      }
      const std::string content = token.at("content");
      for (const char* name : {"lstrip", "rstrip", "single_word"}) {
        if (flag(token, name, false))
          throw fail(fmt::format("added token {} has {}", io::in_quotes(content), name));
      }
      if (content.empty()) throw fail("an added token is empty");
      // An added token that the model's vocabulary has, too, keeps the number that it has there.
      const auto [known, is_new] = vocab.emplace(content, token.at("id").get<int32_t>());
      const int32_t id = known->second;
      if (is_new) beside_model.insert(id);
      if (flag(token, "normalized", false))
        added_normalized.add(normalized(content), id);
      else
        added.add(content, id);
      added_spelling_.emplace_back(content, id);
      if (flag(token, "special", false)) specials_.push_back(id);
    }
  }

  void read_normalizer(const json& part) {
    if (part.is_null()) return;
    if (type_of(part) == "Sequence" && part.contains("normalizers") &&
        part.at("normalizers").is_array()) {
      for (const json& each : part.at("normalizers")) read_normalizer(each);
    } else if (!normalizer.add(type_of(part))) {
      throw fail(fmt::format("it has a normalizer, {}", io::in_quotes(type_of(part))));
    }
  }

  // Bytes that are no UTF-8 stay as they are.
  std::string normalized(std::string_view text) const {
    if (normalizer.empty()) return std::string(text);
    std::string out;
    while (!text.empty()) {
      const size_t good = valid_utf8(text);
      out += normalizer(text.substr(0, good));
      if (good == text.size()) break;
      out += text[good];
      text.remove_prefix(good + 1);
    }
    return out;
  }

  // A regular expression, or the letters themselves: {"Regex": "\\s+"}, {"String": "."}.
  std::string pattern_of(const json& part) const {
    const auto text = [&](const char* name) {
      return part.is_object() && part.contains(name) && part.at(name).is_string()
                 ? part.at(name).get<std::string>()
                 : "";
    };
    if (std::string regex = text("Regex"); !regex.empty()) return regex;
    std::string out;
    for (const char c : text("String")) {
      if (kSpecialLetters.find(c) != kSpecialLetters.npos) out += '\\';
      out += c;
    }
    if (out.empty()) throw fail("a Split without a pattern");
    return out;
  }

  void read_words(const json& part, bool outermost) {
    const std::string type = type_of(part);
    if (type == "Sequence" && outermost && part.contains("pretokenizers") &&
        part.at("pretokenizers").is_array()) {
      for (const json& inner : part.at("pretokenizers")) read_words(inner, false);
      if (!byte_level_) throw fail("its pre_tokenizer is not ByteLevel");
      return;
    }
    if (byte_level_) throw fail("something follows ByteLevel in its pre_tokenizer");
    if (type == "ByteLevel") {
      byte_level_ = true;
      add_prefix_space = flag(part, "add_prefix_space", true);
      byte_level_cut = cuts.size();
      if (flag(part, "use_regex", true)) add_cut(kGpt2Words, true, true);
      return;
    }
    if (type == "Digits" && !outermost) {
      return add_cut(flag(part, "individual_digits", false) ? "\\p{N}" : "\\p{N}+", true, true);
    }
    if (type != "Split" || outermost)
      throw fail(fmt::format("its pre_tokenizer has {}, only Split, Digits and ByteLevel are read",
                             io::in_quotes(type)));
    const std::string regex = pattern_of(part.contains("pattern") ? part.at("pattern") : json());
    const std::string behavior = part.contains("behavior") && part.at("behavior").is_string()
                                     ? part.at("behavior").get<std::string>()
                                     : "";
    const bool invert = flag(part, "invert", false);
    if (behavior != "Isolated" && behavior != "Removed")
      throw fail(fmt::format("a Split that is {}", io::in_quotes(behavior)));
    const bool removes = behavior == "Removed";
    add_cut(regex, !removes || invert, !removes || !invert);
  }

  void add_cut(std::string_view pattern, bool keep_matches, bool keep_rest) {
    pattern_bytes_ += pattern.size();
    if (pattern_bytes_ > kMaxPatternBytes || cuts.size() == kMaxPatterns)
      throw fail(fmt::format("its pre_tokenizer has more than {} patterns or {} bytes of them",
                             kMaxPatterns, kMaxPatternBytes));
    cuts.push_back({TokenizerPattern(pattern, label), keep_matches, keep_rest});
  }

  // A TemplateProcessing puts special tokens around the text: <s> $A.
  void read_template(const json& part) {
    const std::string type = type_of(part);
    if (type.empty() || type == "ByteLevel") return;
    if (type == "Sequence" && part.contains("processors") && part.at("processors").is_array()) {
      for (const json& inner : part.at("processors")) read_template(inner);
      return;
    }
    if (type != "TemplateProcessing")
      throw fail(fmt::format("its post_processor is {}", io::in_quotes(type)));
    bool behind = false;
    for (const json& piece : part.contains("single") ? part.at("single") : json::array()) {
      if (piece.is_object() && piece.contains("Sequence")) {
        behind = true;
        continue;
      }
      const json name = piece.is_object() && piece.contains("SpecialToken") &&
                                piece.at("SpecialToken").is_object()
                            ? piece.at("SpecialToken").value("id", json())
                            : json();
      const auto found = name.is_string() ? vocab.find(name.get<std::string>()) : vocab.end();
      if (found == vocab.end()) throw fail("its template names a token that is not there");
      (behind ? after : before).push_back(found->second);
    }
  }

  // What the letters of a token stand for; a letter that stands for no byte is itself.
  static std::string bytes_of(const std::string& token) {
    static const std::unordered_map<uint32_t, char> bytes = [] {
      std::unordered_map<uint32_t, char> out;
      for (size_t b = 0; b < 256; ++b) out.emplace(letters()[b], static_cast<char>(b));
      return out;
    }();
    std::string out;
    for (size_t at = 0; at < token.size();) {
      const auto lead = static_cast<unsigned char>(token[at]);
      const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
      const std::string_view letter = std::string_view(token).substr(at, length);
      uint32_t number = lead;
      if (letter.size() == 2)
        number = (lead & 0x1fu) << 6 | (static_cast<unsigned char>(letter[1]) & 0x3fu);
      const auto found = letter.size() <= 2 ? bytes.find(number) : bytes.end();
      if (found == bytes.end()) return token;
      out += found->second;
      at += length;
    }
    return out;
  }

  void encode_word(std::string_view word, std::vector<int32_t>& out) const {
    if (ignore_merges) {
      std::string letters_of;
      for (const char c : word) append_utf8(letters_of, letters()[static_cast<unsigned char>(c)]);
      if (auto found = vocab.find(letters_of);
          found != vocab.end() && !beside_model.contains(found->second))
        return out.push_back(found->second);
    }
    struct Piece {
      int32_t token;
      int32_t previous, next;
    };
    std::vector<Piece> pieces;
    for (const char c : word) {
      const int32_t token = byte_token[static_cast<unsigned char>(c)];
      if (token < 0) continue;
      const auto at = static_cast<int32_t>(pieces.size());
      pieces.push_back({token, at - 1, at + 1});
    }
    if (pieces.empty()) return;
    pieces.back().next = -1;
    // Candidates, the best merge first, of equal ones the leftmost; those whose pieces have changed
    // since are passed over.
    using Candidate = std::tuple<int32_t, int32_t, uint64_t>;  // rank, left piece, the pair
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto offer = [&](int32_t left) {
      if (left < 0 || pieces[size_t(left)].next < 0) return;
      const uint64_t both =
          pair(pieces[size_t(left)].token, pieces[size_t(pieces[size_t(left)].next)].token);
      if (auto found = merges.find(both); found != merges.end())
        queue.emplace(found->second.rank, left, both);
    };
    for (size_t i = 0; i + 1 < pieces.size(); ++i) offer(static_cast<int32_t>(i));
    while (!queue.empty()) {
      const auto [rank, left, both] = queue.top();
      queue.pop();
      Piece& a = pieces[size_t(left)];
      if (a.token < 0 || a.next < 0) continue;
      Piece& b = pieces[size_t(a.next)];
      if (pair(a.token, b.token) != both) continue;
      a.token = merges.at(both).result;
      a.next = b.next;
      b.token = -1;
      if (a.next >= 0) pieces[size_t(a.next)].previous = left;
      offer(a.previous);
      offer(left);
    }
    for (int32_t at = 0; at >= 0; at = pieces[size_t(at)].next)
      out.push_back(pieces[size_t(at)].token);
  }

  // The text that ByteLevel gets: with a space before it where the file says so. That holds for
  // each piece of the cuts before ByteLevel.
  std::string_view with_prefix(std::string_view text, std::string& spaced) const {
    if (!add_prefix_space || text[0] == ' ') return text;
    return spaced = " " + std::string(text);
  }

  void encode_cut(std::string_view text, size_t cut, std::vector<int32_t>& out) const {
    if (text.empty()) return;
    std::string spaced;
    if (cut == byte_level_cut && cut > 0) text = with_prefix(text, spaced);
    if (cut == cuts.size()) return encode_word(text, out);
    cuts[cut].pattern.cut(text, [&](size_t begin, size_t end, bool match) {
      if (match ? cuts[cut].keep_matches : cuts[cut].keep_rest)
        encode_cut(text.substr(begin, end - begin), cut + 1, out);
    });
  }

  void encode_plain(std::string_view text, std::vector<int32_t>& out) const {
    if (text.empty()) return;
    std::string spaced;
    if (byte_level_cut == 0) text = with_prefix(text, spaced);
    while (!text.empty()) {
      const size_t good = valid_utf8(text);
      encode_cut(text.substr(0, good), 0, out);
      if (good == text.size()) break;
      encode_word(text.substr(good, 1), out);
      text.remove_prefix(good + 1);
    }
  }

  std::vector<int32_t> specials_;
  std::vector<std::pair<std::string, int32_t>> added_spelling_;
  bool byte_level_ = false;
  size_t pattern_bytes_ = 0;
};

Tokenizer::Tokenizer(std::unique_ptr<Data> data) : data_(std::move(data)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::parse(std::string_view text, std::string_view label) {
  auto data = std::make_unique<Data>();
  data->label = label;
  TokenizerReader reader;
  if (!io::read_json(text, reader)) throw data->fail(reader.error());
  if (!reader.rest.is_object()) throw data->fail("it is no object");
  data->read(std::move(reader));
  return Tokenizer(std::move(data));
}

Tokenizer::Tokenizer(const std::filesystem::path& path)
    : Tokenizer([&] {
        std::error_code ignored;
        const auto file =
            std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
        return parse(read_file(file, kMaxFile), file.native());
      }()) {}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<int32_t> out;
  if (add_special) out = data_->before;
  const auto token = [&](int32_t id) { out.push_back(id); };
  const auto plain = [&](std::string_view piece) { data_->encode_plain(piece, out); };
  const auto rest = [&](std::string_view piece) {
    data_->added_normalized.cut(data_->normalized(piece), plain, token);
  };
  data_->added.cut(text, rest, token);
  if (add_special) out.insert(out.end(), data_->after.begin(), data_->after.end());
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, bool skip_special) const {
  std::string out;
  for (const int32_t token : tokens) {
    if (token < 0 || static_cast<size_t>(token) >= data_->spelling.size())
      throw UserError(fmt::format("{} has no token {}: its numbers end at {}", data_->label, token,
                                  vocab_size() - 1));
    if (!skip_special || !data_->special[static_cast<size_t>(token)])
      out += data_->spelling[static_cast<size_t>(token)];
  }
  return out;
}

std::optional<int32_t> Tokenizer::id(std::string_view token) const {
  const auto found = data_->vocab.find(std::string(token));
  if (found == data_->vocab.end()) return std::nullopt;
  return found->second;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(data_->spelling.size()); }

}  // namespace tinyshard
