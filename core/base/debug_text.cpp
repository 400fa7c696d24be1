// DEBUG=1 adds up what the events of a process took and tells it at the end. From DEBUG=2 on there is a line
// of the log for each event that has ended: "pass tidy   0.120 ms  48 nodes".
#include "core/base/debug_text.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>

#include <fmt/format.h>

#include "core/base/log.h"
#include "core/base/observer.h"
#include "core/base/options.h"

namespace tinyshard {
namespace {

class DebugText : public Observer {
 public:
  explicit DebugText(int level) : level_(level) {}
  ~DebugText() override {
    if (level_ > 1 || runs_.count == 0) return;
    log_line(
        fmt::format("{} runs in {:.1f} ms; {} compilations in {:.1f} ms, {:.1f} ms of passes and "
                    "scheduling",
                    runs_.count, runs_.ms, compilations_.count, compilations_.ms, passes_.ms));
  }
  int level() const { return level_; }
  bool times_items() const override { return level_ >= 2; }

  CodeForm reads_listings() const override {
    return level_ >= 6   ? CodeForm::Assembly
           : level_ == 5 ? CodeForm::Llvm
           : level_ == 4 ? CodeForm::Graph
                         : CodeForm::None;
  }

  void begin(const ObservedEvent&) override {}
  void end(const ObservedEvent& event) noexcept override {
    if (event.failed && event.kind != EventKind::Tuning) return;
    try {
      say(event, event.ms());
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // Out of memory: the line is lost.
    }
  }

 private:
  struct Sum {
    int64_t count = 0;
    double ms = 0;
  };

  void add(const ObservedEvent& event, double ms) {
    const std::lock_guard lock(mutex_);
    auto add_to = [&](Sum& sum, double more) { ++sum.count, sum.ms += more; };
    if (event.kind == EventKind::Run) add_to(runs_, ms);
    if (event.kind == EventKind::Compilation) add_to(compilations_, ms);
    if (event.kind == EventKind::Pass || event.kind == EventKind::ScheduleStep)
      add_to(passes_, event.processor_ms);
  }

  void say(const ObservedEvent& event, double ms) {
    add(event, ms);
    switch (event.kind) {
      case EventKind::Pass:
      case EventKind::ScheduleStep:
        if (level_ < 3) return;
        return log_line(fmt::format("{} {:<18} {:8.3f} ms  {}",
                                    event.kind == EventKind::Pass ? "pass" : "step", event.name,
                                    event.processor_ms, event.after));
      case EventKind::Compilation:
        if (level_ < 2) return;
        return log_line(fmt::format("compiled {} in {:.1f} ms", event.after, ms));
      case EventKind::Load:
        if (level_ < 2) return;
        return log_line(fmt::format("{} in {:.1f} ms", event.after, ms));
      case EventKind::Run:
        if (level_ < 2) return;
        return log_line(fmt::format("ran {} in {:.3f} ms", event.after, ms));
      case EventKind::Launch:
      case EventKind::Copy:
      case EventKind::Collective:
        if (level_ >= 2) log_line(fmt::format("{:9.3f} ms  {}  {}", ms, event.name, event.after));
        return;
      case EventKind::Tuning:
        if (event.after.empty()) return;  // there was nothing to choose from
        if (event.failed || level_ >= 2) log_line(fmt::format("{}: {}", event.name, event.after));
        return;
      case EventKind::Reshard:
        if (level_ >= 2) log_line("reshard " + event.name);
        return;
      case EventKind::Wait:
      case EventKind::Record:
      case EventKind::Allocation:
        return;
      case EventKind::Listing:
        for (std::string_view text = event.after; !text.empty();) {
          const size_t end = std::min(text.find('\n'), text.size());
          log_line(text.substr(0, end));
          text.remove_prefix(std::min(end + 1, text.size()));
        }
    }
  }

  const int level_;
  std::mutex mutex_;
  Sum runs_, compilations_, passes_;
};

}  // namespace

void follow_debug_option() {
  static std::mutex mutex;
  static std::unique_ptr<DebugText> text;
  static std::unique_ptr<Observing> observing;
  static std::atomic<int> level{0};
  const int wanted = options().debug;
  if (level.load(std::memory_order_relaxed) == wanted) return;
  std::lock_guard lock(mutex);
  observing.reset();
  text.reset();
  if (wanted > 0) {
    text = std::make_unique<DebugText>(wanted);
    observing = std::make_unique<Observing>(*text);
  }
  level = wanted;
}

}  // namespace tinyshard
