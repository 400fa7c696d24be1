// Who is to blame: the first rank to end badly, unless it blames a peer that ends badly, too.
// Example: rank 1 throws. Ranks 0 and 2 are told, and rank 0 ends first, with status 1 and the
// words "rank 1 left". Rank 1 ends half a second later. The summary names rank 1, and its status is
// the launcher's.
#include "launch/job.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <poll.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "launch/command_line.h"
#include "launch/rank_group.h"

namespace tinyshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLastWords{2};     // after the first failure
constexpr seconds kMayEnd{2};        // after they were asked to end
constexpr seconds kMayEndAsked{10};  // the same, when the user asked
constexpr seconds kBetweenStarts{1};
constexpr seconds kMayDie{5};  // after they were killed; a process in the kernel may take longer

int wake_end = -1;  // of the pipe that the signal handler writes to

void on_signal(int signal) {
  const int before = errno;
  const char number = char(signal);
  if (write(wake_end, &number, 1) < 0) errno = before;
  errno = before;
}

class Signals {
 public:
  Signals() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
      throw UserError(fmt::format("pipe: {}", std::strerror(errno)));
    read_end_ = ends[0];
    wake_end = ends[1];
    struct sigaction action{};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
    std::signal(SIGPIPE, SIG_IGN);
  }
  ~Signals() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
    close(read_end_);
    close(wake_end);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  int fd() const { return read_end_; }
  int next() const {  // 0: none
    char number = 0;
    return read(read_end_, &number, 1) == 1 ? number : 0;
  }

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  int read_end_ = -1;
  std::array<struct sigaction, 3> before_{};
};

struct RemoteAgent {
  Host host;
  int first_rank = 0;
  pid_t pid = -1;
  int commands = -1, events = -1;
  std::string begun;
  bool local = true;
};

struct RankState {
  enum { Waiting, Running, Ended } state = Waiting;
  int pid = -1, status = 0;
  int place = 0;  // on its host
  int blames = -1;
  bool asked = false;  // to end, before it did
  bool late = false;   // started in the place of another one, and nobody took it in any more
  std::string reason;  // as it said itself, or why it was not started
  RemoteAgent* agent = nullptr;
  std::ofstream log;
};

bool is_bad(int status) { return !(WIFEXITED(status) && WEXITSTATUS(status) == 0); }

class Job {
 public:
  explicit Job(const JobOptions& options) : options_(options) {
    for (const Host& host : options.hosts) size_ += host.ranks;
    ranks_.resize(size_t(size_));
  }

  ~Job() {
    for (RemoteAgent& agent : agents_) {
      for (int* fd : {&agent.commands, &agent.events}) {
        if (*fd >= 0) close(*fd);
      }
      if (agent.pid > 0) waitpid(agent.pid, nullptr, 0);
    }
  }

  JobResult run() {
    open_logs();
    int first = 0;
    agents_.reserve(options_.hosts.size());
    for (const Host& host : options_.hosts) {
      start_agent(host, first);
      first += host.ranks;
    }
    while (std::ranges::any_of(agents_, [](const RemoteAgent& a) { return a.events >= 0; })) {
      wait();
      for (int signal = signals_.next(); signal != 0; signal = signals_.next()) on_user(signal);
      hurry();
      replace();
      let_agents_go();
    }
    return result();
  }

 private:
  void open_logs() {
    if (options_.log_folder.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(options_.log_folder, error);
    for (int rank = 0; rank < size_; ++rank) {
      const std::string path = fmt::format("{}/rank-{}.log", options_.log_folder, rank);
      ranks_[size_t(rank)].log.open(path);
      if (!ranks_[size_t(rank)].log)
        throw UserError(fmt::format("the log {} cannot be written", path));
    }
  }

  std::vector<std::string> words_for(const Host& host) const {
    if (is_this_host(host.name)) return {options_.agent, "agent"};
    std::vector<std::string> words;
    std::stringstream shell(options_.remote_shell);
    for (std::string word; shell >> word;) words.push_back(word);
    if (words.empty()) throw UserError("the remote shell is empty");
    words.push_back(host.name);
    words.push_back(shell_word(options_.agent) + " agent");
    return words;
  }

  void start_agent(const Host& host, int first_rank) {
    RemoteAgent& agent = agents_.emplace_back();
    agent.host = host;
    agent.first_rank = first_rank;
    agent.local = is_this_host(host.name);
    std::vector<std::string> words = words_for(host);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int commands[2], events[2];
    if (pipe2(commands, O_CLOEXEC) != 0 || pipe2(events, O_CLOEXEC) != 0)
      throw UserError(fmt::format("pipe: {}", std::strerror(errno)));
    agent.pid = fork();
    if (agent.pid == 0) {
      setpgid(0, 0);  // Ctrl-C is the launcher's to hear
      for (int s : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(s, SIG_DFL);
      dup2(commands[0], STDIN_FILENO);
      dup2(events[1], STDOUT_FILENO);
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
    close(commands[0]);
    close(events[1]);
    agent.commands = commands[1];
    agent.events = events[0];
    for (int i = 0; i < host.ranks; ++i) {
      ranks_[size_t(first_rank + i)].agent = &agent;
      ranks_[size_t(first_rank + i)].place = i;
    }
    tell(agent, to_json({.command = options_.command,
                         .environment = options_.environment,
                         .folder = options_.folder,
                         .first_rank = first_rank,
                         .ranks = host.ranks,
                         .size = size_,
                         .stays = options_.most_ranks > 0,
                         .bind_cores = options_.bind_cores}));
  }

  static void tell(RemoteAgent& agent, std::string line) {
    line += '\n';
    for (std::string_view left = line; agent.commands >= 0 && !left.empty();) {
      const ssize_t n = write(agent.commands, left.data(), left.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return;  // it has ended; its events say so, too
      left.remove_prefix(size_t(n));
    }
  }

  void wait() {
    std::vector<pollfd> waits{{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
    for (const RemoteAgent& agent : agents_)
      waits.push_back({.fd = agent.events, .events = POLLIN, .revents = 0});
    int timeout = -1;
    const auto until = [&](Clock::time_point moment) {
      const auto left = std::chrono::ceil<milliseconds>(moment - Clock::now()).count();
      return int(std::clamp<int64_t>(left, 0, 10000));
    };
    if (next_step_) timeout = until(*next_step_);
    if (!places_.empty() && !done_ && !next_step_) timeout = until(next_start_);
    if (poll(waits.data(), waits.size(), timeout) <= 0) return;
    for (size_t i = 0; i < agents_.size(); ++i) {
      if (waits[i + 1].revents != 0) read_events(agents_[i]);
    }
  }

  void read_events(RemoteAgent& agent) {
    std::array<char, 16384> buffer;
    const ssize_t n = read(agent.events, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) return;
    if (n > 0) agent.begun.append(buffer.data(), size_t(n));
    size_t begin = 0;
    for (size_t end; (end = agent.begun.find('\n', begin)) != std::string::npos; begin = end + 1)
      take(agent, std::string_view(agent.begun).substr(begin, end - begin));
    agent.begun.erase(0, begin);
    if (n <= 0) lose(agent);
  }

  void take(const RemoteAgent& agent, std::string_view line) {
    const size_t space = line.find(' ', 2);
    int number = -1;
    if (line.size() < 4 || space == std::string_view::npos) return;
    std::from_chars(line.data() + 2, line.data() + space, number);
    if (number < 0 || number >= int(ranks_.size()) || ranks_[size_t(number)].agent != &agent)
      return;
    RankState& rank = ranks_[size_t(number)];
    const std::string_view rest = line.substr(space + 1);
    const auto value = [](std::string_view digits) {
      int parsed = 0;
      std::from_chars(digits.data(), digits.data() + digits.size(), parsed);
      return parsed;
    };
    switch (line[0]) {
      case 'S':
        rank.pid = value(rest);
        if (rank.state == RankState::Waiting) rank.state = RankState::Running;
        break;
      case 'O':
      case 'E':
        print(number, rest, line[0] == 'E');
        break;
      case 'B':
        rank.blames = value(rest);
        rank.reason = rest.substr(std::min(rest.find(' '), rest.size() - 1) + 1);
        break;
      case 'F':
        rank.reason = rest;
        break;
      case 'X':
        note_end(number, value(rest));
        break;
      default:
        break;
    }
  }

  void note_end(int number, int status) {
    RankState& rank = ranks_[size_t(number)];
    if (rank.state == RankState::Ended) return;
    rank.state = RankState::Ended;
    rank.status = status;
    rank.asked = asked_;
    ended_.push_back(number);
    if (options_.on_end) options_.on_end(number, describe(number));
    if (!is_bad(status) && !std::exchange(done_, true) && options_.on_done) options_.on_done();
    if (!is_bad(status) || next_step_) return;
    rank.late = done_ && number >= size_ && options_.has_joined && !options_.has_joined(number);
    if (rank.late) return;
    if (!goes_on() || !anyone_trains()) return schedule(Step::Ask, kLastWords);
    say(fmt::format("{}; {} of {} go on", describe(number), int(ranks_.size()) - lost(), size_));
    if (options_.most_ranks > 0 && !done_) places_.push_back(number);
  }

  int lost() const {
    return int(std::ranges::count_if(ranks_, [](const RankState& rank) {
      return rank.state == RankState::Ended && is_bad(rank.status) && !rank.late;
    }));
  }
  // Whether the ranks that have not failed may do without those that have.
  bool goes_on() const {
    return options_.least_ranks > 0 && int(ranks_.size()) - lost() >= options_.least_ranks;
  }

  // Ranks that were started later have nothing until the others take them in.
  bool anyone_trains() const {
    for (int number = 0; number < int(ranks_.size()); ++number) {
      if (ranks_[size_t(number)].state == RankState::Ended) continue;
      if (number < size_ || !options_.has_joined || options_.has_joined(number)) return true;
    }
    return done_;
  }

  // Starts a rank in the place of one that was lost, one a second: a program that cannot begin must
  // not keep the others busy.
  void replace() {
    while (!places_.empty() && !done_ && !next_step_ && Clock::now() >= next_start_) {
      const RankState& lost_one = ranks_[size_t(places_.front())];
      RemoteAgent* at = lost_one.agent;
      const int place = lost_one.place, number = int(ranks_.size());
      places_.pop_front();
      if (at->events < 0 || number - lost() >= options_.most_ranks) continue;
      RankState& rank = ranks_.emplace_back();
      rank.agent = at;
      rank.place = place;
      if (!options_.log_folder.empty())
        rank.log.open(fmt::format("{}/rank-{}.log", options_.log_folder, number));
      tell(*at, fmt::format("start {} {}", number, place));
      next_start_ = Clock::now() + kBetweenStarts;
    }
  }

  // Agents that stay wait for the end of their commands.
  void let_agents_go() {
    if (options_.most_ranks == 0 || (!places_.empty() && !done_ && !next_step_)) return;
    if (!std::ranges::all_of(ranks_,
                             [](const RankState& r) { return r.state == RankState::Ended; }))
      return;
    for (RemoteAgent& agent : agents_) {
      if (agent.commands >= 0) close(std::exchange(agent.commands, -1));
    }
  }

  // The agent has ended. What it has left running here is killed from here; elsewhere the kernel
  // does that.
  void lose(RemoteAgent& agent) {
    close(std::exchange(agent.events, -1));
    if (agent.commands >= 0) close(std::exchange(agent.commands, -1));
    int status = 0;
    waitpid(std::exchange(agent.pid, -1), &status, 0);
    for (size_t number = 0; number < ranks_.size(); ++number) {
      RankState& rank = ranks_[number];
      if (rank.agent != &agent || rank.state == RankState::Ended) continue;
      if (rank.pid > 0 && agent.local) kill(-rank.pid, SIGKILL);
      if (rank.reason.empty()) {
        rank.reason = agent.local ? "its agent has ended"
                                  : fmt::format("its agent on {} has ended, {}", agent.host.name,
                                                ending(status));
      }
      note_end(int(number), SIGKILL);
    }
  }

  // What happens next to those that still run.
  enum class Step { Ask, Kill, Leave };
  void schedule(Step step, Clock::duration after) {
    step_ = step;
    next_step_ = Clock::now() + after;
  }
  void hurry() {
    if (!next_step_ || Clock::now() < *next_step_) return;
    if (step_ == Step::Ask) {
      tell_all("terminate");
      schedule(Step::Kill, kMayEnd);
    } else if (step_ == Step::Kill) {
      tell_all("kill");
      schedule(Step::Leave, kMayDie);
    } else {
      for (RemoteAgent& agent : agents_) {
        if (agent.events < 0) continue;
        kill(agent.pid, SIGKILL);
        lose(agent);
      }
    }
  }
  void tell_all(const char* command) {
    asked_ = true;
    for (RemoteAgent& agent : agents_) tell(agent, command);
  }

  void on_user(int signal) {
    if (interrupted_ == 0) {
      interrupted_ = signal;
      say(fmt::format("{}: asking the ranks to end; once more kills them", strsignal(signal)));
      tell_all("terminate");
      schedule(Step::Kill, kMayEndAsked);
    } else {
      tell_all("kill");
      schedule(Step::Leave, kMayDie);
    }
  }

  void say(const std::string& text) const { fmt::print(stderr, "tinyshard run: {}\n", text); }

  void print(int number, std::string_view text, bool error) {
    RankState& rank = ranks_[size_t(number)];
    if (rank.log.is_open()) rank.log << text << std::endl;
    FILE* to = error ? stderr : stdout;
    if (!options_.prefix) {
      fmt::print(to, "{}\n", text);
    } else if (options_.color) {
      constexpr std::array kColors = {36, 33, 35, 32, 34, 31};
      fmt::print(to, "\033[{}m[{}]\033[0m {}\n", kColors[size_t(number) % kColors.size()], number,
                 text);
    } else {
      fmt::print(to, "[{}] {}\n", number, text);
    }
    std::fflush(to);
  }

  static std::string ending(int status) {
    if (WIFSIGNALED(status))
      return fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return fmt::format("with status {}", WEXITSTATUS(status));
  }

  std::string describe(int number) const {
    const RankState& rank = ranks_[size_t(number)];
    const std::string host = rank.agent->local ? own_host_name() : rank.agent->host.name;
    const std::string who = rank.pid > 0
                                ? fmt::format("rank {} (process {} on {})", number, rank.pid, host)
                                : fmt::format("rank {} on {}", number, host);
    return fmt::format("{} has ended, {}{}{}", who, ending(rank.status),
                       rank.reason.empty() ? "" : ": ", rank.reason);
  }

  // The rank that ended badly first, or whom it blames, as far as that one ended badly, too, and by
  // itself.
  int culprit() const {
    const auto first =
        std::ranges::find_if(ended_, [&](int rank) { return is_bad(ranks_[size_t(rank)].status); });
    if (first == ended_.end()) return -1;
    int rank = *first;
    for (size_t steps = 0; steps < ranks_.size(); ++steps) {
      const int next = ranks_[size_t(rank)].blames;
      if (next < 0 || next >= int(ranks_.size())) break;
      if (!is_bad(ranks_[size_t(next)].status) || ranks_[size_t(next)].asked) break;
      rank = next;
    }
    return rank;
  }

  JobResult result() const {
    JobResult result;
    result.interrupted = interrupted_ != 0;
    const int rank = culprit();
    if (interrupted_ != 0) {
      result.status = 128 + interrupted_;
      result.summary = fmt::format("ended by {}", strsignal(interrupted_));
    } else if (rank >= 0 && goes_on() && !asked_) {
      result.summary =
          fmt::format("{} of {} ranks were lost, the others ended well", lost(), ranks_.size());
    } else if (rank >= 0) {
      const int status = ranks_[size_t(rank)].status;
      result.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      result.summary = describe(rank);
    }
    return result;
  }

  const JobOptions& options_;
  Signals signals_;
  int size_ = 0;
  std::vector<RemoteAgent> agents_;
  std::deque<RankState> ranks_;  // those started later behind the others
  std::vector<int> ended_;       // in their order
  std::deque<int> places_;       // of ranks that were lost, for others to take
  Clock::time_point next_start_{};
  bool done_ = false;  // a rank has ended well
  std::optional<Clock::time_point> next_step_;
  Step step_ = Step::Ask;
  bool asked_ = false;
  int interrupted_ = 0;
};

}  // namespace

JobResult run_job(const JobOptions& options) { return Job(options).run(); }

}  // namespace tinyshard
