#include "io/errors.h"

#include <system_error>

#include <fmt/format.h>

namespace tinyshard::io {
namespace {

std::string describe(std::string_view action, const std::filesystem::path& path, int error_number,
                     std::string_view detail) {
  std::string text = fmt::format("cannot {} {}", action, path.native());
  if (error_number != 0) text += ": " + std::generic_category().message(error_number);
  if (!detail.empty()) text += fmt::format("{} {}", error_number != 0 ? "," : ":", detail);
  return text;
}

}  // namespace

IoError::IoError(std::string_view action, const std::filesystem::path& path, int error_number,
                 std::string_view detail)
    : UserError(describe(action, path, error_number, detail)),
      path_(path),
      error_number_(error_number) {}

FormatError::FormatError(std::string_view file, std::string_view what)
    : UserError(fmt::format("{}: {}", file, what)) {}

std::string in_quotes(std::string_view text) {
  constexpr size_t kMost = 120;
  std::string out = "\"";
  for (char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (text.size() > kMost ? "...\"" : "\"");
}

}  // namespace tinyshard::io
