// An observer that writes each event as it ends, as one line of a JSON array. A viewer accepts the
// array without its end, so the file of a program that was killed can be read, too.
#include "report/trace.h"

#include <chrono>
#include <cstdio>
#include <mutex>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/observer.h"

namespace tinyshard {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

}  // namespace

class TraceFile::Writer : public Observer {
 public:
  Writer(const std::string& path, bool items)
      : file_(std::fopen(path.c_str(), "w")), items_(items), start_(Clock::now()) {
    if (!file_) throw UserError(fmt::format("TraceFile: {} cannot be written", path));
    std::fputs("[", file_);
    observing_ = std::make_unique<Observing>(*this);
  }
  ~Writer() override {
    observing_.reset();
    std::fputs("\n]\n", file_);
    std::fclose(file_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  bool times_items() const override { return items_; }
  void begin(const ObservedEvent&) override {}
  void end(const ObservedEvent& event) noexcept override {
    try {
      write(event);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // Out of memory: the event is lost.
    }
  }

 private:
  void write(const ObservedEvent& event) {
    nlohmann::json line = {{"name", event.name},
                           {"cat", name(event.kind)},
                           {"ph", "X"},
                           {"ts", microseconds(event.begun - start_)},
                           {"dur", microseconds(event.took)},
                           {"pid", int64_t(::getpid())},
                           {"tid", int64_t(::gettid())}};
    nlohmann::json& args = line["args"];
    args["id"] = event.id;
    const Origin& origin = origin_of(event.origin);
    if (!origin.about.empty()) args["for"] = origin.about;
    if (!origin.source().empty()) args["source"] = origin.source();
    if (event.ticket.run > 0) args["run"] = event.ticket.run;
    if (event.ticket.item > 0) args["item"] = event.ticket.item;
    if (!event.after.empty()) args["after"] = event.after;
    if (event.failed) args["failed"] = true;
    std::lock_guard lock(mutex_);
    std::fputs(first_ ? "\n" : ",\n", file_);
    first_ = false;
    std::fputs(line.dump().c_str(), file_);
  }

  std::mutex mutex_;
  std::FILE* file_;
  bool items_, first_ = true;
  Clock::time_point start_;
  std::unique_ptr<Observing> observing_;
};

TraceFile::TraceFile(const std::string& path, bool items)
    : writer_(std::make_unique<Writer>(path, items)) {}
TraceFile::~TraceFile() = default;

}  // namespace tinyshard
