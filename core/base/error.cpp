// Errors as texts: a CommError says rank, peer, process, operation and time in one sentence.
#include "core/base/error.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

namespace tinyshard {
namespace {

// Calls of groups are numbered; what ranks do to meet or to agree on a step is not.
bool is_call(std::string_view operation) {
  for (std::string_view other : {"connect", "join", "reform", "restore", "commit"}) {
    if (operation == other) return false;
  }
  return true;
}

std::string describe(const CommErrorInfo& info) {
  std::string text = fmt::format("rank {}: {}", info.rank, info.operation);
  if (is_call(info.operation)) text += fmt::format(" #{}", info.sequence);
  if (info.peer >= 0 && info.peer != info.rank) {
    const bool diverged = info.detail.starts_with("the ranks diverged");
    text +=
        fmt::format(", rank {} {}", info.peer, diverged ? "does something else" : "did not answer");
    // Most details tell of the process themselves.
    if (!info.process.empty() && info.detail.find(info.process) == std::string::npos)
      text += fmt::format(" ({})", info.process);
  }
  text += fmt::format(", after {:.1f} s", info.elapsed_s);
  if (!info.detail.empty()) text += ": " + info.detail;
  return text;
}

// A source of ours by its path in the repository: the folder that it was built in says nothing to who
// runs it. Objects of one library may come from several such folders, as compilers' caches share them.
std::string_view path_in_repository(std::string_view file) {
  size_t begin = file.size();
  for (const std::string_view folder :
       {"core/", "multi/", "devices/", "transport/", "launch/", "io/", "report/", "tinyshard/",
        "cli/", "examples/", "bench/", "tests/"}) {
    const size_t at = file.starts_with(folder) ? 0 : file.find(fmt::format("/{}", folder));
    if (at != std::string_view::npos)
      begin = std::min(begin, at == 0 && file[0] != '/' ? 0 : at + 1);
  }
  return begin == file.size() ? file : file.substr(begin);
}

}  // namespace

InternalError::InternalError(const std::string& what, std::source_location where)
    : Error(fmt::format("{} (a bug in tinyshard, {}:{})", what,
                        path_in_repository(where.file_name()), where.line())) {}

CommError::CommError(CommErrorInfo info) : Error(describe(info)), info_(std::move(info)) {}

}  // namespace tinyshard
