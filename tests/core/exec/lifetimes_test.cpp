// Runtime::shutdown() at random moments of random programs, and then a use of everything that is
// left: what was computed is lost and says so, what was not is computed in the next epoch, and has
// its value. LIFETIME_MOMENTS sets how many moments (the long form takes 10000).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/runtime.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "multi/mesh.h"

namespace tinyshard {
namespace {

using Floats = std::vector<float>;
using Step = Jit<std::function<Tensor(Tensor)>>;

int moments() {
  const char* wanted = std::getenv("LIFETIME_MOMENTS");
  return wanted ? std::atoi(wanted) : 300;
}

constexpr int64_t kRows = 4, kColumns = 3;
constexpr size_t kElements = size_t(kRows * kColumns);

// The fate of a value, from the best to the worst: of several operands the worst counts.
enum class Fate : uint8_t {
  Stays,     // made of constants and never computed: good in any epoch
  Computed,  // it lies in memory of the present epoch, or is made of what does
  Unknown,
  Gone,  // with an earlier epoch
};

struct Value {
  Tensor tensor;
  Floats expected;  // integers, so that sums are exact
  Fate fate = Fate::Stays;
  int place = 0;  // of kPlaces
};

// A captured step y = 2 x + w, which first counts w up by one where w is a parameter.
struct LiveStep {
  std::unique_ptr<Step> step;
  std::shared_ptr<Value> parameter;  // null: w is 1
  int place = 0;
  enum class State : uint8_t { New, Captured, Lost } state = State::New;
};

constexpr int kPlaces = 5;
Tensor at(int place, const Tensor& from) {
  const Tensor x = from.to("CPU:0");
  switch (place) {
    case 0:
      return x;
    case 1:
      return x.shard({"CPU:1"}, 0);
    case 2:
      return x.shard({"CPU:0", "CPU:1", "CPU:2"}, 0);
    case 3:
      return x.shard({"CPU:0", "CPU:1", "CPU:2", "CPU:3"}, 1);
    default: {
      const Mesh line = Mesh::of({"CPU:0", "CPU:1", "CPU:2", "CPU:3"});
      const Mesh square({{"rows", 2}, {"columns", 2}}, line.devices());
      return x.shard(square, {{"rows", Shard(0)}, {"columns", Shard(1)}});
    }
  }
}

// By way of memory that is the step's own, and of a collective where x is in parts.
Tensor twice(const Tensor& x) { return x * 2 + x.sum() * 0; }

bool tells_of_the_end(const UserError& error) {
  const std::string text = error.what();
  return text.find("lost") != std::string::npos &&
         text.find("Runtime::shutdown()") != std::string::npos;
}

class Programme {
 public:
  explicit Programme(unsigned seed) : random_(seed) {}

  // Makes a statement.
  void go_on() {
    if (values_.empty()) return make();
    switch (draw(13)) {
      case 0:
      case 1:
        return make();
      case 2:
        return combine();
      case 3:
      case 4:
        return compute(any());
      case 5:
        return place();
      case 6:
        return assign(any());
      case 7:
        return differentiate();
      case 8:
        return drop();
      case 9:
        return break_off();
      case 10:
        if (steps_.size() < 4) return make_step();
        [[fallthrough]];
      default:
        if (!steps_.empty()) call(steps_[size_t(draw(int(steps_.size())))]);
    }
  }

  void end_epoch() {
    if (draw(4) == 0) {
      end_while_unwinding();
    } else {
      Runtime::shutdown();
    }
    auto end = [](Value& v) { v.fate = v.fate == Fate::Computed ? Fate::Gone : v.fate; };
    for (Value& v : values_) end(v);
    for (LiveStep& s : steps_) {
      if (s.parameter) end(*s.parameter);
      if (s.state == LiveStep::State::Captured) s.state = LiveStep::State::Lost;
    }
  }

  // A use of everything, after the epoch in which it was made. Some of it lives on for another
  // epoch, as lost as before.
  void use_what_is_left() {
    for (size_t i = values_.size(); i-- > 0;) {
      if (draw(3) == 0) assign(values_[i]);
      compute(values_[i]);
    }
    for (LiveStep& s : steps_) {
      call(s);
      if (s.state != LiveStep::State::Lost || draw(2) == 0) continue;
      s.step->reset();
      s.state = LiveStep::State::New;
      call(s);
    }
    while (values_.size() > 8) drop();
    std::erase_if(steps_, [&](const LiveStep&) { return draw(2) == 0; });
  }

  int kept = 0, lost = 0;  // uses of what an epoch has left
  int broken_off = 0;      // steps left by an exception

 private:
  int draw(int below) { return std::uniform_int_distribution(0, below - 1)(random_); }
  Value& any() { return values_[size_t(draw(int(values_.size())))]; }
  static Fate worse(Fate a, Fate b) { return std::max(a, b); }

  // Runs what needs values of this fate; whether it could.
  template <class Use>
  bool attempt(Fate fate, const Use& use) {
    try {
      use();
      EXPECT_NE(fate, Fate::Gone) << "what was lost was used";
      kept += fate == Fate::Stays;
      return true;
    } catch (const UserError& error) {
      EXPECT_TRUE(fate == Fate::Gone || fate == Fate::Unknown) << error.what();
      EXPECT_TRUE(tells_of_the_end(error)) << error.what();
      ++lost;
      return false;
    }
  }

  void make() {
    Floats data(kElements, float(draw(5)));
    if (draw(2)) {
      for (float& x : data) x = float(draw(7) - 3);
      values_.push_back({Tensor(data, {kRows, kColumns}), data, Fate::Computed});
    } else {
      values_.push_back({Tensor::full({kRows, kColumns}, data[0]), data, Fate::Stays});
    }
  }

  void combine() {
    const Value x = any(), y = any();
    const bool together = x.place == y.place;
    const Tensor a = together ? x.tensor : at(0, x.tensor),
                 b = together ? y.tensor : at(0, y.tensor);
    Value z{(a + b * 2).clamp(-50.0, 50.0), x.expected, worse(x.fate, y.fate),
            together ? x.place : 0};
    for (size_t i = 0; i < kElements; ++i)
      z.expected[i] = std::clamp(x.expected[i] + y.expected[i] * 2, -50.0F, 50.0F);
    if (draw(2)) z.tensor = z.tensor.reshape({kElements}).reshape({kRows, kColumns});
    values_.push_back(std::move(z));
  }

  void compute(Value& v) {
    const bool can = attempt(v.fate, [&] {
      if (draw(3) == 0) {
        v.tensor.realize();
      } else {
        EXPECT_EQ(v.tensor.to_vector<float>(), v.expected);
      }
    });
    v.fate = can ? Fate::Computed : Fate::Gone;
  }

  void place() {
    const Value x = any();
    const int to = draw(kPlaces);
    values_.push_back({at(to, x.tensor), x.expected, x.fate, to});
  }

  // Now, or when it is looked at.
  void assign(Value& v) {
    const bool now = draw(2) != 0;
    const bool can = attempt(now ? v.fate : Fate::Unknown, [&] {
      v.tensor.assign(v.tensor + 1);
      for (float& x : v.expected) ++x;
      if (now) v.tensor.realize();
    });
    if (!can || v.fate == Fate::Gone)
      v.fate = Fate::Gone;
    else
      v.fate = now ? Fate::Computed : Fate::Unknown;
  }

  void differentiate() {
    const Value x = any();
    Tensor w = x.tensor.ones_like().is_param_();
    Tensor gradient;
    const bool can = attempt(x.fate, [&] {
      (w * x.tensor).sum().backward();
      gradient = w.grad();
      if (draw(2)) {
        EXPECT_EQ(gradient.to_vector<float>(), x.expected);
      } else {
        gradient.realize();
      }
    });
    if (can) values_.push_back({gradient, x.expected, Fate::Computed, x.place});
  }

  void make_step() {
    LiveStep s{.step = nullptr, .parameter = nullptr, .place = draw(kPlaces)};
    if (draw(2)) {
      s.parameter = std::make_shared<Value>(
          Value{at(s.place, Tensor::zeros({kRows, kColumns})).contiguous(), Floats(kElements, 0)});
      s.step = std::make_unique<Step>([w = s.parameter](const Tensor& x) {
        w->tensor.assign(w->tensor + 1);
        return twice(x) + w->tensor;
      });
    } else {
      s.step = std::make_unique<Step>([](const Tensor& x) { return twice(x) + 1; });
    }
    steps_.push_back(std::move(s));
  }

  void call(LiveStep& s) {
    if (values_.empty()) make();
    const Value x = any();
    Fate fate = x.fate;
    if (s.parameter) fate = worse(fate, s.parameter->fate);
    if (s.state == LiveStep::State::Lost) fate = Fate::Gone;
    Tensor y;
    if (!attempt(fate, [&] { y = (*s.step)(at(s.place, x.tensor)); })) return;
    s.state = LiveStep::State::Captured;
    Floats expected = x.expected;
    if (s.parameter) {
      for (float& w : s.parameter->expected) ++w;
      s.parameter->fate = Fate::Computed;
    }
    for (size_t i = 0; i < kElements; ++i)
      expected[i] = expected[i] * 2 + (s.parameter ? s.parameter->expected[i] : 1);
    if (draw(2) != 0) {
      EXPECT_EQ(y.to_vector<float>(), expected);
    }
    for (float& v : expected) v = std::clamp(v - 1, -50.0F, 50.0F);
    values_.push_back({(y - 1).clamp(-50.0, 50.0), expected, Fate::Computed, s.place});
  }

  // The runtime ends in a destructor while an exception is in flight, between tensors that go before
  // it and after it.
  void end_while_unwinding() {
    struct Ends {
      ~Ends() { Runtime::shutdown(); }
    };
    try {
      const Tensor later = Tensor(Floats(kElements, 1), {kRows, kColumns}) * 2;
      const Ends ends;
      const Tensor sooner = at(draw(kPlaces), later).realize();
      throw std::domain_error("in flight");
    } catch (const std::domain_error&) {
      ++broken_off;
    }
  }

  // An exception leaves a step half-way, while it is traced: what the step read is as it was, and nothing else is left of it.
  void break_off() {
    const Value x = any();
    Step step([](const Tensor& y) -> Tensor {
      throw std::domain_error("half-way, at a tensor of dims " + std::to_string(twice(y).ndim()));
    });
    try {
      step(at(draw(kPlaces), x.tensor));
      ADD_FAILURE() << "the exception did not come through";
    } catch (const std::domain_error&) {
      ++broken_off;
    } catch (const UserError& error) {
      EXPECT_TRUE(x.fate == Fate::Gone || x.fate == Fate::Unknown) << error.what();
      EXPECT_TRUE(tells_of_the_end(error)) << error.what();
    }
  }

  void drop() { values_.erase(values_.begin() + draw(int(values_.size()))); }

  std::mt19937 random_;
  std::vector<Value> values_;
  std::vector<LiveStep> steps_;
};

TEST(Lifetimes, EpochsEndAtAnyMomentOfARandomProgram) {
  Runtime::shutdown();
  int kept = 0, lost = 0, broken_off = 0;
  for (int moment = 0; moment < moments();) {
    SCOPED_TRACE("program " + std::to_string(moment));
    Programme programme(unsigned(moment) + 1);
    for (int epoch = 0; epoch < 10 && moment < moments(); ++epoch, ++moment) {
      std::mt19937 random(unsigned(moment) * 7 + 3);
      for (unsigned n = random() % 40; n > 0; --n) programme.go_on();
      programme.end_epoch();
      programme.use_what_is_left();
      if (HasFailure()) return;
    }
    kept += programme.kept;
    lost += programme.lost;
    broken_off += programme.broken_off;
  }
  EXPECT_GT(lost, moments());
  EXPECT_GT(kept, moments());
  EXPECT_GT(broken_off, moments() / 4);
  Runtime::shutdown();
}

// Computes in a thread while another one ends its epochs.
void compute_until(const std::atomic<bool>& enough, std::atomic<int>* computed, int* lost) {
  std::unique_ptr<Step> step;
  Tensor w;
  for (int round = 1; !enough; ++round) {
    try {
      if (!step) {
        w = at(round % kPlaces, Tensor::zeros({kRows, kColumns})).contiguous();
        step = std::make_unique<Step>([w](const Tensor& x) {
          w.assign(w * 0 + 2);
          return twice(x) + w;
        });
      }
      const float first = float(round % 9);
      const Tensor x = Tensor(Floats(kElements, first), {kRows, kColumns});
      Tensor p = x.clone().is_param_();
      (p * p).sum().backward();
      EXPECT_EQ(p.grad().to_vector<float>(), Floats(kElements, 2 * first));
      const Tensor placed = x.shard_like(w);
      EXPECT_EQ((*step)(placed).to_vector<float>(), Floats(kElements, first * 2 + 2));
      ++*computed;
      if (round % 16 == 0) step.reset();
    } catch (const UserError& error) {
      EXPECT_TRUE(tells_of_the_end(error)) << error.what();
      ++*lost;
      step.reset();
    }
  }
}

TEST(Lifetimes, EpochsEndWhileOtherThreadsCompute) {
  Runtime::shutdown();
  std::atomic<bool> enough = false;
  constexpr size_t kThreads = 3;
  std::vector<std::atomic<int>> computed(kThreads);
  std::vector<int> lost(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] { compute_until(enough, &computed[t], &lost[t]); });
  auto all_have = [&](int rounds) {
    for (const std::atomic<int>& c : computed) {
      while (c < rounds) std::this_thread::yield();
    }
  };
  // Pauses last from nothing to two rounds of the threads, however long these take here.
  all_have(20);
  const auto begin = std::chrono::steady_clock::now();
  all_have(30);
  const auto round = (std::chrono::steady_clock::now() - begin) / 10;
  std::mt19937 random(5);
  for (int moment = 0; moment < moments(); ++moment) {
    std::this_thread::sleep_for(round * int(random() % 1000) / 500);
    Runtime::shutdown();
  }
  enough = true;
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < kThreads; ++t) {
    EXPECT_GT(computed[t], 0);
    EXPECT_GT(lost[t], 0);
  }
  Runtime::shutdown();
}

}  // namespace
}  // namespace tinyshard
