// A GPU of any maker: memory, queues, copies, events and recordings over the maker's driver, and its
// compiler and libraries where they are needed (devices/gpu/vendor.h). Its parts (programs,
// recordings, staging) see all of it; users see what the maker's folder makes of it (devices/cuda/cuda_device.h).
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/runtime/device.h"
#include "core/runtime/host_copies.h"
#include "core/runtime/workspaces.h"
#include "devices/gpu/allocator.h"
#include "devices/gpu/driver.h"
#include "devices/gpu/vendor.h"

namespace tinyshard::gpu {

class GpuProgram;
class PinnedBlocks;
class PinnedRing;
class Recorder;
struct RecordedGraph;

// An event handle that goes back to the GPU it is from.
class GpuEvent final : public Event {
 public:
  explicit GpuEvent(class Gpu& gpu);
  ~GpuEvent() override;
  GpuEvent(const GpuEvent&) = delete;
  EventHandle handle() const { return handle_; }

 private:
  Gpu& gpu_;
  EventHandle handle_;
};

//
// Threads: what is queued takes the lock `order_` for the time of the call. A recording holds it
// from beginning to end: what another thread queues meanwhile must not become a part of it.
class Gpu final : public Device, public HostCopies, public TellsWorkspaces, private MemorySource {
 public:
  Gpu(const Vendor& vendor, int index);
  ~Gpu() override;

  std::string name() const override { return name_; }
  const Target& target() const override { return target_; }
  const DeviceProfile& profile() const override { return vendor_.profile(); }
  std::string hardware() const override { return uuid_; }
  using Device::allocate;
  void* allocate(size_t bytes, const char* purpose) override;
  void free(void* memory, size_t bytes) noexcept override;
  MemoryStats memory() const override { return allocator_->stats(); }
  void copy_in(void* to, const void* host, size_t bytes) override;
  void copy_out(void* host, const void* from, size_t bytes) override;
  std::unique_ptr<PendingCopy> begin_copy_out(const void* from, size_t bytes) override;
  bool copy_from(void* to, Device& source, const void* from, size_t bytes) override;
  bool fill_zero(void* to, size_t bytes) override;
  void* host_pointer(void*) override { return nullptr; }
  bool lock_memory(void* memory, size_t bytes) override;
  void unlock_memory(void* memory) noexcept override;
  std::unique_ptr<CopyBatch> begin_copies() override;
  void prepare(const ObjectCode& code) override;
  void prepare(const LibraryCall& call) override;
  std::unique_ptr<Program> load(const ObjectCode& code) override;
  bool supports(const LibraryCall& call, std::string* why) const override;
  const LibraryProvider* library_provider() const override { return vendor_.provider(); }
  int64_t worth_copying(const LibraryCall& call, int operand) const override;
  std::unique_ptr<Program> library(const LibraryCall& call) override;
  // Knows those of sorts; what other libraries take is known when a call is loaded.
  int64_t workspace_bytes(std::span<const LibraryCall* const> calls) const override;
  void synchronize() override;

  void* native_queue(Queue queue) override { return stream(queue); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<GpuEvent>(*this); }
  void record(Event& event, Queue queue) override;
  bool reached(Event& event) override;
  void wait(Event& event, Queue queue) override;
  void make_current() override { static_cast<const Gpu*>(this)->make_current(); }
  void make_current() const { check(driver_.set_current(context_), "making it current"); }
  void watch(const void* owner, Watcher watcher) override;
  void unwatch(const void* owner) noexcept override;
  bool can_record() const override { return true; }
  void begin_recording() override;
  void record_step(std::span<const int> after, bool urgent) override;
  std::unique_ptr<Recording> end_recording() override;
  void abandon_recording() noexcept override;
  std::shared_ptr<void> take_recorded_collectives() override;

  // --- for the parts
  const Vendor& vendor() const { return vendor_; }
  const Driver& driver() const { return driver_; }
  const std::string& capability() const { return capability_; }  // "9.0", "gfx942"
  void check(Result result, std::string_view asked) const { driver_.check(result, name_, asked); }
  Stream stream(Queue queue) const { return queue == Queue::Compute ? compute_ : communication_; }
  Context context() const { return context_; }
  EventHandle take_event();
  void return_event(EventHandle event) noexcept;
  // Scratch memory that launches share, one after the other: at least so many bytes, as long as
  // somebody holds it. There are a few, so that launches that use different ones can run side by
  // side.
  static constexpr size_t kWorkspaces = 2;
  std::shared_ptr<void> workspace(size_t bytes, size_t which = 0);
  size_t next_workspace() { return turn_++ % kWorkspaces; }  // each in turn
  // State that libraries keep per GPU, made by the first call that needs it.
  std::shared_ptr<void> library_state;
  mutable std::shared_ptr<void> dnn_state;
  std::unique_lock<std::recursive_mutex> in_order() const { return std::unique_lock(order_); }
  // The host sleeps, polls and asks the watchers until the event is reached.
  void wait_on_host(EventHandle event);
  // Programs announce each launch; it is remembered while recording.
  template <class Enqueue>
  void launch(GpuProgram& program, void* const* buffers, const int64_t* coordinates,
              Enqueue&& enqueue);

 private:
  void* take(size_t bytes) override;
  void give_back(void* segment) noexcept override;
  void wait_idle() override;
  std::string describe() override;
  bool reach(Gpu& peer);

  const Vendor& vendor_;
  const Driver& driver_;
  int index_;
  DeviceId id_ = 0;
  std::string name_, uuid_, capability_;
  Context context_ = nullptr;
  Stream compute_ = nullptr, writing_ = nullptr, reading_ = nullptr, communication_ = nullptr;
  Target target_;
  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<PinnedRing> sending_, receiving_;
  std::unique_ptr<PinnedBlocks> read_later_;
  struct Workspace {
    std::weak_ptr<void> memory;  // the largest in use
    size_t bytes = 0;
  };
  std::array<Workspace, kWorkspaces> workspaces_;
  std::atomic<size_t> turn_ = 0;
  mutable std::recursive_mutex order_;
  std::mutex reading_order_;  // of receiving_ and its stream
  std::unique_ptr<Recorder> recorder_;
  std::vector<std::weak_ptr<RecordedGraph>> with_collective_;  // recordings that are in use
  std::mutex mutex_;                                           // events_ and watchers_
  std::vector<EventHandle> events_;
  std::vector<std::pair<const void*, Watcher>> watchers_;
  std::vector<std::pair<Gpu*, bool>> peers_;  // and whether each can be reached directly
};

}  // namespace tinyshard::gpu
