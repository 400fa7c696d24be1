// The plug-in's side of mpi_channel.h: messages and notices as non-blocking calls of MPI.
#include <deque>
#include <vector>

#include <fmt/format.h>
#include <mpi.h>

#include "core/base/error.h"
#include "launch/termination.h"
#include "transport/endpoint.h"
#include "transport/mpi/mpi_life.h"
#include "transport/mpi/mpi_plugin.h"

namespace tinyshard {
namespace {

constexpr int kNoticeTag = 1;  // on a communicator of its own

class MpiChannel final : public Channel {
 public:
  MpiChannel(int rank, int ranks, std::chrono::nanoseconds timeout) : Channel(rank, ranks) {
    const Deadline deadline = now() + timeout;
    duplicate(messages_, deadline);
    duplicate(notices_, deadline);

    void* value = nullptr;
    int known = 0;
    mpi::check(MPI_Comm_get_attr(messages_, MPI_TAG_UB, static_cast<void*>(&value), &known), -1,
               "MPI_Comm_get_attr");
    if (known && *static_cast<int*>(value) < (1 << kTagBits) - 1) {
      throw UserError(fmt::format("this MPI library has tags up to {}, {} are needed",
                                  *static_cast<int*>(value), (1 << kTagBits) - 1));
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
    mpi::check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, static_cast<int>(tag),
                         messages_, &slot.request),
               peer, "MPI_Isend");
    return transfer;
  }

  Transfer receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    const Transfer transfer = acquire(peer, bytes, true);
    Slot& slot = slots_[transfer];
    mpi::check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, static_cast<int>(tag),
                         messages_, &slot.request),
               peer, "MPI_Irecv");
    return transfer;
  }

  bool abandon(Transfer transfer) override {
    // A send cannot be recalled, and a receive only when nothing has come for it. The slot is not
    // used again.
    Slot& slot = slots_[transfer];
    clean_ = false;
    mpi::set_unhealthy();
    if (!slot.receives || MPI_Cancel(&slot.request) != MPI_SUCCESS) return false;
    int done = 0, cancelled = 0;
    MPI_Status status;
    if (MPI_Test(&slot.request, &done, &status) != MPI_SUCCESS || !done) return false;
    MPI_Test_cancelled(&status, &cancelled);
    return true;
  }

  void send_notice(int peer, const Notice& notice) override {
    mpi::set_unhealthy();
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

  PeerState peer_state(int peer) override { return mpi::state_of(peer); }

  std::string process_of(int peer) override { return mpi::process_of(peer); }

  std::string interrupted() override { return terminated() ? kTerminated : ""; }

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
    mpi::check(code, slot.peer, "MPI_Test");
    if (!slot.receives) return true;
    int received = 0;
    MPI_Get_count(&status, MPI_BYTE, &received);
    if (static_cast<size_t>(received) != slot.bytes) {
      throw ChannelError(slot.peer, fmt::format("rank {} sent {} bytes where {} were expected",
                                                slot.peer, received, slot.bytes));
    }
    return true;
  }

  void duplicate(MPI_Comm& out, Deadline deadline) {
    MPI_Request request = MPI_REQUEST_NULL;
    mpi::check(MPI_Comm_idup(MPI_COMM_WORLD, &out, &request), -1, "MPI_Comm_idup");
    mpi::await(request, deadline, "connect");
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
    mpi::begin(launch, timeout);
    return std::make_unique<MpiChannel>(launch.rank, launch.size, timeout);
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
