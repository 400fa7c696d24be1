// Questions of programs about what ran: counters of the process and of its devices, plans without
// optimisation, options for the length of a scope.
#include "core/exec/counters.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/log.h"
#include "core/base/option_scope.h"
#include "core/exec/runtime.h"
#include "core/tensor/explain.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "core/tensor/training.h"
#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::counters_test {
namespace {

const DeviceCounters& of(const GlobalCounters& counters, int index) {
  for (const DeviceCounters& device : counters.devices) {
    if (device.device.kind == device_kind() && device.device.index == index) return device;
  }
  throw std::runtime_error("no such device was counted");
}

TEST(GlobalCounters, CountWhatRuns) {
  constexpr int64_t kElements = 1000, kBytes = 4 * kElements;
  const Tensor a = Tensor::ones({kElements}).contiguous().realize(),
               b = Tensor::ones({kElements}).contiguous().realize();
  GlobalCounters::reset();
  (a + b).realize();
  const GlobalCounters one = GlobalCounters::now();
  EXPECT_EQ(one.runs, 1);
  EXPECT_EQ(one.kernels, 1);
  EXPECT_EQ(one.library_calls + one.collectives + one.copies, 0);
  EXPECT_EQ(one.bytes, 3 * kBytes);  // two are read, one is written
  EXPECT_EQ(one.operations, kElements);
  EXPECT_GT(one.seconds, 0);
  EXPECT_EQ(of(one, 0).kernels, 1);
  EXPECT_EQ(of(one, 0).bytes, one.bytes);
  EXPECT_GE(one.memory, 2 * kBytes);

  // A captured step counts alike at each call.
  Jit step = [&](const Tensor& x) { return x + b; };
  step(a);
  GlobalCounters::reset();
  for (int i = 0; i < 5; ++i) step(a);
  const GlobalCounters five = GlobalCounters::now();
  EXPECT_EQ(five.runs, 5);
  EXPECT_EQ(five.kernels, 5);
  EXPECT_EQ(five.bytes, 5 * one.bytes);
  EXPECT_EQ(five.operations, 5 * one.operations);

  GlobalCounters::reset();
  const GlobalCounters none = GlobalCounters::now();
  EXPECT_EQ(none.runs + none.kernels + none.bytes, 0);
  EXPECT_EQ(none.operations + none.seconds, 0);
  EXPECT_EQ(of(none, 0).kernels, 0);
  EXPECT_GE(none.memory, 2 * kBytes) << "what is held is not forgotten";
}

TEST(GlobalCounters, CountOnEachDevice) {
  TINYSHARD_NEED_DEVICES(3);
  const Mesh mesh = Mesh::of(device_names(2));
  const Tensor x = Tensor::ones({8, 16}).shard(mesh, {{"data", Shard(0)}}).contiguous().realize();
  GlobalCounters::reset();
  (x * 2).sum(0).shard_like(replicated(mesh)).realize();
  const GlobalCounters counters = GlobalCounters::now();
  EXPECT_EQ(counters.collectives, 1);
  EXPECT_EQ(of(counters, 0).collectives, 1);
  EXPECT_EQ(of(counters, 1).collectives, 1);
  EXPECT_EQ(of(counters, 0).kernels, of(counters, 1).kernels);
  EXPECT_EQ(of(counters, 0).bytes, of(counters, 1).bytes);
  EXPECT_EQ(counters.bytes, of(counters, 0).bytes + of(counters, 1).bytes);
  for (const DeviceCounters& device : counters.devices) {
    if (device.device.index == 2) {
      EXPECT_EQ(device.kernels, 0);
    }
  }
}

TEST(GlobalCounters, MemoryIsThatOfTheRuntime) {
  const GlobalCounters counters = GlobalCounters::now();
  for (const DeviceInfo& info : Runtime::get().devices()) {
    const DeviceCounters& device = of(counters, info.device.index);
    EXPECT_EQ(device.memory, info.bytes);
    EXPECT_EQ(device.peak_memory, info.peak);
  }
}

TEST(Devices, AreListedAndWaitedFor) {
  bool known = false;
  for (const DeviceKindInfo& kind : Runtime::kinds()) {
    EXPECT_FALSE(kind.detail.empty()) << kind.kind;
    known = known || (kind.kind == device_kind() && kind.count > 0);
  }
  EXPECT_TRUE(known);
  Runtime::synchronize();
  Runtime::synchronize(device_name(0));
}

// A program that many passes look at: products, a GELU, attention, gradients, a scan.
std::vector<float> results_of(const Tensor& x, const Tensor& w) {
  const Tensor p = w.detach().clone().is_param_();
  const Tensor h = x.matmul(p).gelu() + 1;
  const Tensor q = h.reshape({1, 2, 8, 6});
  const Tensor a = q.scaled_dot_product_attention(q, q).sum();
  const Tensor loss = (h.softmax(-1) * h).sum() + a + h.cumsum(0).mean();
  loss.backward();
  std::vector<float> out =
      cat({p.grad().flatten(), h.max(1), h.argmax(1).cast(DType::F32)}, 0).to_vector<float>();
  out.push_back(loss.item<float>());
  return out;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4 * (1 + std::abs(b[i]))) << i;
}

TEST(Noopt, HasTheSameValues) {
  Tensor::manual_seed(7);
  Tensor x = Tensor::randn({8, 10}).realize(), w = Tensor::randn({10, 12}).realize();
  for (const bool divided : {false, true}) {
    SCOPED_TRACE(divided);
    if (divided && device_count() < 2) break;
    if (divided) {
      const Mesh mesh = Mesh::of(device_names(2));
      x = x.shard(mesh, {{"data", Shard(0)}}).realize();
      w = w.shard(mesh).realize();
    }
    const std::vector<float> expected = results_of(x, w);
    const OptionScope plain({{"NOOPT", 1}});
    expect_near(results_of(x, w), expected);
  }
  // Captured as well.
  const auto program = [&](const Tensor& t) { return (t.matmul(w).relu() * 2).softmax(-1).sum(0); };
  const std::vector<float> expected = program(x).to_vector<float>();
  const OptionScope plain({{"NOOPT", 1}});
  Jit step = program;
  for (int i = 0; i < 3; ++i) expect_near(step(x).to_vector<float>(), expected);
}

TEST(Noopt, CallsNoLibraryAndJoinsNoKernels) {
  const Tensor x = Tensor::ones({64, 64}).contiguous().realize();
  const Tensor wide = Tensor::ones({512, 512}).contiguous().realize();
  const auto library_calls = [&] {
    GlobalCounters::reset();
    wide.matmul(wide).realize();
    return GlobalCounters::now().library_calls;
  };
  EXPECT_EQ(library_calls(), 1);
  const auto kernels = [&] {
    const Tensor a = (x + 1).sum(0), b = (x * 3).sum(1), c = x.max(0) - 2;
    GlobalCounters::reset();
    Tensor::realize({a, b, c});
    return GlobalCounters::now().kernels;
  };
  const int64_t joined = kernels();
  const OptionScope plain({{"NOOPT", 1}});
  EXPECT_GT(kernels(), joined);
  EXPECT_EQ(library_calls(), 0);
}

TEST(OptionScope, OfAStep) {
  int calls = 0;
  Jit step = [&](const Tensor& x) { return ++calls, x * 2; };
  const Tensor x = Tensor{1.0, 2.0};
  step(x), step(x);
  EXPECT_EQ(calls, 1);
  {
    const OptionScope uncaptured({{"JIT", 0}});
    EXPECT_EQ(step(x).sum().item<float>(), 6);
    EXPECT_EQ(calls, 2);
  }
  EXPECT_EQ(step(x).sum().item<float>(), 6);
  EXPECT_EQ(calls, 2);

  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  {
    const OptionScope told({{"DEBUG", 2}});
    step(x);
  }
  const size_t told = lines.size();
  step(x);
  set_log_sink({});
  EXPECT_GT(told, 0u);
  EXPECT_EQ(lines.size(), told);
}

}  // namespace
}  // namespace tinyshard::counters_test
