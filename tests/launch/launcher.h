// The launcher from outside, for tests: starts it, reads what it prints, and waits for its end.
#pragma once
#include <array>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <iterator>
#include <poll.h>
#include <sstream>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tinyshard::test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The launcher with these arguments, as a shell reads them.
class Launcher {
 public:
  // `prepare` is called in the child before the shell begins; `before` are words before the launcher.
  explicit Launcher(const std::string& arguments, const std::function<void()>& prepare = {},
                    const std::string& before = "") {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
      dup2(nothing, STDIN_FILENO);
      if (prepare) prepare();
      const std::string command = "exec " + before + " " TINYSHARD_CLI " run " + arguments;
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(126);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  ~Launcher() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(output_);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  pid_t pid() const { return pid_; }

  // Until `text` has been printed so often, or 30 seconds have passed.
  bool read_until(const std::string& text, int times = 1) {
    const auto end = Clock::now() + seconds(30);
    while (count(text) < times && Clock::now() < end) {
      if (!read_some()) return count(text) >= times;
    }
    return count(text) >= times;
  }

  // The exit status as a shell sees it; -1: it hangs. Reads no more.
  int wait(seconds most = seconds(60)) {
    int status = 0;
    const auto end = Clock::now() + most;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (Clock::now() >= end) return -1;
      std::this_thread::sleep_for(milliseconds(2));
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // The same behind the last line.
  int finish() {
    const auto end = Clock::now() + seconds(60);
    while (read_some()) {
      if (Clock::now() >= end) return -1;
    }
    return wait();
  }

  const std::string& output() const { return text_; }
  int count(const std::string& part) const {
    int n = 0;
    for (size_t at = text_.find(part); at != std::string::npos; at = text_.find(part, at + 1)) ++n;
    return n;
  }

 private:
  bool read_some() {
    pollfd ready{.fd = output_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 100) <= 0) return true;
    std::array<char, 4096> buffer;
    const ssize_t n = read(output_, buffer.data(), buffer.size());
    if (n <= 0) return false;
    text_.append(buffer.data(), static_cast<size_t>(n));
    return true;
  }

  pid_t pid_ = -1;
  int output_ = -1;
  std::string text_;
};

struct Ran {
  int status;
  std::string output;
};
inline Ran run(const std::string& arguments) {
  Launcher launcher(arguments);
  const int status = launcher.finish();
  return {status, launcher.output()};
}

// Tells whether the process is there and no zombie, which only waits to be asked for.
inline bool lives(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string stat((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat[name_end + 2] != 'Z' && stat[name_end + 2] != 'X';
}

// The numbers that stand behind `word` in the output.
inline std::vector<pid_t> pids_behind(const std::string& word, const std::string& output) {
  std::vector<pid_t> pids;
  std::istringstream words(output);
  for (std::string next; words >> next;) {
    pid_t pid = 0;
    if (next == word && words >> pid) pids.push_back(pid);
    words.clear();
  }
  return pids;
}

inline pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("PPid:")) return std::stoi(line.substr(5));
  }
  return -1;
}

inline std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

}  // namespace tinyshard::test
