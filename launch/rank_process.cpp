// The pipe is found by TS_REPORT_FD and TS_REPORT_PIPE, the number of a descriptor and the inode
// behind it: a program that closed the descriptor may have another file under its number. Example:
// `tinyshard run -- sh -c './train; true'`, and launcher and agent are killed together. The kernel
// kills the shell (PR_SET_PDEATHSIG); ./train has its own end of the pipe, sees that nobody reads it
// any more and kills its process group.
#include "launch/rank_process.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/signals.h"
#include "core/base/termination.h"

namespace tinyshard {
namespace {

constexpr const char* kClaim = "TS_JOINED";  // "0", or the process that has the rank's place

template <class Number>
bool read_number(const char* variable, Number& number) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return false;
  const char* end = text + std::strlen(text);
  return std::from_chars(text, end, number) == std::from_chars_result{end, std::errc()};
}

bool is_pipe(int fd, ino_t inode) {
  struct stat about{};
  return fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode) && about.st_ino == inode;
}

struct ReportPipe {
  int fd = -1;
  ino_t inode = 0;
  static const ReportPipe& get() {
    static const ReportPipe pipe = [] {
      ReportPipe found;
      if (!read_number("TS_REPORT_FD", found.fd) || !read_number("TS_REPORT_PIPE", found.inode) ||
          !is_pipe(found.fd, found.inode))
        found.fd = -1;
      return found;
    }();
    return pipe;
  }
};

// Waits until nobody reads the pipe any more. The descriptor is a copy, so that it stays what it is.
void* watch_agent(void* copy) {
  const int fd = int(reinterpret_cast<intptr_t>(copy));
  for (;;) {
    pollfd gone{.fd = fd, .events = 0, .revents = 0};
    if (poll(&gone, 1, -1) <= 0) continue;
    if ((gone.revents & POLLNVAL) != 0) return nullptr;  // the program closes what it finds
    kill(0, SIGKILL);
  }
}

void start_watching_agent() {
  const int copy = fcntl(ReportPipe::get().fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return;
  const HeldSignals held;  // signals are for the program's own threads
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, std::max<size_t>(PTHREAD_STACK_MIN, 64 << 10));
  pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  if (pthread_create(&thread, &small, watch_agent, reinterpret_cast<void*>(intptr_t(copy))) == 0)
    pthread_setname_np(thread, "ts-agent");
  pthread_attr_destroy(&small);
}

// Before main. What C's stdout keeps back is lost when the process is killed, and seen late.
[[gnu::constructor]] void begin() {
  const ReportPipe& pipe = ReportPipe::get();
  if (pipe.fd < 0) return;
  struct stat out{};
  if (fstat(STDOUT_FILENO, &out) == 0 && S_ISFIFO(out.st_mode))
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
  report_termination_to(pipe.fd);
  start_watching_agent();
}

}  // namespace

void report_to_agent(const std::string& line) {
  const ReportPipe& pipe = ReportPipe::get();
  if (pipe.fd < 0 || !is_pipe(pipe.fd, pipe.inode)) return;
  // Shorter than what a pipe takes in one piece; a launcher that has gone misses nothing.
  const std::string text = line.substr(0, PIPE_BUF - 1) + '\n';
  if (write(pipe.fd, text.data(), text.size()) < 0) return;
}

void claim_rank(const LaunchEnvironment& launch) {
  pid_t owner = 0;
  if (launch.launcher != Launcher::Own || !read_number(kClaim, owner) || owner == getpid()) return;
  if (owner != 0) {
    throw UserError(fmt::format(
        "process {} is rank {} of the job, and this program, which it started, has its variables: "
        "start it by \"env -u TS_RANK -u TS_WORLD_SIZE\" to compute alone, or by tinyshard run",
        owner, launch.rank));
  }
  // Its launcher has set it, so that no variable moves in memory while others are read.
  setenv(kClaim, std::to_string(getpid()).c_str(), 1);
  report_to_agent(fmt::format("J {}", getpid()));
}

}  // namespace tinyshard
