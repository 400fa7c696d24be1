// The plug-in's side of mpi_channel.h: the only source that is compiled against MPI.
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <vector>

#include <fmt/format.h>
#include <mpi.h>

#include "core/base/error.h"
#include "transport/endpoint.h"
#include "transport/mpi/mpi_plugin.h"
#include "transport/mpi/process_watch.h"

namespace tinyshard {
namespace {

constexpr int kNoticeTag = 1;  // on a communicator of its own

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
    return fmt::format("MPI error {}", code);
  return std::string(text, static_cast<size_t>(length));
}

void check_mpi(int code, int peer, const char* call) {
  if (code != MPI_SUCCESS) throw ChannelError(peer, fmt::format("{}: {}", call, error_text(code)));
}

// ------------------------------------------------------------------------------------------------
// The library's one life in this process.

std::atomic<bool> terminated{false};  // SIGTERM came

void on_terminate(int) { terminated.store(true, std::memory_order_relaxed); }

// Only where nobody else cares about the signal; the handler removes itself, so that a second one
// ends the process.
void watch_for_terminate() {
  struct sigaction now{};
  if (sigaction(SIGTERM, nullptr, &now) != 0 || now.sa_handler != SIG_DFL ||
      (now.sa_flags & SA_SIGINFO) != 0)
    return;
  struct sigaction action{};
  action.sa_handler = on_terminate;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGTERM, &action, nullptr);
}

struct Library {
  std::mutex mutex;
  std::atomic<bool> healthy{true};  // no group has failed
  std::chrono::nanoseconds timeout{};
};

Library& library() {
  static auto& instance = *new Library;  // used while the process exits
  return instance;
}

// Waits for `request` without blocking in MPI. `done` stays false at the deadline.
int finish(MPI_Request& request, Deadline deadline, bool& done) {
  for (int polls = 0;; ++polls) {
    int flag = 0;
    const int code = MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    done = code == MPI_SUCCESS && flag != 0;
    if (code != MPI_SUCCESS || done) return code;
    if (std::chrono::steady_clock::now() >= deadline || terminated) return code;
    if (polls > 100) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

// At exit: the last rank to come lets all go. A rank that failed waits for nobody; the launcher
// then sees a process that ended without MPI_Finalize, which is what happened.
void finalize_at_exit(int status, void*) {
  Library& lib = library();
  int finalized = 0;
  if (status != 0 || !lib.healthy || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized) return;
  MPI_Request request = MPI_REQUEST_NULL;
  bool done = false;
  if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return;
  if (finish(request, std::chrono::steady_clock::now() + lib.timeout, done) == MPI_SUCCESS && done)
    MPI_Finalize();
}

// MPI_Init waits for the other ranks and knows no deadline, so it runs on a thread that may be left
// behind.
void initialize(std::chrono::nanoseconds timeout, int rank) {
  Library& lib = library();
  std::lock_guard lock(lib.mutex);
  lib.timeout = timeout;
  int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized)
    throw UserError("connecting to the other ranks: MPI has been finalized in this process");
  if (initialized) {
    MPI_Query_thread(&level);
  } else {
    struct Start {
      std::mutex mutex;
      std::condition_variable changed;
      bool done = false;
      int code = MPI_SUCCESS, level = MPI_THREAD_SINGLE;
    };
    auto start = std::make_shared<Start>();
    std::thread([start] {
      int provided = MPI_THREAD_SINGLE;
      const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
      std::lock_guard guard(start->mutex);
      start->code = code;
      start->level = provided;
      start->done = true;
      start->changed.notify_all();
    }).detach();
    std::unique_lock guard(start->mutex);
    if (!start->changed.wait_for(guard, timeout, [&] { return start->done; })) {
      lib.healthy = false;
      throw CommError(
          {.rank = rank,
           .operation = "MPI_Init_thread",
           .elapsed_s = std::chrono::duration<double>(timeout).count(),
           .detail = "the other ranks did not come, or their launcher does not answer"});
    }
    check_mpi(start->code, -1, "MPI_Init_thread");
    level = start->level;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    watch_for_terminate();
    on_exit(finalize_at_exit, nullptr);
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw UserError(fmt::format(
        "MPI was started with thread level {}, MPI_THREAD_SERIALIZED ({}) or more is needed", level,
        static_cast<int>(MPI_THREAD_SERIALIZED)));
  }
}

// ------------------------------------------------------------------------------------------------

class MpiChannel final : public Channel {
 public:
  MpiChannel(int rank, int ranks, std::chrono::nanoseconds timeout) : Channel(rank, ranks) {
    const Deadline deadline = now() + timeout;
    duplicate(messages_, deadline);
    duplicate(notices_, deadline);

    void* value = nullptr;
    int known = 0;
    check_mpi(MPI_Comm_get_attr(messages_, MPI_TAG_UB, static_cast<void*>(&value), &known), -1,
              "MPI_Comm_get_attr");
    if (known && *static_cast<int*>(value) < (1 << kTagBits) - 1) {
      throw UserError(fmt::format("this MPI library has tags up to {}, {} are needed",
                                  *static_cast<int*>(value), (1 << kTagBits) - 1));
    }

    // Where everyone runs; the last element is the own address.
    auto addresses = std::make_shared<std::vector<ProcessAddress>>(static_cast<size_t>(ranks) + 1);
    addresses->back() = ProcessAddress::own();
    keep_for_good(addresses);
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(
        MPI_Iallgather(&addresses->back(), sizeof(ProcessAddress), MPI_BYTE, addresses->data(),
                       sizeof(ProcessAddress), MPI_BYTE, messages_, &request),
        -1, "MPI_Iallgather");
    await(request, deadline, "connect");
    for (int peer = 0; peer < ranks; ++peer) {
      watches_.push_back(peer == rank ? ProcessWatch()
                                      : ProcessWatch((*addresses)[static_cast<size_t>(peer)]));
    }
    listen();
  }

  ~MpiChannel() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized) return;
    MPI_Cancel(&notice_request_);
    MPI_Request_free(&notice_request_);
    // Freeing is safe only when no message is left; otherwise everything stays until the process
    // ends.
    if (!clean_) {
      keep_for_good(notices_memory_);
      return;
    }
    MPI_Comm_free(&messages_);
    MPI_Comm_free(&notices_);
  }

  std::string_view name() const override { return "mpi"; }
  size_t max_message() const override { return size_t{1} << 30; }

  Transfer send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    const Transfer transfer = acquire(peer, bytes, false);
    Slot& slot = slots_[transfer];
    check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, static_cast<int>(tag),
                        messages_, &slot.request),
              peer, "MPI_Isend");
    return transfer;
  }

  Transfer receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    const Transfer transfer = acquire(peer, bytes, true);
    Slot& slot = slots_[transfer];
    check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, static_cast<int>(tag),
                        messages_, &slot.request),
              peer, "MPI_Irecv");
    return transfer;
  }

  bool abandon(Transfer transfer) override {
    // A send cannot be recalled, and a receive only when nothing has come for it. The slot is not
    // used again.
    Slot& slot = slots_[transfer];
    clean_ = false;
    library().healthy = false;
    if (!slot.receives || MPI_Cancel(&slot.request) != MPI_SUCCESS) return false;
    int done = 0, cancelled = 0;
    MPI_Status status;
    if (MPI_Test(&slot.request, &done, &status) != MPI_SUCCESS || !done) return false;
    MPI_Test_cancelled(&status, &cancelled);
    return true;
  }

  void send_notice(int peer, const Notice& notice) override {
    library().healthy = false;
    clean_ = false;
    MPI_Request request = MPI_REQUEST_NULL;
    const Notice& sent = notices_memory_->sent.emplace_back(notice);
    MPI_Isend(&sent, sizeof(Notice), MPI_BYTE, peer, kNoticeTag, notices_, &request);
  }

  bool next_notice(Notice& notice) override {
    int done = 0;
    MPI_Status status;
    if (MPI_Test(&notice_request_, &done, &status) != MPI_SUCCESS || !done) return false;
    notice = notices_memory_->incoming;
    listen();
    return true;
  }

  PeerState peer_state(int peer) override { return watches_[static_cast<size_t>(peer)].state(); }

  std::string interrupted() override {
    return terminated.load(std::memory_order_relaxed) ? "the launcher is ending the job (SIGTERM)"
                                                      : "";
  }

 private:
  struct Slot {
    MPI_Request request = MPI_REQUEST_NULL;
    int peer = -1;
    size_t bytes = 0;
    bool receives = false;
  };
  struct Notices {
    Notice incoming;
    std::deque<Notice> sent;  // few: a group fails once
  };

  bool poll(Transfer transfer) override {
    Slot& slot = slots_[transfer];
    int done = 0;
    MPI_Status status;
    const int code = MPI_Test(&slot.request, &done, &status);
    if (code == MPI_SUCCESS && !done) return false;
    free_.push_back(transfer);
    if (code == MPI_ERR_TRUNCATE) {
      throw ChannelError(slot.peer, fmt::format("rank {} sent more than the expected {} bytes",
                                                slot.peer, slot.bytes));
    }
    check_mpi(code, slot.peer, "MPI_Test");
    if (!slot.receives) return true;
    int received = 0;
    MPI_Get_count(&status, MPI_BYTE, &received);
    if (static_cast<size_t>(received) != slot.bytes) {
      throw ChannelError(slot.peer, fmt::format("rank {} sent {} bytes where {} were expected",
                                                slot.peer, received, slot.bytes));
    }
    return true;
  }

  void await(MPI_Request& request, Deadline deadline, const char* operation) {
    const Deadline begun = now();
    bool done = false;
    check_mpi(finish(request, deadline, done), -1, operation);
    if (done) return;
    library().healthy = false;
    throw CommError({.rank = rank(),
                     .operation = operation,
                     .elapsed_s = std::chrono::duration<double>(now() - begun).count(),
                     .detail = terminated ? interrupted() : "the other ranks did not come"});
  }

  void duplicate(MPI_Comm& out, Deadline deadline) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &out, &request), -1, "MPI_Comm_idup");
    await(request, deadline, "connect");
    MPI_Comm_set_errhandler(out, MPI_ERRORS_RETURN);
  }

  void listen() {
    MPI_Irecv(&notices_memory_->incoming, sizeof(Notice), MPI_BYTE, MPI_ANY_SOURCE, kNoticeTag,
              notices_, &notice_request_);
  }

  Transfer acquire(int peer, size_t bytes, bool receives) {
    if (free_.empty()) {
      free_.push_back(static_cast<Transfer>(slots_.size()));
      slots_.emplace_back();
    }
    const Transfer transfer = free_.back();
    free_.pop_back();
    slots_[transfer] = {MPI_REQUEST_NULL, peer, bytes, receives};
    return transfer;
  }

  MPI_Comm messages_ = MPI_COMM_NULL, notices_ = MPI_COMM_NULL;
  std::vector<Slot> slots_;
  std::vector<Transfer> free_;
  std::vector<ProcessWatch> watches_;  // by rank
  MPI_Request notice_request_ = MPI_REQUEST_NULL;
  std::shared_ptr<Notices> notices_memory_ = std::make_shared<Notices>();
  bool clean_ = true;  // every message that was begun has ended
};

std::unique_ptr<Channel> connect(const LaunchEnvironment& launch,
                                 std::chrono::nanoseconds timeout) {
  if (launch.launcher == Launcher::Rank) {
    throw UserError(fmt::format(
        "{} say that this is rank {} of {}, but ranks meet through MPI: start them with mpirun",
        name(launch.launcher), launch.rank, launch.size));
  }
  try {
    initialize(timeout, launch.rank);
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank != launch.rank || ranks != launch.size) {
      throw UserError(fmt::format(
          "{} says that this is rank {} of {}, MPI says rank {} of {}: the launcher has to be the "
          "one of this MPI library (mpirun, or srun --mpi=pmix)",
          name(launch.launcher), launch.rank, launch.size, rank, ranks));
    }
    return std::make_unique<MpiChannel>(rank, ranks, timeout);
  } catch (const ChannelError& error) {
    throw CommError(
        {.rank = launch.rank, .peer = error.peer, .operation = "connect", .detail = error.what()});
  }
}

TransportInfo info() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  const std::string_view text(version, static_cast<size_t>(length));
  return {"mpi", true, std::string(text.substr(0, text.find(',')))};
}

constexpr MpiPlugin kPlugin{connect, info};

}  // namespace
}  // namespace tinyshard

extern "C" __attribute__((visibility("default"))) const tinyshard::MpiPlugin*
tinyshard_mpi_plugin() {
  return &tinyshard::kPlugin;
}
