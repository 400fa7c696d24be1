// Blocks of the CPU's memory that are cut from areas: apart, given back, and not held for ever.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "devices/cpu/cpu_device.h"
#include "tests/sanitized.h"

namespace tinyshard::memory_test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(CpuMemory, BlocksOfAnAreaAreApart) {
  const std::unique_ptr<Device> device = make_cpu_device(0, 1);
  std::vector<std::pair<unsigned char*, size_t>> blocks;
  auto is_whole = [](const std::pair<unsigned char*, size_t>& block) {
    const auto [first, bytes] = block;
    return first[bytes / 2] == first[0] && std::memcmp(first, first + 1, bytes - 1) == 0;
  };
  for (size_t i = 0; i < 100; ++i) {
    const size_t bytes = kMiB / 5 + i * 31 % 17 * kMiB / 4 + i;
    auto* memory = static_cast<unsigned char*>(device->allocate(bytes));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0U) << bytes;
    std::memset(memory, static_cast<int>(i), bytes);
    blocks.emplace_back(memory, bytes);
    if (i % 2 == 0) continue;
    const auto gone = blocks.begin() + static_cast<std::ptrdiff_t>(blocks.size() / 3);
    EXPECT_TRUE(is_whole(*gone));
    device->free(gone->first, gone->second);
    blocks.erase(gone);
  }
  for (const auto& block : blocks) {
    EXPECT_TRUE(is_whole(block));
    device->free(block.first, block.second);
  }
  EXPECT_EQ(device->memory().used, 0);
}

// Nothing of it is touched, so it takes addresses and no memory.
TEST(CpuMemory, AreasGoBackToTheSystem) {
  const std::unique_ptr<Device> device = make_cpu_device(0, 1);
  const size_t each = 3 * kMiB, count = 1000;
  std::vector<void*> blocks;
  for (size_t i = 0; i < count; ++i) blocks.push_back(device->allocate(each));
  EXPECT_EQ(device->memory().used, int64_t(each * count));
  for (void* block : blocks) device->free(block, each);
  EXPECT_EQ(device->memory().used, 0);
  EXPECT_LT(device->memory().held, int64_t(2100 * kMiB));
  EXPECT_TRUE(test::kSanitized || device->memory().held > 0);  // then blocks are the heap's
  // The next block is one that is held, or is cut from what is left.
  void* again = device->allocate(each);
  std::memset(again, 1, each);
  device->free(again, each);
}

}  // namespace
}  // namespace tinyshard::memory_test
