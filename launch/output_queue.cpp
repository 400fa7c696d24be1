// The thread shares the state with the queue, as it may wait in a write when the queue goes.
#include "launch/output_queue.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <mutex>
#include <poll.h>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/signals.h"

namespace tinyshard {
namespace {

constexpr size_t kFull = 1 << 20;

// Returns 0, or the error of a stream that takes no more.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(size_t(n));
    } else if (errno == EAGAIN) {  // another program has made the stream so
      pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
      poll(&ready, 1, 1000);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

struct OutputQueue::State {
  struct Piece {
    int fd;
    std::string text;
  };
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<Piece> pieces;  // the first one is being written
  size_t bytes = 0;
  bool over = false;
  bool closed[3] = {};     // by descriptor
  int ends[2] = {-1, -1};  // of a pipe of failures

  State() {
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) ends[0] = ends[1] = -1;
  }
  ~State() {
    for (int end : ends) {
      if (end >= 0) close(end);
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Without room for a pipe nobody hears it.
  void tell(const Failure& failure) const {
    if (::write(ends[1], &failure, sizeof(failure)) < 0) return;
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return over || !pieces.empty(); });
      if (over) return;
      const Piece piece = std::move(pieces.front());
      bool& gone = closed[piece.fd];
      if (!gone) {
        lock.unlock();
        const Failure failure{piece.fd, write_all(piece.fd, piece.text)};
        lock.lock();
        gone = failure.error != 0;
        if (gone) tell(failure);
      }
      if (over) return;
      pieces.pop_front();
      bytes -= piece.text.size();
      changed.notify_all();
    }
  }
};

OutputQueue::OutputQueue() : state_(std::make_shared<State>()) {
  const HeldSignals held;
  std::thread([state = state_] { state->run(); }).detach();
}

OutputQueue::~OutputQueue() {
  const std::lock_guard lock(state_->mutex);
  state_->over = true;
  state_->changed.notify_all();
}

void OutputQueue::write(int fd, std::string text) {
  const std::lock_guard lock(state_->mutex);
  state_->bytes += text.size();
  // Few and long pieces: a line is a system call otherwise.
  if (state_->pieces.size() > 1 && state_->pieces.back().fd == fd) {
    state_->pieces.back().text += text;
  } else {
    state_->pieces.push_back({fd, std::move(text)});
  }
  state_->changed.notify_all();
}

bool OutputQueue::is_full() const {
  const std::lock_guard lock(state_->mutex);
  return state_->bytes > kFull;
}

std::string OutputQueue::Failure::text() const {
  return fmt::format("{} ends here: {}; what ranks print there is lost",
                     fd == STDOUT_FILENO ? "standard output" : "standard error",
                     std::strerror(error));
}

int OutputQueue::failures() const { return state_->ends[0]; }

std::optional<OutputQueue::Failure> OutputQueue::next_failure() {
  Failure failure{};
  if (::read(state_->ends[0], &failure, sizeof(failure)) != ssize_t(sizeof(failure)))
    return std::nullopt;
  return failure;
}

bool OutputQueue::drain(std::chrono::milliseconds most) {
  std::unique_lock lock(state_->mutex);
  const auto written = [&] { return state_->pieces.empty(); };
  if (state_->changed.wait_for(lock, most, written)) return true;
  for (size_t i = 1; i < state_->pieces.size(); ++i) {
    const State::Piece& piece = state_->pieces[i];
    pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (piece.fd != STDERR_FILENO || state_->pieces.front().fd == STDERR_FILENO ||
        poll(&ready, 1, 0) <= 0)
      continue;
    // As much as a pipe that has room takes at once.
    const std::string_view text = std::string_view(piece.text).substr(0, 4096);
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) break;
  }
  return false;
}

}  // namespace tinyshard
