// Byte-pair encoding: a word begins as its characters, and merges join two neighbours into one token.
//
//   " there" in byte letters     Ġ t h e r e -> Ġt he re -> Ġthe re
//
// Of the merges that are possible in a word the one that stands first in the file is done, the
// leftmost of them first, until none is left. A heap of candidates over a linked list of pieces makes
// that O(n log n) for words of any length.
#include <cstdint>
#include <queue>
#include <tuple>

#include <fmt/format.h>

#include "io/tokenizers/model.h"
#include "io/tokenizers/unicode.h"

namespace tinyshard::tokenizers {
namespace {

struct Merge {
  int32_t rank, result;
};

uint64_t pair(int32_t a, int32_t b) { return uint64_t(uint32_t(a)) << 32 | uint32_t(b); }

class Bpe final : public Model {
 public:
  Bpe(const Part& part, ModelTables tables) : Model(std::move(tables.vocab)) {
    if (part["dropout"].json().is_number() && part["dropout"].json() != 0)
      throw part.error("its model has dropout");
    prefix_ = part.text("continuing_subword_prefix");
    suffix_ = part.text("end_of_word_suffix");
    ignore_merges_ = part.flag("ignore_merges", false);
    fuses_unknown_ = part.flag("fuse_unk", false);
    if (part.flag("byte_fallback", false)) byte_tokens_ = byte_tokens();
    if (!part["unk_token"].missing()) unknown_ = find(part.text("unk_token"));
    for (const auto& [left, right] : tables.merges) add_merge(part, left, right);
  }

  void encode(std::string_view word, std::vector<int32_t>& out) const override {
    if (ignore_merges_) {
      if (const int32_t token = find(std::string(word)); token >= 0) return out.push_back(token);
    }
    std::vector<int32_t> tokens = characters_of(word);
    merge(tokens);
    out.insert(out.end(), tokens.begin(), tokens.end());
  }

 private:
  // A right part that goes on with a word has a prefix, which the joined token does not repeat.
  void add_merge(const Part& part, const std::string& left, const std::string& right) {
    const std::string rest = right.starts_with(prefix_) ? right.substr(prefix_.size()) : right;
    const int32_t a = find(left), b = find(right), c = find(left + rest);
    if (a < 0 || b < 0 || c < 0)
      throw part.error(fmt::format("merge {} and {} is not in its vocabulary", io::in_quotes(left),
                                   io::in_quotes(right)));
    merges_.insert_or_assign(pair(a, b), Merge{rank_++, c});
  }

  // A token for what is unknown comes when the next known character does, behind the bytes that stand
  // between: so does the reference library.
  std::vector<int32_t> characters_of(std::string_view word) const {
    std::vector<int32_t> tokens;
    bool waits = false;
    const auto put_unknown = [&] {
      if (waits) tokens.push_back(unknown_);
      waits = false;
    };
    for (size_t at = 0; at < word.size();) {
      const size_t size = letter_at(word, at).size, end = at + size;
      std::string letter(word.substr(at, size));
      if (at > 0 && !prefix_.empty()) letter = prefix_ + letter;
      if (end == word.size()) letter += suffix_;
      at = end;
      if (const int32_t token = find(letter); token >= 0) {
        put_unknown();
        tokens.push_back(token);
      } else if (!append_bytes(byte_tokens_, letter, tokens) && unknown_ >= 0) {
        if (!fuses_unknown_) put_unknown();
        waits = true;
      }
    }
    put_unknown();
    return tokens;
  }

  void merge(std::vector<int32_t>& tokens) const {
    struct Piece {
      int32_t token, previous, next;
    };
    if (tokens.size() < 2) return;
    std::vector<Piece> pieces;
    for (const int32_t token : tokens) {
      const auto at = static_cast<int32_t>(pieces.size());
      pieces.push_back({token, at - 1, at + 1});
    }
    pieces.back().next = -1;
    // Candidates, the best merge first, of equal ones the leftmost; those whose pieces have changed
    // since are passed over.
    using Candidate = std::tuple<int32_t, int32_t, uint64_t>;  // rank, left piece, the pair
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto offer = [&](int32_t left) {
      if (left < 0 || pieces[size_t(left)].next < 0) return;
      const uint64_t both =
          pair(pieces[size_t(left)].token, pieces[size_t(pieces[size_t(left)].next)].token);
      if (auto found = merges_.find(both); found != merges_.end())
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
      a.token = merges_.at(both).result;
      a.next = b.next;
      b.token = -1;
      if (a.next >= 0) pieces[size_t(a.next)].previous = left;
      offer(a.previous);
      offer(left);
    }
    tokens.clear();
    for (int32_t at = 0; at >= 0; at = pieces[size_t(at)].next)
      tokens.push_back(pieces[size_t(at)].token);
  }

  std::string prefix_, suffix_;
  bool ignore_merges_ = false, fuses_unknown_ = false;
  int32_t unknown_ = -1, rank_ = 0;
  std::vector<int32_t> byte_tokens_;
  std::unordered_map<uint64_t, Merge> merges_;  // by the pair of tokens
};

}  // namespace

std::unique_ptr<Model> make_bpe(const Part& part, ModelTables tables) {
  return std::make_unique<Bpe>(part, std::move(tables));
}

}  // namespace tinyshard::tokenizers
