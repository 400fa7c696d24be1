// Results take the memory of an operand that they are the last to read; where others read it beside
// them they take memory of their own, as far as there is some to spare.
#include "core/schedule/reuse.h"

#include <algorithm>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/schedule/memory.h"
#include "core/schedule/schedule.h"

namespace tinyshard {
namespace {

constexpr int64_t kWidth = 16, kBytes = kWidth * kWidth * int64_t(sizeof(float));

Tensor data(const Ints& shape = {kWidth, kWidth}) { return Tensor::randn(shape).realize(); }

// Products are items of their own, and make what is computed from them have memory.
Schedule planned(const std::vector<Tensor>& tensors, int64_t spare) {
  std::vector<UOp> roots;
  for (const Tensor& t : tensors) roots.push_back(t.uop());
  std::vector<Sharding> shardings(roots.size(), replicated(default_mesh()));
  return make_schedule(
      roots, shardings,
      {.library_supports = [](const LibraryCall&) { return true; }, .spare_bytes = spare});
}

// Of each result of a kernel, whether it lies where an operand was; in the order of the items.
std::vector<bool> replacing(const Schedule& schedule) {
  std::vector<bool> found;
  for (const Item& item : schedule.items) {
    if (item.kind != Item::Kind::Kernel) continue;
    EXPECT_EQ(item.writes.size(), 1u) << item.describe();
    int previous = schedule.buffers[size_t(item.writes[0])].previous;
    found.push_back(previous >= 0);
    if (previous >= 0) {
      EXPECT_NE(std::ranges::find(item.reads, previous), item.reads.end());
      EXPECT_EQ(schedule.buffers[size_t(previous)].bytes(), kBytes);
    }
  }
  return found;
}
using Replacing = std::vector<bool>;

// A product, another item that reads it, and twice the product, which a third item reads.
std::vector<Tensor> read_twice() {
  Tensor t = data().matmul(data());
  return {t.matmul(data()), (t * 2).matmul(data())};
}

TEST(Reuse, AResultTakesTheMemoryOfAnOperand) {
  EXPECT_EQ(replacing(planned(read_twice(), 0)), Replacing{true});
}

TEST(Reuse, WithMemoryToSpareAResultWaitsForNoOtherReader) {
  EXPECT_EQ(replacing(planned(read_twice(), kBytes)), Replacing{false});
  EXPECT_EQ(replacing(planned(read_twice(), 100 * kBytes)), Replacing{false});
}

TEST(Reuse, WithTooLittleToSpareItDoes) {
  EXPECT_EQ(replacing(planned(read_twice(), kBytes - 1)), Replacing{true});
}

TEST(Reuse, AnOperandWithoutOtherReadersIsReplacedInAnyCase) {
  for (int64_t spare : {int64_t{0}, kBytes, 100 * kBytes}) {
    Tensor t = data().matmul(data());
    EXPECT_EQ(replacing(planned({(t * 2).matmul(data())}, spare)), Replacing{true}) << spare;
  }
}

// Whichever operand comes first.
TEST(Reuse, AnOperandWithoutOtherReadersIsPreferred) {
  for (bool first : {true, false}) {
    Tensor t = data().matmul(data()), a = data().matmul(data());
    Tensor sum = first ? a + t : t + a;
    EXPECT_EQ(replacing(planned({t.matmul(data()), sum.matmul(data())}, kBytes)), Replacing{true});
  }
}

TEST(Reuse, WhatIsSparedIsSpentOnce) {
  auto both = [](int64_t spare) {
    std::vector<Tensor> roots = read_twice(), more = read_twice();
    roots.insert(roots.end(), more.begin(), more.end());
    return replacing(planned(roots, spare));
  };
  EXPECT_EQ(both(0), (Replacing{true, true}));
  EXPECT_EQ(both(kBytes), (Replacing{false, true}));
  EXPECT_EQ(both(2 * kBytes - 1), (Replacing{false, true}));
  EXPECT_EQ(both(2 * kBytes), (Replacing{false, false}));
}

// Who wrote the operand has read what lay there before, and is waited for anyway.
TEST(Reuse, TheWriterOfAnOperandIsNoOtherReader) {
  Tensor t = data().matmul(data());
  Tensor weights = t.softmax(1).contiguous().softmax(0).contiguous();
  for (int64_t spare : {int64_t{0}, 100 * kBytes})
    EXPECT_EQ(replacing(planned({weights.matmul(data())}, spare)), (Replacing{true, true}));
}

// A row is divided by its sum: who made the sum has read the row.
TEST(Reuse, AReaderThatIsWaitedForAnywayIsNotBeside) {
  Tensor t = data().matmul(data()), sums = t.matmul(data({kWidth, 1}));
  for (int64_t spare : {int64_t{0}, 100 * kBytes})
    EXPECT_EQ(replacing(planned({(t / sums).matmul(data())}, spare)), Replacing{true});
}

// So many items lie between that the other reader is long done.
TEST(Reuse, AReaderFarBeforeIsNotBeside) {
  auto with_between = [](int items) {
    Tensor t = data().matmul(data()), row = t.matmul(data({kWidth, 1})).reshape({1, kWidth});
    for (int i = 0; i < items; ++i) row = row.matmul(data());
    return replacing(planned({row, (t * 2).matmul(data())}, kBytes));
  };
  EXPECT_EQ(with_between(kBeside - 1), Replacing{false});
  EXPECT_EQ(with_between(kBeside), Replacing{true});
}

}  // namespace
}  // namespace tinyshard
