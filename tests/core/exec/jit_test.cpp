// Capture and replay: same values as without, no graph work and no allocation in a replay, and
// clear errors for what a replay cannot do.
#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <sstream>
#include <string>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "tests/message_of.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
}  // namespace

// Sanitizers bring allocators of their own: there nothing is counted.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsAllocations = false;
#else
constexpr bool kCountsAllocations = true;
void* operator new(size_t bytes) {
  if (counting) ++allocations;
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
// Not inlined: GCC takes a free() that it sees behind a new expression for a mismatch.
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace tinyshard {
namespace {

// A step knows what it uses by its storage. That of a result is the step's own.
TEST(Jit, TellsThatATensorWasReplaced) {
  const Tensor w = Tensor(std::vector<float>{1, 2}).realize(), one = Tensor::ones({2}).realize();
  Jit step = [&](Tensor x) { return w * x; };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(one).to_vector<float>(), (std::vector<float>{1, 2}));
  w.assign(Tensor(std::vector<float>{3, 4}));
  const Tensor result = step(one);
  EXPECT_EQ(result.to_vector<float>(), (std::vector<float>{3, 4}));
  result.replace(Tensor::zeros({2}));
  EXPECT_EQ(step(one).to_vector<float>(), (std::vector<float>{3, 4}));
  w.replace(Tensor(std::vector<float>{5, 6}));
  const std::string text = test::message_of<UserError>([&] { step(one); });
  EXPECT_NE(text.find("f32[2]"), std::string::npos) << text;
  EXPECT_NE(text.find("replace()"), std::string::npos) << text;
  step.reset();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(one).to_vector<float>(), (std::vector<float>{5, 6}));
  // The same holds for a storage that a step writes.
  const Tensor state = Tensor(std::vector<float>{1, 2}).realize();
  Jit add = [&](Tensor x) { return state.assign(state + x); };
  for (int i = 0; i < 2; ++i) add(one);
  state.replace(Tensor::zeros({2}));
  EXPECT_THROW(add(one), UserError);
}

TEST(Jit, ReplaysWithNewInputs) {
  Jit twice = [](Tensor x) { return x * 2 + 1; };
  for (float v : {1.f, 5.f, -3.f}) {
    EXPECT_EQ(twice(Tensor({v, v + 1})).to_vector<float>(),
              (std::vector<float>{2 * v + 1, 2 * v + 3}));
  }
}

// The step writes over its results, and is given them: it reads what they were before.
TEST(Jit, ResultsMayBeTheNextInputs) {
  auto function = [](const Tensor& x, const Tensor& y) {
    Tensor more = (x + 1).contiguous(), sum = more + y;  // stored before the rest is read
    return std::pair(more, (sum.flip({0}) * 0.5 + x.flip({0}).cumsum() * 0.125).contiguous());
  };
  Jit step = [&](Tensor x, Tensor y) { return function(x, y); };
  Tensor x = Tensor::arange(64).cast(DType::F32).realize(), y = x.clone().realize();
  std::pair<Tensor, Tensor> now{x, y}, expected = now;
  for (int i = 0; i < 5; ++i) {
    bool swapped = i == 3;
    now = swapped ? step(now.second, now.first) : step(now.first, now.second);
    expected = swapped ? function(expected.second, expected.first)
                       : function(expected.first, expected.second);
    Tensor::realize({expected.first, expected.second});
    EXPECT_TRUE(now.first.allclose(expected.first)) << i;
    EXPECT_TRUE(now.second.allclose(expected.second)) << i;
  }
  now = step(now.first, now.first);
  expected = function(expected.first, expected.first);
  EXPECT_TRUE(now.second.allclose(expected.second)) << "one result for two inputs";
}

// Storages that the step gives to its results, or writes because they are its state, count as well.
TEST(Jit, ClonesAndStatesMayBeTheNextInputs) {
  Tensor state = Tensor{1.0, 2.0, 3.0}.realize();
  auto function = [&](const Tensor& x) {
    Tensor twice = x * 2;
    state.assign(state * 3);
    return std::vector<Tensor>{twice.clone(), state, twice.flip({0}) + x};
  };
  for (size_t fed : {0, 1}) {
    state.assign(Tensor{1.0, 2.0, 3.0});
    Jit step = [&](Tensor x) { return function(x); };
    std::vector<float> x{4, 5, 6}, s{1, 2, 3};
    std::vector<Tensor> out;
    for (int call = 0; call < 4; ++call) {
      out = call == 0 ? step(Tensor(x)) : step(out[fed]);
      std::vector<float> last{2 * x[2] + x[0], 2 * x[1] + x[1], 2 * x[0] + x[2]};
      for (size_t i = 0; i < 3; ++i) x[i] *= 2, s[i] *= 3;
      EXPECT_EQ(out[0].to_vector<float>(), x) << call;
      EXPECT_EQ(out[1].to_vector<float>(), s) << call;
      EXPECT_EQ(out[2].to_vector<float>(), last) << call;
      if (fed == 1) x = s;
    }
  }
}

TEST(Jit, AssignmentsHappenAtEveryCall) {
  Tensor total = Tensor::zeros({2}).clone().realize();
  Jit add = [&](Tensor x) {
    total.assign(total + x);
    return total * 10;
  };
  for (int i = 1; i <= 4; ++i) {
    EXPECT_EQ(add(Tensor({1.f, 2.f})).to_vector<float>(),
              (std::vector<float>{10.f * float(i), 20.f * float(i)}));
  }
  EXPECT_EQ(total.to_vector<float>(), (std::vector<float>{4, 8}));
}

TEST(Jit, StateMadeLazilyBeforeIsNotMadeAgain) {
  Tensor::manual_seed(1);
  Tensor w = Tensor::randn({4, 4}).is_param_();  // not computed yet
  Jit square = [&](Tensor x) { return x.matmul(w); };
  Tensor x = Tensor::eye(4);
  auto first = square(x).to_vector<float>();
  EXPECT_EQ(square(x).to_vector<float>(), first);
  EXPECT_EQ(w.to_vector<float>(), first);
}

TEST(Jit, RandomNumbersDifferBetweenReplays) {
  Tensor::manual_seed(5);
  Jit draw = [](Tensor x) {
    TrainingMode on;
    return x + Tensor::rand({8});
  };
  Tensor x = Tensor::zeros({8}).contiguous().realize();
  auto a = draw(x).to_vector<float>(), b = draw(x).to_vector<float>(),
       c = draw(x).to_vector<float>();
  EXPECT_NE(a, b);
  EXPECT_NE(b, c);
}

TEST(Jit, AReplayAllocatesNothingAndTouchesNoNode) {
  if (options().check.values) GTEST_SKIP() << "operands are copied to be compared";
  Tensor w = Tensor::randn({64, 64}).is_param_().realize();
  Jit step = [&](Tensor x) {
    TrainingMode on;
    Tensor y = x.matmul(w).softmax();
    w.assign(w - y.mean(0, true) * 0.1);
    return y.sum();
  };
  Tensor a = Tensor::randn({32, 64}).realize(), b = Tensor::randn({32, 64}).realize();
  step(a);
  step(b);
  CapturedStep::States in_a{a.state()}, in_b{b.state()};
  size_t nodes = live_nodes();
  uint64_t newest = newest_node_id();
  CapturedStep raw;
  CapturedStep::Trace trace = [&](const CapturedStep::States& s) {
    return CapturedStep::States{(Tensor(s[0]).matmul(w).relu()).state()};
  };
  raw.call(in_a, trace);
  raw.call(in_b, trace);
  nodes = live_nodes();
  newest = newest_node_id();
  allocations = 0;
  counting = true;
  for (int i = 0; i < 4; ++i) raw.call(i % 2 ? in_a : in_b, trace);
  counting = false;
  if (kCountsAllocations) {
    EXPECT_EQ(allocations, 0);
  }
  EXPECT_EQ(live_nodes(), nodes);
  EXPECT_EQ(newest_node_id(), newest);
}

TEST(Jit, AnotherShapeIsAClearError) {
  Jit f = [](Tensor x) { return x + 1; };
  f(Tensor::zeros({2, 3}).contiguous());
  std::string text = test::message_of<UserError>([&] { f(Tensor::zeros({4, 3}).contiguous()); });
  EXPECT_NE(text.find("f32[4, 3]"), std::string::npos) << text;
  EXPECT_NE(text.find("f32[2, 3]"), std::string::npos) << text;
  EXPECT_NE(text.find("captured step: input 0 is"), std::string::npos) << text;
  EXPECT_NE(text.find("(jit_test.cpp:"), std::string::npos) << "the line of the call: " << text;
}

TEST(Jit, ReadingDataInsideIsAClearError) {
  Jit f = [](Tensor x) { return x * x.sum().item<float>(); };
  std::string text = test::message_of<UserError>([&] { f(Tensor::ones({2}).contiguous()); });
  EXPECT_NE(text.find("captured step"), std::string::npos) << text;
  EXPECT_NE(text.find("item: reading data"), std::string::npos) << text;
  EXPECT_NE(text.find("(jit_test.cpp:"), std::string::npos) << text;
  Jit prints = [](Tensor x) {
    std::ostringstream out;
    out << x;
    return x;
  };
  text = test::message_of<UserError>([&] { prints(Tensor::ones({2}).contiguous()); });
  EXPECT_NE(text.find("operator<<: reading data"), std::string::npos) << text;
  Jit finds = [](Tensor x) { return x.nonzero(); };
  text = test::message_of<UserError>([&] { finds(Tensor::ones({2}).contiguous()); });
  EXPECT_NE(text.find("nonzero: its shape depends on values"), std::string::npos) << text;
  EXPECT_NE(text.find("nonzero(size)"), std::string::npos) << text;
  Jit selects = [](Tensor x) { return x.masked_select(x > 1); };
  text = test::message_of<UserError>([&] { selects(Tensor::ones({2}).contiguous()); });
  EXPECT_NE(text.find("masked_select(mask, size)"), std::string::npos) << text;
  Jit counts = [](Tensor x) { return x.nonzero(2) + x.masked_select(x > 1, 2); };
  EXPECT_EQ(counts(Tensor({0.f, 2.f})).shape(), (Dims{2, 2}));
  // The failure leaves everything usable.
  EXPECT_EQ((Tensor::ones({2}) + 1).to_vector<float>(), (std::vector<float>{2, 2}));
}

TEST(Jit, AFailedTraceRestoresAssignedTensors) {
  Tensor w = Tensor({1.f}).clone().realize();
  Jit f = [&](Tensor x) -> Tensor {
    w.assign(w + x);
    throw std::runtime_error("half-way");
  };
  EXPECT_THROW(f(Tensor({2.f})), std::runtime_error);
  EXPECT_EQ(w.to_vector<float>(), std::vector<float>{1.f});
}

TEST(Jit, ATensorThatEscapesHasNoValue) {
  Tensor escaped;
  Jit f = [&](Tensor x) {
    escaped = x * 3;
    return x + 1;
  };
  f(Tensor({1.f}));
  std::string text = test::message_of<UserError>([&] { escaped.to_vector<float>(); });
  EXPECT_NE(text.find("return it from the step"), std::string::npos) << text;
}

TEST(Jit, UndefinedTensorsAreClearErrors) {
  auto error = [](const std::function<void()>& call) { return test::message_of<UserError>(call); };
  const Tensor x{1.0, 2.0}, none;
  Jit sum = [](Tensor a, Tensor b) { return a + b; };
  const std::string never = " is a tensor that was never given a value  (jit_test.cpp:";
  const std::string input = "captured step: input 1" + never;
  EXPECT_TRUE(error([&] { sum(x, none); }).starts_with(input));
  EXPECT_EQ(sum(x, x).to_vector<float>(), (std::vector<float>{2, 4})) << "the step is still usable";
  EXPECT_TRUE(error([&] { sum(x, none); }).starts_with(input)) << "a replay";
  Jit one = [](Tensor) { return Tensor(); };
  Jit list = [](Tensor a) { return std::vector<Tensor>{a, Tensor()}; };
  Jit pair = [](Tensor a) { return std::pair{a, Tensor()}; };
  Jit tuple = [](Tensor a) { return std::tuple{a, Tensor(), a}; };
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(error([&] { one(x); }).starts_with("captured step: result 0" + never));
    EXPECT_TRUE(error([&] { list(x); }).starts_with("captured step: result 1" + never));
    EXPECT_TRUE(error([&] { pair(x); }).starts_with("captured step: result 1" + never));
    EXPECT_TRUE(error([&] { tuple(x); }).starts_with("captured step: result 1" + never));
  }
}

TEST(Jit, SeveralResults) {
  Jit f = [](Tensor x) { return std::pair(x + 1, x.sum()); };
  auto [y, s] = f(Tensor({1.f, 2.f}));
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{2, 3}));
  EXPECT_EQ(s.item<float>(), 3);
}

TEST(Jit, MeshesThatPrintAlikeAreToldApart) {
  Runtime::shutdown();
  Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  const auto on = [](size_t first) {
    const Mesh mesh({{"data", 2}}, {world().devices[first], world().devices[first + 1]});
    return Tensor::ones({4, 3}).shard(mesh, {{"data", Shard(0)}}).realize();
  };
  Jit twice = [](Tensor x) { return x * 2; };
  twice(on(0));
  const std::string text = test::message_of<UserError>([&] { twice(on(2)); });
  EXPECT_NE(text.find("CPU:0"), std::string::npos) << text;
  EXPECT_NE(text.find("CPU:2"), std::string::npos) << text;
  Runtime::shutdown();
}

}  // namespace
}  // namespace tinyshard
