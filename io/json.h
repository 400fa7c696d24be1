// The one way in which JSON of files is read. A file may be anything: its nesting is limited, so
// that nothing that walks over it recurses without end; a name that stands twice in an object is an
// error, since readers differ in which of the two they take; and who reads piece by piece keeps
// what it needs, not a tree of everything, so that memory is in proportion to the file.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

namespace tinyshard::io {

inline constexpr size_t kMaxJsonDepth = 64;  // objects and arrays inside of each other

// Receives a text piece by piece. A handler returns false to stop, with the reason given to fail().
class JsonReader : public nlohmann::json::json_sax_t {
 public:
  const std::string& error() const { return error_; }
  bool fail(std::string why) {
    error_ = std::move(why);
    return false;
  }

  bool binary(binary_t&) override { return fail("binary data"); }  // no text holds any
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::json::exception& error) final;

  size_t first_byte = 0;  // where in its file the text begins, for messages

 private:
  std::string error_;
};

// Returns whether the whole text was read; if not, reader.error() says why, without a full stop.
// Names that stand twice are found when the text has been read: the reader has seen both by then.
bool read_json(std::string_view text, JsonReader& reader);

// The text as a tree, for texts that are ours; a tree takes many times the text's bytes. Discarded
// (json::is_discarded) when it cannot be read, and `why` says why not.
nlohmann::json parse_json(std::string_view text, std::string& why);

}  // namespace tinyshard::io
