// Nothing here fails: a process may end between two looks, and a figure that cannot be read is not told.
#include "cli/host_figures.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <unistd.h>

namespace tinyshard::cli {
namespace {

constexpr std::streamoff kMostOfLine = 64 << 10;

std::optional<double> value_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  double value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> resident_bytes(int64_t pid, const std::filesystem::path& proc) {
  std::ifstream file(proc / std::to_string(pid) / "statm");
  int64_t all = 0, resident = 0;
  if (!(file >> all >> resident)) return std::nullopt;
  return resident * sysconf(_SC_PAGESIZE);
}

std::vector<Temperature> temperatures(const std::filesystem::path& sys) {
  std::map<std::string, double> hottest;
  std::error_code error;
  for (const auto& chip : std::filesystem::directory_iterator(sys / "class/hwmon", error)) {
    std::string name;
    std::ifstream(chip.path() / "name") >> name;
    for (const auto& entry : std::filesystem::directory_iterator(chip.path(), error)) {
      const std::string file = entry.path().filename().string();
      if (!file.starts_with("temp") || !file.ends_with("_input")) continue;
      const std::optional<double> milli = value_in(entry.path());
      if (!milli) continue;
      double& most = hottest.try_emplace(name, *milli / 1000).first->second;
      most = std::max(most, *milli / 1000);
    }
  }
  std::vector<Temperature> found;
  for (const auto& [name, celsius] : hottest) found.push_back({name, celsius});
  return found;
}

std::vector<std::filesystem::path> open_logs(int64_t pid, const std::filesystem::path& proc) {
  std::set<std::filesystem::path> found;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(proc / std::to_string(pid) / "fd", error)) {
    std::error_code gone;
    const std::filesystem::path target = std::filesystem::read_symlink(entry.path(), gone);
    if (!gone && target.extension() == ".jsonl") found.insert(target);
  }
  return {found.begin(), found.end()};
}

std::string last_line(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  if (size <= 0) return {};
  file.seekg(std::max<std::streamoff>(0, size - kMostOfLine));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t end = text.rfind('\n');
  if (end == std::string::npos || end == 0) return {};
  const size_t before = text.rfind('\n', end - 1);
  if (before == std::string::npos && size > kMostOfLine) return {};
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return text.substr(begin, end - begin);
}

}  // namespace tinyshard::cli
