// Each rank is the leader of a process group, so that what a rank starts ends with it, and is
// killed by the kernel when the agent dies (PR_SET_PDEATHSIG). Example: `sh -c ./prog` is rank 1,
// and the launcher is killed. The agent reads the end of its commands and kills group by group, the
// shell and the program below it.
#include "launch/rank_group.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <hwloc.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace tinyshard {
namespace {

constexpr size_t kLongestLine = 64 << 10;  // a longer one is cut into several
constexpr size_t kMostCommand = 16 << 20;
constexpr std::string_view kStart = "start ";

// Shares of the cores that this process may use, for `ranks` ranks; empty where there are fewer
// cores than ranks.
class CoreShares {
 public:
  explicit CoreShares(int ranks) {
    if (hwloc_topology_init(&topology_) != 0) return;
    made_ = hwloc_topology_load(topology_) == 0;
    if (!made_) return;
    hwloc_obj_t root = hwloc_get_root_obj(topology_);
    const int cores = hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_CORE);
    if (cores < ranks || ranks < 2) return;
    sets_.resize(size_t(ranks));
    if (hwloc_distrib(topology_, &root, 1, sets_.data(), unsigned(ranks), INT_MAX, 0) != 0)
      sets_.clear();
  }
  ~CoreShares() {
    for (hwloc_cpuset_t set : sets_) hwloc_bitmap_free(set);
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  CoreShares(const CoreShares&) = delete;
  CoreShares& operator=(const CoreShares&) = delete;

  bool usable() const { return !sets_.empty(); }
  int cores(int rank) const {
    return hwloc_get_nbobjs_inside_cpuset_by_type(topology_, sets_[size_t(rank)], HWLOC_OBJ_CORE);
  }
  void take(int rank) const {  // a request: a host may not allow it
    hwloc_set_cpubind(topology_, sets_[size_t(rank)], HWLOC_CPUBIND_PROCESS);
  }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool made_ = false;
  std::vector<hwloc_cpuset_t> sets_;
};

struct Ends {
  int read = -1, write = -1;
};

Ends make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw UserError(fmt::format("pipe: {}", std::strerror(errno)));
  return {ends[0], ends[1]};
}

// Lines of a pipe, as they come.
struct LineReader {
  int fd = -1;
  char kind = 'O';
  std::string begun;

  // Calls take(line) for each that is complete. False at the end.
  template <class Take>
  bool read(Take&& take) {
    std::array<char, 8192> buffer;
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (n > 0) begun.append(buffer.data(), size_t(n));
    for (size_t end; (end = begun.find('\n')) != std::string::npos; begun.erase(0, end + 1))
      take(std::string_view(begun).substr(0, end));
    if (begun.size() > kLongestLine || (n <= 0 && !begun.empty())) {
      take(begun);
      begun.clear();
    }
    return n > 0;
  }
};

struct Rank {
  int rank = 0;
  pid_t pid = -1;
  int ended = -1;  // a descriptor of the process: readable when it has ended
  bool running = false;
  std::array<LineReader, 3> lines;
};

class Agent {
 public:
  Agent(int commands, int events)
      : commands_{.fd = commands, .kind = ' ', .begun = {}}, events_(events) {}

  int run() {
    bool begun = false;
    while (!over_) {
      std::vector<pollfd> waits;
      waits.push_back({.fd = commands_.fd, .events = POLLIN, .revents = 0});
      for (const Rank& rank : ranks_) {
        waits.push_back({.fd = rank.ended, .events = POLLIN, .revents = 0});
        for (const LineReader& lines : rank.lines)
          waits.push_back({.fd = lines.fd, .events = POLLIN, .revents = 0});
      }
      if (poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) break;
      // Output before ends: the last words of a rank come before the news that it has ended.
      size_t at = 1;
      for (Rank& rank : ranks_) {
        for (size_t i = 0; i < rank.lines.size(); ++i) {
          if (waits[at + 1 + i].revents != 0) read_lines(rank, rank.lines[i]);
        }
        if (waits[at].revents != 0) note_end(rank);
        at += 1 + rank.lines.size();
      }
      if (waits[0].revents != 0) {
        const bool goes_on = commands_.read([&](std::string_view line) {
          if (!std::exchange(begun, true)) return start(line);
          if (line == "terminate") {
            signal_all(SIGTERM);
            signal_all(SIGCONT);  // a stopped one hears nothing
          }
          if (line == "kill") signal_all(SIGKILL);
          if (line.starts_with(kStart)) start_one(line.substr(kStart.size()));
        });
        if (!goes_on || commands_.begun.size() > kMostCommand) {
          signal_all(SIGKILL);
          break;
        }
      }
      if (begun && !group_.stays && std::ranges::none_of(ranks_, [](const Rank& r) {
            return r.running || std::ranges::any_of(r.lines, [](auto& l) { return l.fd >= 0; });
          }))
        break;
    }
    return 0;
  }

 private:
  void tell(char kind, int rank, std::string_view text) {
    std::string line = fmt::format("{} {} {}\n", kind, rank, text);
    for (std::string_view left = line; !left.empty();) {
      const ssize_t n = write(events_, left.data(), left.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {  // nobody listens any more
        signal_all(SIGKILL);
        over_ = true;
        return;
      }
      left.remove_prefix(size_t(n));
    }
  }

  void start(std::string_view json) {
    group_ = rank_group_from_json(json);
    const CoreShares shares(group_.bind_cores ? group_.ranks : 0);
    ranks_.resize(size_t(group_.ranks));
    for (int local = 0; local < group_.ranks; ++local) {
      Rank& rank = ranks_[size_t(local)];
      rank.rank = group_.first_rank + local;
      start_rank(rank, local, shares);
    }
  }

  void start_one(std::string_view words) {
    int number = -1, place = -1;
    const char* end = words.data() + words.size();
    const auto first = std::from_chars(words.data(), end, number);
    if (first.ptr < end) std::from_chars(first.ptr + 1, end, place);
    if (number < 0 || place < 0 || place >= group_.ranks) return;
    const CoreShares shares(group_.bind_cores ? group_.ranks : 0);
    Rank& rank = ranks_.emplace_back();
    rank.rank = number;
    start_rank(rank, place, shares);
  }

  void start_rank(Rank& rank, int local, const CoreShares& shares) {
    std::vector<std::string> added = group_.environment;
    added.push_back(fmt::format("TS_RANK={}", rank.rank));
    added.push_back(fmt::format("TS_WORLD_SIZE={}", group_.size));
    added.push_back(fmt::format("TS_LOCAL_RANK={}", local));
    added.push_back(fmt::format("TS_LOCAL_SIZE={}", group_.ranks));
    const bool threads_set = getenv("TS_THREADS") != nullptr ||
                             std::ranges::any_of(group_.environment, [](const std::string& entry) {
                               return entry.starts_with("TS_THREADS=");
                             });
    if (shares.usable() && !threads_set)
      added.push_back(fmt::format("TS_THREADS={}", shares.cores(local)));
    std::vector<char*> words;
    for (std::string& word : group_.command) words.push_back(word.data());
    words.push_back(nullptr);

    const Ends output = make_pipe(), errors = make_pipe(), report = make_pipe(),
               problem = make_pipe();
    const pid_t agent = getpid();
    rank.pid = fork();
    if (rank.pid == 0) {
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != agent) _exit(127);
      sigset_t none;
      sigemptyset(&none);
      sigprocmask(SIG_SETMASK, &none, nullptr);
      for (int s : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) std::signal(s, SIG_DFL);
      const int nothing = open("/dev/null", O_RDONLY);
      dup2(nothing, STDIN_FILENO);
      dup2(output.write, STDOUT_FILENO);
      dup2(errors.write, STDERR_FILENO);
      fcntl(report.write, F_SETFD, 0);
      added.push_back(fmt::format("TS_REPORT_FD={}", report.write));
      for (std::string& entry : added) putenv(entry.data());
      if (shares.usable()) shares.take(local);
      if (group_.folder.empty() || chdir(group_.folder.c_str()) == 0)
        execvp(words[0], words.data());
      const int why = errno;
      if (write(problem.write, &why, sizeof(why)) < 0) _exit(126);
      _exit(127);
    }
    setpgid(rank.pid, rank.pid);  // whoever of the two comes first
    for (int fd : {output.write, errors.write, report.write, problem.write}) close(fd);
    rank.lines[0] = {.fd = output.read, .kind = 'O', .begun = {}};
    rank.lines[1] = {.fd = errors.read, .kind = 'E', .begun = {}};
    rank.lines[2] = {.fd = report.read, .kind = 'B', .begun = {}};
    if (rank.pid < 0) return tell('F', rank.rank, fmt::format("fork: {}", std::strerror(errno)));
    rank.running = true;
    rank.ended = int(syscall(SYS_pidfd_open, rank.pid, 0));
    int why = 0;
    if (read(problem.read, &why, sizeof(why)) == sizeof(why))
      tell('F', rank.rank, fmt::format("{}: {}", words[0], std::strerror(why)));
    close(problem.read);
    tell('S', rank.rank, std::to_string(rank.pid));
  }

  void read_lines(Rank& rank, LineReader& lines) {
    const bool goes_on =
        lines.read([&](std::string_view line) { tell(lines.kind, rank.rank, line); });
    if (goes_on) return;
    close(std::exchange(lines.fd, -1));
  }

  // Takes what it still had to say, and whatever it had started with it.
  void note_end(Rank& rank) {
    kill(-rank.pid, SIGKILL);  // before its number can become another's
    int status = 0;
    if (waitpid(rank.pid, &status, 0) != rank.pid) status = 127 << 8;
    rank.running = false;
    close(std::exchange(rank.ended, -1));
    for (LineReader& lines : rank.lines) {
      while (lines.fd >= 0) {
        pollfd ready{.fd = lines.fd, .events = POLLIN, .revents = 0};
        if (poll(&ready, 1, 0) <= 0) break;
        read_lines(rank, lines);
      }
      if (lines.fd < 0) continue;
      // Held open by one that left the group: its words are not waited for.
      close(std::exchange(lines.fd, -1));
    }
    tell('X', rank.rank, std::to_string(status));
  }

  void signal_all(int signal) {
    for (const Rank& rank : ranks_) {
      if (rank.running) kill(-rank.pid, signal);
    }
  }

  LineReader commands_;
  int events_;
  RankGroup group_;
  std::vector<Rank> ranks_;
  bool over_ = false;
};

}  // namespace

std::string to_json(const RankGroup& g) {
  return nlohmann::json{{"command", g.command},       {"environment", g.environment},
                        {"folder", g.folder},         {"first_rank", g.first_rank},
                        {"ranks", g.ranks},           {"size", g.size},
                        {"bind_cores", g.bind_cores}, {"stays", g.stays}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankGroup rank_group_from_json(std::string_view text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    RankGroup g;
    json.at("command").get_to(g.command);
    json.at("environment").get_to(g.environment);
    json.at("folder").get_to(g.folder);
    json.at("first_rank").get_to(g.first_rank);
    json.at("ranks").get_to(g.ranks);
    json.at("size").get_to(g.size);
    json.at("bind_cores").get_to(g.bind_cores);
    json.at("stays").get_to(g.stays);
    if (g.command.empty() || g.ranks < 1 || g.ranks > g.size || g.first_rank < 0 ||
        g.first_rank > g.size - g.ranks)
      throw UserError("a group of ranks that makes no sense");
    return g;
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("a group of ranks: {}", error.what()));
  }
}

int serve_rank_group(int commands, int events) {
  std::signal(SIGPIPE, SIG_IGN);
  return Agent(commands, events).run();
}

}  // namespace tinyshard
