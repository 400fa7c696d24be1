// The reader follows its path from name to name and takes tables from where they stand. A
// vocabulary is an object of token and number, or a list of pairs of token and score; a merge is "a
// b" or ["a", "b"]. All else is added to the tree.
#include "io/tokenizers/file.h"

#include <fmt/format.h>

namespace tinyshard::tokenizers {
namespace {

using nlohmann::json;

class Reader final : public io::JsonReader {
 public:
  TokenizerFile file;

  bool null() override { return put(json()); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return number(v); }
  bool number_unsigned(number_unsigned_t v) override {
    return v <= INT64_MAX ? number(static_cast<int64_t>(v)) : fail("a number beyond 2^63");
  }
  bool number_float(number_float_t v, const string_t&) override {
    return in_scores() ? score(v) : put(v);
  }
  bool string(string_t& text) override {
    if (in_scores()) {
      if (has_token_ || path_.size() != 4) return fail("a token without a score");
      token_ = std::move(text);
      return has_token_ = true;
    }
    if (!in_merges()) return put(std::move(text));
    if (path_.size() == 4) {
      pair_.push_back(std::move(text));
      return pair_.size() <= 2 || fail("a merge of more than two");
    }
    const size_t space = text.find(' ');
    if (space == text.npos) return fail("a merge that is not two tokens with a space between them");
    file.tables.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
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
      file.tables.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      pair_.clear();
    }
    if (has_token_) return fail("a token without a score");
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
  bool in_scores() const { return in_vocab() && is_list_; }

  bool number(int64_t value) {
    if (in_scores()) return score(static_cast<double>(value));
    if (!in_vocab()) return put(value);
    if (value < 0 || value > INT32_MAX)
      return fail(fmt::format("token {} has number {}", io::in_quotes(key_), value));
    file.tables.vocab.emplace(key_, static_cast<int32_t>(value));
    return true;
  }
  bool score(double value) {
    if (!has_token_) return fail("a score without a token");
    has_token_ = false;
    file.tables.scores.emplace_back(std::move(token_), value);
    return file.tables.scores.size() < INT32_MAX || fail("more than 2^31 tokens");
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
    const bool lists = (in_merges() || in_scores()) && path_.size() == 3;
    if (aside && !(lists && empty.is_array()))
      return fail("vocabulary or merges hold something else");
    path_.push_back(
        path_.empty() || aside || (!nodes_.empty() && nodes_.back()->is_array()) ? "" : key_);
    if (aside) return true;
    if (in_vocab() && path_.size() == 3) is_list_ = empty.is_array();
    if (nodes_.empty()) {
      file.rest = std::move(empty);
      nodes_.push_back(&file.rest);
    } else {
      nodes_.push_back(add(std::move(empty)));
    }
    return true;
  }
  bool close() {
    if (!((in_merges() || in_scores()) && path_.size() == 4)) nodes_.pop_back();
    path_.pop_back();
    return true;
  }

  std::vector<std::string> path_;
  std::vector<json*> nodes_;
  std::vector<std::string> pair_;
  std::string key_, token_;
  bool is_list_ = false, has_token_ = false;
};

}  // namespace

TokenizerFile read_tokenizer_file(std::string_view text, std::string_view label) {
  Reader reader;
  const auto fail = [&](const std::string& why) {
    return Part(reader.file.rest, label).error(why);
  };
  if (!io::read_json(text, reader)) throw fail(reader.error());
  if (!reader.file.rest.is_object()) throw fail("it is no object");
  return std::move(reader.file);
}

}  // namespace tinyshard::tokenizers
