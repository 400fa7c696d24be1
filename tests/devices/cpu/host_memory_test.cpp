// Memory that is kept for later: all devices of a process share one limit, and a kept piece serves
// requests of other sizes. The test has a process of its own, because it looks at resident memory.
#include "devices/cpu/host_memory.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "devices/cpu/cpu_device.h"

namespace tinyshard::host_memory_test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kHeapOnly = true;  // blocks are the heap's, and nothing is kept
#else
constexpr bool kHeapOnly = false;
#endif

size_t resident() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    size_t kib;
    if (word == "VmRSS:" && file >> kib) return kib * 1024;
  }
  return 0;
}

// Takes a multiple of 64 KiB, and writes to all of it.
void* filled(HostMemory& memory, size_t bytes) {
  void* block = memory.take(bytes);
  if (block) std::memset(block, 1, bytes);
  return block;
}

TEST(HostMemory, ASizeServesOthers) {
  if (kHeapOnly) GTEST_SKIP();
  HostMemory memory;
  const size_t before = resident();
  for (size_t i = 0; i < 400; ++i) {
    const size_t bytes = (1 + i * 7919 % 61) * kMiB;
    void* block = filled(memory, bytes);
    ASSERT_NE(block, nullptr);
    memory.give(block, bytes);
  }
  EXPECT_LE(memory.kept(), 64 * kMiB);
  EXPECT_LE(resident() - before, 100 * kMiB);
}

TEST(HostMemory, DevicesShareWhatIsKept) {
  if (kHeapOnly) GTEST_SKIP();
  std::vector<std::unique_ptr<Device>> devices;
  for (int i = 0; i < 4; ++i) devices.push_back(make_cpu_device(i, 1));
  const size_t before = resident();
  for (size_t i = 0; i < 400; ++i) {
    const size_t bytes = (1 + i * 7919 % 61) * kMiB;
    Device& device = *devices[i % 4];
    void* block = device.allocate(bytes);
    std::memset(block, 1, bytes);
    device.free(block, bytes);
  }
  EXPECT_LE(resident() - before, 100 * kMiB);
  for (const auto& device : devices) {
    EXPECT_EQ(device->memory().used, 0);
    EXPECT_EQ(device->memory().peak, int64_t(61 * kMiB));
    EXPECT_LE(device->memory().held, int64_t(64 * kMiB));
  }
  devices.clear();
  EXPECT_LE(resident(), before + 8 * kMiB) << "what is kept goes with the devices";
}

// Small results of large computations lie between what comes and goes.
TEST(HostMemory, SurvivorsHoldNoMoreThanTheyAre) {
  if (kHeapOnly) GTEST_SKIP();
  HostMemory memory;
  const size_t before = resident();
  std::mt19937 random(1);
  std::vector<std::pair<void*, size_t>> survivors;
  size_t alive = 0;
  for (size_t i = 0; i < 1200; ++i) {
    std::vector<std::pair<void*, size_t>> step;
    for (int k = 0; k < 6; ++k) {
      const size_t bytes = kMiB / 4 + random() % (15 * kMiB / 4);
      step.emplace_back(filled(memory, bytes), bytes);
    }
    const size_t bytes = kMiB / 4 + random() % 4096;
    if (i % 4 == 0) {
      survivors.emplace_back(filled(memory, bytes), bytes);
      alive += bytes;
    }
    for (const auto& [block, size] : step) memory.give(block, size);
  }
  EXPECT_LE(resident() - before, alive + alive / 2 + 64 * kMiB) << alive;
  for (const auto& [block, size] : survivors) memory.give(block, size);
}

TEST(HostMemory, HasALimit) {
  if (kHeapOnly) GTEST_SKIP();
  HostMemory memory(100 * kMiB);
  const size_t before = resident();
  std::vector<std::pair<void*, size_t>> blocks;
  for (size_t i = 0; i < 100; ++i) {
    const size_t bytes = (i % 2 == 0 ? 5 : 3) * kMiB;
    blocks.emplace_back(filled(memory, bytes), bytes);
  }
  // Every other one stays: no area is free, but the pages between them go back.
  for (size_t i = 0; i < 100; i += 2) memory.give(blocks[i].first, blocks[i].second);
  EXPECT_LE(memory.kept(), 100 * kMiB);
  EXPECT_LE(resident() - before, 270 * kMiB);
  for (size_t i = 1; i < 100; i += 2) {
    const auto* bytes = static_cast<const char*>(blocks[i].first);
    EXPECT_EQ(bytes[0] + bytes[blocks[i].second - 1], 2);
    memory.give(blocks[i].first, blocks[i].second);
  }
  EXPECT_LE(memory.kept(), 100 * kMiB);
  EXPECT_LE(resident() - before, 120 * kMiB);
  memory.release_kept();
  EXPECT_EQ(memory.kept(), 0u);
  EXPECT_LE(resident() - before, 20 * kMiB);
}

TEST(HostMemory, BlocksAreApartAndTheSameSizeIsThereAtOnce) {
  HostMemory memory(200 * kMiB);
  std::mt19937 random(2);
  std::vector<std::pair<unsigned char*, size_t>> blocks;
  auto check_and_give = [&](size_t i) {
    const auto [first, bytes] = blocks[i];
    EXPECT_EQ(first[0], first[bytes - 1]) << bytes;
    EXPECT_EQ(first[0], first[bytes / 2]) << bytes;
    memory.give(first, bytes);
    blocks.erase(blocks.begin() + long(i));
  };
  for (unsigned i = 0; i < 4000; ++i) {
    if (blocks.size() > 40 || (!blocks.empty() && random() % 3 == 0)) {
      check_and_give(random() % blocks.size());
      continue;
    }
    const size_t kinds[] = {100, 300 * 1024, 3 * kMiB, 9 * kMiB};
    const size_t bytes = 1 + random() % kinds[random() % 4];
    auto* block = static_cast<unsigned char*>(memory.take(bytes));
    ASSERT_NE(block, nullptr);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
    for (size_t at : {size_t{0}, bytes / 2, bytes - 1}) block[at] = static_cast<unsigned char>(i);
    blocks.emplace_back(block, bytes);
  }
  while (!blocks.empty()) check_and_give(0);
  if (kHeapOnly) return;
  void* block = memory.take(33 * kMiB);
  memory.give(block, 33 * kMiB);
  EXPECT_EQ(memory.take(33 * kMiB), block);
  memory.give(block, 33 * kMiB);
}

}  // namespace
}  // namespace tinyshard::host_memory_test
