// Copies of a GPU over a driver that is only pretended: its memory is the host's, and what a stream
// was told is done when somebody asks for an event, one step of each stream after the other.
#include "core/runtime/host_copies.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/bulk_copies.h"
#include "core/exec/runtime.h"
#include "devices/gpu/gpu.h"

namespace tinyshard::gpu {

struct StreamTag {
  std::deque<std::function<bool()>> told;  // false: it has to wait
};
struct EventTag {
  int recorded = 0, reached = 0;
};

namespace host_copies_test {
namespace {

struct Pretended {
  std::mutex mutex;
  std::set<StreamTag*> streams;
  std::set<void*> registered;
  bool refuses = false;

  // Each stream that can does its next thing; not the one that was told last, but in turn.
  void step() {
    for (StreamTag* stream : streams) {
      if (!stream->told.empty() && stream->told.front()()) stream->told.pop_front();
    }
  }
};
Pretended& pretended() {
  static Pretended p;
  return p;
}

Result tell(Stream stream, std::function<bool()> what) {
  const std::lock_guard lock(pretended().mutex);
  stream->told.push_back(std::move(what));
  return kSuccess;
}
Result tell_copy(void* to, const void* from, size_t bytes, Stream stream) {
  return tell(stream, [=] {
    std::memcpy(to, from, bytes);
    return true;
  });
}
void* pointer(Address address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

class PretendedDriver final : public Driver {
 public:
  PretendedDriver()
      : Driver({.kind = "FAKE", .shared_per_block = 0, .multiprocessors = 1}, "", {}) {
    device_get = [](DeviceId* id, int index) { return *id = index, kSuccess; };
    device_uuid = [](void*, DeviceId) { return kSuccess; };
    device_attribute = [](int* value, int, DeviceId) { return *value = 1, kSuccess; };
    primary_retain = [](Context*, DeviceId) { return kSuccess; };
    primary_release = [](DeviceId) { return kSuccess; };
    set_current = [](Context) { return kSuccess; };
    error_name = [](Result, const char**) { return kSuccess; };
    error_string = [](Result, const char**) { return kSuccess; };
    memory_allocate = [](Address* memory, size_t bytes) {
      *memory = reinterpret_cast<Address>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
      return kSuccess;
    };
    memory_free = [](Address memory) { return std::free(pointer(memory)), kSuccess; };
    host_allocate = [](void** memory, size_t bytes, unsigned) {
      return *memory = std::malloc(bytes), kSuccess;
    };
    host_free = [](void* memory) { return std::free(memory), kSuccess; };
    host_register = [](void* memory, size_t, unsigned) {
      const std::lock_guard lock(pretended().mutex);
      if (pretended().refuses) return kInvalidValue;
      pretended().registered.insert(memory);
      return kSuccess;
    };
    host_unregister = [](void* memory) {
      const std::lock_guard lock(pretended().mutex);
      return pretended().registered.erase(memory) == 1 ? kSuccess : kInvalidValue;
    };
    copy_to_device = [](Address to, const void* from, size_t bytes, Stream stream) {
      return tell_copy(pointer(to), from, bytes, stream);
    };
    copy_to_host = [](void* to, Address from, size_t bytes, Stream stream) {
      return tell_copy(to, pointer(from), bytes, stream);
    };
    fill_bytes = [](Address to, unsigned char value, size_t bytes, Stream stream) {
      return tell(stream, [=] {
        std::memset(pointer(to), value, bytes);
        return true;
      });
    };
    stream_create = [](Stream* stream, unsigned, int) {
      const std::lock_guard lock(pretended().mutex);
      pretended().streams.insert(*stream = new StreamTag);
      return kSuccess;
    };
    stream_destroy = [](Stream stream) {
      const std::lock_guard lock(pretended().mutex);
      pretended().streams.erase(stream);
      delete stream;
      return kSuccess;
    };
    stream_wait = [](Stream stream, EventHandle event, unsigned) {
      const std::lock_guard lock(pretended().mutex);
      stream->told.emplace_back(
          [event, until = event->recorded] { return event->reached >= until; });
      return kSuccess;
    };
    event_create = [](EventHandle* event, unsigned) { return *event = new EventTag, kSuccess; };
    event_destroy = [](EventHandle event) { return delete event, kSuccess; };
    event_record = [](EventHandle event, Stream stream) {
      const std::lock_guard lock(pretended().mutex);
      const int now = ++event->recorded;
      stream->told.emplace_back([event, now] {
        event->reached = std::max(event->reached, now);
        return true;
      });
      return kSuccess;
    };
    event_query = [](EventHandle event) {
      const std::lock_guard lock(pretended().mutex);
      pretended().step();
      return event->reached >= event->recorded ? kSuccess : kNotReady;
    };
  }
};

class PretendedVendor final : public Vendor {
 public:
  const Driver& driver() const override { return driver_; }
  std::string capability(DeviceId) const override { return "fake"; }
  Target target(std::string_view) const override { return {}; }
  const DeviceProfile& profile() const override { return profile_; }
  void prepare(const ObjectCode&, std::string_view, std::string_view) const override {}
  Module load(const ObjectCode&, std::string_view, std::string_view) const override {
    return nullptr;
  }
  int count_parameters(const ObjectCode&) const override { return -1; }
  bool supports(const Gpu&, const LibraryCall&, std::string*) const override { return false; }
  const LibraryProvider* provider() const override { return nullptr; }
  int64_t worth_copying(const Gpu&, const LibraryCall&, int) const override { return 0; }
  void prepare(Gpu&, const LibraryCall&) const override {}
  std::unique_ptr<Program> library(Gpu&, const LibraryCall&) const override { return nullptr; }

 private:
  PretendedDriver driver_;
  DeviceProfile profile_;
};

std::vector<int32_t> counted(size_t n, int32_t from = 1) {
  std::vector<int32_t> values(n);
  std::iota(values.begin(), values.end(), from);
  return values;
}

TEST(GpuHostCopies, KeepTheOrderOfWhatTheDeviceIsTold) {
  const PretendedVendor vendor;
  Gpu gpu(vendor, 0);
  constexpr size_t kBytes = 1000 * 4;
  const auto first = counted(1000), second = counted(1000, 5000);
  std::vector<int32_t> before(1000), after(1000);
  void* memory = gpu.allocate(kBytes);
  gpu.copy_in(memory, first.data(), kBytes);  // queued
  {
    const auto batch = host_copies(gpu)->begin_copies();
    const auto read = batch->copy_out(before.data(), memory, kBytes);
    batch->wait(*read);
    const auto written = batch->copy_in(memory, second.data(), kBytes);
    batch->end();
    gpu.copy_out(after.data(), memory, kBytes);  // behind the copy, which nobody has waited for
  }
  EXPECT_EQ(before, first);
  EXPECT_EQ(after, second);
  gpu.free(memory, kBytes);
}

TEST(GpuHostCopies, SeveralGpusTakeAndGiveBoxesAtOnce) {
  Runtime::get();
  const PretendedVendor vendor;
  for (const bool refuses : {false, true}) {
    pretended().refuses = refuses;
    {
      Gpu one(vendor, 0), two(vendor, 1);
      const Dims shape{1200, 3000}, half{600, 3000}, room{1200, 1600}, columns{1200, 1500};
      const auto values = counted(size_t(product(shape)));
      const auto* host = reinterpret_cast<const std::byte*>(values.data());
      std::vector<BoxIn> boxes;
      auto add = [&](const LocalBox& box, const Dims& of_memory, std::vector<Device*> devices) {
        BoxIn in{.host = host,
                 .rows = BoxRows(shape, box, of_memory, 4),
                 .room = size_t(product(of_memory)) * 4,
                 .targets = {}};
        for (Device* device : devices) in.targets.push_back({device, device->allocate(in.room)});
        boxes.push_back(std::move(in));
      };
      add({{0, 0}, half}, half, {&one});
      add({{600, 0}, half}, half, {&two});
      add({{0, 0}, columns}, room, {&one, &two});
      copy_in(boxes);
      EXPECT_EQ(pretended().registered.empty(), refuses);
      BoxReader reader(
          {{&one, boxes[0].targets[0].memory, BoxRows(half, {{0, 0}, half}, half, 4)},
           {&two, boxes[1].targets[0].memory, BoxRows(half, {{0, 0}, half}, half, 4)},
           {&two, boxes[2].targets[1].memory, BoxRows(columns, {{0, 0}, columns}, room, 4)}});
      std::vector<std::vector<int32_t>> got;
      for (size_t i = 0; i < 3; ++i) got.emplace_back(reader.bytes(i) / 4);
      run_file_jobs(3, [&](size_t i) {
        reader.read(i, 0, reader.bytes(i), [&](size_t at, std::span<const std::byte> bytes) {
          std::memcpy(reinterpret_cast<std::byte*>(got[i].data()) + at, bytes.data(), bytes.size());
        });
        return int64_t{0};
      });
      EXPECT_EQ(got[0], counted(600 * 3000));
      EXPECT_EQ(got[1], counted(600 * 3000, 600 * 3000 + 1));
      for (size_t r = 0; r < 1200; r += 7) {
        for (size_t c = 0; c < 1500; c += 11)
          ASSERT_EQ(got[2][r * 1500 + c], int32_t(r * 3000 + c + 1));
      }
      std::vector<int32_t> padded(size_t(product(room)), -1);
      one.copy_out(padded.data(), boxes[2].targets[0].memory, padded.size() * 4);
      EXPECT_EQ(padded[1499], 1500);
      EXPECT_EQ(padded[1500], 0);
      for (const BoxIn& box : boxes) {
        for (const auto& [device, memory] : box.targets) device->free(memory, box.room);
      }
      Runtime::shutdown();  // unlocks the pages while their GPUs are there
      Runtime::get();
    }
    EXPECT_TRUE(pretended().registered.empty());
  }
  Runtime::shutdown();
}

}  // namespace
}  // namespace host_copies_test
}  // namespace tinyshard::gpu
