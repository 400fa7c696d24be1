// The caching allocator over memory that is only counted: no GPU needed.
#include "devices/gpu/allocator.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tinyshard::gpu::allocator_test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class FakeMemory : public MemorySource {
 public:
  explicit FakeMemory(size_t capacity) : capacity_(capacity) {}
  void* take(size_t bytes) override {
    if (held + bytes > capacity_) return nullptr;
    held += bytes;
    ++takes;
    next_ += 1 << 21;
    auto* segment = reinterpret_cast<void*>(next_);  // NOLINT(performance-no-int-to-ptr)
    next_ += bytes;
    sizes_[segment] = bytes;
    return segment;
  }
  void give_back(void* segment) noexcept override {
    held -= sizes_.at(segment);
    sizes_.erase(segment);
  }
  void wait_idle() override { ++waits; }
  std::string describe() override { return "a fake of 100 MiB"; }

  size_t held = 0;
  int takes = 0, waits = 0;

 private:
  size_t capacity_;
  uintptr_t next_ = 1 << 21;
  std::map<void*, size_t> sizes_;
};

TEST(CudaAllocator, BlocksAreReusedWithoutTheDriver) {
  FakeMemory memory(1000 * kMiB);
  Allocator allocator("CUDA:0", memory);
  for (int step = 0; step < 10; ++step) {
    void* a = allocator.allocate(3 * kMiB, "tensors");
    void* b = allocator.allocate(700, "tensors");
    void* c = allocator.allocate(100 * kMiB, "tensors");
    for (void* p : {a, b, c}) allocator.free(p);
  }
  EXPECT_EQ(memory.takes, 3);
  EXPECT_EQ(allocator.stats().used, 0);
  EXPECT_EQ(allocator.stats().allocations, 30);
  EXPECT_EQ(allocator.stats().held, int64_t(memory.held));
}

TEST(CudaAllocator, SmallBlocksShareASegment) {
  FakeMemory memory(1000 * kMiB);
  Allocator allocator("CUDA:0", memory);
  std::vector<void*> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(allocator.allocate(1000, "tensors"));
  EXPECT_EQ(memory.takes, 1);
  EXPECT_EQ(allocator.stats().used, 1000 * 1024);
  for (void* p : blocks) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % Allocator::kAlignment, 0u);
    allocator.free(p);
  }
}

TEST(CudaAllocator, NeighboursJoin) {
  FakeMemory memory(64 * kMiB);
  Allocator allocator("CUDA:0", memory);
  void* a = allocator.allocate(10 * kMiB, "tensors");
  void* b = allocator.allocate(10 * kMiB, "tensors");
  void* c = allocator.allocate(10 * kMiB, "tensors");
  EXPECT_EQ(memory.takes, 1);  // a segment of 32 MiB
  allocator.free(a);
  allocator.free(c);
  allocator.free(b);
  void* whole = allocator.allocate(32 * kMiB, "tensors");
  EXPECT_EQ(memory.takes, 1);
  EXPECT_EQ(whole, a);
}

TEST(CudaAllocator, CachedSegmentsGoBackBeforeMemoryRunsOut) {
  FakeMemory memory(100 * kMiB);
  Allocator allocator("CUDA:0", memory);
  allocator.free(allocator.allocate(60 * kMiB, "tensors"));
  void* large = allocator.allocate(90 * kMiB, "tensors");
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(memory.waits, 1);  // the device may still have been using it
  EXPECT_EQ(allocator.stats().peak, int64_t(90 * kMiB));
}

// Batches of other lengths: each size is larger than all before, so that no free segment serves it.
TEST(CudaAllocator, NoMoreIsKeptThanWasEverInUse) {
  FakeMemory memory(10000 * kMiB);
  Allocator allocator("CUDA:0", memory);
  for (size_t i = 20; i < 100; ++i) {
    void* block = allocator.allocate(i * kMiB, "tensors");
    ASSERT_LE(memory.held, 2 * i * kMiB + 64 * kMiB) << i;
    allocator.free(block);
  }
  EXPECT_EQ(allocator.stats().held, int64_t(memory.held));
  // Memory that a step asks for again and again stays.
  memory.waits = 0;
  for (int step = 0; step < 10; ++step) {
    std::vector<void*> blocks;
    for (size_t i = 20; i < 60; i += 3) blocks.push_back(allocator.allocate(i * kMiB, "tensors"));
    for (void* block : blocks) allocator.free(block);
    if (step == 4) memory.takes = 0;
  }
  EXPECT_EQ(memory.takes, 0);
  EXPECT_EQ(allocator.stats().used, 0);
}

TEST(CudaAllocator, OutOfMemorySaysWhatIsHeld) {
  FakeMemory memory(100 * kMiB);
  Allocator allocator("CUDA:1", memory);
  allocator.allocate(50 * kMiB, "tensors");
  allocator.allocate(20 * kMiB, "temporaries");
  allocator.allocate(2 * kMiB, "temporaries");
  try {
    allocator.allocate(40 * kMiB, "tensors");
    FAIL() << "nothing was thrown";
  } catch (const DeviceError& error) {
    std::string text = error.what();
    for (const char* part :
         {"CUDA:1: out of memory: 40.0 MiB asked for tensors",
          "50.0 MiB by tensors (1 blocks, the largest 50.0 MiB)",
          "22.0 MiB by temporaries (2 blocks, the largest 20.0 MiB)", "a fake of 100 MiB"})
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(allocator.stats().used, int64_t(72 * kMiB));
}

TEST(CudaAllocator, RandomUseNeverOverlapsAndComesBack) {
  FakeMemory memory(4000 * kMiB);
  {
    Allocator allocator("CUDA:0", memory);
    std::mt19937 random(1);
    std::map<char*, size_t> live;
    for (int i = 0; i < 20000; ++i) {
      if (live.size() < 100 && random() % 2 == 0) {
        size_t bytes = random() % 3 ? random() % 5000 : random() % (8 * kMiB);
        auto* p = static_cast<char*>(allocator.allocate(bytes, "tensors"));
        auto after = live.lower_bound(p);
        if (after != live.end()) {
          ASSERT_LE(p + bytes, after->first);
        }
        if (after != live.begin()) {
          --after;
          ASSERT_GE(p, after->first + after->second);
        }
        ASSERT_TRUE(live.emplace(p, std::max<size_t>(bytes, 1)).second);
      } else if (!live.empty()) {
        auto victim = std::next(live.begin(), long(random() % live.size()));
        allocator.free(victim->first);
        live.erase(victim);
      }
    }
    for (auto& [p, bytes] : live) allocator.free(p);
    EXPECT_EQ(allocator.stats().used, 0);
    allocator.release_cached();
    EXPECT_EQ(memory.held, 0u);
    EXPECT_EQ(allocator.stats().held, 0);
  }
  EXPECT_EQ(memory.held, 0u);
}

}  // namespace
}  // namespace tinyshard::gpu::allocator_test
