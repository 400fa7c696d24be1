// Copies of a GPU on two streams of their own, one to it and one from it, from and to pages that the
// driver has locked.
#include "core/runtime/host_copies.h"

#include "devices/gpu/gpu.h"

namespace tinyshard::gpu {
namespace {

Address device_address(const void* memory) { return reinterpret_cast<Address>(memory); }

class GpuCopies final : public CopyBatch {
 public:
  GpuCopies(Gpu& gpu, Stream writing, Stream reading)
      : gpu_(gpu), writing_(writing), reading_(reading) {
    GpuEvent before(gpu);
    gpu.record(before, Queue::Compute);
    for (Stream stream : {writing_, reading_})
      gpu.check(gpu.driver().stream_wait(stream, before.handle(), 0), "waiting for an event");
  }
  ~GpuCopies() override {
    try {
      gpu_.make_current();
      for (Stream stream : {writing_, reading_}) gpu_.wait_on_host(mark(stream)->handle());
    } catch (...) {  // NOLINT(bugprone-empty-catch)
      // The device has failed: nothing is under way any more, and whoever asks it is told.
    }
  }
  GpuCopies(const GpuCopies&) = delete;
  GpuCopies& operator=(const GpuCopies&) = delete;

  std::unique_ptr<Event> copy_in(void* to, const void* host, size_t bytes) override {
    gpu_.make_current();
    gpu_.check(gpu_.driver().copy_to_device(device_address(to), host, bytes, writing_),
               "a copy to it");
    return mark(writing_);
  }
  std::unique_ptr<Event> copy_out(void* host, const void* from, size_t bytes) override {
    gpu_.make_current();
    gpu_.check(gpu_.driver().copy_to_host(host, device_address(from), bytes, reading_),
               "a copy from it");
    return mark(reading_);
  }
  void wait(Event& event) override {
    gpu_.make_current();
    gpu_.wait_on_host(static_cast<GpuEvent&>(event).handle());
  }
  void end() override {
    gpu_.make_current();
    for (Stream stream : {writing_, reading_}) gpu_.wait(*mark(stream), Queue::Compute);
  }

 private:
  std::unique_ptr<GpuEvent> mark(Stream stream) {
    auto event = std::make_unique<GpuEvent>(gpu_);
    gpu_.check(gpu_.driver().event_record(event->handle(), stream), "recording an event");
    return event;
  }

  Gpu& gpu_;
  Stream writing_, reading_;
};

}  // namespace

bool Gpu::lock_memory(void* memory, size_t bytes) {
  constexpr unsigned kPortable = 1;  // for all GPUs
  make_current();
  return driver_.host_register(memory, bytes, kPortable) == kSuccess;
}

void Gpu::unlock_memory(void* memory) noexcept {
  driver_.set_current(context_);
  driver_.host_unregister(memory);
}

std::unique_ptr<CopyBatch> Gpu::begin_copies() {
  make_current();
  return std::make_unique<GpuCopies>(*this, writing_, reading_);
}

}  // namespace tinyshard::gpu
