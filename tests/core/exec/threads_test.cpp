// Threads that build, realize, assign, differentiate and capture different tensors at once: each
// gets the values that it would get alone. THREADS_SECONDS sets for how long (600 in the long
// form); the thread sanitizer says whether they met.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/exec/runtime.h"
#include "core/nn/optim.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "core/tensor/variable.h"
#include "multi/mesh.h"

namespace tinyshard {
namespace {

using Floats = std::vector<float>;
using Clock = std::chrono::steady_clock;

constexpr int kThreads = 8;

double seconds() {
  const char* wanted = std::getenv("THREADS_SECONDS");
  return wanted ? std::atof(wanted) : 2;
}

Floats filled(float value) { return Floats(12, value); }
Tensor tensor(float value) { return Tensor(filled(value), {4, 3}); }

void builds_and_realizes(float mine, const Tensor& shared) {
  const Tensor x = tensor(mine), y = (x + 1).reshape({3, 4}).T() * 2;
  EXPECT_EQ(y.to_vector<float>(), filled((mine + 1) * 2));
  EXPECT_EQ((x * shared).sum().item<float>(), 12 * mine * 3);
  EXPECT_EQ(x.shard({"CPU:0", "CPU:1"}, 0).sum(0).to_vector<float>(), Floats(3, 4 * mine));
}

void assigns(float mine) {
  Tensor x = tensor(mine).realize();
  const Tensor before = x + 1;
  x.assign(x * 2);
  const Tensor after = x + 1;
  x.setitem({0}, 7);
  EXPECT_EQ(before.to_vector<float>(), filled(mine + 1));
  EXPECT_EQ(after.to_vector<float>(), filled(mine * 2 + 1));
  Floats expected = filled(mine * 2);
  expected[0] = expected[1] = expected[2] = 7;
  EXPECT_EQ(x.to_vector<float>(), expected);
}

void differentiates(float mine, const Tensor& shared) {
  const Tensor p = tensor(mine).is_param_(), q = tensor(2).is_param_();
  (p * p * shared + q).sum().backward();
  EXPECT_EQ(p.grad().to_vector<float>(), filled(2 * mine * 3));
  EXPECT_EQ(q.grad().to_vector<float>(), filled(1));
  const std::vector<Tensor> g = (p * 5).sum().gradient({p});
  EXPECT_EQ(g[0].to_vector<float>(), filled(5));
}

// Values made before a trace and in it, an assignment, random numbers, and a replay.
void captures(float mine, const Tensor& shared) {
  const Tensor count = Tensor::zeros({4, 3}).contiguous();
  Jit step = [&](const Tensor& x) {
    count.assign(count + mine);
    const Tensor noise = Tensor::rand({4, 3});
    return x * shared + count + (noise < 0);
  };
  for (int i = 1; i <= 4; ++i)
    EXPECT_EQ(step(tensor(float(i))).to_vector<float>(), filled(float(i) * (3 + mine)));
  EXPECT_EQ(count.to_vector<float>(), filled(4 * mine));
}

void trains(float mine) {
  const Tensor w = tensor(mine).is_param_();
  auto optimizer = nn::optim::SGD({w}, {.lr = 0.5});
  Jit step = [&](const Tensor& x) {
    TrainingMode on;
    optimizer.zero_grad();
    const Tensor loss = (w * x).sum();
    loss.backward();
    optimizer.step();
    return loss;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(tensor(2)).item<float>(), 12 * 2 * (mine - float(i)));
  EXPECT_EQ(w.to_vector<float>(), filled(mine - 3));
}

TEST(Threads, UseDifferentTensorsAtOnce) {
  const Tensor shared = tensor(3).realize();
  const auto end = Clock::now() + std::chrono::duration<double>(seconds());
  std::vector<int> rounds(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      do {
        // Each thread begins with another kind of work, and has numbers of its own.
        for (int kind = 0; kind < 5; ++kind) {
          const float mine = float(10 * (t + 1) + rounds[t] % 7);
          switch ((kind + t) % 5) {
            case 0:
              builds_and_realizes(mine, shared);
              break;
            case 1:
              assigns(mine);
              break;
            case 2:
              differentiates(mine, shared);
              break;
            case 3:
              captures(mine, shared);
              break;
            default:
              trains(mine);
          }
        }
        ++rounds[t];
      } while (Clock::now() < end && !testing::Test::HasFailure());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) EXPECT_GT(rounds[t], 0);
}

// A thread's trace that is not finished is nothing to the others: neither their assignments,
// nor their gradients, nor their captured steps take it up.
TEST(Threads, TracesSeeTheirOwnValuesOnly) {
  const Tensor a = tensor(1).contiguous().realize(), b = tensor(1).contiguous().realize();
  Jit outer = [&](const Tensor& x) {
    a.assign(a + x);
    // Another thread captures, assigns and differentiates while this trace is under way.
    std::thread([&] {
      Jit inner = [&](const Tensor& y) {
        b.assign(b + y);
        return b * 2;
      };
      EXPECT_EQ(inner(tensor(1)).to_vector<float>(), filled(4));
      EXPECT_EQ(inner(tensor(1)).to_vector<float>(), filled(6));
      const Tensor waiting = tensor(5).contiguous();
      waiting.assign(waiting * 2);
      EXPECT_EQ(waiting.to_vector<float>(), filled(10));
    }).join();
    return a * 10;
  };
  EXPECT_EQ(outer(tensor(1)).to_vector<float>(), filled(20));
  EXPECT_EQ(b.to_vector<float>(), filled(3));
  EXPECT_EQ(outer(tensor(1)).to_vector<float>(), filled(30 * 1));
  EXPECT_EQ(a.to_vector<float>(), filled(3));
  EXPECT_EQ(b.to_vector<float>(), filled(3)) << "the other's step is no part of this one";
}

// An assignment that waits in one thread is not computed by a capture in another one, and a trace
// that fails gives back what it replaced, and nothing else.
TEST(Threads, FailedTracesGiveBackTheirOwnValues) {
  const Tensor a = tensor(1).contiguous().realize(), b = tensor(1).contiguous().realize();
  Jit step = [&](const Tensor& x) {
    a.assign(a + x);
    std::thread([&] { b.assign(b + 4).realize(); }).join();
    if (x.shape(0) == 4) throw std::runtime_error("half-way");
    return x;
  };
  EXPECT_THROW(step(tensor(1)), std::runtime_error);
  EXPECT_EQ(a.to_vector<float>(), filled(1));
  EXPECT_EQ(b.to_vector<float>(), filled(5));
}

// All threads call a step: each call has its own result, read at once or when all have ended.
TEST(Threads, OneStepServesAll) {
  const Tensor w = tensor(3).realize();
  int traces = 0;  // one at a time
  Jit step = [&](Tensor x) {
    ++traces;
    return x * w + (is_training() ? 1 : 0);
  };
  std::vector<Tensor> last(kThreads);
  auto call = [&](int thread) {
    const TrainingMode mode(thread % 2 == 1);
    for (int i = 0; i < 20; ++i) {
      const float mine = float(thread * 100 + i);
      last[size_t(thread)] = step(tensor(mine).realize());
      EXPECT_EQ(last[size_t(thread)].to_vector<float>(), filled(mine * 3 + float(thread % 2)));
    }
  };
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back(call, t);
    for (std::thread& t : threads) t.join();
    for (int t = 0; t < kThreads; ++t) {
      EXPECT_EQ(last[size_t(t)].to_vector<float>(), filled(float((t * 100 + 19) * 3 + t % 2)));
    }
    last.assign(kThreads, Tensor());
  }
  EXPECT_LE(traces, 3 * kThreads);
  // Calls come one after the other, with results that are still to be read.
  std::vector<Tensor> results;
  for (int t = 0; t < 12; ++t)
    std::thread([&] { results.push_back(step(tensor(float(t)).realize())); }).join();
  for (int t = 0; t < 12; ++t)
    EXPECT_EQ(results[size_t(t)].to_vector<float>(), filled(float(t) * 3));
  // Without results to be read a thread takes over what another one has left.
  results.clear();
  const int before = traces;
  for (int t = 0; t < 12; ++t)
    std::thread([&] { EXPECT_EQ(step(tensor(2).realize()).to_vector<float>(), filled(6)); }).join();
  EXPECT_EQ(traces, before);
}

// Numbers of variables are each thread's own, too.
TEST(Threads, OneStepWithAVariableServesAll) {
  const Variable n("n", 0, 1000);
  Jit step = [](Tensor x, Variable v) { return x + v; };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Tensor x = tensor(float(t)).realize();
      for (int i = 0; i < 30; ++i)
        EXPECT_EQ(step(x, n.bind(i)).to_vector<float>(), filled(float(t + i)));
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace tinyshard
