// Errors as texts: a CommError says rank, peer, process, operation and time in one sentence.
#include "core/base/error.h"

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

// A source of the library by its path in the repository: it was built in a folder that says nothing to
// who runs it.
std::string_view path_in_repository(std::string_view file) {
  constexpr std::string_view kOwn = "core/base/error.cpp";
  std::string_view root = std::source_location::current().file_name();
  root.remove_suffix(root.ends_with(kOwn) ? kOwn.size() : root.size());
  if (file.starts_with(root)) file.remove_prefix(root.size());
  while (file.starts_with("../")) file.remove_prefix(3);  // of the folder that it was built in
  return file;
}

}  // namespace

InternalError::InternalError(const std::string& what, std::source_location where)
    : Error(fmt::format("{} (a bug in tinyshard, {}:{})", what,
                        path_in_repository(where.file_name()), where.line())) {}

CommError::CommError(CommErrorInfo info) : Error(describe(info)), info_(std::move(info)) {}

}  // namespace tinyshard
