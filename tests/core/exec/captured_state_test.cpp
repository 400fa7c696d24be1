// Values that a captured step shares with its caller: what it returns more than once, what is given
// back to it, what a failed trace leaves. The reference is the same function without a capture.
#include <stdexcept>
#include <string>
#include <thread>
#include <tinyshard/tinyshard.h>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/tensor/random.h"
#include "tests/message_of.h"

namespace tinyshard::captured_state_test {
namespace {

Tensor stored(std::vector<double> values) { return Tensor(values).realize(); }
double first(const Tensor& t) { return t.to_vector<double>()[0]; }

// --- one state returned more than once -----------------------------------------------------------

TEST(CapturedState, AnAssignedStateMayBeReturnedTwice) {
  const Tensor s = stored({1, 2}), x = stored({1, 1});
  Jit step = [&](Tensor x) {
    s.assign(s + x);
    return std::pair(s, s);
  };
  for (double expected : {2, 3, 4}) {
    auto [a, b] = step(x);
    EXPECT_EQ(first(a), expected);
    EXPECT_EQ(first(b), expected);
    EXPECT_EQ(first(s), expected);
  }
}

TEST(CapturedState, AStateMayBeReturnedOnBothSidesOfAnother) {
  const Tensor s = stored({1, 2}), t = stored({10, 20}), x = stored({1, 1});
  Jit step = [&](Tensor x) {
    s.assign(s + x);
    t.assign(t + s);
    return std::tuple(s, t, s, x * 2, x * 2, t);
  };
  double now = 1, sum = 10;
  for (int call = 0; call < 3; ++call) {
    now += 1, sum += now;
    auto [a, b, c, d, e, f] = step(x);
    EXPECT_EQ(first(a), now);
    EXPECT_EQ(first(b), sum);
    EXPECT_EQ(first(c), now);
    EXPECT_EQ(first(d), 2);
    EXPECT_EQ(first(e), 2);
    EXPECT_EQ(first(f), sum);
    EXPECT_EQ(first(s), now);
    EXPECT_EQ(first(t), sum);
  }
}

TEST(CapturedState, AStepOfAnOptimizerMayReturnItsParameterTwice) {
  auto train = [](bool captured) {
    const Tensor w = stored({1, 2}).is_param_();
    nn::optim::SGD optimizer({w}, {.lr = 0.5});
    auto function = [&](const Tensor& x) {
      TrainingMode on;
      optimizer.zero_grad();
      (w * x).sum().backward();
      optimizer.step();
      return std::pair(w, w);
    };
    Jit step = function;
    std::vector<double> values;
    for (double x : {1, 2, 3}) {
      auto [a, b] = captured ? step(stored({x, x})) : function(stored({x, x}));
      values.insert(values.end(), {first(a), first(b), first(w)});
    }
    return values;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(CapturedState, AStateThatIsReadAndReturnedFollowsAssignments) {
  const Tensor s = stored({1, 2}), one = stored({1, 1});
  Jit step = [&](Tensor x) { return std::vector<Tensor>{s, s, s + x}; };
  for (double expected : {1, 10, 11}) {
    auto r = step(one);
    EXPECT_EQ(first(r[0]), expected);
    EXPECT_EQ(first(r[1]), expected);
    EXPECT_EQ(first(r[2]), expected + 1);
    s.assign(stored({expected == 1 ? 10 : expected + 1, 2}));
  }
}

// The trace does nothing with a state but return it, computed or not, or another one's value.
TEST(CapturedState, AStateThatIsOnlyReturnedFollowsAssignments) {
  const Tensor s = stored({1, 2}), same = s.contiguous(), later = s + 1;
  Jit step = [&](Tensor x) { return std::vector<Tensor>{s, same, later, s + x}; };
  for (double call : {0, 1, 2}) {
    auto r = step(stored({1, 1}));
    EXPECT_EQ(first(r[0]), 1 + call);
    EXPECT_EQ(first(r[1]), 1 + call * 10);
    EXPECT_EQ(first(r[2]), 2 + call * 100);
    EXPECT_EQ(first(r[3]), 2 + call);
    s.assign(s + 1);
    same.assign(same + 10);
    later.assign(later + 100);
  }
}

// --- results that are given back -----------------------------------------------------------------

TEST(CapturedState, AReplacedResultMayBeTheNextInput) {
  Jit twice = [](Tensor x) { return x * 2; };
  const Tensor r = twice(stored({1}));
  r.replace(stored({100}));
  EXPECT_EQ(first(twice(r)), 200);
  EXPECT_EQ(first(r), 200) << "it is the result again";
  r.replace(r + 1);
  EXPECT_EQ(first(twice(r)), 402);
}

TEST(CapturedState, AResultThatWasWrittenOverMayBeTheNextInput) {
  auto function = [](const Tensor& x) { return std::pair(x * 2, x * 2); };
  for (bool second : {false, true}) {
    for (bool give_written : {false, true}) {
      Jit step = [&](Tensor x) { return function(x); };
      auto [a, b] = step(stored({1, 2}));
      auto [c, d] = function(stored({1, 2}));
      for (int call = 0; call < 3; ++call) {
        Tensor written = second ? b : a, reference = second ? d : c;
        written += 1;
        reference += 1;
        std::tie(a, b) = step(give_written == second ? b : a);
        std::tie(c, d) = function(give_written == second ? d : c);
        EXPECT_EQ(first(a), first(c)) << second << give_written << call;
        EXPECT_EQ(first(b), first(d)) << second << give_written << call;
      }
    }
  }
}

// The step writes to what it is given, which was a result.
TEST(CapturedState, AReplacedResultMayBeAssignedToByTheStep) {
  Jit step = [](Tensor x, Tensor y) {
    x.assign(x + y);
    return x * 2;
  };
  const Tensor one = stored({1, 1});
  Tensor x = stored({1, 2});
  const Tensor r = step(x, one);
  EXPECT_EQ(first(r), 4);
  const Tensor given = stored({100, 200});
  EXPECT_EQ(first(step(given, one)), 202);
  EXPECT_EQ(first(given), 101);
  EXPECT_EQ(first(step(x, r)), 408);
  EXPECT_EQ(first(x), 204);
}

// The trace ends what the tensor held, the call was given it.
TEST(CapturedState, AnInputThatTheTraceReplacesIsReadAsItWas) {
  for (bool constant : {false, true}) {
    const Tensor s = stored({1, 2});
    Jit step = [&](Tensor x) {
      s.replace(constant ? Tensor(std::vector<double>{9, 9}) : x * 2);
      return std::pair(x + 1, s);
    };
    auto [sum, now] = step(s);
    EXPECT_EQ(first(sum), 2);
    EXPECT_EQ(first(now), constant ? 9 : 2);
    EXPECT_EQ(first(s), constant ? 9 : 2);
  }
}

// --- constants of the step -----------------------------------------------------------------------

TEST(CapturedState, WritingOverAReturnedConstantLeavesTheStepAsItIs) {
  Jit step = [](Tensor x) {
    Tensor c(std::vector<double>{5, 6});
    return std::pair(c, c + x);
  };
  for (int call = 0; call < 3; ++call) {
    auto [c, sum] = step(stored({0, 0}));
    EXPECT_EQ(first(c), 5) << call;
    EXPECT_EQ(first(sum), 5) << call;
    c += 1;
    EXPECT_EQ(first(c), 6) << call;
  }
}

TEST(CapturedState, AConstantThatTheStepWritesOverBeginsAnewAtEveryCall) {
  Jit step = [](Tensor x) {
    Tensor c(std::vector<double>{5, 6});
    const Tensor same = c.reshape({2});
    c += x;
    const Tensor before = c * 1;
    c += x;
    return std::vector<Tensor>{c, before, same};
  };
  for (int call = 0; call < 3; ++call) {
    auto r = step(stored({1, 1}));
    EXPECT_EQ(first(r[0]), 7) << call;
    EXPECT_EQ(first(r[1]), 6) << call;
    EXPECT_EQ(first(r[2]), 5) << call;
    r[2] += 1;
  }
}

// --- gradients -----------------------------------------------------------------------------------

// The first call adds to the gradient from before, the later ones find none.
TEST(CapturedState, AGradientFromBeforeIsAddedToOnce) {
  const Tensor w = stored({1, 1}).is_param_();
  nn::optim::SGD optimizer({w}, {.lr = 1});
  (w * 100).sum().backward();
  Jit step = [&](Tensor x) {
    TrainingMode on;
    (w * x).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  for (double expected : {-100, -101, -102, -103}) {
    step(stored({1, 1}));
    EXPECT_EQ(first(w), expected);
  }
}

TEST(CapturedState, AStepOfAnOptimizerAloneFollowsTheGradient) {
  const Tensor w = stored({1, 1}).is_param_();
  nn::optim::SGD optimizer({w}, {.lr = 1});
  Jit step = [&] {
    TrainingMode on;
    optimizer.step();
  };
  (w * 3).sum().backward();
  for (double expected : {-2, -5}) {
    step();
    EXPECT_EQ(first(w), expected);
  }
  const Tensor known = w.grad();
  optimizer.zero_grad();
  EXPECT_NE(test::message_of<UserError>([&] { step(); }).find("has no gradient"),
            std::string::npos);
  EXPECT_EQ(first(w), -5) << "nothing was done";
  (w * 5).sum().backward();
  step();
  EXPECT_EQ(first(w), -10);
  w.grad().assign(stored({7, 7}));
  step();
  EXPECT_EQ(first(w), -17);
  w.set_grad(known);
  step();
  EXPECT_EQ(first(w), -20);
}

TEST(CapturedState, EachCallLeavesTheGradientThatTheFunctionLeaves) {
  auto gradients = [](bool captured) {
    const Tensor w = stored({1, 2}).is_param_();
    auto function = [&](const Tensor& x) {
      w.set_grad({});
      (w * x).sum().backward();
      return w.grad();
    };
    Jit step = function;
    std::vector<double> values;
    for (double x : {2, 3, 4}) {
      captured ? step(stored({x, x})) : function(stored({x, x}));
      values.push_back(first(w.grad()));
      (w * 10).sum().backward();
      values.push_back(first(w.grad()));
      if (x == 3) w.set_grad({});
    }
    return values;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

// --- traces that fail ----------------------------------------------------------------------------

struct Mine : std::runtime_error {
  Mine() : std::runtime_error("mine") {}
};

TEST(CapturedState, AFailedTraceLeavesGradientsAsTheyWere) {
  for (bool had_one : {false, true}) {
    for (bool clears : {false, true}) {
      const Tensor p = stored({1, 2}).is_param_();
      if (had_one) (p * 7).sum().backward();
      Jit step = [&](Tensor x) -> Tensor {
        if (clears) p.set_grad({});
        (p * x).sum().backward();
        throw Mine();
      };
      EXPECT_THROW(step(stored({5, 6})), Mine);
      EXPECT_EQ(p.grad().defined(), had_one);
      if (had_one) {
        EXPECT_EQ(first(p.grad()), 7);
      }
      (p * 2).sum().backward();
      EXPECT_EQ(first(p.grad()), had_one ? 9 : 2);
    }
  }
}

// By which graphs that were made before know it.
TEST(CapturedState, AFailedTraceLeavesWhatGradientsAreTakenBy) {
  const Tensor t = stored({1, 2}) * 3, loss = (t * t).sum();
  Jit step = [&](Tensor x) -> Tensor {
    t.assign(t + x);
    throw Mine();
  };
  EXPECT_THROW(step(stored({1, 1})), Mine);
  EXPECT_EQ(first(t), 3);
  EXPECT_EQ(first(loss.gradient({t})[0]), 6);
}

TEST(CapturedState, AFailedTraceEndsNoStepThatUsesWhatItReplaced) {
  const Tensor w = stored({1, 2}), one = stored({1, 1});
  Jit reads = [&](Tensor x) { return w * x; };
  EXPECT_EQ(first(reads(one)), 1);
  Jit step = [&](Tensor x) -> Tensor {
    w.replace(x * 2);
    throw Mine();
  };
  EXPECT_THROW(step(one), Mine);
  w.assign(w + 4);
  EXPECT_EQ(first(reads(one)), 5);
}

// Values that it had made are part of nothing, be they alive or not.
TEST(CapturedState, ValuesOfAFailedTraceHarmNobody) {
  const Tensor w = stored({2, 3}), x = stored({1, 1});
  std::vector<Tensor> kept;
  bool fails = true;
  Jit step = [&](Tensor v) {
    kept.push_back(v * w);
    kept.push_back(w * 10);
    kept.push_back(w.clone());
    if (fails) throw Mine();
    w.assign(w * 2);
    return kept.end()[-3].sum();
  };
  EXPECT_THROW(step(x), Mine);
  w.assign(w + 1);
  EXPECT_EQ(first(w), 3) << "written outside";
  EXPECT_EQ(first(kept[1]), 20) << "made of what was there before";
  EXPECT_EQ(first(kept[2]), 2);
  EXPECT_NE(test::message_of<UserError>([&] { first(kept[0]); }).find("return it from the step"),
            std::string::npos);
  EXPECT_THROW(step(x), Mine);
  fails = false;
  for (double expected : {7, 14, 28}) EXPECT_EQ(first(step(x)), expected);
  EXPECT_EQ(first(w), 24);
}

TEST(CapturedState, AFailedTraceLeavesTheGeneratorAsItWas) {
  const Tensor x = Tensor::ones({64}).realize();
  for (bool draws_before : {true, false}) {
    auto drawn = [&](bool fails) {
      std::vector<float> values;
      std::thread([&] {  // each begins with a generator of its own
        const TrainingMode on;
        Tensor kept;
        if (draws_before) x.dropout(0.5).realize();
        Jit step = [&](Tensor v) -> Tensor {
          kept = v.dropout(0.5);
          throw Mine();
        };
        if (fails) {
          EXPECT_THROW(step(x), Mine);
        }
        Jit works = [](Tensor v) { return v.dropout(0.5); };
        values =
            stack({x.dropout(0.5), works(x).clone(), works(x), x.dropout(0.5)}).to_vector<float>();
        values.push_back(float(random_state().trained));
      })
          .join();
      return values;
    };
    drawn(true);  // none of them throws
    EXPECT_EQ(drawn(true).back(), drawn(false).back());
  }
}

// All failures behind the trace are like that: here the step asks for what cannot be planned.
TEST(CapturedState, AStepThatCannotBeCompiledLeavesEverythingAsItWas) {
  Runtime::shutdown();
  Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  const Mesh one = Mesh::of({"CPU:0", "CPU:1"}), other = Mesh::of({"CPU:2", "CPU:3"});
  const Tensor w = stored({1, 2}).is_param_(), s = stored({5, 6});
  const Tensor a = stored({1, 1}).shard(one).realize(), b = stored({1, 1}).shard(other).realize();
  (w * 7).sum().backward();
  bool fails = true;
  Jit step = [&](Tensor x) {
    s.assign(s + x);
    (w * x).sum().backward();
    return fails ? a + b : s * 2;
  };
  for (int call = 0; call < 2; ++call) {
    EXPECT_THROW(step(stored({1, 1})), UserError);
    EXPECT_EQ(first(s), 5);
    EXPECT_EQ(first(w.grad()), 7);
  }
  fails = false;
  EXPECT_EQ(first(step(stored({1, 1}))), 12);
  EXPECT_EQ(first(s), 6);
  EXPECT_EQ(first(w.grad()), 8);
  Runtime::shutdown();
}

// --- variables -----------------------------------------------------------------------------------

TEST(CapturedState, OneVariableMayHaveTwoValuesInOneCall) {
  const Variable pos("pos", 0, 7), other("other", 0, 7);
  Jit step = [](Variable a, Variable b) { return Tensor(a) * 10 + Tensor(b); };
  EXPECT_EQ(first(step(pos.bind(3), pos.bind(1))), 31);
  EXPECT_EQ(first(step(pos.bind(2), pos.bind(5))), 25);
  EXPECT_EQ(first(step(other.bind(4), pos.bind(4))), 44);
  // Captured with two.
  step.reset();
  EXPECT_EQ(first(step(pos.bind(3), other.bind(1))), 31);
  EXPECT_EQ(first(step(pos.bind(6), pos.bind(2))), 62);
  // As sizes.
  const Tensor x = stored({1, 10, 100, 1000, 10000, 100000, 1000000});
  Jit sums = [&](Variable a, Variable b) {
    return x[{Slice(0, a)}].sum() * 2 + x[{Slice(0, b)}].sum();
  };
  EXPECT_EQ(first(sums(pos.bind(3), pos.bind(1))), 223);
  EXPECT_EQ(first(sums(pos.bind(0), pos.bind(2))), 11);
}

TEST(CapturedState, AStepsVariablesAreItsOwn) {
  const Variable pos("pos", 0, 7);
  Jit one = [](Variable p) { return Tensor(p) * 1; };
  Jit two = [](Variable p) { return Tensor(p) * 2; };
  const Tensor a = one(pos.bind(3)), b = two(pos.bind(5));
  EXPECT_EQ(first(a), 3);
  EXPECT_EQ(first(b), 10);
}

TEST(CapturedState, ValuesOutsideOfTheBoundsOfTheCaptureAreErrors) {
  const Variable p("p", 0, 4), q("q", 0, 100);
  Jit step = [](Variable n) { return Tensor::arange(n).sum(); };
  EXPECT_EQ(first(step(p.bind(3))), 3);
  EXPECT_EQ(first(step(q.bind(4))), 6) << "a value that the step knows";
  const std::string text = test::message_of<UserError>([&] { step(q.bind(10)); });
  EXPECT_TRUE(text.starts_with(
      "captured step: input 0 is 10, a value of \"q\", which goes from 0 to 100, but the step was "
      "captured with \"p\", which goes from 0 to 4"))
      << text;
  EXPECT_EQ(first(step(p.bind(2))), 1) << "the step is still usable";
  step.reset();
  EXPECT_EQ(first(step(q.bind(10))), 45);
}

TEST(CapturedState, ATensorInPlaceOfAVariableIsAnError) {
  auto number = [](int64_t value) { return Tensor(std::vector<int64_t>{value}, {}); };
  const Variable p("p", 0, 4);
  Jit step = [](const Tensor& n) { return Tensor::arange(n).sum(); };
  EXPECT_EQ(first(step(p.bind(3))), 3);
  const std::string text = test::message_of<UserError>([&] { step(number(10)); });
  EXPECT_NE(text.find("input 0 is no Variable"), std::string::npos) << text;
  EXPECT_NE(text.find("\"p\", which goes from 0 to 4"), std::string::npos) << text;
  // The other way round nothing relies on bounds.
  Jit twice = [](const Tensor& n) { return n * 2; };
  EXPECT_EQ(first(twice(number(100))), 200);
  EXPECT_EQ(first(twice(p.bind(3))), 6);
  EXPECT_EQ(first(twice(number(50))), 100);
}

// --- arguments that are assigned to ---------------------------------------------------------------

// The step would read of one what the other was before.
TEST(CapturedState, AnAssignedArgumentThatIsUsedOtherwiseIsAnError) {
  const Tensor s = stored({1, 2}), t = stored({10, 20});
  Jit both = [](Tensor x, Tensor y) {
    x.assign(x + y);
    return y * 2;
  };
  EXPECT_EQ(first(both(s, t)), 20);
  const std::string twice = test::message_of<UserError>([&] { both(s, s); });
  EXPECT_NE(twice.find("inputs 0 and 1 are one tensor"), std::string::npos) << twice;
  EXPECT_EQ(first(s), 11) << "nothing was done";
  EXPECT_EQ(first(both(s, s.clone())), 22);
  EXPECT_EQ(first(s), 22);
  Jit closed_over = [&](Tensor x) {
    x.assign(x + 1);
    return t * 2;
  };
  EXPECT_EQ(first(closed_over(s)), 20);
  EXPECT_NE(test::message_of<UserError>([&] { closed_over(t); }).find("uses by itself"),
            std::string::npos);
}

}  // namespace
}  // namespace tinyshard::captured_state_test
