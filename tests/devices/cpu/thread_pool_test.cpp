#include "devices/cpu/thread_pool.h"

#include <chrono>
#include <numeric>
#include <pthread.h>
#include <set>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

struct Counts {
  std::vector<std::atomic<int>> runs;
  std::vector<std::atomic<int>> busy;  // chunks in progress, by thread index
  std::atomic<bool> overlap{false};
  Counts(int chunks, int threads) : runs(chunks), busy(threads) {}
};

void count(void* ctx, int chunk, int thread) {
  auto& c = *static_cast<Counts*>(ctx);
  if (c.busy[thread].fetch_add(1) != 0) c.overlap = true;
  c.runs[chunk].fetch_add(1);
  c.busy[thread].fetch_sub(1);
}

class Threads : public ::testing::TestWithParam<int> {};

TEST_P(Threads, RunsEveryChunkOnceAndNeverTwoOnOneThread) {
  ThreadPool pool(GetParam());
  for (int chunks : {0, 1, 2, 3, 7, 64, 1000}) {
    Counts counts(chunks, pool.threads());
    pool.run(chunks, count, &counts);
    for (auto& n : counts.runs) EXPECT_EQ(n.load(), 1) << chunks << " chunks";
    EXPECT_FALSE(counts.overlap.load());
  }
}

TEST_P(Threads, WritesOfChunksAreVisibleToTheCallerAndToTheNextCall) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(513);
  for (int round = 0; round < 2000; ++round)
    pool.parallel_for(513, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) values[i] += i;
    });
  for (int64_t i = 0; i < 513; ++i) ASSERT_EQ(values[i], 2000 * i);
}

TEST_P(Threads, NestedCallsRunInlineOnTheSameThread) {
  ThreadPool pool(GetParam());
  std::atomic<int> inner{0}, wrong{0};
  pool.parallel_for(8, [&](int64_t begin, int64_t end, int outer_thread) {
    for (int64_t i = begin; i < end; ++i) {
      auto id = std::this_thread::get_id();
      pool.parallel_for(5, [&](int64_t b, int64_t e, int thread) {
        inner += static_cast<int>(e - b);
        if (thread != outer_thread || std::this_thread::get_id() != id) ++wrong;
      });
    }
  });
  EXPECT_EQ(inner.load(), 40);
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(Threads, TheExceptionOfTheLowestChunkReachesTheCaller) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> ran{0}, thrown{0};
    auto body = [&](int chunk) {
      ++ran;
      if (chunk % 3 != 1) return;
      // The lowest one throws last, where there is another thread to wait for.
      auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
      while (chunk == 1 && pool.threads() > 1 && thrown.load() == 0 &&
             std::chrono::steady_clock::now() < deadline)
        std::this_thread::yield();
      ++thrown;
      throw UserError("chunk " + std::to_string(chunk));
    };
    auto call = [](void* ctx, int chunk, int) { (*static_cast<decltype(body)*>(ctx))(chunk); };
    try {
      pool.run(10, call, &body);
      FAIL() << "nothing was thrown";
    } catch (const UserError& e) {
      EXPECT_STREQ(e.what(), "chunk 1");
    }
    EXPECT_EQ(ran.load(), 10);
    pool.run(1, [](void*, int, int) {}, nullptr);  // and the pool still works
  }
}

TEST_P(Threads, CallsFromSeveralThreadsDoNotMix) {
  ThreadPool pool(GetParam());
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        int64_t sum = 0;
        std::vector<int64_t> parts(64);
        pool.parallel_for(1000, [&](int64_t begin, int64_t end, int thread) {
          for (int64_t i = begin; i < end; ++i) parts[thread] += i;
        });
        for (int64_t part : parts) sum += part;
        if (sum != 499500) ++wrong;
      }
    });
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(Threads, SleepingWorkersWakeUp) {
  ThreadPool pool(ThreadPoolOptions{.threads = GetParam(), .spin_us = 0});
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Counts counts(33, pool.threads());
    pool.run(33, count, &counts);
    for (auto& n : counts.runs) ASSERT_EQ(n.load(), 1);
  }
}

// Long chunks force every worker to take part: the caller alone could not have met them all.
TEST_P(Threads, LongChunksRunOnDifferentThreads) {
  ThreadPool pool(GetParam());
  std::atomic<int> arrived{0};
  auto body = [&] {
    ++arrived;
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (arrived.load() < pool.threads() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
  };
  pool.run(pool.threads(), [](void* c, int, int) { (*static_cast<decltype(body)*>(c))(); }, &body);
  EXPECT_EQ(arrived.load(), pool.threads());
}

INSTANTIATE_TEST_SUITE_P(ThreadPool, Threads, ::testing::Values(1, 2, 3, 8),
                         [](const auto& info) { return std::to_string(info.param) + "_threads"; });

TEST(ThreadPool, PartsCoverTheRangeInOrder) {
  for (int64_t n : {0, 1, 5, 16, 17, 1000})
    for (int64_t parts : {1, 2, 3, 16}) {
      EXPECT_EQ(ThreadPool::part_begin(n, parts, 0), 0);
      EXPECT_EQ(ThreadPool::part_begin(n, parts, parts), n);
      for (int64_t p = 0; p < parts; ++p) {
        int64_t size =
            ThreadPool::part_begin(n, parts, p + 1) - ThreadPool::part_begin(n, parts, p);
        EXPECT_GE(size, n / parts);
        EXPECT_LE(size, n / parts + 1);
      }
    }
}

TEST(ThreadPool, GrainLimitsTheNumberOfParts) {
  ThreadPool pool(4);
  std::atomic<int> parts{0};
  pool.parallel_for(100, [&](int64_t, int64_t, int) { ++parts; }, 60);
  EXPECT_EQ(parts.load(), 1);
  parts = 0;
  pool.parallel_for(100, [&](int64_t, int64_t, int) { ++parts; }, 30);
  EXPECT_EQ(parts.load(), 3);
}

TEST(ThreadPool, WorkersAreNamed) {
  ThreadPool pool(ThreadPoolOptions{.threads = 2, .name = "a-rather-long-name"});
  std::atomic<int> arrived{0};
  std::string names[2];
  auto body = [&](int thread) {
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    names[thread] = name;
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  };
  pool.run(2, [](void* c, int, int t) { (*static_cast<decltype(body)*>(c))(t); }, &body);
  EXPECT_EQ(names[1], "a-rather-long-n");
  EXPECT_NE(names[0], names[1]);
}

TEST(ThreadPool, RefusesBadThreadCounts) {
  EXPECT_THROW(ThreadPool(0), UserError);
  EXPECT_THROW(ThreadPool(-3), UserError);
  EXPECT_THROW(ThreadPool(1 << 20), UserError);
}

TEST(ThreadPool, DefaultThreadCountDividesTheCores) {
  EXPECT_GE(available_cores(), 1);
  EXPECT_EQ(default_thread_count(1), available_cores());
  EXPECT_EQ(default_thread_count(1 << 20), 1);
  EXPECT_EQ(default_thread_count(4, 7), 7);
}

}  // namespace
}  // namespace tinyshard
