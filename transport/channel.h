// Point-to-point messages between the ranks of one job, as one rank sees them: all that a transport
// between processes has to provide. The collectives above (request.h) are the same for every
// channel.
//
// Messages of one (sender, tag) arrive in the order in which they were sent; a receive names
// sender, tag and exact length. A rank may send to itself. Nothing here blocks. Threads: the owner
// (endpoint.h) makes one call at a time.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "core/runtime/communicator.h"

namespace tinyshard {

// A transfer that cannot complete; the collective it belongs to turns it into a CommError.
struct ChannelError : std::runtime_error {
  ChannelError(int peer_rank, const std::string& what)
      : std::runtime_error(what), peer(peer_rank) {}
  int peer;
};

// Why a group fails, as its first witness saw it.
enum class FailureCause : uint32_t {
  Unknown,
  Gone,      // a process has ended
  Left,      // it ended well, too early
  Stopped,   // it is there, and does not run
  Late,      // it runs, and does not come
  Diverged,  // it came to another call
  Aborted,   // its program gave up
};

// "This group is over", sent past all queues. Plain bytes on the wire.
struct Notice {
  uint64_t group = 0;     // its unique id
  uint64_t sequence = 0;  // where the sender stood
  int32_t from = -1;      // who says so
  int32_t culprit = -1;   // whom they blame, -1 for themselves
  FailureCause cause = FailureCause::Unknown;
  char text[228] = {};
};
static_assert(sizeof(Notice) == 256);

struct PeerState {
  bool gone = false;     // ended: nothing will come from it any more
  bool suspect = false;  // alive as far as we know, but not running
  bool left = false;     // on its way out: it sends nothing new, what it sent may still be coming
  std::string text;      // "process 4711 has ended"
};

class Channel {
 public:
  using Transfer = uint32_t;
  using Duration = std::chrono::steady_clock::duration;
  static constexpr int kTagBits = 23;  // what every MPI library grants

  virtual ~Channel() = default;
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  virtual std::string_view name() const = 0;

  // At most max_message() bytes. The memory belongs to the transfer until test() says true.
  virtual Transfer send(int peer, uint32_t tag, const void* data, size_t bytes) = 0;
  virtual Transfer receive(int peer, uint32_t tag, void* data, size_t bytes) = 0;
  virtual size_t max_message() const { return std::numeric_limits<size_t>::max(); }
  // True when complete: the handle is then invalid. Throws ChannelError, the handle is then
  // invalid, too.
  bool test(Transfer transfer) {
    if (!poll(transfer)) return false;
    ++completed_;
    return true;
  }
  uint64_t completed() const {
    return completed_;
  }  // transfers so far: a wait in which this grows is not idle
  // Gives up a transfer. False when its memory may still be touched: the caller keeps it for good.
  virtual bool abandon(Transfer transfer) = 0;

  virtual void send_notice(int peer, const Notice& notice) = 0;
  virtual bool next_notice(Notice& notice) = 0;

  // Returns what is known about a peer without asking it. Not free: for waits that have gone on for
  // a while.
  virtual PeerState peer_state(int) { return {}; }
  // Returns the process of a peer, "process 812 on node02". Empty if the channel does not know it,
  // and for this rank.
  virtual std::string process_of(int) { return {}; }
  // Not empty when this process is being ended from outside.
  virtual std::string interrupted() { return {}; }

  // Time as this channel knows it, and a nap that may end early when something arrives. Called
  // without the owner's lock. A simulated channel brings its own time.
  virtual Deadline now() { return std::chrono::steady_clock::now(); }
  virtual void idle(Duration nap) { std::this_thread::sleep_for(nap); }

 protected:
  Channel(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

 private:
  virtual bool poll(Transfer transfer) = 0;  // test

  int rank_, ranks_;
  uint64_t completed_ = 0;
};

}  // namespace tinyshard
