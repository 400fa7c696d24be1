// The agent has the two pipes as its standard input and output, and a process group of its own.
// Commands that the pipe does not take at once are kept and go with later ones. An agent that has
// ended its work has a second to end itself, and is killed then.
#include "launch/remote_agent.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "launch/exec_program.h"

namespace tinyshard {
namespace {

constexpr std::chrono::seconds kMayEnd{1};  // after its last word

void close_end(int& fd) {
  if (fd >= 0) close(std::exchange(fd, -1));
}

}  // namespace

RemoteAgent::RemoteAgent(Host host, int first_rank, const std::vector<std::string>& words,
                         const CaughtSignals& signals, const OpenFiles& open_files)
    : host_(std::move(host)), first_rank_(first_rank), is_local_(is_this_host(host_.name)) {
  int commands[2], events[2];
  if (pipe2(commands, O_CLOEXEC) != 0)
    throw UserError(fmt::format("pipe: {}", std::strerror(errno)));
  commands_ = commands[1];
  if (pipe2(events, O_CLOEXEC) == 0) {
    events_.fd = events[0];
    pid_ = fork();
  }
  if (pid_ == 0) {
    setpgid(0, 0);  // Ctrl-C is the launcher's to hear
    dup2(commands[0], STDIN_FILENO);
    dup2(events[1], STDOUT_FILENO);
    signals.restore_in_child();
    open_files.restore_in_child();
    const int why = exec_program(words, environment_with({}));
    const std::string text =
        fmt::format("tinyshard run: {}: {}\n", words.front(), std::strerror(why));
    if (write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(126);
    _exit(127);
  }
  const int why = errno;
  close(commands[0]);
  if (events_.fd >= 0) close(events[1]);
  if (pid_ < 0)
    throw UserError(
        fmt::format("the agent of {} cannot be started: {}", host_.name, std::strerror(why)));
  fcntl(commands_, F_SETFL, O_NONBLOCK);
}

RemoteAgent::~RemoteAgent() {
  close_end(commands_);
  close_end(events_.fd);
  if (pid_ > 0) bury();
}

void RemoteAgent::tell(const std::string& line) {
  if (commands_ < 0) return;
  untold_ += line + '\n';
  flush();
}

void RemoteAgent::flush() {
  while (commands_ >= 0 && !untold_.empty()) {
    const ssize_t n = write(commands_, untold_.data(), untold_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) {  // it has ended; its events say so, too
      untold_.clear();
      return;
    }
    untold_.erase(0, size_t(n));
  }
  if (closes_) close_end(commands_);
}

void RemoteAgent::close_commands() {
  closes_ = true;
  flush();
}

int RemoteAgent::bury() {
  close_end(commands_);
  close_end(events_.fd);
  untold_.clear();
  const auto end = std::chrono::steady_clock::now() + kMayEnd;
  int status = 0;
  while (pid_ > 0 && waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= end) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  pid_ = -1;
  return status;
}

}  // namespace tinyshard
