// Reading JSON with a limit on its nesting and an eye on names that stand twice.
//
// A set of all names of an object would take many times the bytes of the text. Instead the digests
// of the names of all open objects lie in one list; an object that ends sorts its own and looks for
// neighbours that are equal:
//
//   {"a":1,"b":{"c":2,"c":3}     names_ = [a b c c], objects_ = [0 2]: at the inner end c = c
//
// Equal digests are only a suspicion. A second pass over the text, which few texts ever need,
// compares the names that have one of the suspected digests letter by letter, and names the one.
#include "io/json.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include "io/digest.h"
#include "io/errors.h"

namespace tinyshard::io {
namespace {

using nlohmann::json;

// Hands on every piece to a reader, after it was counted.
class FirstPass final : public json::json_sax_t {
 public:
  explicit FirstPass(JsonReader& reader) : reader_(reader) {}

  std::unordered_set<uint64_t> suspects;  // digests that two names of one object share

  bool null() override { return reader_.null(); }
  bool boolean(bool value) override { return reader_.boolean(value); }
  bool number_integer(number_integer_t value) override { return reader_.number_integer(value); }
  bool number_unsigned(number_unsigned_t value) override { return reader_.number_unsigned(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    return reader_.number_float(value, text);
  }
  bool string(string_t& text) override { return reader_.string(text); }
  bool binary(binary_t& bytes) override { return reader_.binary(bytes); }
  bool start_object(size_t size) override {
    objects_.push_back(names_.size());
    return deeper() && reader_.start_object(size);
  }
  bool key(string_t& text) override {
    names_.push_back(digest_of(text));
    return reader_.key(text);
  }
  bool end_object() override {
    const auto begin = names_.begin() + static_cast<ptrdiff_t>(objects_.back());
    std::sort(begin, names_.end());
    for (auto it = begin; (it = std::adjacent_find(it, names_.end())) != names_.end(); ++it) {
      suspects.insert(*it);
    }
    names_.erase(begin, names_.end());
    objects_.pop_back();
    --depth_;
    return reader_.end_object();
  }
  bool start_array(size_t size) override { return deeper() && reader_.start_array(size); }
  bool end_array() override {
    --depth_;
    return reader_.end_array();
  }
  bool parse_error(size_t position, const std::string& token,
                   const json::exception& error) override {
    return reader_.parse_error(position, token, error);
  }

 private:
  bool deeper() {
    return ++depth_ <= kMaxJsonDepth ||
           reader_.fail(fmt::format("it is nested deeper than {} levels", kMaxJsonDepth));
  }

  JsonReader& reader_;
  size_t depth_ = 0;
  std::vector<uint64_t> names_;  // digests of the names of all open objects
  std::vector<size_t> objects_;  // where those of each open object begin
};

// Takes everything. The base of passes that look at some pieces only.
class Anything : public JsonReader {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
};

class SecondPass final : public Anything {
 public:
  explicit SecondPass(const std::unordered_set<uint64_t>& suspects) : suspects_(suspects) {}

  bool start_object(size_t) override {
    objects_.emplace_back();
    return true;
  }
  bool key(string_t& text) override {
    return !suspects_.contains(digest_of(text)) || objects_.back().insert(text).second ||
           fail(fmt::format("{} appears twice", in_quotes(text)));
  }
  bool end_object() override {
    objects_.pop_back();
    return true;
  }

 private:
  const std::unordered_set<uint64_t>& suspects_;
  std::vector<std::set<std::string>> objects_;  // the suspected names of each open object
};

}  // namespace

bool JsonReader::parse_error(size_t position, const std::string&, const json::exception&) {
  // The parser's own text quotes the input, of any length: ours does not.
  return fail(fmt::format("it is not valid JSON at byte {}", first_byte + position));
}

bool read_json(std::string_view text, JsonReader& reader) {
  FirstPass first(reader);
  if (!json::sax_parse(text.begin(), text.end(), &first)) return false;
  if (first.suspects.empty()) return true;
  SecondPass second(first.suspects);
  return json::sax_parse(text.begin(), text.end(), &second) || reader.fail(second.error());
}

json parse_json(std::string_view text, std::string& why) {
  Anything checks;
  if (read_json(text, checks)) return json::parse(text.begin(), text.end(), nullptr, false);
  why = checks.error();
  return json(json::value_t::discarded);
}

}  // namespace tinyshard::io
