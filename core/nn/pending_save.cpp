// A thread of low priority saves, so that training keeps the cores, and
// blocks all signals that are the program's. A child of fork() has the
// thread's object but no thread: the object is let go there, not joined.
#include "core/nn/pending_save.h"

#include <exception>
#include <optional>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/signals.h"

namespace tinyshard::nn {
namespace {

constexpr int kLeastPriority = 19;

// Its destructor lets a save end that the program never waited for.
class PendingSave {
 public:
  static PendingSave& get() {
    static PendingSave save;
    return save;
  }
  ~PendingSave() {
    try {
      end();
    } catch (const std::exception& error) {
      log_line(fmt::format("the last checkpoint was not saved: {}", error.what()));
    }
  }

  void begin(std::function<void()> save) {
    check_internal(!thread_, "one save at a time");
    problem_ = nullptr;
    forks_ = times_forked();
    const HeldSignals held;  // signals are for the program's own threads
    thread_.emplace([this, save = std::move(save)] {
      ::pthread_setname_np(::pthread_self(), "ts-save");
      (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kLeastPriority);
      try {
        save();
      } catch (...) {
        problem_ = std::current_exception();
      }
    });
  }

  bool is_under_way() const { return thread_.has_value() && forks_ == times_forked(); }

  void end() {
    if (!thread_) return;
    if (!is_under_way()) {  // in a child, which has no such thread: its parent goes on saving
      (void)new std::thread(std::move(*thread_));
      thread_.reset();
      return;
    }
    thread_->join();
    thread_.reset();
    if (problem_) std::rethrow_exception(std::exchange(problem_, nullptr));
  }

 private:
  std::optional<std::thread> thread_;
  std::exception_ptr problem_;
  int forks_ = 0;
};

}  // namespace

void save_beside(std::function<void()> save) { PendingSave::get().begin(std::move(save)); }
bool is_saving() { return PendingSave::get().is_under_way(); }
void end_of_save() { PendingSave::get().end(); }

}  // namespace tinyshard::nn
