// A Unigram model gives each token a score, the logarithm of how likely it is, and takes the tokens
// of a word that have the largest sum:
//
//   "abc", with a -1, b -2, ab -1.5, c -1     "ab" "c" (-2.5) rather than "a" "b" "c" (-4)
//
// The best way to each place of the word is found from the ways to the places before it. The tokens
// that begin at a place are found in a sorted list of all, byte by byte.
#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "io/tokenizers/model.h"
#include "io/tokenizers/unicode.h"

namespace tinyshard::tokenizers {
namespace {

// A character without a token is so much less likely than the least likely token.
constexpr double kUnknownPenalty = 10;

std::unordered_map<std::string, int32_t> numbered(
    const std::vector<std::pair<std::string, double>>& scores) {
  std::unordered_map<std::string, int32_t> out;
  for (size_t i = 0; i < scores.size(); ++i)
    out.insert_or_assign(scores[i].first, static_cast<int32_t>(i));
  return out;
}

class Unigram final : public Model {
 public:
  Unigram(const Part& part, const ModelTables& tables) : Model(numbered(tables.scores)) {
    unknown_ = static_cast<int32_t>(part.number("unk_id", -1));
    if (unknown_ < -1 || (unknown_ >= 0 && static_cast<size_t>(unknown_) >= tables.scores.size()))
      throw part.error(fmt::format("its unk_id {} is no token", unknown_));
    if (part.flag("byte_fallback", false)) byte_tokens_ = byte_tokens();
    double least = tables.scores.empty() ? 0 : std::numeric_limits<double>::infinity();
    for (const auto& [token, score] : tables.scores) least = std::min(least, score);
    unknown_score_ = least - kUnknownPenalty;
    for (const auto& [token, id] : vocab()) {
      if (!token.empty()) sorted_.push_back({token, tables.scores[size_t(id)].second, id});
    }
    std::ranges::sort(sorted_, {}, &Entry::token);
  }

  void encode(std::string_view word, std::vector<int32_t>& out) const override {
    const std::vector<Node> nodes = best_ways(word);
    std::vector<std::pair<size_t, size_t>> pieces;  // from the last to the first
    bool unknown_before = false;
    for (size_t end = word.size(); end > 0; end = nodes[end].begin) {
      const bool is_unknown = nodes[end].token < 0 || nodes[end].token == unknown_;
      // Neighbours that are unknown are one token.
      if (is_unknown && unknown_before)
        pieces.back().first = nodes[end].begin;
      else
        pieces.emplace_back(nodes[end].begin, end);
      unknown_before = is_unknown;
    }
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece)
      append(word.substr(piece->first, piece->second - piece->first), out);
  }

 private:
  struct Entry {
    std::string_view token;  // of vocab()
    double score;
    int32_t id;
  };
  struct Node {
    double score = 0;
    size_t begin = kNone;
    int32_t token = -1;
  };
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();

  std::vector<Node> best_ways(std::string_view word) const {
    std::vector<Node> nodes(word.size() + 1);
    const auto offer = [&](size_t begin, size_t end, double score, int32_t token) {
      Node& node = nodes[end];
      const double sum = score + nodes[begin].score;
      if (node.begin == kNone || sum > node.score) node = {sum, begin, token};
    };
    for (size_t at = 0; at < word.size();) {
      const size_t letter = letter_at(word, at).size;
      bool has_letter = false;
      each_beginning(word.substr(at), [&](const Entry& entry) {
        offer(at, at + entry.token.size(), entry.score, entry.id);
        has_letter |= entry.token.size() == letter;
      });
      if (!has_letter) offer(at, at + letter, unknown_score_, unknown_);
      at += letter;
    }
    return nodes;
  }

  // Calls visit(entry) for each token that `text` begins with, short ones first.
  template <class Visit>
  void each_beginning(std::string_view text, Visit visit) const {
    auto first = sorted_.begin(), last = sorted_.end();
    for (size_t depth = 0; depth < text.size() && first != last; ++depth) {
      const auto byte = static_cast<unsigned char>(text[depth]);
      const auto at_depth = [depth](const Entry& e) {
        return e.token.size() > depth ? int{static_cast<unsigned char>(e.token[depth])} : -1;
      };
      first = std::partition_point(first, last, [&](const Entry& e) { return at_depth(e) < byte; });
      last = std::partition_point(first, last, [&](const Entry& e) { return at_depth(e) <= byte; });
      if (first != last && first->token.size() == depth + 1) visit(*first);
    }
  }

  void append(std::string_view piece, std::vector<int32_t>& out) const {
    if (const int32_t token = find(std::string(piece)); token >= 0) return out.push_back(token);
    if (append_bytes(byte_tokens_, piece, out) || unknown_ < 0) return;
    out.push_back(unknown_);
  }

  int32_t unknown_ = -1;
  double unknown_score_ = 0;
  std::vector<int32_t> byte_tokens_;
  std::vector<Entry> sorted_;
};

}  // namespace

std::unique_ptr<Model> make_unigram(const Part& part, ModelTables tables) {
  return std::make_unique<Unigram>(part, tables);
}

}  // namespace tinyshard::tokenizers
