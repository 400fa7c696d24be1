// Only the first attempt of a job puts old logs aside, so those of its attempts stay together. A
// log that cannot be written any more ends with one message; the job goes on.
#include "launch/job_logs.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

namespace fs = std::filesystem;

void skip_digits(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of("0123456789"), text.size()));
}

// "rank-3.log", "rank-3.attempt-1.log"; with `ending` behind them.
bool is_log(std::string_view name, std::string_view ending) {
  constexpr std::string_view kRank = "rank-", kAttempt = ".attempt-";
  if (!name.starts_with(kRank)) return false;
  name.remove_prefix(kRank.size());
  skip_digits(name);
  if (name.starts_with(kAttempt)) {
    name.remove_prefix(kAttempt.size());
    skip_digits(name);
  }
  return name == ending;
}

// A job of fewer ranks leaves no log of a former one beside its own.
void put_old_logs_aside(const fs::path& folder) {
  std::vector<fs::path> old, older;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (is_log(name, ".log")) old.push_back(at->path());
    if (is_log(name, ".log.old")) older.push_back(at->path());
  }
  if (old.empty()) return;
  for (const fs::path& path : older) fs::remove(path, error);
  for (const fs::path& path : old) fs::rename(path, path.string() + ".old", error);
}

}  // namespace

JobLogs::JobLogs(std::string folder, int ranks, int attempt,
                 std::function<void(const std::string&)> tell)
    : folder_(std::move(folder)), attempt_(attempt), tell_(std::move(tell)) {
  if (folder_.empty()) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  if (attempt == 0) put_old_logs_aside(folder_);
  for (int rank = 0; rank < ranks; ++rank) {
    if (!open_log(rank))
      throw UserError(
          fmt::format("the log {} cannot be written: {}", logs_[rank].path, std::strerror(errno)));
  }
}

JobLogs::~JobLogs() {
  for (const auto& [rank, log] : logs_) {
    if (log.fd >= 0) close(log.fd);
  }
}

bool JobLogs::open_log(int rank) {
  Log& log = logs_[rank];
  const std::string attempt = attempt_ > 0 ? fmt::format(".attempt-{}", attempt_) : "";
  log.path = fmt::format("{}/rank-{}{}.log", folder_, rank, attempt);
  log.fd = open(log.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  return log.fd >= 0;
}

void JobLogs::add_rank(int rank) {
  if (folder_.empty() || open_log(rank)) return;
  tell_(fmt::format("the log {} cannot be written: {}", logs_[rank].path, std::strerror(errno)));
}

void JobLogs::write(int rank, std::string_view text, bool line_ends) {
  const auto found = logs_.find(rank);
  if (found == logs_.end() || found->second.fd < 0) return;
  Log& log = found->second;
  std::string bytes(text);
  if (line_ends) bytes += '\n';
  for (std::string_view left = bytes; !left.empty();) {
    const ssize_t n = ::write(log.fd, left.data(), left.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      tell_(
          fmt::format("the log {} ends here: {}; the job goes on", log.path, std::strerror(errno)));
      close(std::exchange(log.fd, -1));
      return;
    }
    left.remove_prefix(size_t(n));
  }
}

}  // namespace tinyshard
