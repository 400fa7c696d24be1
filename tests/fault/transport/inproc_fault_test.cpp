// Ranks that do not come, leave, diverge or give up, with threads as ranks: every survivor gets a
// CommError that names the culprit, in time, and the group stays failed.
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "tests/transport/job.h"

namespace tinyshard::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout{300};

CommOptions short_options() {
  CommOptions options;
  options.timeout = kTimeout;
  return options;
}

double milliseconds_of(const std::function<void()>& call) {
  const auto begun = Clock::now();
  call();
  return std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
}

CommErrorInfo expect_comm_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.info();
  }
  ADD_FAILURE() << "no CommError";
  return {};
}

void expect_mentions(const CommErrorInfo& info, const std::string& text) {
  EXPECT_NE(info.detail.find(text), std::string::npos) << info.detail;
}

Work all_reduce(Communicator& c, std::vector<float>& values) {
  std::vector<CommBuffer> buffers(c.local().size(), CommBuffer{values.data()});
  return c.all_reduce(buffers, buffers, values.size(), DType::F32);
}

// Each rank on its thread; nothing that a body does to its communicator is undone here.
void run_ranks(int ranks, const CommOptions& options,
               const std::function<void(std::unique_ptr<Communicator>)>& body) {
  InprocWorld world(ranks);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(world.connect(rank, 1, options));
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(InprocFault, ARankThatNeverConnects) {
  InprocWorld world(3);
  std::thread other([&] { expect_comm_error([&] { world.connect(2, 1, short_options()); }); });
  const double took = milliseconds_of([&] {
    const CommErrorInfo info = expect_comm_error([&] { world.connect(0, 1, short_options()); });
    EXPECT_EQ(info.rank, 0);
    EXPECT_EQ(info.peer, 1);
    EXPECT_EQ(info.operation, "connect");
  });
  EXPECT_GE(took, 290);
  EXPECT_LT(took, 2000);
  other.join();
}

TEST(InprocFault, ARankThatStaysAwayIsNamedAtTheDeadline) {
  std::atomic<int> reports{0};
  run_ranks(3, short_options(), [&](std::unique_ptr<Communicator> c) {
    std::vector<float> values(10);
    all_reduce(*c, values).wait();
    if (c->rank() == 1) {
      while (reports < 2) std::this_thread::sleep_for(milliseconds(1));
      // Where it looks next, it learns that the others gave it up.
      const CommErrorInfo info = expect_comm_error([&] { all_reduce(*c, values).wait(); });
      expect_mentions(info, "gave up on this rank");
      return;
    }
    const double took = milliseconds_of([&] {
      const CommErrorInfo info = expect_comm_error([&] { all_reduce(*c, values).wait(); });
      EXPECT_EQ(info.rank, c->rank());
      EXPECT_EQ(info.peer, 1);
      EXPECT_EQ(info.operation, "all_reduce sum f32 x 10");
      EXPECT_EQ(info.sequence, 1u);
      EXPECT_GT(info.elapsed_s, 0.2);
    });
    EXPECT_GE(took, 200);
    EXPECT_LT(took, 2000);
    EXPECT_TRUE(c->failed());
    // Every later call fails at once, with the first reason.
    const double again = milliseconds_of([&] {
      for (int i = 0; i < 10; ++i) EXPECT_EQ(expect_comm_error([&] { c->barrier(); }).peer, 1);
    });
    EXPECT_LT(again, 10);
    ++reports;
  });
}

TEST(InprocFault, AnEarlierDeadlineOfOneWaitCounts) {
  CommOptions patient;
  patient.timeout = std::chrono::seconds(100);
  std::atomic<bool> reported{false};
  run_ranks(2, patient, [&](std::unique_ptr<Communicator> c) {
    if (c->rank() == 1) {
      while (!reported) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    Work work = c->barrier();
    EXPECT_FALSE(work.test());
    EXPECT_EQ(expect_comm_error([&] { work.wait(Clock::now() + milliseconds(50)); }).peer, 1);
    expect_comm_error([&] { work.test(); });  // the failure stays with the work
    reported = true;
  });
}

TEST(InprocFault, TestReportsTheDeadline) {
  std::atomic<bool> reported{false};
  run_ranks(2, short_options(), [&](std::unique_ptr<Communicator> c) {
    if (c->rank() == 1) {
      while (!reported) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    Work work = c->barrier();
    const CommErrorInfo info = expect_comm_error([&] {
      while (!work.test()) std::this_thread::sleep_for(milliseconds(5));
    });
    EXPECT_EQ(info.peer, 1);
    reported = true;
  });
}

TEST(InprocFault, ARankThatLeavesIsNamedLongBeforeTheDeadline) {
  CommOptions patient;
  patient.timeout = std::chrono::seconds(100);
  run_ranks(3, patient, [&](std::unique_ptr<Communicator> c) {
    std::vector<float> values(10);
    if (c->rank() == 1) return;  // its communicator goes, without a word
    const double took = milliseconds_of([&] {
      const CommErrorInfo info = expect_comm_error([&] { all_reduce(*c, values).wait(); });
      EXPECT_EQ(info.peer, 1);
      expect_mentions(info, "communicators were destroyed");
    });
    EXPECT_LT(took, 1000);
  });
}

TEST(InprocFault, AnExceptionOnOneRankReachesTheOthers) {
  CommOptions patient;
  patient.timeout = std::chrono::seconds(100);
  run_ranks(3, patient, [&](std::unique_ptr<Communicator> c) {
    std::vector<float> values(10);
    if (c->rank() == 2) {
      const auto lose = [&] {
        const auto owned = std::move(c);
        throw std::runtime_error("out of luck");
      };
      EXPECT_THROW(lose(), std::runtime_error);
      return;
    }
    const CommErrorInfo info = expect_comm_error([&] { all_reduce(*c, values).wait(); });
    EXPECT_EQ(info.peer, 2);
  });
}

TEST(InprocFault, AbortTellsEveryoneWhy) {
  CommOptions patient;
  patient.timeout = std::chrono::seconds(100);
  std::atomic<int> reports{0};
  run_ranks(3, patient, [&](std::unique_ptr<Communicator> c) {
    std::vector<float> values(1000);
    if (c->rank() == 0) {
      std::this_thread::sleep_for(milliseconds(20));
      c->abort("the disk is full");
      c->abort("said twice");
      const CommErrorInfo info = expect_comm_error([&] { all_reduce(*c, values); });
      EXPECT_EQ(info.peer, -1);
      expect_mentions(info, "aborted: the disk is full");
      while (reports < 2) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    const double took = milliseconds_of([&] {
      const CommErrorInfo info = expect_comm_error([&] { all_reduce(*c, values).wait(); });
      EXPECT_EQ(info.peer, 0);
      expect_mentions(info, "rank 0 left: aborted: the disk is full");
    });
    EXPECT_LT(took, 1000);
    ++reports;
  });
}

TEST(InprocFault, AbortFromAnotherThreadEndsAWait) {
  CommOptions patient;
  patient.timeout = std::chrono::seconds(100);
  std::atomic<bool> reported{false};
  run_ranks(2, patient, [&](std::unique_ptr<Communicator> c) {
    if (c->rank() == 1) {
      while (!reported) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    std::thread watchdog([&] {
      std::this_thread::sleep_for(milliseconds(30));
      c->abort("the watchdog is tired");
    });
    const double took = milliseconds_of(
        [&] { expect_mentions(expect_comm_error([&] { c->barrier().wait(); }), "watchdog"); });
    EXPECT_LT(took, 1000);
    watchdog.join();
    reported = true;
  });
}

TEST(InprocFault, OneGroupFailsAndTheOthersGoOn) {
  run_ranks(3, short_options(), [&](std::unique_ptr<Communicator> c) {
    std::unique_ptr<Communicator> pair;
    if (c->rank() < 2) pair = c->split(std::vector<int>{0, 1});
    std::vector<float> values(10, 1.0f);
    if (c->rank() == 0) {
      expect_comm_error([&] { all_reduce(*pair, values).wait(Clock::now() + milliseconds(20)); });
    }
    c->barrier().wait();
    EXPECT_FALSE(c->failed());
    if (pair) {
      EXPECT_EQ(expect_comm_error([&] { pair->barrier().wait(); }).peer, 1 - c->rank());
    }
    all_reduce(*c, values).wait();
    EXPECT_EQ(values[0], 3.0f);
  });
}

TEST(InprocFault, SplitWithoutOneOfTheMembers) {
  std::atomic<bool> reported{false};
  run_ranks(2, short_options(), [&](std::unique_ptr<Communicator> c) {
    if (c->rank() == 1) {
      while (!reported) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    const CommErrorInfo info = expect_comm_error([&] { c->split(std::vector<int>{0, 1}); });
    EXPECT_EQ(info.peer, 1);
    EXPECT_EQ(info.operation, "split");
    // Messages that the late one may still send must not meet a later split.
    EXPECT_EQ(expect_comm_error([&] { c->split(std::vector<int>{0, 1}); }).peer, 1);
    reported = true;
  });
}

TEST(InprocFault, DifferentSplitsAtOnce) {
  run_ranks(3, short_options(), [&](std::unique_ptr<Communicator> c) {
    const std::vector<int> group =
        c->rank() == 1 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
    const std::string text = expect_throw<UserError>([&] { c->split(group); });
    EXPECT_NE(text.find("rank 0 and rank 1 do not agree"), std::string::npos) << text;
  });
}

// As the groups of GPUs do, whose runs pass no host.
TEST(InprocFault, AnnouncedRunsAreComparedAndWaitForNobody) {
  CommOptions patient;
  patient.timeout = std::chrono::seconds(100);
  const auto announce = [](Communicator& c, uint64_t run, uint64_t what) {
    c.announce({.run = run, .what = what, .label = "schedule"});
  };
  run_ranks(3, patient, [&](std::unique_ptr<Communicator> c) {
    for (uint64_t run = 1; run <= 2000; ++run) announce(*c, run, 7);
    c->barrier().wait();
    EXPECT_FALSE(c->failed());
    const CommErrorInfo info = expect_comm_error([&] {
      announce(*c, 2001, c->rank() == 2 ? 8 : 7);
      for (;;) {
        c->check_alive();
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
    EXPECT_EQ(info.peer, 2);
    expect_mentions(info, "rank 2 runs");
    expect_mentions(info, "ranks 0, 1 run");
  });
  // A communicator that ends right after the last one takes what is on its way first.
  std::atomic<int> ended{0};
  run_ranks(3, patient, [&](std::unique_ptr<Communicator> c) {
    auto all = c->split(std::vector<int>{0, 1, 2});
    announce(*all, 1, 7);
    if (c->rank() == 0) all.reset();
    ++ended;
    while (ended < 3) std::this_thread::sleep_for(milliseconds(1));
    if (c->rank() != 0) {
      EXPECT_NO_THROW(all->check_alive());
    }
    all.reset();
    c->barrier().wait();
  });
}

// Messages of a size that nobody expects come to all, from ranks that did nothing wrong, too.
TEST(InprocFault, ARunOfOtherSizesIsBlamedOnTheRankThatIsAlone) {
  CommOptions patient;
  patient.timeout = std::chrono::seconds(100);
  for (int odd : {0, 3}) {
    run_ranks(4, patient, [&](std::unique_ptr<Communicator> c) {
      std::vector<float> values(64);
      c->barrier().wait();
      const bool leaves = c->rank() == odd;
      // The headers of some come late.
      std::this_thread::sleep_for(milliseconds(10 * ((c->rank() + odd) % 4)));
      const RunIdentity identity{.run = leaves ? 8u : 9u, .what = 7, .label = "schedule"};
      const CommBuffer buffer{values.data()};
      const CommErrorInfo info = expect_comm_error([&] {
        c->start({.op = CollectiveOp::AllReduce,
                  .dtype = DType::F32,
                  .count = leaves ? 6u : 64u,
                  .identity = &identity},
                 {&buffer, 1}, {&buffer, 1})
            .wait();
      });
      EXPECT_EQ(info.peer, odd) << info.detail;
      expect_mentions(info, "the ranks diverged: rank " + std::to_string(odd) + " runs");
    });
  }
}

// All ranks have to give the same values; the first of the latest values that differs is named.
TEST(InprocFault, OtherValuesThanTheOthersGiveAreNamed) {
  CommOptions patient;
  patient.timeout = std::chrono::seconds(100);
  const auto run = [](Communicator& c, RunIdentity& identity, uint64_t value, const char* about) {
    ++identity.run;
    identity.inputs = identity.inputs * 31 + value;
    std::ranges::rotate(identity.given, identity.given.begin() + 1);
    identity.given.back() = {.hash = value, .kind = GivenValue::Kind::Host};
    std::string_view(about).copy(identity.given.back().about, 71);
    std::vector<float> values(8);
    const CommBuffer buffer{values.data()};
    c.start({.op = CollectiveOp::AllReduce, .dtype = DType::F32, .count = 8, .identity = &identity},
            {&buffer, 1}, {&buffer, 1})
        .wait();
  };
  run_ranks(3, patient, [&](std::unique_ptr<Communicator> c) {
    const auto rank = static_cast<uint64_t>(c->rank());
    RunIdentity identity{.what = 3};
    for (uint64_t i = 1; i < 20; ++i) run(*c, identity, i, "the same");
    const char* about = rank == 2 ? "its own" : "common";
    const CommErrorInfo info = expect_comm_error([&] { run(*c, identity, 100 + rank / 2, about); });
    EXPECT_EQ(info.peer, 2);
    expect_mentions(info, "rank 2 was given other values than ranks 0, 1");
    expect_mentions(info, "rank 2: its own, ranks 0, 1: common");
    expect_mentions(info, "from_local()");
  });
}

// The call that rank 1 makes while the others run an all_reduce of 10 floats, and the words that
// the report has to mention.
struct Divergence {
  const char* name;
  std::function<Work(Communicator&, std::vector<float>&)> call;
  const char* mentions;
};

std::vector<Divergence> divergences() {
  const auto start = [](Communicator& c, std::vector<float>& v, Collective call) {
    const CommBuffer buffer{v.data()};
    return c.start(call, {&buffer, 1}, {&buffer, 1});
  };
  return {
      {"Count",
       [=](auto& c, auto& v) {
         return start(c, v, {.op = CollectiveOp::AllReduce, .dtype = DType::F32, .count = 11});
       },
       "x 11"},
      {"Dtype",
       [=](auto& c, auto& v) {
         return start(c, v, {.op = CollectiveOp::AllReduce, .dtype = DType::I32, .count = 10});
       },
       "i32"},
      {"Reduction",
       [=](auto& c, auto& v) {
         return start(c, v,
                      {.op = CollectiveOp::AllReduce,
                       .reduce = ReduceOp::Max,
                       .dtype = DType::F32,
                       .count = 10});
       },
       "max"},
      {"Operation",
       [=](auto& c, auto& v) {
         return start(c, v,
                      {.op = CollectiveOp::Broadcast, .dtype = DType::F32, .count = 10, .from = 1});
       },
       "broadcast f32 x 10 from 1"},
      {"Barrier", [](auto& c, auto&) { return c.barrier(); }, "barrier"},
      {"Skipped",
       [=](auto& c, auto& v) {
         c.barrier();
         return start(c, v, {.op = CollectiveOp::AllReduce, .dtype = DType::F32, .count = 10});
       },
       "barrier"},
  };
}

class InprocDivergence : public ::testing::TestWithParam<Divergence> {};
INSTANTIATE_TEST_SUITE_P(All, InprocDivergence, ::testing::ValuesIn(divergences()),
                         [](const auto& info) { return info.param.name; });

TEST_P(InprocDivergence, IsFoundBeforeDataMoves) {
  CommOptions options;
  options.timeout = std::chrono::seconds(100);
  options.verify = true;
  run_ranks(3, options, [&](std::unique_ptr<Communicator> c) {
    std::vector<float> values(100, 7.0f);
    c->barrier().wait();
    values.resize(10);
    const CommErrorInfo info = expect_comm_error([&] {
      if (c->rank() == 1) {
        values.resize(100, 7.0f);
        GetParam().call(*c, values).wait();
      } else {
        all_reduce(*c, values).wait();
      }
    });
    // Each side says what the other runs, or passes on what another rank found.
    expect_mentions(info, "diverged");
    if (c->rank() != 1) {
      EXPECT_EQ(info.peer, 1);
      expect_mentions(info, GetParam().mentions);
    }
    for (float value : values) EXPECT_EQ(value, 7.0f);
  });
}

TEST(InprocFault, OtherLengthsAreFoundWithoutVerify) {
  CommOptions options;
  options.timeout = std::chrono::seconds(100);
  run_ranks(2, options, [&](std::unique_ptr<Communicator> c) {
    std::vector<float> values(10 + static_cast<size_t>(c->rank()));
    expect_mentions(expect_comm_error([&] { all_reduce(*c, values).wait(); }), "bytes");
  });
}

TEST(InprocFault, AGraphThatOnlyOneRankBuildsIsNoHang) {
  run_ranks(2, short_options(), [&](std::unique_ptr<Communicator> c) {
    std::vector<float> values(10);
    expect_comm_error([&] {
      if (c->rank() == 0)
        c->check_same(1, [] { return std::vector<std::string>(); }, "the schedule");
      if (c->rank() == 1) all_reduce(*c, values).wait();
    });
  });
}

// Ranks connect, split, run, abort and drop things in random order; nothing hangs, leaks or touches
// freed memory.
TEST(InprocFault, RandomLives) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (unsigned round = 0; round < 150; ++round) {
    CommOptions options = short_options();
    options.timeout = milliseconds(60);
    options.verify = round % 2 == 0;
    options.tuning.direct_bytes = 64;
    options.tuning.segment_bytes = 256;
    InprocWorld world(3);
    std::vector<std::thread> threads;
    std::array<std::vector<std::vector<float>>, 3>
        memory;  // of each rank and call; outlives the communicators
    for (int rank = 0; rank < 3; ++rank) {
      memory[static_cast<size_t>(rank)].resize(20, std::vector<float>(1000));
      threads.emplace_back([&, rank] {
        std::mt19937 random(seed + round * 16 + static_cast<unsigned>(rank));
        try {
          auto c = world.connect(rank, 1, options);
          auto sub = c->split(std::vector<int>{2, 0, 1});
          std::vector<Work> works;
          for (size_t i = 0; i < 20; ++i) {
            Communicator& where = i % 3 == 0 ? *sub : *c;
            switch (random() % 64) {
              case 0:
                where.abort("a whim");
                break;
              case 1:
                return;
              case 2:
                c.reset();
                return;
              case 3:
                std::this_thread::sleep_for(milliseconds(random() % 5));
                break;
              case 4:
                where.barrier();
                break;  // and nobody else does
              default:
                works.push_back(all_reduce(where, memory[static_cast<size_t>(rank)][i]));
                break;
            }
            if (random() % 4 == 0 && !works.empty()) works.back().test();
          }
          for (Work& work : works) work.wait();
        } catch (const CommError& error) {
          EXPECT_FALSE(error.info().detail.empty());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace tinyshard::test
