// An observer that writes lines of JSON as events end:
//
//   {"k":"head","version":1,"rank":0,"ranks":4,"start_us":1790000000000000,...}
//   {"k":"plan",...}                               core/exec/plan_record.h
//   {"k":"passes","plan":1,"ms":[["tidy",0.1]]}
//   {"k":"run","plan":1,"run":7,"t":10.5,"d":88.0,"i":[item,begin,length,...],"w":[...]}
//   {"k":"sum","plan":1,"runs":100,"items":[[item,count,sum,longest,waited]]}
//   {"k":"span","kind":"compilation","name":"kernels","t":1.0,"d":2.0}
//   {"k":"mem","t":1.5,"b":4096,"name":"w"}
//   {"k":"code","name":"LLVM of kernel k","text":"..."}
//   {"k":"cut","spans":0,"allocations":12,"code":0}     how many more there were than a file holds
//
// Times are microseconds from the begin of the file, which start_us places in Unix time.
#include "report/view_file.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/observer.h"
#include "core/base/options.h"
#include "report/view_runs.h"

namespace tinyshard {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kMostSpans = 5'000, kMostAllocations = 20'000;
constexpr size_t kMostCodeBytes = size_t{2} << 20;

// A name of the user's may be no UTF-8.
std::string text_of(const json& line) {
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace

class ViewFile::Writer : public Observer {
 public:
  Writer(const std::string& path, const ViewOptions& options)
      : options_(options),
        path_(path),
        file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666)) {
    if (file_ < 0)
      throw UserError(
          fmt::format("ViewFile: {} cannot be written: {}", path, std::strerror(errno)));
    const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
    put(text_of(
        {{"k", "head"},
         {"version", 1},
         {"rank", options.rank},
         {"ranks", options.ranks},
         {"program", program_invocation_short_name},
         {"host", host_name()},
         {"pid", int64_t(process_)},
         {"start_us", std::chrono::duration_cast<std::chrono::microseconds>(unix_time).count()}}));
    observing_ = std::make_unique<Observing>(*this);
  }
  ~Writer() override {
    observing_.reset();
    close();
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  RecordForm reads_records() const override {
    return options_.rank == 0 ? RecordForm::Graphs : RecordForm::Plan;
  }
  CodeForm reads_listings() const override {
    return options_.code && options_.rank == 0 ? CodeForm::Assembly : CodeForm::None;
  }
  bool takes_item_times() const override { return true; }
  void begin(const ObservedEvent&) override {}
  void end(const ObservedEvent& event) noexcept override {
    if (::getpid() != process_) return;
    try {
      const std::lock_guard lock(mutex_);
      if (file_ >= 0) write(event);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // Out of memory: the event is lost.
    }
  }

  void close() noexcept {
    if (::getpid() != process_) return;
    const std::lock_guard lock(mutex_);
    if (file_ < 0) return;
    try {
      for (uint64_t plan : runs_.plans()) put(runs_.sum_of(plan));
      const int spans = std::max(0, spans_ - kMostSpans),
                allocations = std::max(0, allocations_ - kMostAllocations);
      if (spans + allocations + cut_listings_ > 0)
        put(text_of({{"k", "cut"},
                     {"spans", spans},
                     {"allocations", allocations},
                     {"code", cut_listings_}}));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // Out of memory: the last sums are lost.
    }
    if (file_ >= 0) ::close(std::exchange(file_, -1));
  }

 private:
  double us_of(Clock::time_point t) const {
    return std::chrono::duration<double, std::micro>(t - start_).count();
  }

  void write(const ObservedEvent& event) {
    switch (event.kind) {
      case EventKind::Pass:
      case EventKind::ScheduleStep:
        passes_[std::this_thread::get_id()].push_back({event.name, event.processor_ms});
        return;
      case EventKind::Record:
        return write_plan(event);
      case EventKind::Launch:
      case EventKind::Copy:
      case EventKind::Collective:
      case EventKind::Wait:
        return;  // a run has its items
      case EventKind::Run:
        if (const std::string line = runs_.add(event, start_); !line.empty()) put(line);
        return;
      case EventKind::Compilation:
      case EventKind::Load:
      case EventKind::Tuning:
        return write_span(event);
      case EventKind::Allocation:
        return write_allocation(event);
      case EventKind::Listing:
        return write_code(event);
      case EventKind::Reshard:  // a plan's record has them
        return;
    }
  }

  // The record is an object already: only its kind is put in front.
  void write_plan(const ObservedEvent& event) {
    put(R"({"k":"plan",)" + event.after.substr(1));
    std::vector<std::pair<std::string, double>>& passes = passes_[std::this_thread::get_id()];
    json list = json::array();
    for (const auto& [name, ms] : passes) list.push_back({name, ms});
    passes.clear();
    put(text_of({{"k", "passes"}, {"plan", event.plan}, {"ms", std::move(list)}}));
  }

  void write_span(const ObservedEvent& event) {
    if (++spans_ > kMostSpans) return;
    json line = {{"k", "span"},
                 {"kind", name(event.kind)},
                 {"name", event.name},
                 {"t", us_of(event.begun)},
                 {"d", std::chrono::duration<double, std::micro>(event.took).count()}};
    if (!event.after.empty()) line["after"] = event.after;
    if (event.failed) line["failed"] = true;
    put(text_of(line));
  }

  void write_allocation(const ObservedEvent& event) {
    if (++allocations_ > kMostAllocations) return;
    put(text_of(
        {{"k", "mem"}, {"t", us_of(event.begun)}, {"b", event.bytes}, {"name", event.name}}));
  }

  void write_code(const ObservedEvent& event) {
    code_bytes_ += event.after.size();
    if (code_bytes_ > kMostCodeBytes) {
      ++cut_listings_;
      return;
    }
    put(text_of({{"k", "code"}, {"name", event.name}, {"text", event.after}}));
  }

  // Each line goes to the file in one write. A full disk costs the events from here on, not the program.
  void put(std::string line) {
    line += '\n';
    std::string_view text = line;
    while (file_ >= 0 && !text.empty()) {
      const ssize_t n = ::write(file_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        log_line(fmt::format("{}: {}; what the program did from here on is not in it", path_,
                             std::strerror(errno)));
        ::close(std::exchange(file_, -1));
        return;
      }
      text.remove_prefix(size_t(n));
    }
  }

  const ViewOptions options_;
  const std::string path_;
  const pid_t process_ = ::getpid();
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;  // of all below
  int file_;
  ViewRuns runs_;
  std::unordered_map<std::thread::id, std::vector<std::pair<std::string, double>>> passes_;
  int spans_ = 0, allocations_ = 0, cut_listings_ = 0;
  size_t code_bytes_ = 0;
  std::unique_ptr<Observing> observing_;
};

ViewFile::ViewFile(const std::string& path, const ViewOptions& options)
    : writer_(std::make_unique<Writer>(path, options)) {}
ViewFile::~ViewFile() = default;

void ViewFile::finish() noexcept { writer_->close(); }

void follow_view_option(int rank, int ranks) {
  struct Followed {
    std::mutex mutex;
    std::string wanted, path;
    bool tells = false;  // how to look at it
    std::unique_ptr<ViewFile> file;
  };
  static Followed& now = *new Followed;  // threads may work on while the process exits
  const std::string wanted = options().viz == "0" ? "" : options().viz;
  const std::lock_guard lock(now.mutex);
  if (wanted == now.wanted) return;
  now.file.reset();
  now.wanted.clear();
  if (wanted.empty()) return;
  const bool named = wanted != "1" && wanted != "2";
  std::filesystem::path path =
      named ? wanted : std::string(program_invocation_short_name) + ".tsview";
  if (ranks > 1) {
    const std::string ending = fmt::format(".rank{}{}", rank, path.extension().string());
    path.replace_extension();
    path += ending;
  }
  now.file = std::make_unique<ViewFile>(
      path.string(), ViewOptions{.rank = rank, .ranks = ranks, .code = wanted == "2"});
  now.wanted = wanted;
  now.path = path.string();
  now.tells = !named && ranks == 1;
  static const int at_exit = std::atexit([] {
    const std::lock_guard end(now.mutex);
    if (!now.file) return;
    now.file->finish();
    if (now.tells) log_line(fmt::format("tinyshard view {} shows what this run did", now.path));
  });
  static_cast<void>(at_exit);
}

}  // namespace tinyshard
