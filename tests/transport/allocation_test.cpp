// Once warm, a call on a communicator allocates nothing. Alone (two devices in this process) and
// under mpirun.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "tests/transport/job.h"

namespace {
std::atomic<long> allocations{0};
}

// Not inlined: the compiler would see malloc on one side and our delete on the other.
__attribute__((noinline)) void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tinyshard::test {
namespace {

TEST(Allocation, NoneOnceWarm) {
  const size_t locals = under_mpirun() ? 1 : 2;
  auto world = connect_world(static_cast<int>(locals), test_options());
  constexpr size_t kCount = 400000;  // several segments
  const size_t n = static_cast<size_t>(world->size());
  std::vector<std::vector<float>> from(locals, std::vector<float>(kCount)), to = from;
  std::vector<CommBuffer> send, recv;
  for (auto& buffer : from) send.push_back({buffer.data()});
  for (auto& buffer : to) recv.push_back({buffer.data()});
  const auto step = [&] {
    Work small = world->all_reduce(send, send, 100, DType::F32);
    Work large = world->all_reduce(send, recv, kCount, DType::F32);
    world->reduce_scatter(send, recv, kCount / n, DType::F32).wait();
    large.wait();
    world->all_gather(send, recv, kCount / n, DType::F32).wait();
    world->all_to_all(send, recv, kCount / n, DType::F32).wait();
    world->broadcast(recv, recv, kCount, DType::F32, 0).wait();
    world->barrier().wait();
    small.wait();
  };
  // How many calls overlap depends on timing, so the pool may still grow after the first rounds: on
  // any rank, and all ranks go on together.
  std::vector<float> in_round(1, -1);
  std::vector<CommBuffer> count(locals, CommBuffer{in_round.data()});
  for (int round = 0; round < 50 && in_round[0] != 0; ++round) {
    const long before = allocations;
    for (int i = 0; i < 20; ++i) step();
    in_round[0] = static_cast<float>(allocations - before);
    if (locals == 1) world->all_reduce(count, count, 1, DType::F32).wait();
  }
  EXPECT_EQ(in_round[0], 0);
}

}  // namespace
}  // namespace tinyshard::test
