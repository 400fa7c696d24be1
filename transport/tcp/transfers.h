// The messages of a channel over its connections: which send meets which receive, and what each
// frame does to them.
//
// Example: rank 0 sends 1 MiB with tag 7 to rank 1, which posts its receive later. Rank 0 sends
// Offer (tag 7, 1 MiB) and keeps the memory. Rank 1 finds nothing posted and notes the offer. Its
// receive comes, takes the offer and answers Ready (tag 7, handle 3). Rank 0 sends Data (handle 3)
// straight from the caller's memory, in as many pieces as there are sockets between the two, and
// rank 1 reads it straight into its own. A receive that is posted first sends its Ready at once, so
// that nothing waits for the way there and back.
//
// A small message goes at once (Eager), while what the receiver has not taken of those before is within
// the credit. Beyond it the sender keeps the memory, says so (Held), and is asked for it (Pull) by the
// receive that it is for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "transport/channel.h"
#include "transport/tcp/links.h"

namespace tinyshard::tcp {

// See Channel for what each call promises. One thread at a time.
class Transfers final : public FrameHandler {
 public:
  using Transfer = Channel::Transfer;

  // Connections by rank; there is none to `rank`, which is this one.
  Transfers(int rank, uint32_t epoch, std::vector<Peer> peers);

  Links& links() { return links_; }

  Transfer send(int peer, uint32_t tag, const void* data, size_t bytes);
  Transfer receive(int peer, uint32_t tag, void* data, size_t bytes);
  bool poll(Transfer transfer);
  // Nothing here keeps the caller's memory afterwards: what is on its way out goes from a copy, what
  // comes for a receive that was announced to the sender is thrown away, and its number is not used
  // again.
  void abandon(Transfer transfer);
  void send_notice(int peer, const Notice& notice);
  bool next_notice(Notice& notice);
  void say_farewell();  // to all: nothing more will come
  bool has_left(int peer) const { return waiting_[static_cast<size_t>(peer)].left; }

 private:
  struct Slot {
    enum Use : uint8_t { Free, Send, Receive, Abandoned } kind = Free;
    bool done = false;
    bool matched = false;    // a large receive: its offer has come
    bool announced = false;  // a large receive: the sender knows the handle
    int peer = -1;
    uint32_t tag = 0;
    std::byte* data = nullptr;
    uint64_t bytes = 0, moved = 0;
    uint64_t sent = 0;  // of a receive: what the message had
    uint64_t seen = 0;  // turn of the links when it was last asked for
  };

  struct Unexpected {  // a message that waits for its receive
    Kind kind;         // Eager, Offer or Held
    uint32_t tag;
    uint64_t bytes;
    std::vector<std::byte> content;
    bool complete;
    uint32_t receiver = FramePipe::kNobody, sender = FramePipe::kNobody;  // to itself: of both
    uint64_t serial = 0;
    uint64_t number = 0;  // of Held, its sender's
  };
  struct Kept {  // a small send beyond the credit
    uint64_t number;
    Transfer transfer;
  };

  // Transfers with one other rank that have no counterpart yet.
  struct Waiting {
    std::vector<Transfer> posted;   // receives without a message, in their order
    std::vector<Transfer> offered;  // large sends whose receive is not known
    std::vector<Frame> readies;     // receives whose send has not come
    std::deque<Unexpected> unexpected;
    uint64_t serials = 0;
    size_t told = 0;  // of the unexpected, those that are told of only
    // Small messages: the bytes that nobody has asked for, and those taken since the other rank was
    // last told.
    uint64_t unexpected_bytes = 0, taken = 0;
    // Small messages to the other rank: the credit that is used, and messages beyond it.
    uint64_t used = 0, numbers = 0;
    std::deque<Kept> kept;
    bool left = false;
  };

  bool begin(int rank, Stream& stream, const Frame& frame) override;
  std::byte* place(int rank, Stream& stream, const Frame& frame, uint64_t at) override;
  void end(int rank, Stream& stream, const Frame& frame) override;
  void sent(uint32_t transfer, uint64_t bytes) override;

  bool begin_eager(int rank, Stream& stream, const Frame& frame);
  bool take_offer(int rank, const Frame& frame);
  bool take_ready(int rank, const Frame& frame);
  bool begin_data(int rank, Stream& stream, const Frame& frame);
  bool take_held(int rank, const Frame& frame);
  bool take_pull(int rank, const Frame& frame);
  bool take_credit(int rank, const Frame& frame);

  Waiting& from(int peer) { return waiting_[static_cast<size_t>(peer)]; }
  Transfer acquire(Slot::Use kind, int peer, uint32_t tag, uint64_t bytes);
  void release(Transfer transfer);
  void push(int peer, size_t stream, Frame frame, const std::byte* data = nullptr,
            uint32_t transfer = FramePipe::kNobody);
  void send_data(int peer, Transfer transfer, const Frame& ready);
  void send_to_self(Transfer transfer);
  void send_small(int peer, Transfer transfer);
  void pull(int peer, Transfer transfer, uint64_t number, uint64_t bytes);
  void take_small(int peer, uint64_t bytes);
  static void finish(Slot& slot, uint64_t sent);
  static void hand_over(Slot& receive, const std::byte* data, uint64_t bytes);
  void deliver(int peer, std::deque<Unexpected>::iterator message);
  Transfer take_posted(int peer, uint32_t tag);

  const int rank_;
  const uint32_t epoch_;
  std::vector<Waiting> waiting_;  // by rank
  std::deque<Slot> slots_;
  std::vector<Transfer> free_;
  std::deque<Notice> news_;
  bool leaves_ = false;
  Links links_;  // its connections call the above
};

}  // namespace tinyshard::tcp
