// Trials of kernels on a device whose kernels take a time that is known: how much of a slow one runs.
#include "core/exec/kernel_trial.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tinyshard::kernel_trial_test {
namespace {

// Runs `width` items side by side, each of which takes `item_seconds`.
class SlowDevice final : public Device {
 public:
  SlowDevice(int64_t width, double item_seconds) : width_(width), item_seconds_(item_seconds) {}

  std::vector<int64_t> launched;  // items of each launch

  std::string name() const override { return "SLOW"; }
  const Target& target() const override { return target_; }
  void* allocate(size_t bytes, const char*) override { return std::malloc(bytes); }
  void free(void* memory, size_t) noexcept override { std::free(memory); }
  MemoryStats memory() const override { return {}; }
  void copy_in(void*, const void*, size_t) override {}
  void copy_out(void*, const void*, size_t) override {}
  void* host_pointer(void* memory) override { return memory; }
  bool supports(const LibraryCall&, std::string*) const override { return false; }
  std::unique_ptr<Program> library(const LibraryCall&) override { return nullptr; }
  void synchronize() override {}
  std::unique_ptr<Program> load(const ObjectCode& code) override {
    return std::make_unique<Slow>(*this, code.work_items);
  }

 private:
  class Slow final : public Program {
   public:
    Slow(SlowDevice& device, int64_t items) : device_(device), items_(items) {}
    void launch(void* const*, const int64_t*) override {
      device_.launched.push_back(items_);
      const int64_t waves = (items_ + device_.width_ - 1) / device_.width_;
      const auto end = std::chrono::steady_clock::now() +
                       std::chrono::duration<double>(double(waves) * device_.item_seconds_);
      while (std::chrono::steady_clock::now() < end) {
      }
    }
    std::string describe() const override { return "slow"; }

   private:
    SlowDevice& device_;
    int64_t items_;
  };

  Target target_;
  int64_t width_;
  double item_seconds_;
};

double trial(SlowDevice& device, int64_t items, double enough) {
  KernelSource source;
  source.params = {{.numel = 8, .written = true}};
  const TrialBuffers buffers(device, source);
  ObjectCode code;
  code.work_items = items;
  return seconds_up_to(enough, device, code, buffers);
}

TEST(KernelTrial, AShortKernelIsTimedAsAWhole) {
  SlowDevice device(64, 20e-6);
  const double seconds = trial(device, 640, 1);
  EXPECT_GE(seconds, 200e-6);
  EXPECT_EQ(device.launched.back(), 640);
  EXPECT_EQ(trial(device, 0, 1), 0);  // no outputs
}

// 16 items already take longer than is of interest.
TEST(KernelTrial, OfAHopelessKernelTheFirstItemsRunOnce) {
  SlowDevice device(1, 100e-6);
  EXPECT_GT(trial(device, 1 << 20, 100e-6), 100e-6);
  EXPECT_EQ(device.launched, (std::vector<int64_t>{16, 16}));
}

// The whole would take 20 s. Items that fill the device tell it, though they take less than is enough.
TEST(KernelTrial, TimeGrowsWithTheItemsOnceTheyFillTheDevice) {
  SlowDevice device(64, 20e-6);
  EXPECT_GT(trial(device, 64'000'000, 0.5), 0.5);
  EXPECT_LE(std::ranges::max(device.launched), 16 << 10);
}

// Items that run side by side in the same time say nothing of the whole, which is short enough here.
TEST(KernelTrial, ADeviceThatIsNotFullIsNoReasonToStop) {
  SlowDevice device(1 << 20, 200e-6);
  const double seconds = trial(device, 1 << 20, 50e-3);
  EXPECT_GE(seconds, 200e-6);
  EXPECT_LT(seconds, 50e-3);
  EXPECT_EQ(device.launched.back(), 1 << 20);
}

}  // namespace
}  // namespace tinyshard::kernel_trial_test
