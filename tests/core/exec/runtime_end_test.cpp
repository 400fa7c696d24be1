// Values, steps and devices that are used after their time: behind Runtime::shutdown(), in a child
// of fork(), and while the process exits.
#include <climits>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "core/tensor/variable.h"
#include "tests/message_of.h"

namespace {
bool in_child = false;  // of fork()
}

// A child has the memory of its parent's threads without the threads, so whatever those own would be
// taken for lost there. The parents compute the same, and their leaks are looked for.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer looks for this name
extern "C" int __lsan_is_turned_off() { return in_child ? 1 : 0; }

namespace tinyshard {
namespace {

using Floats = std::vector<float>;
using test::message_of;

Tensor matrix() { return Tensor::ones({96, 96}).contiguous(); }

// --- shutdown ------------------------------------------------------------------------------------

class Shutdown : public testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override { Runtime::shutdown(); }

  static void expect_lost(const std::function<void()>& use) {
    const std::string text = message_of<UserError>(use);
    EXPECT_NE(text.find("lost"), std::string::npos) << text;
    EXPECT_NE(text.find("Runtime::shutdown()"), std::string::npos) << text;
  }
};

// To name a place is not to use a device.
TEST_F(Shutdown, DevicesAreChosenAfterAPlaceWasNamed) {
  const Tensor x = Tensor::ones({2}).to("CPU:0");
  Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 2});
  EXPECT_EQ((x + 1).to_vector<float>(), std::vector<float>(2, 2));
}

TEST_F(Shutdown, LosesValuesThatWereComputed) {
  Tensor a = Tensor::ones({3}).contiguous().realize(), data{1.0, 2.0, 3.0}, lazy = a * 2;
  Tensor split = Tensor{1.0, 2.0, 3.0, 4.0}.shard({"CPU:0", "CPU:1"}, 0).realize();
  Tensor view = a.reshape({3});
  const HostCopy unread = a.copy_to_host();
  Runtime::shutdown();
  expect_lost([&] { unread.to_vector<float>(); });
  for (const Tensor& t : {a, data, lazy, split, view}) expect_lost([&] { t.to_vector<float>(); });
  expect_lost([&] { (a + 1).realize(); });
  expect_lost([&] { split.to("CPU:0").realize(); });
  expect_lost([&] { a.assign(a + 1).realize(); });
  expect_lost([&] { a.assign(Tensor::ones({3})).realize(); });
  expect_lost([&] { Jit([](Tensor x) { return x + 1; })(a); });
  EXPECT_EQ(a.shape(), (Dims{3}));
  EXPECT_EQ((Tensor::ones({3}) * 2).to_vector<float>(), (Floats{2, 2, 2})) << "in a new runtime";
}

TEST_F(Shutdown, LosesCapturedStepsAndTheirResults) {
  Jit step = [](Tensor x) { return x + 1; };
  Jit empty = [](Tensor x) { return x * 3; };
  Tensor result = step(Tensor{1.0, 2.0});
  Runtime::shutdown();
  expect_lost([&] { step(Tensor{1.0, 2.0}); });
  expect_lost([&] { step(result); });
  expect_lost([&] { result.to_vector<float>(); });
  step.reset();
  EXPECT_EQ(step(Tensor{1.0, 2.0}).to_vector<float>(), (Floats{2, 3}));
  EXPECT_EQ(empty(Tensor{1.0, 2.0}).to_vector<float>(), (Floats{3, 6}));
}

TEST_F(Shutdown, LeavesWhatWasNeverComputed) {
  Tensor zeros = Tensor::zeros({2}), line = Tensor::arange(3), place = Tensor::empty({2});
  Tensor sum = (zeros + 1).sum();
  Runtime::shutdown();
  EXPECT_EQ(sum.item<float>(), 2);
  EXPECT_EQ(line.to_vector<int>(), (std::vector<int>{0, 1, 2}));
  place.assign(zeros + 5).realize();
  EXPECT_EQ(place.to_vector<float>(), (Floats{5, 5}));
}

TEST_F(Shutdown, LeavesVariablesAndRandomNumbersUsable) {
  Variable v("v", 0, 9);
  Jit step = [](Variable x) { return x * 2; };
  EXPECT_EQ(step(v.bind(3)).item<int>(), 6);
  {
    TrainingMode on;
    Tensor::ones({4}).dropout(0.5).realize();
  }
  Runtime::shutdown();
  expect_lost([&] { step(v.bind(4)); });
  step.reset();
  EXPECT_EQ(step(v.bind(4)).item<int>(), 8);
  TrainingMode on;
  for (float x : Tensor::ones({4}).dropout(0.5).to_vector<float>()) EXPECT_TRUE(x == 0 || x == 2);
}

TEST_F(Shutdown, ComesBeforeTheEndOfTensorsAndSteps) {
  auto step = std::make_unique<Jit<std::function<Tensor(Tensor)>>>(
      [](const Tensor& x) { return x.matmul(x) + 1; });
  auto a = std::make_unique<Tensor>(matrix().realize());
  auto result = std::make_unique<Tensor>((*step)(*a));
  for (int i = 0; i < 3; ++i) {
    Runtime::shutdown();
    matrix().matmul(matrix()).realize();
  }
  result.reset();
  a.reset();
  step.reset();
  Runtime::shutdown();
}

// --- fork and exit -------------------------------------------------------------------------------

// Returns how a child of this process ends that runs `body` and exits in order.
int child_ends_with(const std::function<bool()>& body) {
  pid_t child = fork();
  if (child == 0) {
    in_child = true;
    alarm(60);
    bool right = false;
    try {
      right = body();
    } catch (...) {
      right = false;
    }
    std::exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(Fork, ChildrenOfProcessesWithCpuDevicesCompute) {
  const Tensor before = matrix().realize();
  auto computes = [&] {
    Tensor sum = before.matmul(matrix()).sum();
    return sum.item<float>() == 96.0F * 96 * 96 && before.to_vector<float>()[7] == 1;
  };
  EXPECT_TRUE(computes());
  EXPECT_EQ(child_ends_with([] { return true; }), 0) << "without a use";
  EXPECT_EQ(child_ends_with(computes), 0);
  EXPECT_EQ(child_ends_with([&] { return WEXITSTATUS(child_ends_with(computes)) == 0; }), 0)
      << "and children of children";
  EXPECT_TRUE(computes()) << "the parent goes on";
}

TEST(Fork, ChildrenReplaySteps) {
  Jit step = [](Tensor x) { return x.matmul(x).sum() + 1; };
  const float expected = step(matrix()).item<float>();
  EXPECT_EQ(child_ends_with([&] { return step(matrix()).item<float>() == expected; }), 0);
}

// Made before main, so its destructor comes after those of what the library made later.
struct ComputesAtTheEnd {
  ~ComputesAtTheEnd() {
    if (!wanted) return;
    try {
      matrix().matmul(matrix()).realize();
      _exit(8);
    } catch (const UserError& e) {
      _exit(std::string(e.what()).find("while the process exits") != std::string::npos ? 7 : 9);
    }
  }
  bool wanted = false;
} at_the_end;

// These, too, and what they hold ends after main, in memory of devices that live on.
struct LiveAtTheEnd {
  std::vector<Tensor> tensors;
  std::unique_ptr<Jit<std::function<Tensor(Tensor)>>> step;
} live_at_the_end;

TEST(Exit, GlobalTensorsAndStepsEndAfterMain) {
  auto fill = [] {
    const Tensor a = matrix().realize();
    live_at_the_end.tensors = {a, a.shard({"CPU:0", "CPU:1", "CPU:2"}, 0).realize(), a + 1};
    live_at_the_end.step = std::make_unique<Jit<std::function<Tensor(Tensor)>>>(
        [a](const Tensor& x) { return x.matmul(a); });
    live_at_the_end.tensors.push_back((*live_at_the_end.step)(a));
    return live_at_the_end.tensors.back().to_vector<float>()[0] == 96;
  };
  EXPECT_EQ(child_ends_with(fill), 0);
  auto fill_and_shut_down = [&] {
    const bool right = fill();
    Runtime::shutdown();
    return right;
  };
  EXPECT_EQ(child_ends_with(fill_and_shut_down), 0);
}

TEST(Exit, ComputingInGlobalDestructorsIsAMistakeThatIsTold) {
  matrix().matmul(matrix()).realize();
  const int status = child_ends_with([] { return at_the_end.wanted = true; });
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST_F(Shutdown, NumbersOfDevicesAreChecked) {
  for (int wrong : {-1, -3, INT_MIN}) {
    const std::string text = message_of<UserError>(
        [&] { Runtime::configure({.devices = {"CPU"}, .devices_per_rank = wrong}); });
    EXPECT_NE(text.find("devices_per_rank is " + std::to_string(wrong)), std::string::npos) << text;
  }
  const std::string text = message_of<UserError>(
      [] { Runtime::configure({.devices = {"CPU:0", "CPU:1"}, .devices_per_rank = 3}); });
  EXPECT_NE(text.find("2 devices are named"), std::string::npos) << text;
  EXPECT_EQ((Tensor{1} + 1).item<int>(), 2);
}

}  // namespace
}  // namespace tinyshard
