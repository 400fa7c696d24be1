// The communicator over a channel: a pool of requests, the order of calls, and what happens when
// one fails. `inproc`, `mpi` and `tcp` are this class with different channels; all participants in
// one process is the case without messages.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/runtime/communicator.h"
#include "transport/endpoint.h"
#include "transport/request.h"

namespace tinyshard {

class Group final : public Communicator {
 public:
  // The group of all participants of a job. Every rank calls it with the number of participants
  // that it brings.
  static std::unique_ptr<Communicator> world(std::shared_ptr<Endpoint> endpoint,
                                             int local_participants);

  ~Group() override;

  std::string_view transport() const override { return endpoint_->channel().name(); }
  bool supports(CollectiveOp op, DType dtype, ReduceOp reduce) const override;
  Work start(const Collective& call, std::span<const CommBuffer> send,
             std::span<const CommBuffer> recv) override;
  std::unique_ptr<Communicator> split(std::span<const int> participants, std::string name) override;
  void check_same(uint64_t hash, const Items& items, std::string_view what,
                  const RunIdentity& told) override;
  void announce(const RunIdentity& identity) override;
  void abort(std::string_view reason) noexcept override;
  void check_alive() override;
  bool failed() const noexcept override { return failed_.load(std::memory_order_acquire); }
  uint64_t sequence() const override { return sequence_.load(std::memory_order_relaxed); }

  // A step that devices recorded begins, whose calls do not come through here.
  void record_run(const Ticket& run);
  // Checks as check_alive does while the program waits for devices, which do what was announced
  // here, such as `call`. It has waited so long for ranks that have not announced it.
  void check_alive_during(const Collective& call, std::chrono::nanoseconds waited);

  // For the endpoint, with its mutex held.
  uint64_t id() const { return id_; }
  uint32_t context() const { return context_; }
  void progress();
  void receive(const Notice& notice);
  detector::Doing doing(Deadline now) const;  // of the oldest collective under way

 private:
  struct Identity {
    uint64_t id;
    uint32_t context;
  };
  struct Failure {     // of the group; what every later call reports
    int culprit = -1;  // a rank, or -1
    std::string detail;
    FailureCause cause = FailureCause::Unknown;
  };
  static constexpr size_t kWindow =
      512;  // calls under way at once; half of what tags can tell apart
  static constexpr int kPlaceBits = 16;  // of a ticket; above them the generation
  static constexpr uint64_t kPlaceMask = (1u << kPlaceBits) - 1;

  Group(std::shared_ptr<Endpoint> endpoint, std::string name, std::vector<int> ranks,
        Identity identity);
  static Identity agree(Endpoint& endpoint, const GroupLayout& layout, uint64_t digest,
                        Deadline deadline);

  bool test(uint64_t ticket) override;
  void wait(uint64_t ticket, Deadline deadline) override;
  Work start_checked(const Collective& call, std::span<const CommBuffer> send,
                     std::span<const CommBuffer> recv, bool verify);
  bool settled(uint64_t ticket, Deadline deadline, Deadline now, bool holds);
  bool given_up(int rank, Deadline now);
  std::optional<Failure> seen_by_detector(const Request& request);
  std::optional<Failure> seen_in_circle() const;
  int silent_member() const;
  int latest() const;
  void inspect(Request& request, Deadline limit, Deadline now, bool holds);
  uint64_t place_of(const Collective& call, CollectiveOp side) const;
  detector::CallNumber awaited_call(const Request& request) const;
  uint64_t ticket_of(uint32_t place) const;
  uint32_t tag_of(const Collective& call, uint64_t sequence) const;
  bool awaits_headers() const;
  void met(const ChannelError& error, bool diverged);
  void settle_postponed(Deadline now);
  void finish_announcements();
  void fail(Failure failure, bool tell_peers);
  void leave(std::string_view what, std::string_view reason = {}) noexcept;  // fails by this rank
  void completed(const Request& request);
  [[noreturn]] void throw_failure(const Collective& call, uint64_t sequence, double elapsed);
  std::vector<std::byte> gather_bytes(std::span<const std::byte> own,
                                      std::span<const size_t> counts, RunIdentity identity = {});

  std::shared_ptr<Endpoint> endpoint_;
  GroupLayout layout_;
  uint64_t id_;       // unique in the job
  uint32_t context_;  // of its tags: no two groups that share a rank have the same at one time
  Recorder::GroupName recorded_;
  CommOptions options_;
  const int unwinding_;  // exceptions in flight when it was made

  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> failed_{false};
  Failure failure_;                           // once failed_
  bool was_told_ = false;                     // the program, by an exception
  struct {                                    // of the calls that are items of schedules, the last
    CollectiveOp op = CollectiveOp::Barrier;  // that was done here
    Ticket ticket;
  } completed_;
  std::vector<std::shared_ptr<Request>> pool_;  // shared: see keep_for_good
  std::vector<uint32_t> free_, active_;  // places in the pool; active_ in the order of the starts
  Deadline next_inspection_{};
  std::optional<Deadline> overdue_;  // when a wait was first seen past its deadline
  struct Suspicion {                 // of a rank that has ended or left, at inspections in a row
    int rank = -1, looks = 0;
    uint64_t completed = 0;  // of the channel
    Deadline next_look{};
  } suspicion_;
  std::vector<int> awaited_;
  // An error that headers under way may explain, and until when they are waited for.
  std::optional<std::pair<ChannelError, Deadline>> postponed_;
};

}  // namespace tinyshard
