// A text from a file may hold anything: it is cut, and control characters are shown, so that a
// message is one line and no terminal obeys it.
#include "io/errors.h"

#include <fmt/format.h>

#include "core/base/call.h"

namespace tinyshard::io {
FormatError::FormatError(std::string_view file, std::string_view what)
    : UserError(told_of_call(fmt::format("{}: {}", file, what))) {}

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
