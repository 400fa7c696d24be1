// Figures come from the rings that ranks keep (transport/recorder), from the kernel's files of their
// processes, and from the JSON lines that a training writes: nothing asks the job itself. Texts of rings
// are another program's, so none reaches the terminal before its control characters are gone.
#include "cli/top.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <poll.h>
#include <string_view>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/gpu_temperatures.h"
#include "cli/host_figures.h"
#include "cli/rings.h"
#include "core/base/error.h"
#include "launch/caught_signals.h"
#include "transport/recorder/blame.h"
#include "transport/text_field.h"

namespace tinyshard::cli {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct TopOptions {
  std::string folder, job;
  double seconds = 1;
  bool once = false, as_json = false;
};

int64_t wall_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Without characters that a terminal obeys: those below a space, and those of ISO 6429 above 127.
std::string printable(std::string_view text) {
  std::string out(text);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto c = static_cast<unsigned char>(out[i]);
    const bool high =
        c == 0xc2 && i + 1 < out.size() && static_cast<unsigned char>(out[i + 1]) < 0xa0;
    if (c < 0x20 || c == 0x7f || high) out[i] = '?';
    if (high) out[++i] = '?';
  }
  return out;
}

std::string bytes_text(int64_t bytes) {
  if (bytes < 0) return "-";
  return bytes < int64_t{10} << 30 ? fmt::format("{:.0f} MiB", double(bytes) / (1 << 20))
                                   : fmt::format("{:.1f} GiB", double(bytes) / (1 << 30));
}

std::string time_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
}

JobFigures::Log read_log(const std::filesystem::path& path) {
  JobFigures::Log log{.path = path.string(), .numbers = {}, .steps_per_s = 0};
  const json row = json::parse(last_line(path), nullptr, false);
  if (!row.is_object()) return log;
  for (const auto& [name, value] : row.items()) {
    if (value.is_number()) log.numbers.emplace_back(name, value.get<double>());
  }
  return log;
}

// All jobs that run: those of a folder, or of all folders that processes of this user name. Adds to
// `why` what keeps others from being shown.
std::vector<JobFigures> look(const TopOptions& options, std::string& why) {
  std::vector<JobFigures> found;
  std::vector<std::string> folders = {options.folder};
  if (options.folder.empty()) {
    const auto named = folders_of_processes();
    folders.assign(named.begin(), named.end());
    if (folders.empty())
      why =
          "no job runs here: no process of yours keeps a ring. Start it with tinyshard run "
          "--log-dir DIR, or with TS_RECORD=DIR";
  }
  for (const std::string& folder : folders) {
    try {
      for (const recorder::JobRings& job : jobs_in(folder, options.job)) {
        if (job.runs()) {
          found.push_back(figures_of(job, folder, wall_ns()));
          continue;
        }
        why += fmt::format(
            "{}no job runs in {}: the last one, {}, has ended (tinyshard blame {} says how)",
            why.empty() ? "" : "\n", folder, printable(text_in(job.origin().job)), folder);
      }
    } catch (const UserError& error) {
      why += (why.empty() ? "" : "\n") + printable(error.what());
    }
  }
  return found;
}

std::vector<Temperature> all_temperatures() {
  std::vector<Temperature> all = temperatures();
  std::ranges::move(gpu_temperatures(), std::back_inserter(all));
  return all;
}

std::string temperatures_text() {
  std::string text;
  for (const Temperature& t : all_temperatures())
    text += fmt::format("{} {} {:.0f} °C", text.empty() ? "" : ",", printable(t.name), t.celsius);
  return text.empty() ? "" : "temperature:" + text + "\n";
}

// Adds steps per second to logs that were seen before.
class StepRates {
 public:
  void add(std::vector<JobFigures>& jobs) {
    for (JobFigures& job : jobs) {
      for (JobFigures::Log& log : job.logs) {
        const auto step =
            std::ranges::find(log.numbers, "step", &std::pair<std::string, double>::first);
        if (step == log.numbers.end()) continue;
        std::vector<Seen>& seen = seen_[log.path];
        if (!seen.empty() && step->second < seen.back().step) seen.clear();
        seen.push_back({Clock::now(), step->second});
        if (seen.size() > kLooks) seen.erase(seen.begin());
        const double took = std::chrono::duration<double>(seen.back().at - seen.front().at).count();
        if (took > 0) log.steps_per_s = (seen.back().step - seen.front().step) / took;
      }
    }
  }

 private:
  static constexpr size_t kLooks = 6;
  struct Seen {
    Clock::time_point at;
    double step;
  };
  std::map<std::string, std::vector<Seen>> seen_;
};

// The terminal reads keys one by one and shows another screen, until the object's end.
class Screen {
 public:
  Screen() {
    tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~tcflag_t(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    std::cout << "\x1b[?1049h\x1b[?25l" << std::flush;
  }
  ~Screen() {
    std::cout << "\x1b[?25h\x1b[?1049l" << std::flush;
    tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Shows as much of the text as there is room for.
  static void show(std::string_view text) {
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) size = {24, 80, 0, 0};
    std::string out = "\x1b[H";
    for (int line = 0; line < size.ws_row && !text.empty(); ++line) {
      const std::string_view all = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), all.size() + 1));
      out += line > 0 ? "\r\n" : "";
      out += first_columns(all, size.ws_col);
      out += "\x1b[K";
    }
    std::cout << out << "\x1b[J" << std::flush;
  }

 private:
  static std::string_view first_columns(std::string_view line, size_t columns) {
    size_t at = 0;
    for (size_t seen = 0; at < line.size(); ++at) {
      const bool begins = (static_cast<unsigned char>(line[at]) & 0xc0) != 0x80;
      if (begins && ++seen > columns) break;
    }
    return line.substr(0, at);
  }
  termios before_{};
};

// Waits for a key or a signal. True where it ends the program.
bool is_ended(const CaughtSignals& signals, int milliseconds) {
  pollfd ready[2] = {{STDIN_FILENO, POLLIN, 0}, {signals.fd(), POLLIN, 0}};
  if (poll(ready, 2, milliseconds) <= 0) return false;
  if (ready[1].revents != 0 && signals.next() != 0) return true;
  char key = 0;
  if (ready[0].revents == 0) return false;
  const ssize_t n = read(STDIN_FILENO, &key, 1);
  return n <= 0 || key == 'q' || key == 'Q' || key == 4;  // 4: end of input
}

int follow(const TopOptions& options) {
  StepRates rates;
  std::string why;
  std::vector<JobFigures> jobs = look(options, why);
  if (jobs.empty()) throw UserError("top: " + why);
  const CaughtSignals signals{SIGINT, SIGTERM, SIGHUP};
  const Screen screen;
  do {
    rates.add(jobs);
    std::string text;
    for (const JobFigures& job : jobs) text += text_of(job) + "\n";
    if (jobs.empty()) text = why + "\n\n";
    Screen::show(text + temperatures_text() + "q quits");
    if (is_ended(signals, int(options.seconds * 1e3))) return EXIT_SUCCESS;
    why.clear();
    jobs = look(options, why);
  } while (true);
}

int once(const TopOptions& options) {
  std::string why;
  const std::vector<JobFigures> jobs = look(options, why);
  if (jobs.empty()) throw UserError("top: " + why);
  if (options.as_json) {
    std::cout << json_of(jobs) << '\n';
    return EXIT_SUCCESS;
  }
  for (const JobFigures& job : jobs) std::cout << text_of(job) << '\n';
  std::cout << temperatures_text();
  return EXIT_SUCCESS;
}

}  // namespace

JobFigures figures_of(const recorder::JobRings& job, const std::string& folder, int64_t now_ns) {
  JobFigures figures{.name = std::string(text_in(job.origin().job)),
                     .program = std::string(text_in(job.origin().program)),
                     .folder = folder,
                     .ranks = {},
                     .logs = {},
                     .problems = job.problems};
  const std::vector<recorder::RankActivity> activities = recorder::activities(job.rings, now_ns);
  for (size_t i = 0; i < job.rings.size(); ++i) {
    const recorder::RankRing& ring = job.rings[i];
    JobFigures::Rank rank{.rank = ring.rank(),
                          .pid = ring.origin.pid,
                          .host = std::string(text_in(ring.origin.host)),
                          .state = recorder::state_of(ring, now_ns),
                          .does = recorder::what_rank_does(ring, now_ns),
                          .activity = activities[i]};
    // A number of a process means that process only here, and only while it is there.
    if (ring.process == recorder::ProcessState::Runs ||
        ring.process == recorder::ProcessState::Stopped) {
      rank.memory = resident_bytes(rank.pid).value_or(-1);
      for (const auto& path : open_logs(rank.pid)) {
        if (std::ranges::find(figures.logs, path.string(), &JobFigures::Log::path) ==
            figures.logs.end())
          figures.logs.push_back(read_log(path));
      }
    }
    figures.ranks.push_back(std::move(rank));
  }
  figures.slowest = recorder::slowest(activities);
  return figures;
}

std::string text_of(const JobFigures& job) {
  std::string text =
      fmt::format("job {} ({}), {} rank{} in {}\n", printable(job.name), printable(job.program),
                  job.ranks.size(), job.ranks.size() == 1 ? "" : "s", printable(job.folder));
  text += fmt::format("{:>4}  {:>8}  {:<12}  {:<7}  {:>8}  {:>7}  {:>8}  {:>8}  {:>9}  {}\n",
                      "rank", "process", "host", "state", "run", "runs/s", "in calls", "late/run",
                      "memory", "does");
  for (const JobFigures::Rank& r : job.ranks) {
    const recorder::RankActivity& a = r.activity;
    text += fmt::format(
        "{:>4}  {:>8}  {:<12}  {:<7}  {:>8}  {:>7.1f}  {:>6.0f} %  {:>8}  {:>9}  {}\n", r.rank,
        r.pid, printable(r.host), r.state, a.run, a.runs_per_s, 100 * a.in_calls,
        a.calls > 0 ? time_text(a.late_per_run) : "-", bytes_text(r.memory), printable(r.does));
  }
  if (job.slowest >= 0) {
    const JobFigures::Rank& slow = job.ranks[size_t(job.slowest)];
    text += fmt::format(
        "rank {} holds the others up: it comes to collectives {} after the first rank in each "
        "run\n",
        slow.rank, time_text(slow.activity.late_per_run));
  }
  for (const JobFigures::Log& log : job.logs) {
    text += printable(log.path) + ":";
    for (const auto& [name, value] : log.numbers)
      text += fmt::format(" {} {:.6g},", printable(name), value);
    if (log.steps_per_s > 0) text += fmt::format(" {:.3g} steps/s,", log.steps_per_s);
    if (text.ends_with(',')) text.pop_back();
    text += '\n';
  }
  for (const std::string& problem : job.problems) text += printable(problem) + "\n";
  return text;
}

std::string json_of(const std::vector<JobFigures>& jobs) {
  json list = json::array();
  for (const JobFigures& job : jobs) {
    json ranks = json::array(), logs = json::array();
    for (const JobFigures::Rank& r : job.ranks) {
      json row = {{"rank", r.rank},
                  {"pid", r.pid},
                  {"host", r.host},
                  {"state", r.state},
                  {"does", r.does},
                  {"run", r.activity.run},
                  {"runs_per_s", r.activity.runs_per_s},
                  {"in_calls", r.activity.in_calls},
                  {"late_per_run_s", nullptr},
                  {"memory_bytes", nullptr}};
      if (r.activity.calls > 0) row["late_per_run_s"] = r.activity.late_per_run;
      if (r.memory >= 0) row["memory_bytes"] = r.memory;
      ranks.push_back(std::move(row));
    }
    for (const JobFigures::Log& log : job.logs) {
      json last = json::object();
      for (const auto& [name, value] : log.numbers) last[name] = value;
      logs.push_back({{"path", log.path}, {"last", std::move(last)}});
    }
    json row = {{"job", job.name},   {"program", job.program}, {"folder", job.folder},
                {"ranks", ranks},    {"logs", logs},           {"problems", job.problems},
                {"slowest", nullptr}};
    if (job.slowest >= 0) row["slowest"] = job.ranks[size_t(job.slowest)].rank;
    list.push_back(std::move(row));
  }
  json heat = json::object();
  for (const Temperature& t : all_temperatures()) heat[t.name] = t.celsius;
  return json{{"jobs", list}, {"celsius", heat}}.dump(-1, ' ', false,
                                                      json::error_handler_t::replace);
}

void add_top(CLI::App& app, int& status) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* command = app.add_subcommand(
      "top", "ranks of running jobs: runs, waits, memory, and who holds the others up; q quits");
  command->add_option("folder", options->folder,
                      "What --log-dir or TS_RECORD named; without it all jobs of this user here");
  command->add_option("--job", options->job, "Name of one job (TS_JOB)");
  command->add_option("--every", options->seconds, "Seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0));
  command->add_flag("--once", options->once, "Prints the table once, as where no terminal is");
  command->add_flag("--json", options->as_json, "Prints it once, as JSON");
  command->callback([options, &status] {
    const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
    const bool one = options->once || options->as_json || !terminal;
    status = one ? once(*options) : follow(*options);
  });
}

}  // namespace tinyshard::cli
