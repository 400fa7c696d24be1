// Cases for groups of GPUs alone: recordings, batches, and what happens when a peer does not
// come. Two ranks, as threads, of one GPU each. The collectives themselves are in the conformance
// suite.
#include <chrono>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "devices/cuda/cuda_device.h"
#include "tests/transport/job.h"
#include "transport/nccl/nccl_group.h"

namespace tinyshard::test::nccl_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct Rank {
  Device& gpu;
  Communicator& group;
  void* memory;
  Work sum(size_t count = 1000) {
    CommBuffer buffer{memory, &gpu};
    return group.all_reduce({&buffer, 1}, {&buffer, 1}, count, DType::F32);
  }
};

class NcclGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (count_cuda_devices() < 2) GTEST_SKIP() << "needs two GPUs; " << describe_cuda();
    if (!nccl_info().available) GTEST_SKIP() << nccl_info().detail;
  }

  // Both have added once when the bodies start: connections are up.
  static void run(std::chrono::nanoseconds timeout, const std::function<void(Rank&)>& first,
                  const std::function<void(Rank&)>& second) {
    CommOptions options;
    options.timeout = timeout;
    InprocWorld world(2);
    auto rank = [&](int r) {
      auto host = world.connect(r, 1, options);
      auto gpu = make_cuda_device(r);
      Device* devices[] = {gpu.get()};
      std::string why;
      auto group = connect_nccl(*host, devices, options, &why);
      ASSERT_TRUE(group) << why;
      Rank self{*gpu, *group, gpu->allocate(size_t{64} << 20)};
      self.sum().wait();
      gpu->synchronize();
      (r == 0 ? first : second)(self);
    };
    std::thread other([&] { rank(1); });
    rank(0);
    other.join();
  }
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

TEST_F(NcclGpus, APeerThatGivesUpEndsTheWait) {
  run(
      60s,
      [](Rank& self) {
        auto start = Clock::now();
        self.sum().wait();  // the device waits now, not the host
        EXPECT_LT(seconds_since(start), 0.2);
        try {
          self.gpu.synchronize();
          ADD_FAILURE() << "nothing was thrown";
        } catch (const CommError& error) {
          EXPECT_EQ(error.info().peer, 1) << error.what();
          EXPECT_EQ(error.info().sequence, 2u) << error.what();
          EXPECT_NE(std::string(error.what()).find("out of milk"), std::string::npos)
              << error.what();
        }
        EXPECT_LT(seconds_since(start), 5);
        EXPECT_TRUE(self.group.failed());
        EXPECT_THROW(self.sum(), CommError);  // and later calls fail at once
        self.gpu.synchronize();               // the device itself is free again
      },
      [](Rank& self) {
        std::this_thread::sleep_for(500ms);
        self.group.abort("out of milk");
      });
}

TEST_F(NcclGpus, APeerThatDoesNotComeMeetsTheDeadline) {
  run(
      2s,
      [](Rank& self) {
        auto start = Clock::now();
        self.sum().wait();
        std::string what = expect_throw<CommError>([&] { self.gpu.synchronize(); });
        EXPECT_NE(what.find("deadline"), std::string::npos) << what;
        EXPECT_NE(what.find("all_reduce sum f32 x 1000"), std::string::npos) << what;
        EXPECT_GT(seconds_since(start), 1.9);
        EXPECT_LT(seconds_since(start), 6);
      },
      [](Rank&) { std::this_thread::sleep_for(4s); });
}

TEST_F(NcclGpus, OneGpuForTwoParticipantsIsRefused) {
  InprocWorld world(1);
  auto host = world.connect(0, 2);
  auto gpu = make_cuda_device(0);
  Device* devices[] = {gpu.get(), gpu.get()};
  std::string why;
  EXPECT_EQ(connect_nccl(*host, devices, {}, &why), nullptr);
  EXPECT_NE(why.find("share a GPU"), std::string::npos) << why;
}

// Each sends to the other what it got from it, in recordings that run again and again: a send and a
// receive of one batch do not wait for each other, however large they are.
TEST_F(NcclGpus, PairsExchangeInARecording) {
  constexpr size_t kCount = size_t{8} << 20;
  auto exchange = [](Rank& self) {
    const int own = self.group.rank(), peer = 1 - own;
    std::vector<float> start(kCount, float(own + 1)), got(kCount);
    float* mine = static_cast<float*>(self.memory);
    float* theirs = mine + kCount;
    self.gpu.copy_in(mine, start.data(), kCount * sizeof(float));
    auto swap_with = [&](float* from, float* to) {
      Batch batch(self.group);
      self.group.recv({to, &self.gpu}, kCount, DType::F32, peer, own);
      Work sent = self.group.send({from, &self.gpu}, kCount, DType::F32, own, peer);
      batch.end();
      sent.wait();
    };
    auto there_and_back = [&] {
      swap_with(mine, theirs);
      swap_with(theirs, mine);
    };
    there_and_back();
    self.gpu.begin_recording();
    there_and_back();
    auto recording = self.gpu.end_recording();
    for (int i = 0; i < 3; ++i) recording->launch();
    self.gpu.copy_out(got.data(), theirs, kCount * sizeof(float));
    EXPECT_EQ(got, std::vector<float>(kCount, float(peer + 1)));
    self.gpu.copy_out(got.data(), mine, kCount * sizeof(float));
    EXPECT_EQ(got, start);
    EXPECT_EQ(self.group.sequence(), 1u) << "pairs do not count";
  };
  run(60s, exchange, exchange);
}

// Like a sum, a receive keeps the device waiting and not the host, which meets the deadline.
TEST_F(NcclGpus, ASenderThatDoesNotComeMeetsTheDeadline) {
  run(
      2s,
      [](Rank& self) {
        CommBuffer buffer{self.memory, &self.gpu};
        self.group.send(buffer, 1000, DType::F32, 0, 1).wait();
        self.gpu.synchronize();
        auto start = Clock::now();
        std::string what = expect_throw<CommError>([&] {
          self.group.recv(buffer, 1000, DType::F32, 1, 0).wait();
          self.gpu.synchronize();
        });
        EXPECT_NE(what.find("deadline"), std::string::npos) << what;
        EXPECT_NE(what.find("recv f32 x 1000 1 -> 0"), std::string::npos) << what;
        EXPECT_LT(seconds_since(start), 6);
        EXPECT_TRUE(self.group.failed());
      },
      [](Rank& self) {
        self.group.recv({self.memory, &self.gpu}, 1000, DType::F32, 0, 1).wait();
        self.gpu.synchronize();
        std::this_thread::sleep_for(4s);
      });
}

// Sums, parts and gathers of many sizes as one launch, and what is wrong in one of them.
TEST_F(NcclGpus, ABatchIsOneLaunch) {
  auto batch_of_sums = [](Rank& self) {
    constexpr size_t kMost = 5000;
    std::vector<float> ones(kMost * 16, 1), got(kMost * 16);
    self.gpu.copy_in(self.memory, ones.data(), ones.size() * sizeof(float));
    std::vector<Work> works;
    Batch batch(self.group);
    for (size_t i = 0; i < 16; ++i) {
      CommBuffer part{static_cast<float*>(self.memory) + i * kMost, &self.gpu};
      works.push_back(self.group.all_reduce({&part, 1}, {&part, 1}, i * 300, DType::F32));
    }
    batch.end();
    for (Work& work : works) work.wait();
    self.gpu.copy_out(got.data(), self.memory, got.size() * sizeof(float));
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], i % kMost < i / kMost * 300 ? 2 : 1) << i;
    std::this_thread::sleep_for(300ms);
  };
  run(
      60s,
      [&](Rank& self) {
        batch_of_sums(self);
        expect_throw<UserError>([&] {
          Batch wrong(self.group);
          self.sum();
          self.group.all_reduce({}, {}, 1, DType::F32);
        });
        EXPECT_TRUE(self.group.failed()) << "nobody knows what of the batch is on its way";
        EXPECT_THROW(self.sum(), CommError);
      },
      [&](Rank& self) {
        batch_of_sums(self);
        std::this_thread::sleep_for(1s);
      });
}

// The time of one sum in a recording, against the bytes that it moves.
TEST_F(NcclGpus, SumsInARecordingAreFast) {
  for (size_t count : {size_t{1} << 10, size_t{16} << 20}) {
    auto timed = [count](Rank& self) {
      constexpr int kSums = 20;
      auto sums = [&] {
        for (int i = 0; i < kSums; ++i) self.sum(count).wait();
      };
      sums();
      self.gpu.begin_recording();
      sums();
      auto recording = self.gpu.end_recording();
      recording->launch();
      self.gpu.synchronize();
      auto start = Clock::now();
      recording->launch();
      self.gpu.synchronize();
      double each = seconds_since(start) / kSums;
      if (self.group.rank() == 0)
        std::printf("all_reduce of %zu bytes, recorded: %.1f us, %.1f GB/s\n", count * 4,
                    each * 1e6, double(count) * 4 / each / 1e9);
    };
    run(60s, timed, timed);
  }
}

}  // namespace
}  // namespace tinyshard::test::nccl_test
