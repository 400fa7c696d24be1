// Leaving is said by the destructor or, when a program ends with its channels
// alive, by an exit handler, for status 0 alone: a rank that fails says nothing,
// and its silence is the news. The process then waits until the kernel has sent
// all, since closing a socket with unread input throws away what is still to go.
#include "transport/tcp/tcp_channel.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/process.h"
#include "launch/open_files.h"
#include "launch/secret.h"
#include "launch/termination.h"
#include "transport/rendezvous/store.h"
#include "transport/tcp/mesh.h"
#include "transport/tcp/transfers.h"

namespace tinyshard {
namespace {

using namespace tcp;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// For the others to take the news of a failure; those of this host that run may be waiting for a core.
constexpr milliseconds kUnhealthyLinger{200}, kLingerForThoseThatRun{2000};
constexpr uint32_t kMeetingOfChannels = 0;
// Sockets of a channel (more of them to another host) and of a detector, watches, memory that is offered.
constexpr rlim_t kFilesOfPeer = 8, kOwnFiles = 64;

class TcpChannel;

// Channels of this process that have not said that they leave; an exit handler does it for them.
struct Living {
  std::mutex mutex;
  std::vector<TcpChannel*> channels;
};
Living& living() {
  static auto& instance = *new Living;  // used while the process exits
  return instance;
}

class TcpChannel final : public Channel {
 public:
  TcpChannel(const LaunchEnvironment& launch, std::vector<Peer> peers,
             std::chrono::nanoseconds timeout)
      : Channel(launch.rank, launch.size),
        timeout_(timeout),
        transfers_(launch.rank, launch.wire_epoch(), std::move(peers)) {
    const std::lock_guard lock(living().mutex);
    living().channels.push_back(this);
  }

  ~TcpChannel() override {
    {
      const std::lock_guard lock(living().mutex);
      std::erase(living().channels, this);
    }
    leave();
  }

  std::string_view name() const override { return "tcp"; }

  Transfer send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    return transfers_.send(peer, tag, data, bytes);
  }
  Transfer receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    return transfers_.receive(peer, tag, data, bytes);
  }
  bool abandon(Transfer transfer) override {
    healthy_ = false;
    transfers_.abandon(transfer);
    return true;
  }

  void send_notice(int peer, const Notice& notice) override {
    healthy_ = false;
    transfers_.send_notice(peer, notice);
  }
  bool next_notice(Notice& notice) override { return transfers_.next_notice(notice); }

  PeerState peer_state(int peer) override {
    links().progress(true);
    Link& link = links().to(peer);
    PeerState state = link.watch.state();
    if (transfers_.has_left(peer)) {
      state.left = true;
      state.text = "its main returned, or it called exit(0)";
    } else if (link.lost && !state.gone) {
      state.gone = true;
      state.text = link.why;
    }
    return state;
  }

  std::string process_of(int peer) override {
    const Link& link = links().to(peer);
    return fmt::format("process {} on {}", link.process.pid, link.host);
  }

  std::string interrupted() override { return terminated() ? kTerminated : ""; }

  void idle(Duration nap) override {
    links().idle(std::chrono::duration_cast<std::chrono::nanoseconds>(nap));
  }

  // Tells the others, and waits until they have what was sent. Once.
  void leave() {
    if (std::exchange(said_farewell_, true) || forks_ != times_forked()) return;
    const Deadline begun = Clock::now();
    const Deadline end = begun + (healthy_ ? timeout_ : kLingerForThoseThatRun);
    // After a failure its silence says what there is to say.
    if (healthy_) transfers_.say_farewell();
    // Closing a socket with bytes that nobody has read would throw away those still to be sent.
    while (Clock::now() < end && !terminated()) {
      links().progress();
      const bool all_linger = healthy_ || Clock::now() < begun + kUnhealthyLinger;
      if (std::ranges::none_of(links().all(), [&](const auto& link) {
            return !link->is_flushed() && (all_linger || runs_here(*link));
          }))
        break;
      idle(milliseconds(1));
    }
  }

 private:
  Links& links() { return transfers_.links(); }
  static bool runs_here(const Link& link) {
    const PeerState state = link.watch.state();
    return link.process.host == ProcessAddress::own().host && !state.gone && !state.suspect;
  }
  bool poll(Transfer transfer) override { return transfers_.poll(transfer); }

  const std::chrono::nanoseconds timeout_;
  const int forks_ = times_forked();  // a child of this process has no part in the job
  Transfers transfers_;
  bool healthy_ = true, said_farewell_ = false;
};

void leave_at_exit(int status, void*) {
  if (status != 0) return;
  Living& l = living();
  const std::lock_guard lock(l.mutex);
  for (TcpChannel* channel : l.channels) channel->leave();
}

}  // namespace

std::unique_ptr<Channel> meet_by_tcp(const LaunchEnvironment& launch, const Secret& secret,
                                     Store& store, uint64_t meeting, bool share_memory,
                                     std::chrono::nanoseconds timeout) {
  return join_by_tcp(launch,
                     form_mesh(launch, secret, store, meeting,
                               {.share_memory = share_memory,
                                .store_tells_failures = launch.launcher == Launcher::Own},
                               Clock::now() + timeout),
                     timeout);
}

std::unique_ptr<Channel> join_by_tcp(const LaunchEnvironment& launch, std::vector<Peer> peers,
                                     std::chrono::nanoseconds timeout) {
  return std::make_unique<TcpChannel>(launch, std::move(peers), timeout);
}

std::unique_ptr<Channel> connect_tcp(const LaunchEnvironment& launch, bool share_memory,
                                     std::chrono::nanoseconds timeout) {
  static const bool leaves = on_exit(leave_at_exit, nullptr) == 0;
  static_cast<void>(leaves);
  check_meeting(launch);
  raise_open_files(kOwnFiles + kFilesOfPeer * rlim_t(launch.size));
  watch_for_termination();
  const Secret secret = job_secret(launch.meeting.job);
  const Deadline begun = Clock::now();
  try {
    const uint64_t meeting = next_meeting(launch.wire_epoch(), kMeetingOfChannels);
    const auto store = open_store(launch, secret, Clock::now() + timeout);
    return meet_by_tcp(launch, secret, *store, meeting, share_memory, timeout);
  } catch (const StoreError& error) {
    throw CommError({.rank = launch.rank,
                     .peer = error.culprit,
                     .operation = "connect",
                     .elapsed_s = std::chrono::duration<double>(Clock::now() - begun).count(),
                     .detail = error.what()});
  }
}

TransportInfo tcp_info() {
  return {"tcp", true, "sockets, and memory shared within a host; no other library is needed"};
}

}  // namespace tinyshard
