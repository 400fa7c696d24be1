#include "transport/process_watch.h"

#include <array>
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

// What fits of a small file. Allocates nothing, as waits ask again and again.
using SmallFile = std::array<char, 512>;
std::string_view read_small_file(const char* path, SmallFile& content) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t n = read(fd, content.data(), content.size());
  close(fd);
  return {content.data(), n > 0 ? static_cast<size_t>(n) : 0};
}

// The letter after "pid (name) ": names may hold anything, so it is looked for from the end.
char state_letter(int64_t pid) {
  std::array<char, 64> path{};
  SmallFile content;
  fmt::format_to_n(path.data(), path.size() - 1, "/proc/{}/stat", pid);
  const std::string_view stat = read_small_file(path.data(), content);
  const size_t name_end = stat.rfind(')');
  return name_end != std::string_view::npos && name_end + 2 < stat.size() ? stat[name_end + 2]
                                                                          : '?';
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
}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) close(fd_);
}

ProcessWatch::ProcessWatch(ProcessWatch&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), pid_(std::exchange(other.pid_, 0)) {}

ProcessWatch& ProcessWatch::operator=(ProcessWatch&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(pid_, other.pid_);
  return *this;
}

PeerState ProcessWatch::state() const {
  if (fd_ < 0) return {};
  pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, 0) > 0)
    return {.gone = true, .text = fmt::format("process {} on {} has ended", pid_, own_host_name())};
  const char letter = state_letter(pid_);
  if (letter == 'T' || letter == 't')
    return {.suspect = true,
            .text = fmt::format("process {} on {} is stopped", pid_, own_host_name())};
  return {};
}

}  // namespace tinyshard
