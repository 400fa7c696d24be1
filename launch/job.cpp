// Who is to blame: the first rank to end badly, unless it blames a peer that ends badly, too.
// Example: rank 1 throws. Ranks 0 and 2 are told, and rank 0 ends first, with status 1 and the
// words "rank 1 left". Rank 1 ends half a second later. The summary names rank 1, and its status is
// the launcher's.
#include "launch/job.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <optional>
#include <poll.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "launch/caught_signals.h"
#include "launch/command_line.h"
#include "launch/descendants.h"
#include "launch/job_input.h"
#include "launch/job_logs.h"
#include "launch/job_output.h"
#include "launch/open_files.h"
#include "launch/rank_group.h"
#include "launch/rank_process.h"
#include "launch/remote_agent.h"

namespace tinyshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLastWords{2};  // after the first failure
constexpr seconds kMayEnd{2};     // after they were asked to end for it
constexpr seconds kBetweenStarts{1};
constexpr seconds kMayDie{5};  // after they were killed; a process in the kernel may take longer
constexpr milliseconds kBeyondGrace{200};  // a rank ends itself when its time is over
constexpr milliseconds kSameWish{500};     // signals so close together are one
constexpr milliseconds kBetweenLooks{20};  // at an output that is full

struct RankState {
  enum { Waiting, Running, Ended } state = Waiting;
  int pid = -1, status = 0;
  int place = 0;  // on its host
  int blames = -1;
  milliseconds grace{0};  // that its program asked for
  bool asked = false;     // to end, before it did
  bool late = false;      // started in the place of another one, and nobody took it in any more
  std::string reason;     // as it said itself, or why it was not started
  RemoteAgent* agent = nullptr;
};

bool is_bad(int status) { return !(WIFEXITED(status) && WEXITSTATUS(status) == 0); }

// The signal by which somebody told a rank to end, as far as its end shows that; else 0. A shell gives
// the signal of the program below it as a status.
int told_by(int status) {
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP ? signal : 0;
}

class Job {
 public:
  explicit Job(const JobOptions& options)
      : options_(options),
        signals_({SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU}),
        output_(*options.output, options.prefix, options.color),
        others_(own_children()) {
    for (const Host& host : options.hosts) size_ += host.ranks;
    ranks_.resize(size_t(size_));
    logs_.emplace(options.log_folder, size_, options.attempt,
                  [this](const std::string& text) { output_.say(text); });
    adopt_orphans();
  }

  JobResult run() {
    int first = 0;
    for (const Host& host : options_.hosts) {
      start_agent(host, first);
      first += host.ranks;
    }
    while (std::ranges::any_of(agents_, &RemoteAgent::lives)) {
      wait();
      for (int signal = signals_.next(); signal != 0; signal = signals_.next()) on_signal(signal);
      hurry();
      replace();
      let_agents_go();
    }
    return result();
  }

 private:
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
    RemoteAgent& agent =
        agents_.emplace_back(host, first_rank, words_for(host), signals_, open_files_);
    for (int i = 0; i < host.ranks; ++i) {
      RankState& rank = ranks_[size_t(first_rank) + size_t(i)];
      rank.agent = &agent;
      rank.place = i;
    }
    agent.tell(to_json({.command = options_.command,
                        .environment = options_.environment,
                        .folder = options_.folder,
                        .first_rank = first_rank,
                        .ranks = host.ranks,
                        .size = size_,
                        .stays = options_.most_ranks > 0,
                        .bind_cores = options_.bind_cores}));
  }

  void wait() {
    // Ranks wait while nobody reads; once they are to end, their lines are dropped instead.
    const bool reads = asked_ || !options_.output->is_full();
    std::vector<pollfd> waits{{.fd = signals_.fd(), .events = POLLIN, .revents = 0},
                              {.fd = input_.fd(), .events = POLLIN, .revents = 0},
                              {.fd = options_.output->failures(), .events = POLLIN, .revents = 0}};
    for (const RemoteAgent& agent : agents_) {
      waits.push_back({.fd = reads ? agent.events() : -1, .events = POLLIN, .revents = 0});
      waits.push_back({.fd = agent.commands(), .events = POLLOUT, .revents = 0});
    }
    int timeout = reads ? -1 : int(kBetweenLooks.count());
    const auto until = [&](Clock::time_point moment) {
      const auto left = std::chrono::ceil<milliseconds>(moment - Clock::now()).count();
      timeout = std::min(timeout < 0 ? 10000 : timeout, int(std::clamp<int64_t>(left, 0, 10000)));
    };
    if (next_step_) until(*next_step_);
    if (!places_.empty() && !done_ && !next_step_) until(next_start_);
    if (poll(waits.data(), waits.size(), timeout) <= 0) return;
    if (waits[1].revents != 0) hand_on_input();
    if (waits[2].revents != 0) hear_output();
    size_t at = 3;
    for (RemoteAgent& agent : agents_) {
      const short events = waits[at++].revents, commands = waits[at++].revents;
      if (commands != 0) agent.flush();
      if (events == 0 || !agent.lives()) continue;
      if (!agent.read([&](std::string_view line) { take(agent, line); })) lose(agent);
    }
  }

  // A reader that quits ends the job, as it ends a program that prints: a signal tells that, and is
  // ignored where somebody said so.
  void hear_output() {
    while (const auto failure = options_.output->next_failure()) {
      if (failure->error != EPIPE) {
        output_.say(failure->text());
      } else if (failure->fd == STDOUT_FILENO && !asked_ && !signals_.was_ignored(SIGPIPE)) {
        told_ = "ended, as nobody reads its output any more";
        tell_to_end(SIGPIPE);
      }
    }
  }

  void hand_on_input() {
    const std::optional<std::string> text = input_.read();
    if (text && text->empty()) return;
    agents_.front().tell(text ? "input " + escaped(*text) : "end-input");
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
      case 'A':
        on_user(value(rest));
        break;
      case 'S':
        rank.pid = value(rest);
        if (rank.state == RankState::Waiting) rank.state = RankState::Running;
        break;
      case 'O':
      case 'E':
      case 'o':
      case 'e':
        print(number, rest, line[0] == 'E' || line[0] == 'e', line[0] == 'O' || line[0] == 'E');
        break;
      case 'I':
        input_.note_taken(value(rest));
        break;
      case 'G':
        rank.grace = milliseconds(value(rest));
        report_to_agent(fmt::format("G {}", (rank.grace + kBeyondGrace).count()));  // job in a job
        if (step_ == Step::Kill && next_step_) schedule(Step::Kill, kill_at() - Clock::now());
        break;
      case 'T':
        if (!asked_ && !goes_on_without(1)) {
          told_ = fmt::format("rank {} was told to end: {}", number, strsignal(value(rest)));
          tell_to_end(value(rest));
        }
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
    output_.end_rank(number);
    if (options_.on_end) options_.on_end(number, describe(number));
    if (!is_bad(status) && !std::exchange(done_, true) && options_.on_done) options_.on_done();
    if (!is_bad(status) || next_step_) return;
    rank.late = done_ && number >= size_ && options_.has_joined && !options_.has_joined(number);
    if (rank.late) return;
    if (!goes_on() || !anyone_trains()) {
      // Somebody wants the job to end: there is nobody to blame, and nothing to be said about it.
      if (const int signal = asked_ ? 0 : told_by(status)) {
        told_ = describe(number);
        return tell_to_end(signal);
      }
      return schedule(Step::Ask, kLastWords);
    }
    output_.say(
        fmt::format("{}; {} of {} go on", describe(number), int(ranks_.size()) - lost(), size_));
    if (options_.most_ranks > 0 && !done_) places_.push_back(number);
  }

  int lost() const {
    return int(std::ranges::count_if(ranks_, [](const RankState& rank) {
      return rank.state == RankState::Ended && is_bad(rank.status) && !rank.late;
    }));
  }
  // Returns whether the ranks that have not failed may do without those that have.
  bool goes_on() const { return goes_on_without(0); }
  bool goes_on_without(int more) const {
    return options_.least_ranks > 0 && int(ranks_.size()) - lost() - more >= options_.least_ranks;
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
      if (!at->lives() || number - lost() >= options_.most_ranks) continue;
      RankState& rank = ranks_.emplace_back();
      rank.agent = at;
      rank.place = place;
      logs_->add_rank(number);
      at->tell(fmt::format("start {} {}", number, place));
      next_start_ = Clock::now() + kBetweenStarts;
    }
  }

  // Agents that stay wait for the end of their commands.
  void let_agents_go() {
    if (options_.most_ranks == 0 || (!places_.empty() && !done_ && !next_step_)) return;
    if (!std::ranges::all_of(ranks_,
                             [](const RankState& r) { return r.state == RankState::Ended; }))
      return;
    for (RemoteAgent& agent : agents_) agent.close_commands();
  }

  // The agent has ended. What it has left running here is killed from here; elsewhere its guardian
  // and the kernel do that.
  void lose(RemoteAgent& agent) {
    const int status = agent.bury();
    if (agent.is_local()) kill_all([&] { return left_behind(); });
    const int left = int(std::ranges::count_if(ranks_, [&](const RankState& rank) {
      return rank.agent == &agent && rank.state != RankState::Ended;
    }));
    // It may be told before it has its handlers.
    if (left > 0 && !asked_ && told_by(status) != 0 && !goes_on_without(left)) {
      told_ = fmt::format("the agent on {} was told to end: {}", agent.host().name,
                          strsignal(told_by(status)));
      tell_to_end(told_by(status));
    }
    for (size_t number = 0; number < ranks_.size(); ++number) {
      RankState& rank = ranks_[number];
      if (rank.agent != &agent || rank.state == RankState::Ended) continue;
      if (rank.reason.empty()) {
        rank.reason = agent.is_local() ? "its agent has ended"
                                       : fmt::format("its agent on {} has ended, {}",
                                                     agent.host().name, ending(status));
      }
      note_end(int(number), SIGKILL);
    }
  }

  // The processes below this one that no agent has: an agent that was killed left them.
  std::vector<pid_t> left_behind() const {
    std::vector<pid_t> spared = others_;
    for (const RemoteAgent& agent : agents_) {
      if (agent.pid() > 0) spared.push_back(agent.pid());
    }
    return descendants(process_table(), {getpid()}, spared);
  }

  // The next step against ranks that still run.
  enum class Step { Ask, Kill, Leave };
  void schedule(Step step, Clock::duration after) {
    step_ = step;
    next_step_ = Clock::now() + after;
  }
  void hurry() {
    if (!next_step_ || Clock::now() < *next_step_) return;
    if (step_ == Step::Ask) {
      ask(kMayEnd);
    } else if (step_ == Step::Kill) {
      kill_ranks();
    } else {
      for (RemoteAgent& agent : agents_) {
        if (!agent.lives()) continue;
        kill(agent.pid(), SIGKILL);
        lose(agent);
      }
    }
  }
  void tell_all(const std::string& command) {
    for (RemoteAgent& agent : agents_) agent.tell(command);
  }

  void ask(milliseconds time) {
    asked_ = true;
    time_ = time;
    asked_at_ = Clock::now();
    tell_all("terminate");
    schedule(Step::Kill, kill_at() - asked_at_);
  }
  void kill_ranks() {
    asked_ = true;
    tell_all("kill");
    schedule(Step::Leave, kMayDie);
  }
  // A program may have asked for more time than others get, also after it was asked to end.
  Clock::time_point kill_at() const {
    milliseconds time = time_;
    for (const RankState& rank : ranks_) {
      if (rank.state != RankState::Ended && rank.grace > milliseconds(0))
        time = std::max(time, rank.grace + kBeyondGrace);
    }
    return asked_at_ + time;
  }

  void on_signal(int signal) {
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return on_user(signal);
    if (signal != SIGCHLD) tell_all(fmt::format("signal {}", signal));
  }

  void on_user(int signal) {
    // Batch systems tell each process of a job, so that one wish comes from here and from agents.
    if (interrupted_ != 0 && Clock::now() - asked_at_ < kSameWish) return;
    if (interrupted_ != 0) return kill_ranks();
    output_.say(
        fmt::format("{}: asking the ranks to end; once more kills them", strsignal(signal)));
    tell_to_end(signal);
  }

  void tell_to_end(int signal) {
    interrupted_ = signal;
    ask(options_.grace);
  }

  void print(int number, std::string_view text, bool error, bool line_ends) {
    logs_->write(number, text, line_ends);
    if (asked_ && options_.output->is_full()) return;
    output_.print(number, text, error, line_ends);
  }

  static std::string ending(int status) {
    if (WIFSIGNALED(status))
      return fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return fmt::format("with status {}", WEXITSTATUS(status));
  }

  std::string describe(int number) const {
    const RankState& rank = ranks_[size_t(number)];
    const std::string host = rank.agent->is_local() ? own_host_name() : rank.agent->host().name;
    if (rank.pid <= 0 && !rank.reason.empty() && rank.state == RankState::Ended)
      return fmt::format("rank {} on {} was not started: {}", number, host, rank.reason);
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
      result.summary = told_.empty() ? fmt::format("ended by {}", strsignal(interrupted_)) : told_;
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
  const CaughtSignals signals_;
  const OpenFiles open_files_;
  JobOutput output_;
  std::optional<JobLogs> logs_;
  JobInput input_;
  std::vector<pid_t> others_;  // children that this process had before
  int size_ = 0;
  std::deque<RemoteAgent> agents_;
  std::deque<RankState> ranks_;  // those started later behind the others
  std::vector<int> ended_;       // in their order
  std::deque<int> places_;       // of ranks that were lost, for others to take
  Clock::time_point next_start_{};
  bool done_ = false;  // a rank has ended well
  std::optional<Clock::time_point> next_step_;
  Step step_ = Step::Ask;
  Clock::time_point asked_at_{};
  milliseconds time_{0};  // that they have since then
  bool asked_ = false;
  int interrupted_ = 0;  // the signal by which the job was told to end
  std::string told_;     // which rank was, where it was not the launcher
};

}  // namespace

JobResult run_job(const JobOptions& options) { return Job(options).run(); }

}  // namespace tinyshard
