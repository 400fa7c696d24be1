// Example: a rank is `sh -c 'timeout 97 ./prog; true'`. `timeout` has made a group of its own; when the
// shell ends, it becomes a child of the agent, which adopts orphans, and is found as such.
#include "launch/descendants.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

namespace tinyshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestSweep{5};
constexpr std::chrono::milliseconds kBetweenSweeps{2};

std::string content_of(const std::string& path) {
  std::string content;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return content;
  std::array<char, 8192> buffer;
  for (ssize_t n; (n = read(fd, buffer.data(), buffer.size())) > 0;)
    content.append(buffer.data(), size_t(n));
  close(fd);
  return content;
}

std::optional<pid_t> number(std::string_view text) {
  pid_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

// "pid (name) state parent group ...": a name may hold anything, so it is looked for from the end.
std::optional<ProcessEntry> entry_of(pid_t pid) {
  const std::string stat = content_of(fmt::format("/proc/{}/stat", pid));
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  char state = 0;
  ProcessEntry entry{.pid = pid};
  if (std::sscanf(stat.c_str() + name_end + 1, " %c %d %d", &state, &entry.parent, &entry.group) !=
      3)
    return std::nullopt;
  entry.ended = state == 'Z' || state == 'X';
  return entry;
}

}  // namespace

std::vector<ProcessEntry> process_table() {
  std::vector<ProcessEntry> table;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc"), closedir);
  if (!folder) return table;
  while (const dirent* file = readdir(folder.get())) {
    const std::optional<pid_t> pid = number(file->d_name);
    if (!pid) continue;
    if (const auto entry = entry_of(*pid)) table.push_back(*entry);
  }
  return table;
}

std::vector<pid_t> descendants(const std::vector<ProcessEntry>& table,
                               const std::vector<pid_t>& roots, const std::vector<pid_t>& spared) {
  std::set<pid_t> above(roots.begin(), roots.end());
  std::vector<pid_t> found;
  for (bool grows = true; grows;) {
    grows = false;
    for (const ProcessEntry& entry : table) {
      if (!above.contains(entry.parent) || above.contains(entry.pid) ||
          std::ranges::find(spared, entry.pid) != spared.end())
        continue;
      above.insert(entry.pid);
      grows = true;
      if (!entry.ended) found.push_back(entry.pid);
    }
  }
  return found;
}

std::vector<pid_t> own_children() {
  const std::string path = fmt::format("/proc/self/task/{}/children", gettid());
  std::vector<pid_t> children;
  if (access(path.c_str(), R_OK) != 0) {  // a kernel without CONFIG_PROC_CHILDREN
    for (const ProcessEntry& entry : process_table()) {
      if (entry.parent == getpid()) children.push_back(entry.pid);
    }
    return children;
  }
  const std::string list = content_of(path);
  for (size_t begin = 0, end; (end = list.find(' ', begin)) != std::string::npos; begin = end + 1) {
    if (const auto pid = number(std::string_view(list).substr(begin, end - begin)))
      children.push_back(*pid);
  }
  return children;
}

bool began_with(pid_t pid, const std::string& variable) {
  std::string environment = content_of(fmt::format("/proc/{}/environ", pid));
  environment.insert(0, 1, '\0');
  return environment.find('\0' + variable + '\0') != std::string::npos;
}

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

void kill_all(const std::function<std::vector<pid_t>()>& find) {
  const Clock::time_point end = Clock::now() + kLongestSweep;
  for (;;) {
    const std::vector<pid_t> found = find();
    if (found.empty() || Clock::now() >= end) return;
    for (pid_t pid : found) kill(pid, SIGKILL);
    std::this_thread::sleep_for(kBetweenSweeps);
    for (pid_t pid : found) waitpid(pid, nullptr, WNOHANG);  // of others' children it says no
  }
}

}  // namespace tinyshard
