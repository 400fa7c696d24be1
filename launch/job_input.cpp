// Reading stops when as much is under way as rank 0's agent may hold,
// and goes on with what it reports as taken. A terminal is read in the
// foreground only: in the background the system would stop the launcher.
#include "launch/job_input.h"

#include <algorithm>
#include <cerrno>
#include <unistd.h>

namespace tinyshard {

int JobInput::fd() const {
  if (over_ || room_ == 0) return -1;
  if (isatty(STDIN_FILENO) != 0 && tcgetpgrp(STDIN_FILENO) != getpgrp()) return -1;
  return STDIN_FILENO;
}

std::optional<std::string> JobInput::read() {
  std::string text(std::min<size_t>(room_, 16 << 10), '\0');
  const ssize_t n = ::read(STDIN_FILENO, text.data(), text.size());
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return std::string();
  over_ = n <= 0;
  if (over_) return std::nullopt;
  room_ -= size_t(n);
  text.resize(size_t(n));
  return text;
}

void JobInput::note_taken(int bytes) {
  over_ = over_ || bytes < 0;
  room_ += size_t(std::max(bytes, 0));
}

}  // namespace tinyshard
