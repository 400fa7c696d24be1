// /proc/<pid>/stat has the state of a process and the time when it began. Without a pidfd a process
// is the same only if that time is, since numbers are given again, and a zombie has ended.
#include "transport/process_watch.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fcntl.h>
#include <poll.h>
#include <string_view>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/hash.h"
#include "launch/hosts.h"

namespace tinyshard {
namespace {

// The beginning of a small file, as far as it fits. Allocates nothing: waits ask again and again.
using SmallFile = std::array<char, 512>;
std::string_view read_small_file(const char* path, SmallFile& content) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t n = read(fd, content.data(), content.size());
  close(fd);
  return {content.data(), n > 0 ? static_cast<size_t>(n) : 0};
}

struct ProcessState {
  char letter = '?';
  uint64_t began = 0;
};

// "pid (name) state ...": names may hold anything, so it is looked for from the end. The twentieth
// word from the state on is when it began, by which a number that was given again is found out.
ProcessState look_at(int64_t pid) {
  std::array<char, 64> path{};
  SmallFile content;
  fmt::format_to_n(path.data(), path.size() - 1, "/proc/{}/stat", pid);
  std::string_view stat = read_small_file(path.data(), content);
  const size_t name_end = stat.rfind(')');
  ProcessState state;
  if (name_end == std::string_view::npos || name_end + 2 >= stat.size()) return state;
  stat.remove_prefix(name_end + 2);
  state.letter = stat.front();
  for (int word = 0; word < 19; ++word)
    stat.remove_prefix(std::min(stat.find(' ') + 1, stat.size()));
  std::from_chars(stat.data(), stat.data() + stat.size(), state.began);
  return state;
}

}  // namespace

ProcessAddress ProcessAddress::own() {
  struct stat space{};
  if (stat("/proc/self/ns/pid", &space) != 0) return {};
  SmallFile boot_id;
  return {.host = hash_text(read_small_file("/proc/sys/kernel/random/boot_id", boot_id)),
          .namespace_ = static_cast<uint64_t>(space.st_ino),
          .pid = getpid()};
}

ProcessWatch::ProcessWatch(const ProcessAddress& process) : pid_(process.pid) {
  const ProcessAddress self = ProcessAddress::own();
  if (process.pid == 0 || process.host != self.host || process.namespace_ != self.namespace_)
    return;
#ifdef SYS_pidfd_open
  fd_ = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process.pid), 0));
#endif
  if (fd_ < 0) began_ = look_at(process.pid).began;
}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) close(fd_);
}

ProcessWatch::ProcessWatch(ProcessWatch&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      pid_(std::exchange(other.pid_, 0)),
      began_(std::exchange(other.began_, 0)) {}

ProcessWatch& ProcessWatch::operator=(ProcessWatch&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(pid_, other.pid_);
  std::swap(began_, other.began_);
  return *this;
}

PeerState ProcessWatch::state() const {
  if (fd_ < 0 && began_ == 0) return {};
  pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
  const bool ended = fd_ >= 0 && poll(&ready, 1, 0) > 0;
  const ProcessState now = ended ? ProcessState() : look_at(pid_);
  const bool is_another = fd_ < 0 && (now.began != began_ || now.letter == 'Z');
  if (ended || is_another)
    return {.gone = true, .text = fmt::format("process {} on {} has ended", pid_, own_host_name())};
  if (now.letter == 'T' || now.letter == 't')
    return {.suspect = true,
            .text = fmt::format("process {} on {} is stopped", pid_, own_host_name())};
  return {};
}

}  // namespace tinyshard
