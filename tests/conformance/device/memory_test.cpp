// Memory of a device and copies of it: sizes, places, counts, order, limits and refusals.
#include <cstdint>
#include <numeric>
#include <span>
#include <thread>

#include "core/base/error.h"
#include "tests/conformance/device/device_case.h"
#include "tests/message_of.h"

// Memory that is not to be had is an error of the device and not the end of the process.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer looks for this name
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace tinyshard::test::memory_test {
namespace {

using DeviceMemory = DeviceCase;
using Bytes = std::vector<unsigned char>;

Bytes counted(size_t n, unsigned first = 0) {
  Bytes bytes(n);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(first));
  return bytes;
}

TEST_P(DeviceMemory, IsNamedByKindAndNumber) {
  EXPECT_EQ(device().name(), std::string(GetParam()) + ":0");
  const std::string kind = GetParam();
  EXPECT_EQ(device().target().multiprocessors > 0, kind == "CUDA" || kind == "HIP");
  EXPECT_FALSE(device().target().cpu.empty());
}

TEST_P(DeviceMemory, IsCountedAndGivenBack) {
  const MemoryStats before = device().memory();
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{1} << 20}) {
    void* memory = device().allocate(bytes);
    ASSERT_NE(memory, nullptr) << bytes;
    if (device().executes()) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0U) << bytes;
    }
    EXPECT_GE(device().memory().used, before.used + int64_t(bytes));
    device().free(memory, bytes);
  }
  const MemoryStats after = device().memory();
  EXPECT_EQ(after.used, before.used);
  EXPECT_EQ(after.allocations, before.allocations + 6);
  EXPECT_GE(after.peak, before.used + (1 << 20));
}

TEST_P(DeviceMemory, BlocksInUseAreApart) {
  TINYSHARD_NEED_VALUES();
  std::vector<std::unique_ptr<OnDevice<unsigned char>>> blocks;
  for (unsigned i = 0; i < 50; ++i) {
    blocks.push_back(std::make_unique<OnDevice<unsigned char>>(device(), counted(1 + i * 37, i)));
    if (i % 3 == 0) blocks.erase(blocks.begin() + long(blocks.size() / 2));
  }
  for (const auto& block : blocks) {
    const Bytes values = block->values();
    EXPECT_EQ(values, counted(values.size(), values[0]));
  }
}

TEST_P(DeviceMemory, MoreThanThereIsIsRefusedAndTheDeviceGoesOn) {
  TINYSHARD_NEED_VALUES();
  constexpr size_t kTooMuch = size_t{1} << 50;
  const std::string text = message_of<DeviceError>([&] { device().allocate(kTooMuch); });
  EXPECT_NE(text.find(device().name()), std::string::npos) << text;
  EXPECT_NE(text.find("memory"), std::string::npos) << text;
  const OnDevice<unsigned char> block(device(), counted(100));
  EXPECT_EQ(block.values(), counted(100));
}

TEST_P(DeviceMemory, CopiesOfEverySizeAndPlace) {
  TINYSHARD_NEED_VALUES();
  for (size_t n : {size_t{0}, size_t{1}, size_t{3}, size_t{64}, size_t{4097}, size_t{5} << 20}) {
    const OnDevice<unsigned char> block(device(), counted(n));
    EXPECT_EQ(block.values(), counted(n)) << n;
  }
  const OnDevice<unsigned char> block(device(), counted(200));
  Bytes part(41);
  device().copy_out(part.data(), static_cast<char*>(block.get()) + 7, part.size());
  EXPECT_EQ(part, counted(41, 7));
  device().copy_in(static_cast<char*>(block.get()) + 3, counted(5, 100).data(), 5);
  Bytes expected = counted(200);
  std::iota(expected.begin() + 3, expected.begin() + 8, static_cast<unsigned char>(100));
  EXPECT_EQ(block.values(), expected);
}

TEST_P(DeviceMemory, WhatIsReadLaterIsWhatWasThereThen) {
  TINYSHARD_NEED_VALUES();
  for (size_t n : {size_t{0}, size_t{1}, size_t{257}, size_t{5} << 20, size_t{17} << 20}) {
    OnDevice<unsigned char> block(device(), counted(n));
    const auto first = device().begin_copy_out(block.get(), n);
    block.set(counted(n, 9));
    const auto second = device().begin_copy_out(block.get(), n);
    device().begin_copy_out(block.get(), n);  // nobody reads it
    block.set(counted(n, 50));
    auto bytes = [](PendingCopy& copy) {
      const std::span<const std::byte> all = copy.wait();
      const auto* begin = reinterpret_cast<const unsigned char*>(all.data());
      return Bytes(begin, begin + all.size());
    };
    EXPECT_EQ(bytes(*second), counted(n, 9)) << n;
    EXPECT_EQ(bytes(*first), counted(n)) << n;
    EXPECT_TRUE(first->arrived() && second->arrived());
    EXPECT_EQ(block.values(), counted(n, 50)) << n;
  }
}

TEST_P(DeviceMemory, TheHostsCopyMayChangeAtOnce) {
  TINYSHARD_NEED_VALUES();
  OnDevice<unsigned char> block(device(), size_t{64});
  Bytes values(64);
  for (unsigned i = 0; i < 2000; ++i) {
    values.assign(64, static_cast<unsigned char>(i));
    block.set(values);
    values.assign(64, 255);
  }
  EXPECT_EQ(block.values(), Bytes(64, static_cast<unsigned char>(1999)));
}

TEST_P(DeviceMemory, CopiesInsideOfTheDeviceAndZeros) {
  TINYSHARD_NEED_VALUES();
  const OnDevice<unsigned char> a(device(), counted(1000)), b(device(), Bytes(1000, 9));
  Bytes expected(1000, 9);
  if (device().fill_zero(b.get(), 999)) {
    std::fill(expected.begin(), expected.end() - 1, 0);
    EXPECT_EQ(b.values(), expected);
  }
  if (device().copy_from(b.get(), device(), a.get(), 500)) {
    std::ranges::copy(counted(500), expected.begin());
    EXPECT_EQ(b.values(), expected);
  }
  if (void* seen = device().host_pointer(a.get())) {
    EXPECT_EQ(static_cast<unsigned char*>(seen)[7], 7);
  }
}

TEST_P(DeviceMemory, IsTakenByThreadsAtOnce) {
  const MemoryStats before = device().memory();
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 200; ++i) {
        const OnDevice<unsigned char> block(device(), counted(100 + i, t));
        if (device().executes()) {
          EXPECT_EQ(block.values(), counted(100 + i, t));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device().memory().used, before.used);
  EXPECT_EQ(device().memory().allocations, before.allocations + 800);
}

TEST_P(DeviceMemory, ADeviceThatPlansHasNoValues) {
  if (device().executes()) GTEST_SKIP() << device().name() << " has values";
  const OnDevice<unsigned char> block(device(), counted(10));
  const std::string text = message_of<DeviceError>([&] { block.values(); });
  EXPECT_NE(text.find(device().name()), std::string::npos) << text;
}

TINYSHARD_ON_EVERY_DEVICE(DeviceMemory);

}  // namespace
}  // namespace tinyshard::test::memory_test
