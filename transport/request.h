// A collective under way: which parts of which buffers go to whom, as a small state machine over
// a channel.
//
// The buffers are cut into *parts*, each owned by one rank, and a call is at most three phases:
//   header  every rank tells every other what it is about to run: before the rest in verify mode
//           (and all of a barrier), beside it where the call begins a run (Collective::identity)
//   move    Reduce: every rank sends its terms of a part to the owner, who combines them in the
//                   order of the group
//           Deal:   the root sends each part to its owner
//           Swap:   every participant sends every other its piece (all-to-all), or one sends to one
//   gather  every owner sends its parts to all others
// Large parts go through in segments, several under way at once. Ranks that hold several
// participants combine their own terms first and copy results to the others last. Lives in the pool
// of its group; used under the endpoint's lock.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/runtime/communicator.h"
#include "transport/call_header.h"
#include "transport/channel.h"
#include "transport/comm_options.h"

namespace tinyshard {

// Who holds what in a group. Members are its ranks, in the order of their first participant.
struct GroupLayout {
  struct Member {
    int rank;
    std::vector<int> participants;
  };
  explicit GroupLayout(std::span<const int> of_participants, int own_rank);

  std::vector<Member> members;
  std::vector<int> ranks;        // by member
  std::vector<int> member_of;    // by participant
  std::vector<int> local_index;  // by participant: its place among those of its member
  int self = -1;                 // the member that is this process

  const std::vector<int>& local() const { return members[static_cast<size_t>(self)].participants; }
};

class Request {
 public:
  // Cuts the call into parts and starts it. `tag` has its lowest four bits free. Throws as
  // advance().
  void begin(const GroupLayout& group, Channel& channel, const CommOptions& options,
             const Collective& call, std::span<const CommBuffer> send,
             std::span<const CommBuffer> recv, uint64_t sequence, uint32_t tag, bool verify);
  // Moves as far as it can without waiting; true when done. Throws Divergence, or another
  // ChannelError, after which only the headers still move.
  bool advance();
  // True while headers of some rank have not been seen: they may say who is to blame.
  bool awaits_headers() const { return header_pending_; }
  // True if it is headers and nothing else, of a run that nobody waits for.
  bool announces() const { return announces_; }
  // Compares the headers that have come. Throws Divergence, or another ChannelError.
  void compare_known_headers();
  // Gives up. False when a transfer may still touch memory of this request, which must then never
  // be freed.
  bool abandon();

  const Collective& call() const { return call_; }
  // Says what a call is for that is no collective of the program: "a comparison across ranks".
  std::string_view label() const { return label_.data(); }
  uint64_t sequence() const { return sequence_; }
  Deadline started() const { return started_; }
  void awaited(
      std::vector<int>& ranks);  // appends the ranks that this call waits for; throws ChannelError

  uint64_t generation = 0;  // how often the pool handed this request out
  uint64_t record = 0;      // of the recorder, 0: none
  uint64_t number = 0;      // of a send or a receive: among those between the same participants

 private:
  struct Part {
    int owner;          // a member
    size_t offset = 0;  // elements into each send buffer
    size_t count = 0;
    std::byte* place = nullptr;      // where the part ends up on this rank
    const std::byte* own = nullptr;  // where this rank has it before the call, if it does
  };
  struct Pending {
    Channel::Transfer transfer;
    int rank;
  };
  enum class Move : uint8_t { None, Reduce, Deal, Swap };
  enum class State : uint8_t { Free, Moving, Gathering, Done };
  struct Slot {  // one segment under way
    State state = State::Free;
    std::vector<Pending> pending;
    std::vector<std::byte> scratch;
    std::vector<const std::byte*> terms;  // Reduce: of each own part, by member
  };
  static constexpr size_t kSlots = 3;

  void plan();
  void add_parts_by_rank(const std::byte* source);
  bool runs_alone() const { return group_->members.size() == 1 && move_ != Move::Swap; }
  void run_alone();

  void begin_header();
  bool finish_header();
  bool move();
  void begin_segment(size_t segment);
  void finish_move(size_t segment);
  void begin_gather(size_t segment);
  void finish_segment(size_t segment);
  void spread(size_t segment) const;
  bool complete(std::vector<Pending>& pending);

  void begin_reduce(size_t segment, Slot& slot);
  void begin_deal(size_t segment, Slot& slot);
  void begin_swap(Slot& slot);
  void combine_terms(size_t segment, Slot& slot);
  void combine_own(std::byte* out, size_t element, size_t count) const;

  void post_send(std::vector<Pending>& pending, int member, uint32_t step, const std::byte* data,
                 size_t bytes);
  void post_receive(std::vector<Pending>& pending, int member, uint32_t step, std::byte* data,
                    size_t bytes);

  struct Range {
    size_t begin, count;
  };
  Range range(const Part& part, size_t segment) const;
  std::byte* data(std::span<const CommBuffer> buffers, size_t index, size_t element) const;
  size_t part_count(size_t index) const { return counts_.empty() ? call_.count : counts_[index]; }
  Slot& slot(size_t segment) { return slots_[segment % kSlots]; }
  size_t self() const { return static_cast<size_t>(group_->self); }

  const GroupLayout* group_ = nullptr;
  Channel* channel_ = nullptr;
  const CommOptions* options_ = nullptr;
  Collective call_;
  std::vector<size_t> counts_;
  std::vector<CommBuffer> send_, recv_;
  uint64_t sequence_ = 0;
  uint32_t tag_ = 0;
  Deadline started_{};
  std::array<char, 32> label_ = {};
  size_t item_ = 1;

  std::vector<Part> parts_;
  Move move_ = Move::None;
  bool gather_ = false;
  int gather_skips_ = -1;  // Deal: the root, which has everything already
  size_t segment_elements_ = 0, segments_ = 0, oldest_ = 0, next_ = 0;
  std::array<Slot, kSlots> slots_;

  bool header_pending_ = false, header_first_ = false, announces_ = false, broken_ = false;
  std::vector<Pending> header_transfers_;
  std::vector<CallHeader> headers_;  // by member
  std::vector<size_t> swap_offsets_;
};

}  // namespace tinyshard
