// The surroundings of a step's call: the mode of training, the default type of floats, which tensors
// are parameters. The reference is the same function without a capture.
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace tinyshard::captured_scopes_test {
namespace {

Tensor stored(std::vector<double> values) { return Tensor(values).realize(); }
double first(const Tensor& t) { return t.to_vector<double>()[0]; }

// The modes of successive calls, true for training; each row begins in another mode.
const std::vector<std::vector<bool>> kModes{{false, true, false, true, true, false},
                                            {true, false, false, true, false, true}};

TEST(CapturedScopes, DropoutFollowsTheMode) {
  const Tensor x = Tensor::ones({1000}).realize();
  for (const auto& modes : kModes) {
    int traces = 0;
    Jit step = [&](Tensor t) {
      ++traces;
      return t.dropout(0.5).sum();
    };
    for (bool training : modes) {
      const TrainingMode mode(training);
      EXPECT_EQ(step(x).item<float>() == 1000.f, !training);
    }
    EXPECT_EQ(traces, 2) << "one for each mode";
  }
}

TEST(CapturedScopes, BatchNormFollowsTheMode) {
  auto run = [](bool captured, const std::vector<bool>& modes) {
    nn::BatchNorm norm(3);
    auto function = [&](const Tensor& x) { return norm(x); };
    Jit step = function;
    std::vector<float> values;
    for (size_t call = 0; call < modes.size(); ++call) {
      const TrainingMode mode(modes[call]);
      const Tensor x = ((Tensor::arange(12).reshape({4, 3}) * double(call + 1)).sin() * 2 + 1)
                           .cast(DType::F32)
                           .realize();
      for (float v : (captured ? step(x) : function(x)).to_vector<float>()) values.push_back(v);
      for (float v : norm.running_mean.to_vector<float>()) values.push_back(v);
    }
    return values;
  };
  for (const auto& modes : kModes) {
    const std::vector<float> now = run(true, modes), expected = run(false, modes);
    ASSERT_EQ(now.size(), expected.size());
    for (size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], expected[i], 1e-5) << i;
  }
}

TEST(CapturedScopes, AModeThatTheFunctionSetsItselfIsOneTrace) {
  int traces = 0;
  Jit step = [&](Tensor t) {
    ++traces;
    const TrainingMode on;
    return (t.dropout(0.5) == 0).cast(DType::F32).sum();
  };
  for (bool training : {false, true, false}) {
    const TrainingMode mode(training);
    EXPECT_GT(step(Tensor::ones({1000}).realize()).item<float>(), 0);
  }
  EXPECT_EQ(traces, 1);
  // And asks for it behind its own scope.
  Jit both = [&](Tensor t) {
    ++traces;
    {
      const TrainingMode on;
    }
    return is_training() ? t * 2 : t * 3;
  };
  traces = 0;
  for (bool training : {false, true, false}) {
    const TrainingMode mode(training);
    EXPECT_EQ(first(both(stored({1}))), training ? 2 : 3);
  }
  EXPECT_EQ(traces, 2);
}

TEST(CapturedScopes, AStepThatDoesNotAskIsTracedOnce) {
  int traces = 0;
  Jit step = [&](Tensor t) {
    ++traces;
    return t * 2;
  };
  for (bool training : {false, true}) {
    const TrainingMode mode(training);
    EXPECT_EQ(first(step(stored({3}))), 6);
  }
  EXPECT_EQ(traces, 1);
}

TEST(CapturedScopes, TheDefaultFloatIsFollowed) {
  Jit step = [](Tensor t) { return t.cast(default_float()) + Tensor::ones({2}); };
  const Tensor x = Tensor({1, 2}).realize();
  for (DType type : {DType::F32, DType::F64, DType::F32}) {
    set_default_float(type);
    const Tensor y = step(x);
    EXPECT_EQ(y.dtype(), type);
    EXPECT_EQ(first(y), 2);
  }
  set_default_float(DType::F32);
  Jit sets = [](Tensor t) {
    set_default_float(DType::F64);
    return t;
  };
  EXPECT_NE(test::message_of<UserError>([&] { sets(x); }).find("set it before the step"),
            std::string::npos);
  EXPECT_EQ(default_float(), DType::F32);
}

TEST(CapturedScopes, FrozenAndUnfrozenParametersAreFollowed) {
  const Tensor w = stored({1, 2}).is_param_(), v = stored({3, 4}).is_param_();
  Jit step = [&](Tensor x) {
    const TrainingMode on;
    w.set_grad({});
    v.set_grad({});
    return (x * w * v).sum().backward();
  };
  for (bool frozen : {false, true, false}) {
    w.is_param_(!frozen);
    step(stored({5, 5}));
    EXPECT_EQ(w.grad().defined(), !frozen);
    if (!frozen) {
      EXPECT_EQ(first(w.grad()), 15);
    }
    EXPECT_EQ(first(v.grad()), 5);
  }
}

TEST(CapturedScopes, ASeedWithinAStepIsAnError) {
  Jit step = [](Tensor x) {
    Tensor::manual_seed(3);
    return x + Tensor::rand({2});
  };
  EXPECT_NE(test::message_of<UserError>([&] { step(stored({1, 2})); }).find("manual_seed: in a"),
            std::string::npos);
}

// Values that a layer makes of nothing that belongs to one trace may be used by the next one.
TEST(CapturedScopes, TablesThatATraceMadeServeTheNextOne) {
  Tensor table, twice;
  const Tensor w = stored({1, 2, 3});
  Jit step = [&](Tensor x) {
    if (!table.defined()) {
      table = Tensor::arange(3).cast(DType::F64).exp();
      twice = w * 2;
    }
    return is_training() ? x * table + twice : x + table + twice;
  };
  for (bool training : {false, true, false, true}) {
    const TrainingMode mode(training);
    EXPECT_EQ(first(step(stored({5, 5, 5}))), (training ? 5 : 6) + 2);
  }
}

// Bounded, however many ways of calling there are; values stay right.
TEST(CapturedScopes, OldTracesGo) {
  const Tensor p = stored({1, 1}).is_param_();
  Jit step = [&](Tensor x) {
    (p * x).sum().backward();
    return p.grad() * (is_training() ? 1 : 10) + Tensor::zeros({2}).cast(DType::F64);
  };
  for (int round = 0; round < 2; ++round) {
    for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
      for (bool training : {false, true}) {
        for (bool had_one : {false, true}) {
          set_default_float(type);
          const TrainingMode mode(training);
          p.set_grad(had_one ? stored({100, 100}) : Tensor());
          EXPECT_EQ(first(step(stored({2, 2}))), (had_one ? 102 : 2) * (training ? 1 : 10));
        }
      }
    }
  }
  set_default_float(DType::F32);
}

}  // namespace
}  // namespace tinyshard::captured_scopes_test
