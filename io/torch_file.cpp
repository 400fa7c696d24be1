// The three formats have in common a pickle whose tensors refer to storages by keys
// (torch_collector.cpp); each has a file of its own (torch_zip.cpp, torch_pickles.cpp,
// torch_tar.cpp).
#include "io/torch_file.h"

#include <fmt/format.h>

#include "io/budget.h"
#include "io/torch_internal.h"
#include "io/zip.h"

namespace tinyshard::io {

void parse_torch(std::span<const std::byte> file, std::string_view label, TorchFile& out) {
  Budget budget{std::string(label), file.size()};
  if (is_zip(file)) return parse_zip(file, label, budget, out);
  if (is_tar(file)) return parse_tar(file, label, budget, out);
  if (is_pickles(file)) return parse_pickles(file, label, budget, out);
  throw FormatError(
      label,
      fmt::format("not a torch file: {} bytes that begin neither as a zip archive, nor as a tar "
                  "archive, nor with torch's number",
                  file.size()));
}

TorchFile::TorchFile(const std::filesystem::path& path) {
  const MappedFile map(path);
  parse_torch(map.bytes(), path.native(), *this);
}

}  // namespace tinyshard::io
