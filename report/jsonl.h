// A log of one JSON object a line, such as {"step":3,"loss":2.31,"tokens_per_s":12345,"ms":41.5}.
// Each line is written whole with one system call, so a kill loses at most the line it falls into,
// and a reader of the growing file sees lines. For one thread.
#pragma once
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/file.h"

namespace tinyshard {

// A JSON value, as text. NaN and the infinities, which JSON lacks, become the strings "NaN",
// "Infinity", "-Infinity".
class JsonValue {
 public:
  JsonValue(bool value) : text_(value ? "true" : "false") {}
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  JsonValue(T value) : text_(std::to_string(value)) {}
  JsonValue(double value);  // the shortest digits that read back as the same number
  JsonValue(float value);
  JsonValue(std::string_view value);
  JsonValue(const std::string& value) : JsonValue(std::string_view(value)) {}
  JsonValue(const char* value) : JsonValue(std::string_view(value)) {}

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

using JsonField = std::pair<std::string_view, JsonValue>;

struct JsonlOptions {
  // Lines that are in the file: all stay, or those with a "step" below this one. A run that goes on
  // from step 100 gives 100 and so drops what came after the checkpoint; a new run gives 0.
  std::optional<int64_t> from_step = {};
};

class JsonlLog {
 public:
  // IoError if the file cannot be written. A last line that a kill cut is removed.
  explicit JsonlLog(std::filesystem::path path, JsonlOptions options = {});

  void write(std::span<const JsonField> fields);
  void write(std::initializer_list<JsonField> fields) {
    write(std::span(fields.begin(), fields.size()));
  }

 private:
  std::filesystem::path path_;
  Fd fd_;
};

// Column `y` over column `x` of a log, from the lines that have both as numbers; for plots.
struct JsonlSeries {
  std::vector<double> x, y;
};
JsonlSeries read_series(const std::filesystem::path& path, std::string_view x, std::string_view y);

}  // namespace tinyshard
