// Errors of files. Both are UserErrors: the file, the disk or the path is at fault, and the message
// names it. IoError: the system refused (errno). FormatError: the bytes are not what the format
// says.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace tinyshard::io {

class IoError : public UserError {
 public:
  // "<action> <path>: <reason of error_number>", such as "cannot open a.txt: No such file".
  IoError(std::string_view action, const std::filesystem::path& path, int error_number,
          std::string_view detail = {});
  const std::filesystem::path& path() const { return path_; }
  int error_number() const { return error_number_; }

 private:
  std::filesystem::path path_;
  int error_number_;
};

class FormatError : public UserError {
 public:
  // "<file>: <what>"
  FormatError(std::string_view file, std::string_view what);
};

// A name out of a file, made safe to print: quoted, control characters escaped, cut to 120 bytes.
std::string in_quotes(std::string_view text);

}  // namespace tinyshard::io
