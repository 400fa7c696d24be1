// Each rank is the leader of a process group and is killed by the kernel when the agent dies
// (PR_SET_PDEATHSIG). What it starts ends with it: the agent adopts orphans, so that everything
// below it can be found. Example: `sh -c ./prog` is rank 1, and the launcher is killed. The agent
// reads the end of its commands and kills the shell and the program below it. If the agent is killed,
// too, the kernel kills the shell, the program notices it itself (rank_process.h), and the guardian
// kills what neither of them ends.
//
// Nothing in the loop waits for anybody: a launcher that does not read keeps the ranks from printing,
// not the agent from hearing commands and signals.
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "launch/caught_signals.h"
#include "launch/core_shares.h"
#include "launch/descendants.h"
#include "launch/environment.h"
#include "launch/exec_program.h"
#include "launch/guardian.h"
#include "launch/line_reader.h"
#include "launch/open_files.h"
#include "launch/rank_group.h"

namespace tinyshard {
namespace {

using Clock = LineReader::Clock;
using std::chrono::milliseconds;

constexpr size_t kMostCommand = 64 << 20;
constexpr size_t kMostUnread = 256 << 10;  // of events; more output stays in the pipes of the ranks
constexpr milliseconds kUnfinishedLine{50};  // is handed on after so long
constexpr milliseconds kBetweenLooks{20};    // at what a shell has left behind
constexpr int kReportNumber = 20;            // of the descriptor in a rank, where it is to be had

struct Ends {
  int read = -1, write = -1;
};

// False, with errno, where there are no descriptors left.
bool make_pipe(Ends& ends) {
  int numbers[2];
  if (pipe2(numbers, O_CLOEXEC) != 0) return false;
  ends = {numbers[0], numbers[1]};
  return true;
}

void close_end(int& fd) {
  if (fd >= 0) close(std::exchange(fd, -1));
}

// A number in front of `text`, and the space behind it.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(std::min(size_t(end - text.data()) + 1, text.size()));
  return value;
}

bool take_word(std::string_view& line, std::string_view word) {
  if (!line.starts_with(word)) return false;
  line.remove_prefix(word.size());
  return true;
}

struct Rank {
  int rank = 0;
  pid_t pid = -1, joined = -1;  // its first process, and the one that takes part in the job
  bool running = false;
  int grace_ms = 0;                // asked for by its program
  std::optional<int> left_behind;  // the status of a shell whose program still saves
  int input = -1;
  std::array<LineReader, 3> lines;
};

class Agent {
 public:
  Agent(int commands, int events)
      : commands_{.fd = commands, .kind = ' ', .begun = {}},
        events_(events),
        signals_({SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU}) {
    fcntl(events_, F_SETFL, fcntl(events_, F_GETFL) | O_NONBLOCK);
    adopt_orphans();
  }

  int run() {
    while (!over_) {
      wait();
      for (int signal = signals_.next(); signal != 0; signal = signals_.next()) on_signal(signal);
      hand_on_unfinished_lines();
      look_at_what_shells_left();
      if (killing_) signal_all(SIGKILL);
      flush();
      const bool runs = std::ranges::any_of(ranks_, &Rank::running);
      if (begun_ && !group_.stays && !runs && unread_.empty()) over_ = true;
    }
    end_all();
    return 0;
  }

 private:
  void wait() {
    constexpr size_t kOwnWaits = 3;
    std::vector<pollfd> waits{
        {.fd = signals_.fd(), .events = POLLIN, .revents = 0},
        {.fd = commands_.fd, .events = POLLIN, .revents = 0},
        {.fd = events_, .events = short(unread_.empty() ? 0 : POLLOUT), .revents = 0}};
    // No more entries than descriptors: the kernel takes no longer lists than the limit of those.
    const bool reads = unread_.size() < kMostUnread;
    bool unfinished = false;
    std::vector<std::pair<Rank*, LineReader*>> what;  // no reader: the input
    for (Rank& rank : ranks_) {
      const bool feeds = !input_.empty();
      if (rank.input >= 0) {
        waits.push_back({.fd = rank.input, .events = short(feeds ? POLLOUT : 0), .revents = 0});
        what.emplace_back(&rank, nullptr);
      }
      for (LineReader& lines : rank.lines) {
        unfinished = unfinished || !lines.begun.empty();
        if (lines.fd < 0 || !reads) continue;
        waits.push_back({.fd = lines.fd, .events = POLLIN, .revents = 0});
        what.emplace_back(&rank, &lines);
      }
    }
    int timeout = -1;
    if (unfinished) timeout = int(kUnfinishedLine.count());
    if (killing_ || std::ranges::any_of(ranks_, [](auto& r) { return r.left_behind.has_value(); }))
      timeout = int(kBetweenLooks.count());
    const int ready = poll(waits.data(), waits.size(), timeout);
    if (ready < 0 && errno != EINTR) over_ = true;  // rather than to hear nothing any more
    if (ready <= 0) return;
    for (size_t i = 0; i < what.size(); ++i) {
      const auto [rank, lines] = what[i];
      const short state = waits[kOwnWaits + i].revents;
      if (state == 0) continue;
      if (lines != nullptr) {
        read_lines(*rank, *lines);
      } else if ((state & POLLERR) != 0) {
        end_input(*rank);
      } else {
        feed(*rank);
      }
    }
    if ((waits[2].revents & (POLLERR | POLLNVAL)) != 0) over_ = true;  // nobody listens any more
    if (waits[1].revents != 0) read_commands();
  }

  void read_commands() {
    const bool goes_on = commands_.read([&](std::string_view line) {
      if (!std::exchange(begun_, true)) return start(line);
      if (line == "terminate") {
        terminate();
      } else if (line == "kill") {
        killing_ = true;
      } else if (take_word(line, "signal ")) {
        hand_on(take_number(line).value_or(0));
      } else if (take_word(line, "start ")) {
        start_one(line);
      } else if (take_word(line, "input ")) {
        input_ += unescaped(line);
        feed(ranks_.front());
      } else if (line == "end-input") {
        input_ended_ = true;
        feed(ranks_.front());
      }
    });
    if (!goes_on || commands_.begun.size() > kMostCommand) over_ = true;
  }

  void on_signal(int signal) {
    if (signal == SIGCHLD) {
      reap();
    } else if (is_wish_to_end(signal)) {
      tell('A', group_.first_rank, std::to_string(signal));
    } else {
      hand_on(signal);
    }
  }

  void tell(char kind, int rank, std::string_view text) {
    fmt::format_to(std::back_inserter(unread_), "{} {} {}\n", kind, rank, text);
  }

  void flush() {
    size_t written = 0;
    while (written < unread_.size()) {
      const ssize_t n = write(events_, unread_.data() + written, unread_.size() - written);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno != EAGAIN) over_ = true;
      if (n < 0) break;
      written += size_t(n);
    }
    unread_.erase(0, written);
  }

  void start(std::string_view json) {
    group_ = rank_group_from_json(json);
    for (const std::string& entry : group_.environment) {
      if (entry.starts_with("TS_JOB=")) job_ = entry;
    }
    guardian_ = std::make_unique<Guardian>(job_);
    const CoreShares shares(group_.bind_cores ? group_.ranks : 0);
    for (int local = 0; local < group_.ranks; ++local) {
      Rank& rank = ranks_.emplace_back();
      rank.rank = group_.first_rank + local;
      start_rank(rank, local, shares);
    }
  }

  void start_one(std::string_view words) {
    const int number = take_number(words).value_or(-1), place = take_number(words).value_or(-1);
    if (number < 0 || place < 0 || place >= group_.ranks) return;
    const CoreShares shares(group_.bind_cores ? group_.ranks : 0);
    Rank& rank = ranks_.emplace_back();
    rank.rank = number;
    start_rank(rank, place, shares);
  }

  // Variables of the rank, beside those that all have.
  std::vector<std::string> environment_of(const Rank& rank, int local,
                                          const CoreShares& shares) const {
    std::vector<std::string> added = group_.environment;
    added.push_back(fmt::format("TS_RANK={}", rank.rank));
    added.push_back(fmt::format("TS_WORLD_SIZE={}", group_.size));
    added.push_back(fmt::format("TS_LOCAL_RANK={}", local));
    added.push_back(fmt::format("TS_LOCAL_SIZE={}", group_.ranks));
    added.emplace_back("TS_JOINED=0");
    const bool threads_set = getenv("TS_THREADS") != nullptr ||
                             std::ranges::any_of(group_.environment, [](const std::string& entry) {
                               return entry.starts_with("TS_THREADS=");
                             });
    if (shares.usable() && !threads_set)
      added.push_back(fmt::format("TS_THREADS={}", shares.cores(local)));
    return added;
  }

  void start_rank(Rank& rank, int local, const CoreShares& shares) {
    struct Pipes {
      Ends output, errors, report, problem, input;
      ~Pipes() {
        for (Ends* ends : {&output, &errors, &report, &problem, &input}) {
          close_end(ends->read);
          close_end(ends->write);
        }
      }
    } pipes;
    const char* missing = nullptr;
    const bool reads = rank.rank == 0;
    for (Ends* ends : {&pipes.output, &pipes.errors, &pipes.report, &pipes.problem, &pipes.input}) {
      if (ends == &pipes.input && !reads) continue;
      if (missing == nullptr && !make_pipe(*ends)) missing = "pipe";
    }
    if (missing == nullptr) {
      rank.pid = fork();
      if (rank.pid == 0)
        become_rank(rank, local, shares, pipes.output.write, pipes.errors.write, pipes.report.write,
                    pipes.input.read, pipes.problem.write);
      if (rank.pid < 0) missing = "fork";
    }
    if (missing != nullptr) {
      const int why = errno;
      rank.pid = -1;
      tell('F', rank.rank, fmt::format("{}: {}", missing, std::strerror(why)));
      return tell('X', rank.rank, std::to_string(126 << 8));
    }
    setpgid(rank.pid, rank.pid);  // whoever of the two comes first
    guardian_->watch(rank.pid);
    for (Ends* ends : {&pipes.output, &pipes.errors, &pipes.report, &pipes.problem})
      close_end(ends->write);
    rank.running = true;
    rank.lines[0] = {.fd = std::exchange(pipes.output.read, -1), .kind = 'O', .begun = {}};
    rank.lines[1] = {.fd = std::exchange(pipes.errors.read, -1), .kind = 'E', .begun = {}};
    rank.lines[2] = {.fd = std::exchange(pipes.report.read, -1), .kind = 'B', .begun = {}};
    rank.input = std::exchange(pipes.input.write, -1);
    if (rank.input >= 0) fcntl(rank.input, F_SETFL, O_NONBLOCK);
    int why = 0;
    if (read(pipes.problem.read, &why, sizeof(why)) == sizeof(why)) {
      tell('F', rank.rank,
           fmt::format(
               "{}: {}{}", group_.command.front(), std::strerror(why),
               why == ENOEXEC ? "; it is of another machine, or a script without \"#!\"" : ""));
    }
    tell('S', rank.rank, std::to_string(rank.pid));
    feed(rank);
  }

  // In the child.
  [[noreturn]] void become_rank(const Rank& rank, int local, const CoreShares& shares, int output,
                                int errors, int report, int input, int problem) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent_) _exit(127);
    signals_.restore_in_child();
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(input >= 0 ? input : nothing, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    if (problem == kReportNumber) problem = fcntl(problem, F_DUPFD_CLOEXEC, kReportNumber + 1);
    const int moved = report == kReportNumber ? report : dup2(report, kReportNumber);
    if (moved >= 0) report = moved;
    fcntl(report, F_SETFD, 0);
    struct stat about{};
    fstat(report, &about);
    std::vector<std::string> added = environment_of(rank, local, shares);
    added.push_back(fmt::format("TS_REPORT_FD={}", report));
    added.push_back(fmt::format("TS_REPORT_PIPE={}", about.st_ino));
    if (shares.usable()) shares.take(local);
    open_files_.restore_in_child();
    int why = 0;
    if (!group_.folder.empty() && chdir(group_.folder.c_str()) != 0) why = errno;
    if (why == 0) why = exec_program(group_.command, environment_with(added, launch_variables()));
    if (write(problem, &why, sizeof(why)) < 0) _exit(126);
    _exit(why == ENOENT ? 127 : 126);
  }

  // Writes of its input as much as it takes now.
  void feed(Rank& rank) {
    while (rank.input >= 0 && !input_.empty()) {
      const ssize_t n = write(rank.input, input_.data(), input_.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n < 0) return end_input(rank);
      tell('I', rank.rank, std::to_string(n));
      input_.erase(0, size_t(n));
    }
    if (input_ended_ && input_.empty()) close_end(rank.input);
  }

  void end_input(Rank& rank) {
    tell('I', rank.rank, "-1");
    close_end(rank.input);
  }

  void read_lines(Rank& rank, LineReader& lines) {
    const bool goes_on = lines.read([&](std::string_view line) { take_line(rank, lines, line); });
    if (goes_on && lines.begun.size() <= LineReader::kLongestPart) return;
    hand_on_unfinished(rank, lines);
    if (!goes_on) close_end(lines.fd);
  }

  void take_line(Rank& rank, const LineReader& lines, std::string_view line) {
    if (lines.kind != 'B') return tell(lines.kind, rank.rank, line);
    std::string_view rest = line;
    if (take_word(rest, "J ")) {
      rank.joined = take_number(rest).value_or(-1);
    } else if (take_word(rest, "G ")) {
      rank.grace_ms = std::max(rank.grace_ms, take_number(rest).value_or(0));
      tell('G', rank.rank, std::to_string(rank.grace_ms));
    } else if (take_word(rest, "T ")) {
      // Helpers that a rank starts and ends again are its own affair.
      const int signal = take_number(rest).value_or(0), from = take_number(rest).value_or(-1);
      if (from == rank.pid || from == rank.joined) tell('T', rank.rank, std::to_string(signal));
    } else {
      tell('B', rank.rank, line);
    }
  }

  void hand_on_unfinished(Rank& rank, LineReader& lines) {
    if (lines.begun.empty() || lines.kind == 'B') return;
    tell(lines.kind == 'O' ? 'o' : 'e', rank.rank, lines.begun);
    lines.begun.clear();
  }

  void hand_on_unfinished_lines() {
    const Clock::time_point now = Clock::now();
    for (Rank& rank : ranks_) {
      for (LineReader& lines : rank.lines) {
        if (now - lines.since >= kUnfinishedLine) hand_on_unfinished(rank, lines);
      }
    }
  }

  // Looks at who has ended before anybody else can have its number.
  void reap() {
    for (;;) {
      siginfo_t ended{};
      if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
      const auto rank = std::ranges::find_if(
          ranks_, [&](const Rank& r) { return r.running && r.pid == ended.si_pid; });
      if (rank == ranks_.end()) {
        waitpid(ended.si_pid, nullptr, WNOHANG);
      } else {
        note_end(*rank, ended);
      }
    }
  }

  void note_end(Rank& rank, const siginfo_t& end) {
    // A program below a shell may save after the shell has ended.
    const bool told = end.si_code == CLD_KILLED && is_wish_to_end(end.si_status);
    const bool saves =
        (asked_ || told) && !killing_ && rank.grace_ms > 0 && has_group_beside(rank.pid);
    if (!saves) kill(-rank.pid, SIGKILL);
    int status = 0;
    if (waitpid(rank.pid, &status, 0) != rank.pid) status = 127 << 8;
    if (!saves) return finish(rank, status);
    rank.left_behind = status;
    if (asked_) return;
    tell('T', rank.rank, std::to_string(end.si_status));
    kill(-rank.pid, SIGTERM);
  }

  static bool is_wish_to_end(int signal) {
    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
  }

  static bool has_group_beside(pid_t leader) {
    return std::ranges::any_of(process_table(), [&](const ProcessEntry& entry) {
      return entry.group == leader && entry.pid != leader && !entry.ended;
    });
  }

  void look_at_what_shells_left() {
    for (Rank& rank : ranks_) {
      if (!rank.left_behind || (!killing_ && has_group_beside(rank.pid))) continue;
      kill(-rank.pid, SIGKILL);
      finish(rank, *std::exchange(rank.left_behind, std::nullopt));
    }
  }

  // Takes what it still had to say, and whatever it had started with it.
  void finish(Rank& rank, int status) {
    rank.running = false;
    guardian_->forget(rank.pid);
    kill_orphans_of(rank);
    for (LineReader& lines : rank.lines) {
      int left = 0;
      if (lines.fd >= 0 && ioctl(lines.fd, FIONREAD, &left) == 0) {
        for (int reads = left / LineReader::kLongestPart + 1; left > 0 && reads > 0; --reads) {
          if (lines.fd >= 0) read_lines(rank, lines);
          if (lines.fd < 0 || ioctl(lines.fd, FIONREAD, &left) != 0) break;
        }
      }
      hand_on_unfinished(rank, lines);
      close_end(lines.fd);
    }
    close_end(rank.input);
    tell('X', rank.rank, std::to_string(status));
  }

  // Kills those that left its group. They lost their parents and are children of this process now.
  void kill_orphans_of(const Rank& rank) {
    std::vector<pid_t> orphans;
    for (pid_t pid : own_children()) {
      const bool known =
          pid == guardian_->pid() || std::ranges::find(ranks_, pid, &Rank::pid) != ranks_.end();
      if (!known && began_with(pid, fmt::format("TS_RANK={}", rank.rank)) && began_with(pid, job_))
        orphans.push_back(pid);
    }
    if (orphans.empty()) return;
    for (pid_t pid : descendants(process_table(), orphans)) kill(pid, SIGKILL);
    for (pid_t pid : orphans) kill(pid, SIGKILL);
  }

  // To the groups of the ranks, and to what is below them in other groups.
  void signal_all(int signal) {
    std::vector<pid_t> groups;
    for (const Rank& rank : ranks_) {
      if (rank.running) groups.push_back(rank.pid);
    }
    for (pid_t group : groups) kill(-group, signal);
    const std::vector<ProcessEntry> table = process_table();
    const std::vector<pid_t> below = descendants(table, {getpid()}, {guardian_pid()});
    for (const ProcessEntry& entry : table) {
      if (std::ranges::find(groups, entry.group) == groups.end() &&
          std::ranges::find(below, entry.pid) != below.end())
        kill(entry.pid, signal);
    }
  }

  void terminate() {
    asked_ = true;
    signal_all(SIGTERM);
    signal_all(SIGCONT);  // a stopped one hears nothing
  }

  void hand_on(int signal) {
    for (const Rank& rank : ranks_) {
      if (rank.running && signal > 0) kill(-rank.pid, signal);
    }
  }

  // The guardian goes last.
  void end_all() {
    for (const Rank& rank : ranks_) {
      if (rank.running) kill(-rank.pid, SIGKILL);
    }
    kill_all([&] { return descendants(process_table(), {getpid()}, {guardian_pid()}); });
    guardian_.reset();
  }

  pid_t guardian_pid() const { return guardian_ ? guardian_->pid() : -1; }

  LineReader commands_;
  int events_;
  CaughtSignals signals_;
  const OpenFiles open_files_;
  const pid_t agent_ = getpid();
  RankGroup group_;
  std::string job_;     // "TS_JOB=..."
  std::string unread_;  // events that the launcher has not taken yet
  std::string input_;
  bool input_ended_ = false;
  std::deque<Rank> ranks_;
  std::unique_ptr<Guardian> guardian_;
  bool begun_ = false, asked_ = false, killing_ = false, over_ = false;
};

}  // namespace

int serve_rank_group(int commands, int events) { return Agent(commands, events).run(); }

}  // namespace tinyshard
