// A job that a test does something to, and what its ranks print of it (fault_rank.cpp and
// step_rank.cpp say how). TINYSHARD_MPIRUN is the command line without -n, of mpirun or of our own
// launcher.
#pragma once
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <map>
#include <poll.h>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tinyshard::test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr seconds kCap{40};  // whatever happens, a job is over by then

struct Report {
  int peer = -1;
  double elapsed_ms = 0, again_ms = 0;
  std::string text;
  Clock::time_point at;  // by the rank's own clock: mpirun may hold its output back for a second
};

class Job {
 public:
  // `program` is started with its arguments; `extra` goes to mpirun.
  Job(int ranks, const std::string& program, const std::vector<std::string>& program_arguments,
      const std::vector<std::string>& extra = {}) {
    std::vector<std::string> words;
    std::stringstream command(TINYSHARD_MPIRUN);
    for (std::string word; std::getline(command, word, ' ');) words.push_back(word);
    words.insert(words.end(), extra.begin(), extra.end());
    for (const std::string& word : {std::string("-n"), std::to_string(ranks), program})
      words.push_back(word);
    words.insert(words.end(), program_arguments.begin(), program_arguments.end());
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);

    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    begun_ = Clock::now();
    mpirun_ = fork();
    if (mpirun_ == 0) {
      setpgid(0, 0);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = ends[0];
  }

  ~Job() {
    for (const auto& [rank, pid] : pids) {
      kill(pid, SIGCONT);
      if (!over_) kill(pid, SIGKILL);
    }
    if (!over_) {
      kill(mpirun_, SIGKILL);
      waitpid(mpirun_, nullptr, 0);
    }
    close(output_);
  }

  // Reads until `enough` or the end of the job. False when the cap is reached first.
  bool read_until(const std::function<bool()>& enough) {
    while (!enough()) {
      const auto left = std::chrono::duration_cast<milliseconds>(begun_ + kCap - Clock::now());
      if (left.count() <= 0) return false;
      pollfd ready{.fd = output_, .events = POLLIN, .revents = 0};
      if (poll(&ready, 1, static_cast<int>(std::min<int64_t>(left.count(), 50))) <= 0) continue;
      char buffer[4096];
      const ssize_t n = read(output_, buffer, sizeof(buffer));
      if (n <= 0) break;
      text_.append(buffer, static_cast<size_t>(n));
      all_.append(buffer, static_cast<size_t>(n));
      for (size_t end; (end = text_.find('\n')) != std::string::npos; text_.erase(0, end + 1))
        take(text_.substr(0, end));
    }
    return true;
  }

  bool read_ready(size_t ranks) {
    return read_until([&] { return pids.size() == ranks; }) && pids.size() == ranks;
  }

  // The exit status of mpirun. -1 when it had to be ended.
  int finish() {
    if (!read_until([] { return false; })) return -1;
    while (Clock::now() < begun_ + kCap) {
      int status = 0;
      if (waitpid(mpirun_, &status, WNOHANG) == mpirun_) {
        over_ = true;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    return -1;
  }

  const std::string& output() const { return all_; }
  Clock::time_point begun() const { return begun_; }

  std::map<int, pid_t> pids;
  std::map<int, Report> reports;

 private:
  void take(const std::string& line) {
    std::stringstream words(line);
    int rank = 0;
    std::string kind;
    if (!(words >> rank >> kind)) return;  // mpirun's own words
    if (kind == "ready") words >> pids[rank];
    if (kind == "report") {
      Report& report = reports[rank];
      Clock::rep at = 0;
      words >> report.peer >> at >> report.elapsed_ms >> report.again_ms;
      std::getline(words, report.text);
      report.at = Clock::time_point(Clock::duration(at));
    }
  }

  pid_t mpirun_ = -1;
  int output_ = -1;
  bool over_ = false;
  Clock::time_point begun_;
  std::string text_, all_;
};

}  // namespace tinyshard::test
