// Older files do not name the kind of their model: scores mean Unigram,
// merges BPE, a limit on the letters of a word WordPiece. Letters that
// are in no token may be spelled by tokens of bytes, such as <0x0A>.
#include "io/tokenizers/model.h"

#include <algorithm>

#include <fmt/format.h>

namespace tinyshard::tokenizers {
namespace {

std::string kind_of(const Part& part, const ModelTables& tables) {
  if (const std::string type = part.type(); !type.empty()) return type;
  if (!tables.scores.empty()) return "Unigram";
  if (!part["merges"].missing() || !tables.merges.empty()) return "BPE";
  return part["max_input_chars_per_word"].missing() ? "WordLevel" : "WordPiece";
}

}  // namespace

std::unique_ptr<Model> make_model(const Part& part, ModelTables tables) {
  const std::string kind = kind_of(part, tables);
  if (kind == "BPE") return make_bpe(part, std::move(tables));
  if (kind == "Unigram") return make_unigram(part, std::move(tables));
  if (kind == "WordPiece") return make_word_piece(part, std::move(tables));
  if (kind == "WordLevel") return make_word_level(part, std::move(tables));
  throw part.error(fmt::format("its model is {}; BPE, Unigram, WordPiece and WordLevel are read",
                               io::in_quotes(kind)));
}

std::vector<int32_t> Model::byte_tokens() const {
  std::vector<int32_t> out;
  for (int b = 0; b < 256; ++b) out.push_back(find(fmt::format("<0x{:02X}>", b)));
  return out;
}

bool append_bytes(const std::vector<int32_t>& byte_tokens, std::string_view text,
                  std::vector<int32_t>& out) {
  const auto token = [&](char c) { return byte_tokens[static_cast<unsigned char>(c)]; };
  if (byte_tokens.empty() || std::ranges::any_of(text, [&](char c) { return token(c) < 0; }))
    return false;
  for (const char c : text) out.push_back(token(c));
  return true;
}

}  // namespace tinyshard::tokenizers
