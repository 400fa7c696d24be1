// Copies between devices, and recordings, on a device that is only pretended: memory that the host
// may not touch, launches that are remembered.
#include "core/exec/transfer.h"

#include <cstdlib>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/replay.h"
#include "devices/cpu/cpu_device.h"
#include "transport/world.h"

namespace tinyshard::transfer_test {
namespace {

struct FakeRecording : Recording {
  FakeRecording(int& launches, bool& patchable) : launched(launches), can_patch(patchable) {}
  void launch() override { ++launched; }
  bool update(std::span<void* const* const> lists) override {
    patched += int(lists.size());
    return can_patch;
  }
  int& launched;
  bool& can_patch;
  int patched = 0;
};

class FakeDevice : public Device {
 public:
  explicit FakeDevice(bool copies) : copies_(copies) {}
  std::string name() const override { return "FAKE:0"; }
  const Target& target() const override { return target_; }
  using Device::allocate;
  void* allocate(size_t bytes, const char*) override { return std::malloc(bytes + 1); }
  void free(void* memory, size_t) noexcept override { std::free(memory); }
  MemoryStats memory() const override { return {}; }
  void copy_in(void* to, const void* host, size_t bytes) override { std::memcpy(to, host, bytes); }
  void copy_out(void* host, const void* from, size_t bytes) override {
    std::memcpy(host, from, bytes);
  }
  void* host_pointer(void*) override { return nullptr; }
  bool copy_from(void* to, Device& source, const void* from, size_t bytes) override {
    if (!copies_ || !dynamic_cast<FakeDevice*>(&source)) return false;
    std::memcpy(to, from, bytes);
    ++direct;
    return true;
  }
  bool fill_zero(void* to, size_t bytes) override {
    if (copies_) std::memset(to, 0, bytes);
    return copies_;
  }
  std::unique_ptr<Program> load(const ObjectCode&) override { return nullptr; }
  bool supports(const LibraryCall&, std::string*) const override { return false; }
  std::unique_ptr<Program> library(const LibraryCall&) override { return nullptr; }
  void synchronize() override {}
  bool can_record() const override { return true; }
  void begin_recording() override { ++begun; }
  std::unique_ptr<Recording> end_recording() override {
    ++ended;
    return std::make_unique<FakeRecording>(launched, can_patch);
  }
  void abandon_recording() noexcept override { ++abandoned; }

  int direct = 0, begun = 0, ended = 0, abandoned = 0, launched = 0;
  bool can_patch = true;

 private:
  bool copies_;
  Target target_;
};

std::vector<int32_t> expected(const Box& box, const std::vector<int32_t>& source) {
  std::vector<int32_t> out(size_t(product(box.size)));
  for (size_t i = 0; i < out.size(); ++i) {
    int64_t rest = int64_t(i), at = 0, stride = 1;
    bool inside = true;
    for (size_t d = box.shape.size(); d-- > 0;) {
      int64_t x = box.begin[d] + rest % box.size[d];
      rest /= box.size[d];
      inside = inside && x < box.shape[d];
      at += x * stride;
      stride *= box.shape[d];
    }
    out[i] = inside ? source[size_t(at)] : 0;
  }
  return out;
}

std::vector<Box> boxes() {
  return {{{6, 5, 4}, {0, 0, 0}, {6, 5, 4}, 4},  // all
          {{6, 5, 4}, {3, 0, 0}, {3, 5, 4}, 4},  // the second half
          {{6, 5, 4}, {0, 3, 0}, {6, 3, 4}, 4},  // reaches beyond the end
          {{6, 5, 4}, {4, 0, 2}, {4, 5, 2}, 4},  // of two dims at once
          {{6, 5, 4}, {6, 0, 0}, {3, 5, 4}, 4},  // nothing of it is there
          {{7}, {4}, {4}, 4},
          {{}, {}, {}, 4}};
}

void check_copies(Device& source, Device& target) {
  for (const Box& box : boxes()) {
    std::vector<int32_t> values(size_t(product(box.shape)));
    std::iota(values.begin(), values.end(), 1);
    std::vector<int32_t> want = expected(box, values), got(want.size(), -1);
    void* in = source.allocate(values.size() * 4);
    void* out = target.allocate(want.size() * 4);
    source.copy_in(in, values.data(), values.size() * 4);
    target.copy_in(out, got.data(), got.size() * 4);
    copy_box(box, source, in, target, out);
    target.copy_out(got.data(), out, got.size() * 4);
    EXPECT_EQ(got, want) << to_string(box.begin) << to_string(box.size);
    source.free(in, values.size() * 4);
    target.free(out, want.size() * 4);
  }
}

TEST(Transfer, BoxesArriveByEveryWay) {
  auto cpu = make_cpu_device(0, 1), other = make_cpu_device(1, 1);
  FakeDevice direct(true), apart(false);
  check_copies(*cpu, *other);
  check_copies(*cpu, direct);
  check_copies(direct, *cpu);
  EXPECT_EQ(direct.direct, 0);
  check_copies(direct, direct);
  EXPECT_GT(direct.direct, 0);
  check_copies(apart, apart);
}

TEST(Transfer, CollectivesGoThroughTheHostWhereTheyMust) {
  auto group = InprocWorld(1).connect(0, 2);
  FakeDevice a(true), b(true);
  Device* devices[] = {&a, &b};
  std::vector<CommBuffer> send, recv;
  for (int i = 0; i < 2; ++i) {
    std::vector<float> values{float(i + 1), float(10 * (i + 1))};
    send.push_back({devices[i]->allocate(8), devices[i]});
    recv.push_back({devices[i]->allocate(16), devices[i]});
    devices[i]->copy_in(send[size_t(i)].data, values.data(), 8);
  }
  EXPECT_FALSE(takes_buffers(*group, send));
  run_through_host(*group, {.op = CollectiveOp::AllGather, .dtype = DType::F32, .count = 2}, send,
                   recv);
  for (int i = 0; i < 2; ++i) {
    std::vector<float> got(4);
    devices[i]->copy_out(got.data(), recv[size_t(i)].data, 16);
    EXPECT_EQ(got, (std::vector<float>{1, 10, 2, 20}));
    devices[i]->free(send[size_t(i)].data, 8);
    devices[i]->free(recv[size_t(i)].data, 16);
  }
}

TEST(Replay, RecordsOnceAndPatches) {
  FakeDevice a(true), b(true);
  Device* devices[] = {&a, &b};
  Replay replay;
  int runs = 0;
  auto items = [&] { ++runs; };
  void* list[1] = {};
  replay.changed(list);  // before there is a recording: it will read the list as it is then
  for (int i = 0; i < 3; ++i) replay.run(devices, items);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(a.launched, 3);
  EXPECT_EQ(b.launched, 3);
  replay.changed(list);
  replay.run(devices, items);
  EXPECT_EQ(runs, 1);
  b.can_patch = false;  // one device that cannot: all record again
  replay.changed(list);
  replay.run(devices, items);
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(a.begun, 2);
  replay.reset();
  replay.run(devices, items);
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(a.launched, 6);
}

TEST(Replay, AFailedRecordingIsAbandonedEverywhere) {
  FakeDevice a(true), b(true);
  Device* devices[] = {&a, &b};
  Replay replay;
  EXPECT_THROW(replay.run(devices, [] { throw DeviceError("no"); }), DeviceError);
  EXPECT_EQ(a.abandoned, 1);
  EXPECT_EQ(b.abandoned, 1);
  EXPECT_EQ(a.launched, 0);
  replay.run(devices, [] {});
  EXPECT_EQ(a.launched, 1);
}

}  // namespace
}  // namespace tinyshard::transfer_test
