// All that is queued is queued under one lock (in_order), so that a sequence of calls stays
// together. Copies from the host go through pinned pieces in the compute queue. Reads have a stream
// of their own, behind an event of the compute queue, and fetch one piece ahead of the one that the
// host copies. The host asks an event again and again, at first without pause, then yielding, then
// asleep; every 10 ms watchers tell whether what it waits for can still come.
#include "devices/gpu/gpu.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/observer.h"
#include "devices/gpu/pinned_blocks.h"
#include "devices/gpu/pinned_ring.h"
#include "devices/gpu/program.h"
#include "devices/gpu/recorder.h"
#include "devices/gpu/sort.h"

namespace tinyshard::gpu {
namespace {

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr unsigned kNoTiming = 2;     // CU_EVENT_DISABLE_TIMING

Address address(const void* memory) { return reinterpret_cast<Address>(memory); }

// A value in a pinned block, once the event is reached.
class ReadLater final : public PendingCopy {
 public:
  ReadLater(Gpu& gpu, PinnedBlocks& blocks, size_t bytes)
      : gpu_(gpu), blocks_(blocks), bytes_(bytes), there_(gpu), block_(blocks.take(bytes)) {}
  ~ReadLater() override { blocks_.give_back(block_, bytes_); }
  ReadLater(const ReadLater&) = delete;

  bool arrived() override { return gpu_.reached(there_); }
  std::span<const std::byte> wait() override {
    gpu_.wait_on_host(there_.handle());
    return {static_cast<const std::byte*>(block_), bytes_};
  }
  void* block() const { return block_; }
  Event& there() { return there_; }

 private:
  Gpu& gpu_;
  PinnedBlocks& blocks_;
  size_t bytes_;
  GpuEvent there_;
  void* block_;
};

std::string gib(size_t bytes) { return fmt::format("{:.1f} GiB", double(bytes) / (1 << 30)); }

}  // namespace

GpuEvent::GpuEvent(Gpu& gpu) : gpu_(gpu), handle_(gpu.take_event()) {}
GpuEvent::~GpuEvent() { gpu_.return_event(handle_); }

Gpu::Gpu(const Vendor& vendor, int index)
    : vendor_(vendor),
      driver_(vendor.driver()),
      index_(index),
      name_(fmt::format("{}:{}", driver_.maker().kind, index)) {
  check(driver_.device_get(&id_, index), "opening it");
  std::array<unsigned char, 16> uuid{};
  check(driver_.device_uuid(uuid.data(), id_), "its identity");
  for (unsigned char byte : uuid) uuid_ += fmt::format("{:02x}", byte);
  auto attribute = [&](int which) {
    int value = 0;
    check(driver_.device_attribute(&value, which, id_), "its properties");
    return value;
  };
  const Driver::Maker& maker = driver_.maker();
  capability_ = vendor.capability(id_);
  target_ = vendor.target(capability_);
  target_.multiprocessors = attribute(maker.multiprocessors);
  if (target_.shared_bytes == 0) target_.shared_bytes = attribute(maker.shared_per_block);
  check(driver_.primary_retain(&context_, id_), "its context");
  make_current();
  check(driver_.stream_create(&compute_, kNonBlocking, 0), "a stream");
  check(driver_.stream_create(&writing_, kNonBlocking, 0), "a stream");
  check(driver_.stream_create(&reading_, kNonBlocking, 0), "a stream");
  // Collectives first: they are short and others wait for them.
  check(driver_.stream_create(&communication_, kNonBlocking, -5), "a stream");
  allocator_ = std::make_unique<Allocator>(name_, static_cast<MemorySource&>(*this));
  sending_ = std::make_unique<PinnedRing>(*this);
  receiving_ = std::make_unique<PinnedRing>(*this);
  read_later_ = std::make_unique<PinnedBlocks>(*this);
}

Gpu::~Gpu() {
  // Nothing of ours is in flight any more, or it never will be: whoever waited has been told.
  driver_.set_current(context_);
  recorder_.reset();
  library_state.reset();
  dnn_state.reset();
  sending_.reset();
  receiving_.reset();
  read_later_.reset();
  allocator_.reset();
  for (EventHandle event : events_) driver_.event_destroy(event);
  for (Stream stream : {compute_, writing_, reading_, communication_}) {
    if (stream) driver_.stream_destroy(stream);
  }
  driver_.primary_release(id_);
}

// --- memory

void* Gpu::allocate(size_t bytes, const char* purpose) {
  make_current();
  return allocator_->allocate(bytes, purpose);
}

void Gpu::free(void* memory, size_t) noexcept { allocator_->free(memory); }

void* Gpu::take(size_t bytes) {
  Address memory = 0;
  Result result = driver_.memory_allocate(&memory, bytes);
  if (result == kOutOfMemory) return nullptr;
  check(result, fmt::format("allocating {} bytes", bytes));
  return reinterpret_cast<void*>(memory);  // NOLINT(performance-no-int-to-ptr): the driver's form
}

void Gpu::give_back(void* segment) noexcept { driver_.memory_free(address(segment)); }

void Gpu::wait_idle() { synchronize(); }

std::string Gpu::describe() {
  size_t free = 0, total = 0;
  check(driver_.memory_info(&free, &total), "its memory");
  return fmt::format("{} free of {}", gib(free), gib(total));
}

// Calls take the workspaces in turns, each as large as its largest call: at most these of the largest ones.
int64_t Gpu::workspace_bytes(std::span<const LibraryCall* const> calls) const {
  std::vector<int64_t> bytes(kWorkspaces);
  for (const LibraryCall* call : calls) {
    if (call->node.op() == Op::Sort) bytes.push_back(sort_workspace_bytes(*call));
  }
  std::ranges::partial_sort(bytes, bytes.begin() + kWorkspaces, std::greater());
  return std::accumulate(bytes.begin(), bytes.begin() + kWorkspaces, int64_t{0});
}

std::shared_ptr<void> Gpu::workspace(size_t bytes, size_t which) {
  auto lock = in_order();
  Workspace& workspace = workspaces_.at(which);
  std::shared_ptr<void> held = workspace.memory.lock();
  if (held && workspace.bytes >= bytes) return held;
  const auto tell = [](int64_t change) {
    observe([&] {
      return ObservedEvent{.kind = EventKind::Allocation, .name = "workspaces", .bytes = change};
    });
  };
  std::shared_ptr<void> made(allocate(bytes, "libraries' workspace"),
                             [this, bytes, tell](void* memory) {
                               free(memory, bytes);
                               tell(-int64_t(bytes));
                             });
  tell(int64_t(bytes));
  workspace = {made, bytes};
  return made;
}

// --- copies

void Gpu::copy_in(void* to, const void* host, size_t bytes) {
  auto lock = in_order();
  make_current();
  const char* from = static_cast<const char*>(host);
  for (size_t done = 0; done < bytes;) {
    size_t n = std::min(PinnedRing::kPiece, bytes - done);
    void* staged = sending_->take(n);
    std::memcpy(staged, from + done, n);
    check(driver_.copy_to_device(address(to) + done, staged, n, compute_), "a copy to it");
    sending_->used_by(compute_);
    done += n;
  }
}

// On a stream of its own, behind what was queued so far: a long read does not hold up what is
// queued next.
void Gpu::copy_out(void* host, const void* from, size_t bytes) {
  make_current();
  std::lock_guard lock(reading_order_);
  GpuEvent ready(*this);
  record(ready, Queue::Compute);
  check(driver_.stream_wait(reading_, ready.handle(), 0), "waiting for an event");
  struct Piece {
    size_t offset, bytes;
    void* staged;
    EventHandle event;
  };
  auto fetch = [&](size_t offset) {
    size_t n = std::min(PinnedRing::kPiece, bytes - offset);
    void* staged = receiving_->take(n);
    check(driver_.copy_to_host(staged, address(from) + offset, n, reading_), "a copy from it");
    return Piece{offset, n, staged, receiving_->used_by(reading_)};
  };
  auto deliver = [&](const Piece& piece) {
    wait_on_host(piece.event);
    std::memcpy(static_cast<char*>(host) + piece.offset, piece.staged, piece.bytes);
  };
  // The GPU is one piece ahead: it copies the next while the host copies this one.
  if (bytes > 0) {
    Piece current = fetch(0);
    while (current.offset + current.bytes < bytes) {
      Piece next = fetch(current.offset + current.bytes);
      deliver(current);
      current = next;
    }
    deliver(current);
  }
}

// In the compute queue, as what is queued next may write over the value.
std::unique_ptr<PendingCopy> Gpu::begin_copy_out(const void* from, size_t bytes) {
  if (bytes > PinnedBlocks::kLargest) return Device::begin_copy_out(from, bytes);
  auto lock = in_order();
  make_current();
  auto copy = std::make_unique<ReadLater>(*this, *read_later_, bytes);
  if (bytes > 0)
    check(driver_.copy_to_host(copy->block(), address(from), bytes, compute_), "a copy from it");
  record(copy->there(), Queue::Compute);
  return copy;
}

// Returns whether this GPU may copy to the other's memory directly; asked once per pair.
bool Gpu::reach(Gpu& peer) {
  auto found = std::ranges::find(peers_, &peer, &std::pair<Gpu*, bool>::first);
  if (found != peers_.end()) return found->second;
  int can = 0;
  driver_.device_can_access_peer(&can, id_, peer.id_);
  if (can) {
    make_current();
    Result result = driver_.enable_peer_access(peer.context_, 0);
    can = result == kSuccess || result == kPeerAccessAlreadyEnabled;
  }
  peers_.emplace_back(&peer, can != 0);
  return can != 0;
}

bool Gpu::copy_from(void* to, Device& source, const void* from, size_t bytes) {
  auto* peer = dynamic_cast<Gpu*>(&source);
  if (!peer || &peer->driver_ != &driver_) return false;  // another maker's is not reached
  if (bytes == 0) return true;
  if (peer == this) {
    auto lock = in_order();
    make_current();
    check(driver_.copy_on_device(address(to), address(from), bytes, compute_), "a copy on it");
    return true;
  }
  std::scoped_lock lock(order_, peer->order_);
  reach(*peer);  // without a direct way the driver goes through the host by itself
  // After what the source was told so far, and before what it is told next.
  GpuEvent ready(*peer), done(*this);
  peer->record(ready, Queue::Compute);
  wait(ready, Queue::Compute);
  check(driver_.copy_peer(address(to), context_, address(from), peer->context_, bytes, compute_),
        "a copy from another GPU");
  record(done, Queue::Compute);
  peer->wait(done, Queue::Compute);
  return true;
}

bool Gpu::fill_zero(void* to, size_t bytes) {
  auto lock = in_order();
  make_current();
  if (bytes > 0) check(driver_.fill_bytes(address(to), 0, bytes, compute_), "filling memory");
  return true;
}

// --- programs

void Gpu::prepare(const ObjectCode& code) {
  if (code.work_items == 0) return;
  make_current();
  vendor_.prepare(code, capability_, name_);
}

void Gpu::prepare(const LibraryCall& call) {
  make_current();
  vendor_.prepare(*this, call);
}

std::unique_ptr<Program> Gpu::load(const ObjectCode& code) {
  return std::make_unique<KernelProgram>(*this, code);
}

bool Gpu::supports(const LibraryCall& call, std::string* why) const {
  return vendor_.supports(*this, call, why);
}

int64_t Gpu::worth_copying(const LibraryCall& call, int operand) const {
  return vendor_.worth_copying(*this, call, operand);
}

std::unique_ptr<Program> Gpu::library(const LibraryCall& call) {
  make_current();
  return vendor_.library(*this, call);
}

void Gpu::begin_recording() {
  order_.lock();
  try {
    recorder_ = std::make_unique<Recorder>(*this);
  } catch (...) {
    order_.unlock();
    throw;
  }
}

void Gpu::record_step(std::span<const int> after, bool urgent) {
  auto lock = in_order();
  make_current();
  check_internal(recorder_ != nullptr, "steps are recorded");
  recorder_->step(after, urgent);
}

std::unique_ptr<Recording> Gpu::end_recording() {
  std::unique_lock lock(order_, std::adopt_lock);
  std::unique_ptr<Recorder> recorder = std::move(recorder_);
  if (!recorder->holds_collective()) return recorder->finish(nullptr);
  std::erase_if(with_collective_, [](const auto& graph) { return graph.expired(); });
  return recorder->finish(&with_collective_.emplace_back());
}

void Gpu::abandon_recording() noexcept {
  recorder_.reset();
  order_.unlock();
}

std::shared_ptr<void> Gpu::take_recorded_collectives() {
  auto lock = in_order();
  auto taken = std::make_shared<std::vector<std::unique_ptr<RecordedGraph>>>();
  for (const std::weak_ptr<RecordedGraph>& weak : std::exchange(with_collective_, {})) {
    std::shared_ptr<RecordedGraph> graph = weak.lock();
    if (!graph) continue;
    RecordedGraph& own = *taken->emplace_back(std::make_unique<RecordedGraph>(*this));
    std::swap(own.graph, graph->graph);
    std::swap(own.exec, graph->exec);
  }
  return taken;
}

// --- waiting

EventHandle Gpu::take_event() {
  {
    std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      EventHandle event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  make_current();
  EventHandle event = nullptr;
  check(driver_.event_create(&event, kNoTiming), "an event");
  return event;
}

void Gpu::return_event(EventHandle event) noexcept {
  std::lock_guard lock(mutex_);
  events_.push_back(event);
}

void Gpu::record(Event& event, Queue queue) {
  auto lock = in_order();
  if (recorder_ && queue == Queue::Communication) recorder_->has_collective();
  make_current();
  check(driver_.event_record(static_cast<GpuEvent&>(event).handle(), stream(queue)),
        "recording an event");
}

bool Gpu::reached(Event& event) {
  Result result = driver_.event_query(static_cast<GpuEvent&>(event).handle());
  if (result != kNotReady) check(result, "a launch before this event");
  return result == kSuccess;
}

void Gpu::wait(Event& event, Queue queue) {
  auto lock = in_order();
  make_current();
  check(driver_.stream_wait(stream(queue), static_cast<GpuEvent&>(event).handle(), 0),
        "waiting for an event");
  if (recorder_) recorder_->waited(stream(queue));
}

void Gpu::watch(const void* owner, Watcher watcher) {
  std::lock_guard lock(mutex_);
  watchers_.emplace_back(owner, std::move(watcher));
}

void Gpu::unwatch(const void* owner) noexcept {
  std::lock_guard lock(mutex_);
  std::erase_if(watchers_, [&](const auto& w) { return w.first == owner; });
}

void Gpu::wait_on_host(EventHandle event) {
  using namespace std::chrono_literals;
  constexpr std::chrono::nanoseconds kSpin = 200us, kYield = 5ms, kAsk = 10ms;
  auto start = std::chrono::steady_clock::now(), asked = start;
  while (true) {
    Result result = driver_.event_query(event);
    if (result == kSuccess) return;
    if (result != kNotReady) check(result, "a launch before this wait");
    auto now = std::chrono::steady_clock::now();
    if (now - start < kSpin) continue;
    if (now - start < kYield) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(50us);
    if (now - asked < kAsk) continue;
    asked = now;
    std::vector<std::pair<const void*, Watcher>> watchers;
    {
      std::lock_guard lock(mutex_);
      watchers = watchers_;
    }
    for (auto& [owner, watcher] : watchers) watcher(now - start);
  }
}

void Gpu::synchronize() {
  make_current();
  // Collectives are joined to the compute queue by whoever waits for them, or are given up.
  for (Queue queue : {Queue::Compute, Queue::Communication}) {
    GpuEvent end(*this);
    record(end, queue);
    wait_on_host(end.handle());
  }
}

}  // namespace tinyshard::gpu
