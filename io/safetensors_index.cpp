// The index of a set of safetensors files, taken apart while it is parsed:
//
//   {"metadata": {"total_size": 12, "note": "x"},          strings as they are, others as JSON
//    "weight_map": {"a": "m-1.safetensors", ...}}          what anybody else adds is passed over
#include <string>
#include <utility>

#include <fmt/format.h>

#include "io/json.h"
#include "io/safetensors_internal.h"

namespace tinyshard::io {
namespace {

using nlohmann::json;

// A plain name: an index must not lead out of its own folder.
bool is_plain(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

class IndexReader final : public JsonReader {
 public:
  SafetensorsIndex index;
  bool has_map = false;

  bool null() override { return value(json()); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(number_integer_t v) override { return value(v); }
  bool number_unsigned(number_unsigned_t v) override { return value(v); }
  bool number_float(number_float_t v, const string_t&) override { return value(v); }

  bool string(string_t& text) override {
    if (depth_ == 2 && at_ == At::Map) {
      if (!is_plain(text)) {
        return fail(fmt::format("weight_map of {} is {}, which is not the name of a file beside it",
                                in_quotes(key_), in_quotes(text)));
      }
      index.names_of_file[text].push_back(std::move(key_));
      return true;
    }
    if (depth_ == 2 && at_ == At::Metadata) {
      index.metadata[key_] = std::move(text);
      return true;
    }
    return value(std::move(text));
  }

  bool start_object(size_t) override {
    if (depth_ == 1) {
      at_ = key_ == "weight_map" ? At::Map : key_ == "metadata" ? At::Metadata : At::Other;
      has_map |= at_ == At::Map;
    } else if (depth_ > 1 && !open('{')) {
      return false;
    }
    ++depth_;
    return true;
  }

  bool key(string_t& text) override {
    if (depth_ > 2 && at_ == At::Metadata) {
      append(json(std::move(text)).dump() + ":");
    } else {
      key_ = std::move(text);
    }
    return true;
  }

  bool end_object() override {
    if (--depth_ > 1) close('}');
    if (depth_ == 1) at_ = At::Other;
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ == 0) return fail(kNoMap);
    if (depth_ > 1 && !open('[')) return false;
    ++depth_;
    return true;
  }

  bool end_array() override {
    if (--depth_ > 1) close(']');
    return true;
  }

  static constexpr const char* kNoMap = "it has no object weight_map";

 private:
  enum class At { Other, Map, Metadata };  // the member of the outermost object

  bool no_file() {
    return fail(fmt::format("weight_map of {} is not a file name", in_quotes(key_)));
  }

  bool value(json v) {
    if (depth_ == 0) return fail(kNoMap);
    if (depth_ == 1) return true;
    if (at_ == At::Map) return no_file();
    if (at_ == At::Metadata) {
      append(v.dump());
      if (depth_ == 2) take();
    }
    return true;
  }
  // A container inside of a member of the outermost object begins, or has ended.
  bool open(char bracket) {
    if (at_ == At::Map) return no_file();
    if (at_ == At::Metadata) append(std::string(1, bracket));
    return true;
  }
  void close(char bracket) {
    if (at_ != At::Metadata) return;
    text_ += bracket;
    if (depth_ == 2) take();
  }
  void append(std::string_view piece) {
    if (!text_.empty() && std::string_view("{[:").find(text_.back()) == std::string_view::npos) {
      text_ += ',';
    }
    text_ += piece;
  }
  void take() { index.metadata[key_] = std::exchange(text_, {}); }

  At at_ = At::Other;
  size_t depth_ = 0;
  std::string key_;
  std::string text_;  // of a value of the metadata that is no string, as far as it was read
};

}  // namespace

SafetensorsIndex parse_index(std::string_view text, std::string_view label) {
  const auto fail = [&](std::string_view why) {
    return FormatError(label, fmt::format("not a valid index: {}", why));
  };
  IndexReader reader;
  if (!read_json(text, reader)) throw fail(reader.error());
  if (!reader.has_map) throw fail(reader.kNoMap);
  return std::move(reader.index);
}

}  // namespace tinyshard::io
