// The error for files whose bytes are not what their format says. Where the system refused, it is
// an IoError (core/base/file.h).
#pragma once
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace tinyshard::io {

class FormatError : public UserError {
 public:
  // "<file>: <what>"
  FormatError(std::string_view file, std::string_view what);
};

// A name out of a file, made safe to print: quoted, control characters escaped, cut to 120 bytes.
std::string in_quotes(std::string_view text);

}  // namespace tinyshard::io
