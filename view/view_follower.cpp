// A file grows while it is read: only whole lines are taken, and the position behind the last of them is
// where the next look begins. A page names files by their order alone, so no request names a path.
#include "view/view_follower.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "view/view_page.h"

namespace tinyshard {
namespace {

// The whole lines behind a position.
ViewInput read_lines(const std::string& path, int64_t from) {
  ViewInput input{.name = std::filesystem::path(path).filename().string(), .lines = {}, .at = from};
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = int64_t(file.tellg());
  if (!file.is_open() || size < 0)
    throw UserError(fmt::format("view: {} cannot be read: {}", path, std::strerror(errno)));
  input.anew = size < from;
  if (input.anew) input.at = 0;
  input.lines.resize(size_t(size - input.at));
  file.seekg(input.at);
  file.read(input.lines.data(), std::streamsize(input.lines.size()));
  input.lines.resize(size_t(file.gcount()));
  const size_t end = input.lines.rfind('\n');
  input.lines.resize(end == std::string::npos ? 0 : end + 1);
  input.at += int64_t(input.lines.size());
  return input;
}

}  // namespace

ViewFollower::ViewFollower(std::vector<std::string> paths) : paths_(std::move(paths)) {}

// New files come last, so that the order of those that a page knows stays.
void ViewFollower::look_for_files() {
  for (std::string& file : view_files(paths_)) {
    if (std::ranges::find(files_, file) == files_.end()) files_.push_back(std::move(file));
  }
}

std::string ViewFollower::page() {
  look_for_files();
  std::vector<ViewInput> inputs;
  for (const std::string& file : files_) inputs.push_back(read_lines(file, 0));
  return view_page(inputs, true);
}

std::string ViewFollower::more(std::span<const int64_t> positions) {
  look_for_files();
  std::vector<ViewInput> inputs;
  for (size_t i = 0; i < files_.size(); ++i)
    inputs.push_back(read_lines(files_[i], i < positions.size() ? positions[i] : 0));
  return view_data(inputs, true);
}

}  // namespace tinyshard
