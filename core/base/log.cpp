// The log outlives all static objects, since their destructors may log. One lock keeps a line
// whole, and lets the sink be replaced while other threads log.
#include "core/base/log.h"

#include <mutex>
#include <unistd.h>

#include <fmt/format.h>

namespace tinyshard {
namespace {

struct Log {
  std::mutex mutex;
  LogSink sink;
  int rank = -1;
};

Log& log() {
  static Log& log = *new Log;  // outlives every static user
  return log;
}

}  // namespace

void set_log_sink(LogSink sink) {
  std::lock_guard lock(log().mutex);
  log().sink = std::move(sink);
}

void set_log_rank(int rank) {
  std::lock_guard lock(log().mutex);
  log().rank = rank;
}

void log_line(std::string_view line) {
  std::lock_guard lock(log().mutex);
  if (log().sink) return log().sink(line);
  std::string text =
      log().rank >= 0 ? fmt::format("[{}] {}\n", log().rank, line) : fmt::format("{}\n", line);
  // A single write keeps lines of several ranks apart; nothing useful can be done if it fails.
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace tinyshard
