// The seam between the engine and the transports: how device slots of one or many processes
// exchange data.
//
// A communicator joins *participants* (device slots), numbered 0..size()-1. A process holds some of
// them, its `local()` ones: N devices in one process, N processes with one, and R x D differ only
// in that list. Each call is made once per process, with one buffer per local participant in the
// order of `local()`; every process makes the same calls in the same order (sends and receives: in
// the same order per pair). Reductions combine participants in a fixed order, so one configuration
// gives the same bits every time.
//
// Calls return at once; several may be under way on one communicator or on many. Every wait has a
// deadline. A dead, late or diverged peer becomes a CommError on every surviving rank, and later
// calls on the group fail at once. Threads: calls may come from any thread; which call comes first
// is the caller's business. `abort` may come at any time.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/ticket.h"
#include "core/dtype/dtype.h"
#include "core/uop/op.h"

namespace tinyshard {

using Deadline = std::chrono::steady_clock::time_point;

// Reductions are the ReduceOp of graphs. Of Bool, Sum and Max are "or", Prod and Min are "and".
// Integers wrap. Max and Min of floats give NaN when a term is NaN.
enum class CollectiveOp : uint8_t {
  AllReduce,
  AllGather,
  ReduceScatter,
  Broadcast,
  AllToAll,
  Send,
  Recv,
  Barrier
};
std::string_view name(CollectiveOp op);  // "all_reduce"
// Tells whether a call is between two participants, unlike the others.
constexpr bool is_pair(CollectiveOp op) {
  return op == CollectiveOp::Send || op == CollectiveOp::Recv;
}

class Device;

// Memory of one participant, and the device that it belongs to where the communicator works on
// device memory (`device` is then not null).
struct CommBuffer {
  void* data = nullptr;
  Device* device = nullptr;
};

// Something that all ranks of a set have to give alike, and where each did, for messages. Plain bytes
// on the wire.
struct GivenValue {
  // Which advice a difference deserves.
  enum class Kind : uint64_t { None, Host, Draw, Part, Copy, Step };
  uint64_t hash = 0;
  Kind kind = Kind::None;
  char about[72] = {};  // "f32[64, 16] of shard (train.cpp:21)"
};

// Which run of what a call begins on this rank. Ranks that differ in it have diverged, though the
// sizes of their messages may be the same.
struct RunIdentity {
  uint64_t run = 0;                      // counted from 1; 0: no run, `label` says what it is
  uint64_t what = 0;                     // hash of the schedule
  uint64_t inputs = 0;                   // hash of all that the ranks had to give alike until now
  std::string_view label = {};           // for messages
  std::string_view asked = {};           // the method that runs and its line: "item (train.cpp:13)"
  std::array<GivenValue, 3> given = {};  // the latest of what `inputs` is a hash of
};

// A call as data: what a schedule item holds, and what peers compare before they run it. With n
// participants, each has these elements, and may work in place where the buffers are so related:
//   op             send                    recv                    in place
//   AllReduce      count                   count                   recv == send
//   AllGather      count                   n * count               send == recv + own offset
//   ReduceScatter  n * count               count, the own part     recv == send + own offset
//   Broadcast      count, only of `from`   count                   recv == send
//   AllToAll       n * count, j-th to j    n * count, i-th from i  no
//   Send, Recv     count on the one side, `from`, and count on the other, `to`
// `counts` replaces `count` where parts differ in length (0 is fine): n values for AllGather and
// ReduceScatter, n * n (row = sender) for AllToAll; offsets are then running sums. Counts are in
// elements.
struct Collective {
  CollectiveOp op = CollectiveOp::Barrier;
  ReduceOp reduce = ReduceOp::Sum;
  DType dtype = DType::U8;
  size_t count = 0;
  int from = 0, to = 0;
  std::span<const size_t> counts = {};
  // Compared across ranks beside the transfer of data: where they differ, the call fails everywhere
  // before it counts as done. Read when the call starts. Null: none. Communicators on device memory
  // ignore it (see announce).
  const RunIdentity* identity = nullptr;
  // The item of a schedule that makes the call: which it is, and what it is to the program. For
  // errors; ranks do not compare them.
  Ticket ticket = {};
  std::shared_ptr<const CollectiveSite> site = {};
};
std::string describe(const Collective& call);  // "all_reduce sum f32 x 1024"
// Describes a call with its axis: 'all_reduce sum f32 x 1024 on mesh axis "data"'.
std::string describe_with_axis(const Collective& call);
// Tells its place in the program as far as it is known, behind "; ": 'it is the gradient of w
// (train.cpp:21), in run 7 of schedule 9f3ac1'. Empty where the call is no item's.
std::string describe_place(const Collective& call);
// Count what one of `size` participants gives and gets, in elements; Send and Recv: on their side.
size_t sent_elements(const Collective& call, size_t size, size_t participant);
size_t received_elements(const Collective& call, size_t size, size_t participant);

class Communicator;

// A call under way. A cheap value; copies refer to the same call, the empty one is done. It must
// not outlive its communicator. Dropping it is fine: the call still runs, and its buffers must live
// until it is done.
class Work {
 public:
  Work() = default;
  // True when done. Moves every pending call of this process along. Throws CommError when the call
  // failed or is late.
  bool test();
  // Returns when done, throws CommError at the deadline: the call's own (the communicator's
  // timeout, counted from the start of the call), or `deadline` where that is earlier. Being late
  // fails the whole group.
  void wait() { wait(Deadline::max()); }
  void wait(Deadline deadline);

 private:
  friend class Communicator;
  Work(Communicator* communicator, uint64_t ticket)
      : communicator_(communicator), ticket_(ticket) {}
  Communicator* communicator_ = nullptr;
  uint64_t ticket_ = 0;
};

class Communicator {
 public:
  // Waits for nobody: calls still under way are abandoned and the peers told so.
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }  // participants
  std::span<const int> local() const { return local_; }         // those of this process, ascending
  // The process of a participant, and this process, as numbered in the whole job.
  int rank_of(int participant) const { return ranks_.at(static_cast<size_t>(participant)); }
  int rank() const { return rank_; }
  const std::string& name() const { return name_; }
  virtual std::string_view transport() const = 0;  // "inproc", "mpi", "nccl"

  // True when buffers are memory of asynchronous devices. A call then runs on the device's
  // communication queue, after everything in its compute queue; `Work::wait` makes the compute
  // queue wait and not the host, which meets failures where it waits for the device. All groups
  // that share a device share its queue: their calls come in one order on all ranks, too.
  virtual bool on_devices() const { return false; }

  // Asked before a graph is placed, so that a gap is an error of the caller's line and not of the
  // run.
  virtual bool supports(CollectiveOp op, DType dtype, ReduceOp reduce = ReduceOp::Sum) const = 0;

  // Starts a call. `send` and `recv` hold a buffer per local participant (Send: `send` has one,
  // Recv: `recv` has one, Barrier: none). The spans are read during the call only, the memory
  // behind them until the work is done; after a failure it must stay allocated until the process
  // ends, as a transport may not be able to recall a transfer.
  virtual Work start(const Collective& call, std::span<const CommBuffer> send,
                     std::span<const CommBuffer> recv) = 0;

  Work all_reduce(std::span<const CommBuffer> send, std::span<const CommBuffer> recv, size_t count,
                  DType dtype, ReduceOp op = ReduceOp::Sum) {
    return start({.op = CollectiveOp::AllReduce, .reduce = op, .dtype = dtype, .count = count},
                 send, recv);
  }
  Work all_gather(std::span<const CommBuffer> send, std::span<const CommBuffer> recv, size_t count,
                  DType dtype) {
    return start({.op = CollectiveOp::AllGather, .dtype = dtype, .count = count}, send, recv);
  }
  Work reduce_scatter(std::span<const CommBuffer> send, std::span<const CommBuffer> recv,
                      size_t count, DType dtype, ReduceOp op = ReduceOp::Sum) {
    return start({.op = CollectiveOp::ReduceScatter, .reduce = op, .dtype = dtype, .count = count},
                 send, recv);
  }
  Work broadcast(std::span<const CommBuffer> send, std::span<const CommBuffer> recv, size_t count,
                 DType dtype, int root) {
    return start({.op = CollectiveOp::Broadcast, .dtype = dtype, .count = count, .from = root},
                 send, recv);
  }
  Work all_to_all(std::span<const CommBuffer> send, std::span<const CommBuffer> recv, size_t count,
                  DType dtype) {
    return start({.op = CollectiveOp::AllToAll, .dtype = dtype, .count = count}, send, recv);
  }
  Work send(CommBuffer buffer, size_t count, DType dtype, int from, int to) {
    return start({.op = CollectiveOp::Send, .dtype = dtype, .count = count, .from = from, .to = to},
                 {&buffer, 1}, {});
  }
  Work recv(CommBuffer buffer, size_t count, DType dtype, int from, int to) {
    return start({.op = CollectiveOp::Recv, .dtype = dtype, .count = count, .from = from, .to = to},
                 {}, {&buffer, 1});
  }
  Work barrier() { return start({}, {}, {}); }

  // A run begins, of a step whose calls may have been recorded: they then reach the communicator
  // without `start`. For errors.
  virtual void begin_run(const Ticket& /*run*/) {}

  // Calls started in a batch may run as one when it ends: on devices, one launch for all of them.
  // It is also how sends and receives run at once there; what is started one by one runs one by
  // one, and the first time that two participants meet, the host of each waits for the other's.
  // Nothing of a batch is waited for before its end. Use `Batch`.
  virtual void begin_batch() {}
  virtual void end_batch() {}
  // In place of end_batch where a call could not be started. The others of the batch may be on
  // their way: the group fails.
  virtual void drop_batch() noexcept {}

  // A communicator of some participants, renumbered in the order given. Called by every process
  // that holds one of them, and by no other; waits for them (at most the timeout). Processes that
  // share several groups split them in the same order. UserError when the list names a participant
  // twice, out of range, or none of this process.
  virtual std::unique_ptr<Communicator> split(std::span<const int> participants,
                                              std::string name = {}) = 0;

  // Every rank describes what it is about to run: a hash and, where hashes differ, item by item the
  // text behind it: a line, and perhaps more lines with details. Waits for all. Equal hashes
  // return; otherwise every rank throws the same UserError: with the methods that they were asked by
  // where these differ (`asked` of the identity), else with the first item that differs and the two
  // ranks. CommError where what they were given (`inputs`) differs.
  using Items = std::function<std::vector<std::string>()>;
  virtual void check_same(uint64_t hash, const Items& items, std::string_view what,
                          const RunIdentity& told = {}) = 0;

  // Compares `identity` with the other ranks, which announce theirs, and waits for nobody: where
  // they differ, the group fails.
  virtual void announce(const RunIdentity& identity) = 0;

  // Fails everything under way here and on the peers, now: this rank met `reason` and will not
  // come. Idempotent.
  virtual void abort(std::string_view reason) noexcept = 0;
  virtual bool failed() const noexcept = 0;
  // Throws CommError when this group has failed, or a peer is known to have ended. Waits for
  // nobody.
  virtual void check_alive() = 0;

  // Collectives started so far; Send and Recv are not counted, as only two ranks see them.
  virtual uint64_t sequence() const = 0;

 protected:
  Communicator(std::string name, int rank, std::vector<int> ranks);
  Work work(uint64_t ticket) { return Work(this, ticket); }

  // Throws UserError where the call does not fit this group: counts of buffers, null data, ranges.
  void check(const Collective& call, std::span<const CommBuffer> send,
             std::span<const CommBuffer> recv) const;

 private:
  friend class Work;
  virtual bool test(uint64_t ticket) = 0;
  virtual void wait(uint64_t ticket, Deadline deadline) = 0;

  std::string name_;
  int rank_;
  std::vector<int> ranks_;  // of each participant
  std::vector<int> local_;
};

// The calls started while it lives, until `end`, are a batch.
class Batch {
 public:
  explicit Batch(Communicator& communicator) : communicator_(&communicator) {
    communicator.begin_batch();
  }
  ~Batch() {
    if (communicator_ != nullptr) communicator_->drop_batch();
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  void end() { std::exchange(communicator_, nullptr)->end_batch(); }

 private:
  Communicator* communicator_;
};

inline bool Work::test() { return communicator_ == nullptr || communicator_->test(ticket_); }
inline void Work::wait(Deadline deadline) {
  if (communicator_ != nullptr) communicator_->wait(ticket_, deadline);
}

}  // namespace tinyshard
