// The rate is taken from the last eight seconds. Each piece of the line
// has a weight: while the line is too long for the terminal the lightest
// piece goes, of equal ones the last, and the bar takes what room is left.
#include "report/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <ostream>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

namespace tinyshard {
namespace {

constexpr int kStderr = 2;
constexpr double kRateWindow = 8;  // seconds of recent work that the rate is taken from
constexpr int kMaxBar = 40, kMinBar = 8;
constexpr int kGoodBar = 14;  // worth more than the rate

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The terminal that stderr leads to, for asking its width: stderr itself or, under mpirun, the
// launcher's stderr. mpirun gives its ranks pipes, so a rank on the same machine looks at its
// parent.
int terminal_of_stderr() {
  if (::isatty(kStderr)) return ::dup(kStderr);
  struct stat info;
  const bool pipe = ::fstat(kStderr, &info) == 0 && S_ISFIFO(info.st_mode);
  if (!pipe || std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return -1;
  const std::string path = fmt::format("/proc/{}/fd/2", ::getppid());
  if (::stat(path.c_str(), &info) != 0 || !S_ISCHR(info.st_mode)) return -1;
  const int fd = ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (fd >= 0 && !::isatty(fd)) {
    ::close(fd);
    return -1;
  }
  return fd;
}

bool speaks_utf8() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(variable);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view text = value;
    return text.find("UTF-8") != text.npos || text.find("utf8") != text.npos ||
           text.find("utf-8") != text.npos;
  }
  return false;
}

// Columns that UTF-8 text takes, wide characters not considered.
int columns_of(std::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string cut_to(std::string_view text, int columns) {
  size_t end = 0;
  for (int used = 0; end < text.size(); ++end) {
    if ((text[end] & 0xc0) != 0x80 && ++used > columns) break;
  }
  return std::string(text.substr(0, end));
}

// Text that cannot break the line: control characters become spaces.
std::string one_line(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return out;
}

}  // namespace

struct Progress::State {
  struct Field {
    std::string name, text;
  };
  struct Sample {
    double time;
    int64_t done;
  };

  std::string label;
  int64_t total;
  ProgressOptions options;
  int terminal = -1;  // asked for its width
  bool bar = false, unicode = false;
  std::vector<Field> fields;
  std::deque<Sample> samples;
  double began = 0, drawn = 0;
  bool finished = false;

  State(const std::string& name, int64_t all, ProgressOptions given)
      : label(one_line(name)), total(all), options(std::move(given)) {
    if (!options.clock) options.clock = steady_seconds;
    const char* term = std::getenv("TERM");
    const bool dumb = term != nullptr && std::strcmp(term, "dumb") == 0;
    if (options.stream == nullptr && !dumb) terminal = terminal_of_stderr();
    bar = options.terminal.value_or(terminal >= 0);
    unicode = options.unicode.value_or(speaks_utf8());
    began = drawn = options.clock();
    samples.push_back({began, options.start});
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (terminal >= 0) ::close(terminal);
  }

  int width() const {
    if (options.width) return options.width();
    winsize size{};
    if (terminal >= 0 && ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
      return size.ws_col;
    }
    return 80;
  }

  void put(std::string_view text) const {
    if (options.stream != nullptr) {
      *options.stream << text << std::flush;
      return;
    }
    while (!text.empty()) {
      const ssize_t done = ::write(kStderr, text.data(), text.size());
      if (done <= 0) return;
      text.remove_prefix(static_cast<size_t>(done));
    }
  }

  void sample(double now, int64_t done) {
    samples.push_back({now, done});
    while (samples.size() > 2 && samples[1].time <= now - kRateWindow) samples.pop_front();
  }
  double rate() const {
    const double time = samples.back().time - samples.front().time;
    return time > 0 ? static_cast<double>(samples.back().done - samples.front().done) / time : 0;
  }

  std::string count(int64_t done) const {
    return total < 0 ? fmt::format("{} {}", done, options.unit) : fmt::format("{}/{}", done, total);
  }
  std::string percent(int64_t done) const {
    // Rounded down: 100% means all.
    const double share =
        total <= 0 ? 1 : std::clamp(static_cast<double>(done) / static_cast<double>(total), 0., 1.);
    return fmt::format("{:3.0f}%", std::floor(100 * share));
  }
  std::string speed(double per_second) const {
    if (!(per_second > 0)) return {};
    if (per_second < 0.1) return fmt::format("{:.1f} s/{}", 1 / per_second, options.unit);
    // Three figures, so that the line does not jump.
    const int digits = per_second >= 99.95 ? 0 : per_second >= 9.995 ? 1 : 2;
    return per_second >= 9999.5 ? fmt::format("{} {}/s", short_number(per_second), options.unit)
                                : fmt::format("{:.{}f} {}/s", per_second, digits, options.unit);
  }
  std::string left(int64_t done) const {
    if (total < 0 || done >= total || rate() <= 0) return {};
    return short_time(static_cast<double>(total - done) / rate()) + " left";
  }

  std::string bar_of(int64_t done, int columns) const {
    const double share =
        total <= 0 ? 1 : std::clamp(static_cast<double>(done) / static_cast<double>(total), 0., 1.);
    std::string text;
    if (unicode) {
      static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
      const int eighths = static_cast<int>(share * 8 * (columns - 2));
      for (int i = 0; i < eighths / 8; ++i) text += "█";
      text += kEighths[eighths % 8];
      text.append(static_cast<size_t>(columns - 2 - columns_of(text)), ' ');
      return "▕" + text + "▏";
    }
    const int full = static_cast<int>(share * (columns - 2));
    text.assign(static_cast<size_t>(full), '=');
    if (full < columns - 2) text += full > 0 || done > 0 ? ">" : " ";
    text.append(static_cast<size_t>(columns - 2) - text.size(), ' ');
    return "[" + text + "]";
  }

  // The pieces of the line in their order; when the terminal is narrow those of the lowest weight
  // go.
  std::string line(int64_t done) const {
    struct Piece {
      std::string text;
      int weight;
    };
    constexpr int kRateWeight = 50;
    std::vector<Piece> pieces;
    auto add = [&](std::string text, int weight) {
      if (!text.empty()) pieces.push_back({std::move(text), weight});
    };
    add(label, 100);
    if (total >= 0) add(percent(done), 95);
    const size_t bar_at = pieces.size();
    add(count(done), total < 0 ? 95 : 60);
    add(speed(rate()), kRateWeight);
    add(left(done), 80);
    int weight = 90;
    for (const Field& field : fields) {
      add(field.name + " " + field.text, weight);
      weight = 70;
    }
    const int room = width() - 1;  // the last column would wrap on some terminals
    auto length = [&] {
      int columns = 2 * (static_cast<int>(pieces.size()) - 1);
      for (const Piece& piece : pieces) columns += columns_of(piece.text);
      return columns;
    };
    bool before_bar_intact = true;
    while (pieces.size() > 1) {
      // The last of the lightest.
      auto lightest =
          std::min_element(pieces.rbegin(), pieces.rend(),
                           [](const Piece& a, const Piece& b) { return a.weight < b.weight; });
      const bool bar_fits = total < 0 || length() + 2 + kGoodBar <= room;
      if (length() <= room && (bar_fits || lightest->weight > kRateWeight)) break;
      before_bar_intact &=
          std::distance(lightest, pieces.rend()) > static_cast<std::ptrdiff_t>(bar_at);
      pieces.erase(std::next(lightest).base());
    }
    const int bar_columns = std::min(kMaxBar, room - length() - 2);
    if (total >= 0 && bar_columns >= kMinBar && before_bar_intact) {
      pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(bar_at),
                    {bar_of(done, bar_columns), 0});
    }
    std::string text;
    for (const Piece& piece : pieces) text += (text.empty() ? "" : "  ") + piece.text;
    return cut_to(text, std::max(room, 0));
  }

  std::string fields_text() const {
    std::string text;
    for (const Field& field : fields) text += fmt::format(", {} {}", field.name, field.text);
    return text;
  }

  std::string plain_line(int64_t done) const {
    std::string text = fmt::format("{}: {}", label, count(done));
    if (total >= 0)
      text += fmt::format(" ({:.3})", percent(done).substr(percent(done).find_first_not_of(' ')));
    if (const std::string now = speed(rate()); !now.empty()) text += ", " + now;
    if (const std::string remaining = left(done); !remaining.empty()) text += ", " + remaining;
    return text + fields_text() + "\n";
  }

  std::string last_line(int64_t done) const {
    const double elapsed = options.clock() - began;
    const auto worked = static_cast<double>(done - options.start);
    const std::string mean = elapsed > 0 ? speed(worked / elapsed) : "";
    return fmt::format("{}: {} in {}{}{}{}\n", label, count(done), short_time(elapsed),
                       mean.empty() ? "" : ", ", mean, fields_text());
  }

  void draw(int64_t done, bool now_in_any_case) {
    const double now = options.clock();
    if (!now_in_any_case && now - drawn < (bar ? options.interval_s : options.plain_interval_s)) {
      // The rate of a plain line needs samples between the lines, too.
      if (!bar && now - samples.back().time >= options.interval_s) sample(now, done);
      return;
    }
    drawn = now;
    sample(now, done);
    put(bar ? "\r" + line(done) + "\x1b[K" : plain_line(done));
  }
};

Progress::Progress(const std::string& label, int64_t total, ProgressOptions options)
    : done_(options.start) {
  if (!options.enabled) return;
  state_ = std::make_unique<State>(label, total, std::move(options));
  if (state_->bar) state_->draw(done_, true);
}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {  // a stream that throws, a full memory: not worth ending the program
    state_.reset();
  }
}

void Progress::advance(int64_t count) { set(done_ + count); }

void Progress::set(int64_t done) {
  done_ = done;
  if (state_ && !state_->finished) state_->draw(done_, false);
}

void Progress::show(std::string_view name, double value) { show(name, short_number(value)); }

void Progress::show(std::string_view name, std::string_view text) {
  if (!state_) return;
  const std::string clean = one_line(name);
  for (State::Field& field : state_->fields) {
    if (field.name == clean) {
      field.text = one_line(text);
      return;
    }
  }
  state_->fields.push_back({clean, one_line(text)});
}

void Progress::print(std::string_view line) {
  if (!state_) return;
  const bool live = state_->bar && !state_->finished;
  state_->put(fmt::format("{}{}\n", live ? "\r\x1b[K" : "", line));
  if (live) state_->draw(done_, true);
}

void Progress::finish() {
  if (!state_ || state_->finished) return;
  state_->finished = true;
  state_->put((state_->bar ? "\r\x1b[K" : "") + state_->last_line(done_));
}

int64_t Progress::done() const { return done_; }

std::string short_number(double value) {
  const double size = std::fabs(value);
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (size >= 9999.5) {
    static constexpr const char* kUnits[] = {"k", "M", "G", "T", "P"};
    double scaled = value / 1000;
    size_t unit = 0;
    while (std::fabs(scaled) >= 999.5 && unit + 1 < std::size(kUnits)) scaled /= 1000, ++unit;
    const int digits = std::fabs(scaled) >= 99.95 ? 0 : std::fabs(scaled) >= 9.995 ? 1 : 2;
    return fmt::format("{:.{}f}{}", scaled, digits, kUnits[unit]);
  }
  if (value == std::trunc(value)) return fmt::format("{:.0f}", value);
  if (size < 1e-3) return fmt::format("{:.2e}", value);
  const int digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return fmt::format("{:.{}f}", value, digits);
}

std::string short_time(double seconds) {
  if (!(seconds < 1e9)) return "?";
  const auto whole = std::llround(std::max(seconds, 0.));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours >= 48) return fmt::format("{}d {}h", hours / 24, hours % 24);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

std::function<void(int64_t done, int64_t total)> byte_bar(const std::string& label,
                                                          ProgressOptions options) {
  options.unit = "MiB";
  return [label, options, bar = std::shared_ptr<Progress>()](int64_t done, int64_t total) mutable {
    const auto mib = [](int64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; };
    if (!bar) bar = std::make_shared<Progress>(label, mib(total), options);
    bar->set(mib(done));
    if (done >= total) bar->finish();
  };
}

}  // namespace tinyshard
