// A log that is opened again loses a last line that a kill has cut and, with `from_step`, the lines
// of steps that will be taken again; what remains is written anew as a whole. JSON has no NaN and
// no infinity: these are written as texts, and read back as numbers.
#include "report/jsonl.h"

#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <limits>
#include <sys/stat.h>

#include <fmt/format.h>

#include "io/atomic_file.h"
#include "io/json.h"

namespace tinyshard {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxLog = uint64_t{4} << 30;

std::string json_text(std::string_view text) {
  // Bytes that are no UTF-8 are replaced: a log line is not worth an exception.
  return json(std::string(text)).dump(-1, ' ', false, json::error_handler_t::replace);
}

template <class T>
std::string number_text(T value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return fmt::format("{}", value);
}

// Numbers, and the strings that stand for what JSON lacks.
std::optional<double> as_number(const json& object, std::string_view key) {
  const auto it = object.find(key);
  if (it == object.end()) return std::nullopt;
  if (it->is_number()) return it->get<double>();
  if (*it == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (*it == "Infinity") return std::numeric_limits<double>::infinity();
  if (*it == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

template <class F>
void for_each_line(std::string_view text, F f) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1);
    f(text.substr(0, end + 1));
    text.remove_prefix(end + 1);
  }
}

}  // namespace

JsonValue::JsonValue(double value) : text_(number_text(value)) {}
JsonValue::JsonValue(float value) : text_(number_text(value)) {}
JsonValue::JsonValue(std::string_view value) : text_(json_text(value)) {}

JsonlLog::JsonlLog(std::filesystem::path path, JsonlOptions options) : path_(std::move(path)) {
  struct stat info;
  // Pipes and terminals are written to as they are.
  if (::stat(path_.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
    const std::string old = read_file(path_, kMaxLog);
    std::string kept;
    std::string why;  // a line that does not read has no step
    for_each_line(old, [&](std::string_view line) {
      if (!line.ends_with('\n')) return;  // cut by a kill
      if (options.from_step) {
        const json object = io::parse_json(line, why);
        const auto step = object.is_object() ? as_number(object, "step") : std::nullopt;
        if (step && *step >= static_cast<double>(*options.from_step)) return;
      }
      kept += line;
    });
    if (kept != old) io::write_file(path_, kept);
  }
  fd_ = Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd_) throw IoError("write log", path_, errno);
}

void JsonlLog::write(std::span<const JsonField> fields) {
  std::string line = "{";
  for (const auto& [name, value] : fields) {
    line += fmt::format("{}{}:{}", line.size() > 1 ? "," : "", json_text(name), value.text());
  }
  line += "}\n";
  write_all(fd_.get(), std::as_bytes(std::span(line)), path_);
}

JsonlSeries read_series(const std::filesystem::path& path, std::string_view x, std::string_view y) {
  JsonlSeries series;
  const std::string text = read_file(path, kMaxLog);
  std::string why;  // a line that does not read has no values
  for_each_line(text, [&](std::string_view line) {
    const json object = io::parse_json(line, why);
    if (!object.is_object()) return;
    const auto at = as_number(object, x), value = as_number(object, y);
    if (!at || !value) return;
    series.x.push_back(*at);
    series.y.push_back(*value);
  });
  return series;
}

}  // namespace tinyshard
