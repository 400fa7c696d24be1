// An observer that writes each event as it ends, as one line of a JSON array:
//
//   [
//   {"name":"process_name","ph":"M",...},
//   {"name":"tidy","cat":"pass","ph":"X","ts":1204.1,"dur":88.0,...}
//   ]
//
// Each line goes to the file in one write, without a buffer of ours: the file of a program that was
// killed has all that had ended by then, and viewers accept an array without its end.
#include "report/trace.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/base/options.h"

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
      : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666)),
        items_(items),
        start_(Clock::now()) {
    if (file_ < 0) {
      throw UserError(
          fmt::format("TraceFile: {} cannot be written: {}", path, std::strerror(errno)));
    }
    put("[\n" + nlohmann::json{{"name", "process_name"},
                               {"ph", "M"},
                               {"pid", int64_t(process_)},
                               {"args", {{"name", program_invocation_short_name}}}}
                    .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    observing_ = std::make_unique<Observing>(*this);
  }
  ~Writer() override {
    observing_.reset();
    close();
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  bool times_items() const override { return items_; }
  void begin(const ObservedEvent&) override {}
  void end(const ObservedEvent& event) noexcept override {
    if (::getpid() != process_ || event.kind == EventKind::Listing ||
        event.kind == EventKind::Record || event.kind == EventKind::Allocation)
      return;
    try {
      write(event);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // Out of memory: the event is lost.
    }
  }

  // Ends the array; events that end later are lost.
  void close() noexcept {
    if (::getpid() != process_) return;
    const std::lock_guard lock(mutex_);
    if (file_ < 0) return;
    put("\n]\n");
    ::close(file_);
    file_ = -1;
  }

 private:
  void write(const ObservedEvent& event) {
    nlohmann::json line = {{"name", event.name},
                           {"cat", name(event.kind)},
                           {"ph", "X"},
                           {"ts", microseconds(event.begun - start_)},
                           {"dur", microseconds(event.took)},
                           {"pid", int64_t(process_)},
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
    // A name of the user's may be no UTF-8.
    const std::string text =
        ",\n" + line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const std::lock_guard lock(mutex_);
    put(text);
  }

  // A full disk costs events, not the program.
  void put(std::string_view text) noexcept {
    while (file_ >= 0 && !text.empty()) {
      const ssize_t n = ::write(file_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      text.remove_prefix(size_t(n));
    }
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;  // of the file
  int file_;
  bool items_;
  Clock::time_point start_;
  std::unique_ptr<Observing> observing_;
};

TraceFile::TraceFile(const std::string& path, bool items)
    : writer_(std::make_unique<Writer>(path, items)) {}
TraceFile::~TraceFile() = default;

void TraceFile::finish() noexcept { writer_->close(); }

void follow_trace_option(int rank, int ranks) {
  struct Followed {
    std::mutex mutex;
    std::string path;
    std::unique_ptr<TraceFile> file;
  };
  static Followed& now = *new Followed;  // threads may work on while the process exits
  const std::string wanted = options().trace;
  const std::lock_guard lock(now.mutex);
  if (wanted == now.path) return;
  now.file.reset();
  now.path.clear();
  if (wanted.empty()) return;
  std::filesystem::path path = wanted;
  if (ranks > 1) {
    const std::string ending = fmt::format(".rank{}{}", rank, path.extension().string());
    path.replace_extension();
    path += ending;
  }
  now.file = std::make_unique<TraceFile>(path.string());
  now.path = wanted;
  static const int at_exit = std::atexit([] {
    const std::lock_guard end(now.mutex);
    if (now.file) now.file->finish();
  });
  static_cast<void>(at_exit);
}

}  // namespace tinyshard
