// Making a group (its ranks tell each other what they have, and take NCCL only where all can), its
// calls, its waits, and its two ends: destroyed by all ranks together, or aborted by one that saw a
// failure, on a thread of its own, because an abort may hang in a driver.
#include "transport/nccl/nccl_group.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "core/base/process.h"
#include "launch/secret.h"
#include "transport/group.h"
#include "transport/nccl/nccl.h"
#include "transport/nccl/nccl_calls.h"

namespace tinyshard {
namespace {

using nccl::Comm;
using nccl::Nccl;
using Clock = std::chrono::steady_clock;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// The first message between the participants of a group. Plain bytes on the wire.
struct Hello {
  int32_t version = 0;  // 0: no NCCL here
  char why[116] = {};
  char kind[8] = {};  // of the device
  char hardware[64] = {};
  nccl::UniqueId id = {};  // of participant 0
};

class NcclGroup;

std::vector<NcclGroup*>& living_groups() {
  static auto* groups = new std::vector<NcclGroup*>;
  return *groups;
}

// NCCL's threads run until its communicators have ended, and use state that the exit of a process
// destroys. So they end first of all: what is registered last runs first, and NCCL has registered
// its own when it has connected.
void end_before_the_library(NcclGroup& group);

class NcclGroup final : public Communicator {
 public:
  NcclGroup(const Nccl& library, Communicator& host, std::vector<Device*> devices,
            const CommOptions& options, std::vector<int> ranks, const nccl::UniqueId& id)
      : Communicator(host.name(), host.rank(), std::move(ranks)),
        nccl_(library),
        host_(host),
        devices_(std::move(devices)),
        options_(options),
        comms_(devices_.size()),
        two_bytes_(devices_.size()) {
    connect(id);
    for (Device* device : devices_) {
      device->watch(this, [this](std::chrono::nanoseconds waited) { look(waited); });
      ready_.push_back(device->make_event());
    }
    for (auto& slot : done_) {
      for (Device* device : devices_) slot.push_back(device->make_event());
    }
    end_before_the_library(*this);
  }

  ~NcclGroup() override {
    std::erase(living_groups(), this);
    for (Device* device : devices_) device->unwatch(this);
    start_abort();
    wait_for_abort(kAbortEnds);
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (two_bytes_[i]) devices_[i]->free(two_bytes_[i], 2);
    }
  }

  // When the process exits, with its other groups. Peers may still be reading what this process
  // sent last, so all meet first, unless something failed.
  void end(bool orderly) noexcept {
    try {
      if (orderly && !failed_) {
        for (Device* device : devices_) device->synchronize();
        host_.barrier().wait();
      }
    } catch (const std::exception& error) {  // a peer is gone: nothing left to wait for
      if (options().debug >= 1) log_line(error.what());
    }
    start_abort();
    wait_for_abort(kAbortEnds);
  }

  std::string_view transport() const override { return "nccl"; }
  bool on_devices() const override { return true; }
  void begin_run(const Ticket& run) override {
    run_ = run;
    if (auto* host = dynamic_cast<Group*>(&host_)) host->record_run(run);
  }

  bool supports(CollectiveOp op, DType dtype, ReduceOp reduce) const override {
    return nccl::offers(op, dtype, reduce);
  }

  Work start(const Collective& call, std::span<const CommBuffer> send,
             std::span<const CommBuffer> recv) override {
    check(call, send, recv);
    if (failed_) throw_failure(call, {});
    if (call.op == CollectiveOp::Barrier) {
      for (Device* device : devices_) device->synchronize();
      return host_.barrier();
    }
    if (!supports(call.op, call.dtype, call.reduce))
      throw UserError(
          fmt::format("{} on group \"{}\": NCCL has no such call", describe(call), name()));
    std::optional<Batch> alone;  // a call by itself is a batch of one
    if (!in_batch_) alone.emplace(*this);
    last_ = call;
    last_.counts = {};
    last_.identity = nullptr;
    if (call.ticket.run > 0) {
      auto [items, added] =
          items_.try_emplace(call.ticket.schedule, call.ticket.item, call.ticket.item);
      items->second.first = std::min(items->second.first, call.ticket.item);
      items->second.second = std::max(items->second.second, call.ticket.item);
    }
    auto after_launches = [&](size_t i) {
      devices_[i]->record(*ready_[i], Queue::Compute);
      devices_[i]->wait(*ready_[i], Queue::Communication);
    };
    if (is_pair(call.op)) {
      size_t i = place_of(call.op == CollectiveOp::Send ? call.from : call.to);
      after_launches(i);
      issue(call, i, send.data(), recv.data());
    } else {
      ++sequence_;
      for (size_t i = 0; i < devices_.size(); ++i) after_launches(i);
      for (size_t i = 0; i < devices_.size(); ++i) issue(call, i, &send[i], &recv[i]);
    }
    if (alone) alone->end();
    return work(ticket_);
  }

  void begin_batch() override {
    check_internal(!in_batch_, "batches do not nest");
    in_batch_ = true;
    ++ticket_;
    begin();
  }
  void end_batch() override {
    in_batch_ = false;
    finish("starting");
    auto& events = done_[ticket_ % kSlots];
    for (size_t i = 0; i < devices_.size(); ++i)
      devices_[i]->record(*events[i], Queue::Communication);
  }
  void drop_batch() noexcept override {
    if (!std::exchange(in_batch_, false)) return;
    nccl_.group_end();
    constexpr const char* kWhy = "a call of a batch could not be started";
    host_.abort(kWhy);
    fail(-1, kWhy);
  }

  std::unique_ptr<Communicator> split(std::span<const int> participants,
                                      std::string name) override {
    std::unique_ptr<Communicator> host = host_.split(participants, std::move(name));
    std::vector<Device*> devices;
    for (int p : participants) {
      auto own = std::ranges::find(local(), p);
      if (own != local().end()) devices.push_back(devices_[size_t(own - local().begin())]);
    }
    std::string why;
    auto group = connect_nccl(*host, devices, options_, &why);
    if (!group) throw InternalError("a part of an NCCL group is none: " + why);
    static_cast<NcclGroup&>(*group).owned_host_ = std::move(host);
    return group;
  }

  void check_same(uint64_t hash, const Items& items, std::string_view what,
                  const RunIdentity& told) override {
    host_.check_same(hash, items, what, told);
  }

  void announce(const RunIdentity& identity) override { host_.announce(identity); }
  void abort(std::string_view reason) noexcept override {
    host_.abort(reason);
    fail(-1, fmt::format("aborted: {}", reason));
  }
  bool failed() const noexcept override { return failed_; }
  void check_alive() override {
    if (failed_) throw_failure(last_, {});
    host_.check_alive();
  }
  uint64_t sequence() const override { return sequence_; }

 private:
  static constexpr size_t kSlots = 64;
  static constexpr auto kAbortStarts = std::chrono::milliseconds(50);
  static constexpr auto kAbortEnds = std::chrono::seconds(10);

  size_t place_of(int participant) const {
    return size_t(std::ranges::find(local(), participant) - local().begin());
  }

  void connect(const nccl::UniqueId& id) {
    nccl::Config config;
    begin();
    for (size_t i = 0; i < devices_.size(); ++i) {
      devices_[i]->make_current();
      const std::lock_guard lock(mutex_);
      accept(nccl_.init(&comms_[i], size(), id, local()[i], &config), comms_[i], "connecting");
    }
    finish("connecting");
  }

  // Calls between begin and finish belong together. A communicator that does not block answers "in
  // progress" and is asked until it is done: at most the timeout.
  void begin() {
    start_ = Clock::now();
    nccl_.group_start();
  }
  void accept(nccl::Result result, Comm comm, std::string_view what) {
    if (result == nccl::kSuccess || result == nccl::kInProgress) return;
    in_batch_ = false;
    nccl_.group_end();
    give_up(-1, fmt::format("{}: {}", what, nccl_.error(result, comm)), {});
  }
  void finish(std::string_view what) {
    nccl::Result result = nccl_.group_end();
    if (result != nccl::kSuccess && result != nccl::kInProgress)
      give_up(-1, fmt::format("{}: {}", what, nccl_.error(result, comms_[0])), {});
    if (result == nccl::kSuccess) return;
    auto asked = start_;
    for (size_t i = 0; i < comms_.size();) {
      std::unique_lock lock(mutex_);
      if (failed_) throw_failure(last_, Clock::now() - start_);
      nccl::Result state = nccl::kSuccess;
      result = nccl_.async_error(comms_[i], &state);
      if (result == nccl::kSuccess) result = state;
      if (result == nccl::kSuccess) {
        ++i;
        continue;
      }
      auto now = Clock::now();
      if (result != nccl::kInProgress)
        give_up(-1, fmt::format("{}: {}", what, nccl_.error(result, comms_[i])), now - start_);
      lock.unlock();
      if (now - start_ > options_.timeout)
        give_up(-1, fmt::format("{}: the deadline passed", what), now - start_);
      if (now - asked > std::chrono::milliseconds(10)) {
        asked = now;
        ask_host(now - start_);
      }
      if (now - start_ > options_.spin) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // Issues the call of this process's participant i.
  void issue(const Collective& call, size_t i, const CommBuffer* send, const CommBuffer* recv) {
    const std::lock_guard lock(mutex_);
    if (failed_) throw_failure(call, {});
    nccl::Participant self{comms_[i], devices_[i]->native_queue(Queue::Communication),
                           size_t(local()[i]), size_t(size())};
    devices_[i]->make_current();
    if (is_pair(call.op)) meet(self, i, call.op == CollectiveOp::Send ? call.to : call.from);
    accept(nccl::issue(nccl_, call, self, send ? send->data : nullptr, recv ? recv->data : nullptr),
           comms_[i], describe(call));
  }
  void meet(const nccl::Participant& self, size_t i, int peer) {
    if (peer == local()[i] || !met_.insert({i, peer}).second) return;
    if (!two_bytes_[i]) two_bytes_[i] = devices_[i]->allocate(2, "communication");
    accept(nccl::meet(nccl_, self, peer, two_bytes_[i]), comms_[i], "meeting");
  }

  // The event of a later call on the same queue says as much of an earlier one.
  bool test(uint64_t ticket) override {
    if (failed_) throw_failure(last_, {});
    auto& events = done_[ticket % kSlots];
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (!devices_[i]->reached(*events[i])) return false;
    }
    return true;
  }
  void wait(uint64_t ticket, Deadline) override {
    if (failed_) throw_failure(last_, {});
    auto& events = done_[ticket % kSlots];
    for (size_t i = 0; i < devices_.size(); ++i) devices_[i]->wait(*events[i], Queue::Compute);
  }

  // While the host waits for a device that may itself wait for a peer.
  void look(std::chrono::nanoseconds waited) {
    {
      const std::lock_guard lock(mutex_);
      if (failed_) throw_failure(last_, waited);
      for (Comm comm : comms_) {
        nccl::Result state = nccl::kSuccess;
        nccl_.async_error(comm, &state);
        if (state != nccl::kSuccess && state != nccl::kInProgress)
          give_up(-1, nccl_.error(state, comm), waited);
      }
    }
    ask_host(waited);
    if (waited > options_.timeout) give_up(-1, "the deadline passed", waited);
  }
  void ask_host(Clock::duration waited) {
    try {
      if (auto* host = dynamic_cast<Group*>(&host_)) {
        host->check_alive_during(last_, waited);
      } else {
        host_.check_alive();
      }
    } catch (const CommError& error) {
      give_up(error.info().peer, error.info().detail, waited);
    }
  }

  [[noreturn]] void give_up(int peer, std::string detail, Clock::duration waited) {
    host_.abort(detail);
    fail(peer, std::move(detail));
    throw_failure(last_, waited);
  }
  // From any thread.
  void fail(int peer, std::string detail) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (failed_) return;
      peer_ = peer;
      detail_ = std::move(detail);
      failed_ = true;
      start_abort();
    }
    wait_for_abort(kAbortStarts);
  }
  // Aborting makes kernels that wait for a peer end, at once; it then waits for the end of the
  // graphs that hold calls of the communicators, and may hang. It gets threads of its own.
  void start_abort() noexcept {
    const std::lock_guard lock(mutex_);
    std::vector<Comm> comms;
    for (Comm& comm : comms_) {
      if (comm) comms.push_back(std::exchange(comm, nullptr));
    }
    if (comms.empty()) return;
    try {
      std::vector<std::shared_ptr<void>> graphs;
      for (Device* device : devices_) graphs.push_back(device->take_recorded_collectives());
      aborted_ = std::make_shared<std::atomic<bool>>(false);
      std::thread([comms, graphs = std::move(graphs), done = aborted_, &nccl = nccl_]() mutable {
        std::vector<std::thread> each;  // participants of one process end together
        for (Comm comm : comms) each.emplace_back([comm, &nccl] { nccl.abort(comm); });
        graphs.clear();
        for (std::thread& thread : each) thread.join();
        *done = true;
      }).detach();
    } catch (const std::exception&) {
      aborted_.reset();  // no thread to be had: the communicators stay until the process ends
    }
  }
  void wait_for_abort(Clock::duration limit) const noexcept {
    std::shared_ptr<std::atomic<bool>> aborted;
    {
      const std::lock_guard lock(mutex_);
      aborted = aborted_;
    }
    for (auto end = Clock::now() + limit; aborted && !*aborted && Clock::now() < end;)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  [[noreturn]] void throw_failure(const Collective& call, Clock::duration waited) const {
    // In a replayed step it is not known which of its calls the device has reached.
    auto replayed = run_.run > call.ticket.run ? items_.find(run_.schedule) : items_.end();
    if (replayed != items_.end()) {
      const auto& [first, last] = replayed->second;
      throw CommError(
          {.rank = rank(),
           .peer = peer_,
           .operation = fmt::format(
               "one of the collectives #{} to #{} of a replayed step{}", first, last,
               call.site ? fmt::format(" on mesh axis \"{}\"", call.site->axis) : std::string()),
           .sequence = last,
           .elapsed_s = seconds(waited),
           .detail =
               fmt::format("{}; in run {} of schedule {:x}", detail_, run_.run, run_.schedule)});
    }
    throw CommError({.rank = rank(),
                     .peer = peer_,
                     .operation = describe_with_axis(call),
                     .sequence = call.ticket.run > 0 ? call.ticket.item : sequence_,
                     .elapsed_s = seconds(waited),
                     .detail = detail_ + describe_place(call)});
  }

  const Nccl& nccl_;
  Communicator& host_;
  std::unique_ptr<Communicator> owned_host_;
  std::vector<Device*> devices_;
  CommOptions options_;
  std::vector<Comm> comms_;
  std::vector<std::unique_ptr<Event>> ready_;
  std::array<std::vector<std::unique_ptr<Event>>, kSlots> done_;
  std::set<std::pair<size_t, int>> met_;  // ours, by place in local(), and participants
  std::vector<void*> two_bytes_;
  uint64_t sequence_ = 0, ticket_ = 0;  // the latter of batches
  bool in_batch_ = false;
  Collective last_;                                          // what failures are reported with
  Ticket run_;                                               // of the latest run, be it a replay
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> items_;  // of schedules: first and last of ours
  Clock::time_point start_;
  // Guards the failure, which another thread may bring, and the communicators, which it then takes
  // away: each call of NCCL for them is made with it held. Who fails while he makes one has it already.
  mutable std::recursive_mutex mutex_;
  std::atomic<bool> failed_{false};
  int peer_ = -1;  // these two stay as they are once failed_
  std::string detail_;
  std::shared_ptr<std::atomic<bool>> aborted_;  // once aborting has begun: whether it is done
};

void end_before_the_library(NcclGroup& group) {
  living_groups().push_back(&group);
  static const int forks = times_forked();  // a child of this process has no part in the job
  static const int once = on_exit(
      [](int status, void*) {
        if (forks != times_forked()) return;
        for (NcclGroup* living : living_groups()) living->end(status == 0);
      },
      nullptr);
  static_cast<void>(once);
}

// "CUDA" of "CUDA:3".
std::string kind_of(const Device& device) {
  const std::string name = device.name();
  return name.substr(0, name.find(':'));
}

// Fills in what a participant says of itself; the first one also makes the group's id.
void introduce(Hello& hello, Device& device, bool first) {
  const std::string kind = kind_of(device);
  kind.copy(hello.kind, sizeof(hello.kind) - 1);
  device.hardware().copy(hello.hardware, sizeof(hello.hardware) - 1);
  const Nccl* nccl = Nccl::of(kind);
  if (!nccl) return;
  nccl->why_not().copy(hello.why, sizeof(hello.why) - 1);
  if (!nccl->found()) return;
  hello.version = nccl->version();
  if (!first || nccl->get_unique_id(&hello.id) == nccl::kSuccess) return;
  hello.version = 0;
  nccl->error(1, nullptr).copy(hello.why, sizeof(hello.why) - 1);
}

}  // namespace

std::unique_ptr<Communicator> connect_nccl(Communicator& host, std::span<Device* const> devices,
                                           const CommOptions& options, std::string* why) {
  check_internal(devices.size() == host.local().size(), "a device for each local participant");
  if (wants_encryption() && host.local().size() < size_t(host.size())) {
    if (why) *why = "TS_SECURE=1, and what NCCL sends between ranks is not encrypted";
    return nullptr;
  }
  // All ranks come to the same answer, as all look at what all said.
  size_t n = size_t(host.size());
  std::vector<Hello> own(devices.size()), all(n * devices.size());
  std::vector<CommBuffer> send, recv;
  for (size_t i = 0; i < devices.size(); ++i) {
    Hello& hello = own[i];
    introduce(hello, *devices[i], host.local()[i] == 0);
    send.push_back({&hello});
    recv.push_back({&all[i * n]});
  }
  host.all_gather(send, recv, sizeof(Hello), DType::U8).wait();

  std::set<std::string> hardware;
  for (size_t p = 0; p < n; ++p) {
    const Hello& hello = all[p];
    auto refuse = [&](std::string reason) {
      if (why) *why = std::move(reason);
      return nullptr;
    };
    int rank = host.rank_of(int(p));
    if (std::string_view(hello.kind) != all[0].kind)
      return refuse(fmt::format("rank {} has a device {}, rank {} a device {}", host.rank_of(0),
                                all[0].kind, rank, hello.kind));
    if (hello.version == 0) return refuse(fmt::format("no NCCL on rank {}: {}", rank, hello.why));
    if (hello.version != all[0].version)
      return refuse(fmt::format("rank {} has NCCL {}, rank {} has {}", host.rank_of(0),
                                all[0].version, rank, hello.version));
    if (hello.hardware[0] == '\0') return refuse("a participant is no GPU");
    if (!hardware.insert(hello.hardware).second)
      return refuse(fmt::format("two participants share a GPU, one of them on rank {}", rank));
  }
  std::vector<int> ranks;
  for (size_t p = 0; p < n; ++p) ranks.push_back(host.rank_of(int(p)));
  return std::make_unique<NcclGroup>(*Nccl::of(all[0].kind), host,
                                     std::vector<Device*>(devices.begin(), devices.end()), options,
                                     std::move(ranks), all[0].id);
}

namespace {

TransportInfo info_of(const char* name, const char* kind) {
  const Nccl& nccl = *Nccl::of(kind);
  return {name, nccl.found(), nccl.found() ? nccl.describe() : nccl.why_not()};
}

}  // namespace

TransportInfo nccl_info() { return info_of("nccl", "CUDA"); }
TransportInfo rccl_info() { return info_of("rccl", "HIP"); }

}  // namespace tinyshard
