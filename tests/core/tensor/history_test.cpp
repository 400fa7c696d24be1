// A gradient does not depend on what else was computed before it is taken: on what was printed, on
// random numbers drawn for something else, or on a storage that was written. Where the way back is
// gone, that is an error and no smaller gradient.
#include <functional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace tinyshard::history_test {
namespace {

using Numbers = std::vector<double>;
using test::message_of;

Tensor pair(double a, double b) { return Tensor(Numbers{a, b}); }
Tensor parameter(double a, double b) { return pair(a, b).realize().is_param_(); }

// The gradient of (loss + sum of p) by p: 1 more than that of the loss. Were the loss alone, a lost
// way back could not hide.
Numbers beside(const Tensor& loss, const Tensor& p) {
  p.set_grad({});
  (loss + p.sum()).backward();
  return p.grad().to_vector<double>();
}

TEST(History, OutlivesReadingWhatALossIsMadeOf) {
  const Tensor w = parameter(1, 2);
  {
    const Tensor h = (w.detach() * 2).clone(), loss = (h * w).sum();
    EXPECT_EQ(h.to_vector<double>(), (Numbers{2, 4}));
    EXPECT_EQ(beside(loss, w), (Numbers{3, 5}));
  }
  {  // through the clone as well, and by it
    const Tensor h = (w * 2).clone(), loss = (h * w).sum();
    h.realize();
    EXPECT_EQ(beside(loss, w), (Numbers{5, 9}));
    EXPECT_EQ(loss.gradient({h})[0].to_vector<double>(), (Numbers{1, 2}));
  }
  {  // by data, which is no parameter
    const Tensor x = pair(1, 2), h = x.clone(), loss = (h * h + x).sum();
    EXPECT_EQ(h.to_vector<double>(), (Numbers{1, 2}));
    EXPECT_EQ(loss.gradient({x})[0].to_vector<double>(), (Numbers{3, 5}));
  }
  {
    const Tensor count = pair(1, 1).realize();
    count += 1;
    const Tensor loss = (count * w).sum();
    EXPECT_EQ(count.to_vector<double>(), (Numbers{2, 2}));
    EXPECT_EQ(beside(loss, w), (Numbers{3, 3}));
    count += 5;  // what the loss reads is what was there
    count.realize();
    EXPECT_EQ(loss.item<double>(), 6);
  }
}

TEST(History, OfAParameterThatIsComputedLater) {
  const std::vector<std::function<Tensor(const Tensor&)>> uses = {
      [](const Tensor& w) { return w * 3; }, [](const Tensor& w) { return w[{Slice(0, 2)}] * 3; },
      [](const Tensor& w) { return w.reshape({1, 2}).T() * 3; },
      [](const Tensor& w) { return w.clone() * 3; },
      [](const Tensor& w) { return w.cast(DType::F32).cast(DType::F64) * 3; }};
  for (size_t i = 0; i < uses.size(); ++i) {
    const Tensor w = (pair(1, 2) + 1).is_param_();
    const Tensor loss = uses[i](w).sum();
    EXPECT_EQ(w.to_vector<double>(), (Numbers{2, 3}));
    EXPECT_EQ(beside(loss, w), (Numbers{4, 4})) << i;
    EXPECT_EQ(loss.item<double>(), 15) << i;
    // A loss that was built from the earlier value goes with that.
    const Tensor fresh = (pair(1, 2) + 1).is_param_(), before = uses[i](fresh).sum();
    fresh.assign(fresh * 10);
    EXPECT_EQ(fresh.to_vector<double>(), (Numbers{20, 30}));
    EXPECT_EQ(before.item<double>(), 15) << i;
  }
  // A metric on the first step of a new model.
  const nn::Linear layer(3, 3);
  const Tensor y = layer(Tensor::ones({1, 3})), loss = y.square().sum();
  y.argmax(-1).item<int>();
  loss.backward();
  const std::vector<float> out = y.to_vector<float>(), bias = layer.bias.grad().to_vector<float>();
  for (size_t i = 0; i < out.size(); ++i) EXPECT_FLOAT_EQ(bias[i], 2 * out[i]);
}

TEST(History, OutlivesOtherDrawsOfRandomNumbers) {
  const TrainingMode on;
  const Tensor w = parameter(1, 2);
  const Tensor noise = Tensor::rand({2}).cast(DType::F64), loss = (w * noise).sum();
  Tensor::rand({1}).realize();
  const Numbers drawn = noise.to_vector<double>();
  EXPECT_EQ(beside(loss, w), (Numbers{drawn[0] + 1, drawn[1] + 1}));
  // The second of two draws is read first, and a captured step draws in between.
  const Tensor a = Tensor::rand({2}).cast(DType::F64), b = Tensor::rand({2}).cast(DType::F64);
  const Tensor both = (w * a + w * b).sum();
  const Numbers second = b.to_vector<double>();
  const Numbers gradient = beside(both, w), first = a.to_vector<double>();
  EXPECT_EQ(gradient, (Numbers{first[0] + second[0] + 1, first[1] + second[1] + 1}));
}

// Numbers follow each other the same way, whether steps are captured or not, in any mixture.
TEST(History, DrawsInTrainingFollowEachOther) {
  const TrainingMode on;
  auto numbers = [](const std::vector<bool>& captured) {
    Tensor::manual_seed(4);
    std::vector<float> all;
    Jit step = [](Tensor x) { return x + Tensor::rand({3}); };
    const Tensor zero = Tensor::zeros({3}).realize();
    for (const bool by_step : captured) {
      const Tensor drawn = by_step ? step(zero) : Tensor::rand({3});
      for (const float x : drawn.to_vector<float>()) all.push_back(x);
    }
    return all;
  };
  const std::vector<float> want = numbers({false, false, false, false, false, false});
  EXPECT_EQ(numbers({true, true, true, true, true, true}), want);
  EXPECT_EQ(numbers({false, true, true, false, true, false}), want);
  EXPECT_EQ(numbers({true, false, false, true, false, true}), want);
}

TEST(History, ThatIsGoneIsAnError) {
  const Tensor w = parameter(1, 2), v = parameter(3, 4);
  const Tensor loss = (w * v).sum();
  w.assign(w * 2).realize();  // another step
  EXPECT_EQ(loss.item<double>(), 11);
  const std::string text = message_of<UserError>([&] { (loss + v.sum()).backward(); });
  EXPECT_NE(text.find("written over"), std::string::npos) << text;
  EXPECT_NE(message_of<UserError>([&] { (loss + v.sum()).gradient({v}); }).find("detach()"),
            std::string::npos);
  EXPECT_EQ(beside(loss.detach(), v), (Numbers{1, 1}));
  EXPECT_EQ(beside((loss * w.detach()[0]).detach() + (v * 2).sum(), v), (Numbers{3, 3}));
  // Partly: what was read before, beside what is read now.
  for (const bool realized : {false, true}) {
    const Tensor p = parameter(1, 2), h = p * p;
    p.assign(p.detach() * 2);
    if (realized) p.realize();
    const Tensor both = (h + p * 5).sum();
    EXPECT_NE(message_of<UserError>([&] { both.backward(); }).find("written over"),
              std::string::npos);
    EXPECT_THROW(both.gradient({p}), UserError);
    EXPECT_EQ(beside((h.detach() + p * 5).sum(), p), (Numbers{6, 6}));
  }
  // By data: what a running mean read is what it was before.
  const Tensor x = pair(1, 2).realize(), mean = pair(0, 0).realize();
  mean.assign(mean * 0.5 + x);
  const Tensor both = (mean + x).sum();
  EXPECT_EQ(mean.to_vector<double>(), (Numbers{1, 2}));
  EXPECT_NE(message_of<UserError>([&] { both.gradient({x}); }).find("written over"),
            std::string::npos);
  EXPECT_EQ((mean.detach() + x).sum().gradient({x})[0].to_vector<double>(), (Numbers{1, 1}));
  // By a captured step, too.
  const Tensor later = (w * v).sum();
  Jit step = [&](Tensor x) { return w.assign(w + x); };
  for (int i = 0; i < 3; ++i) step(pair(1, 1).realize());
  EXPECT_EQ(later.item<double>(), 22);
  EXPECT_THROW((later + v.sum()).backward(), UserError);
}

// An update that waits to be written over a parameter is computed as soon as what that held before is
// written. If it was made of another parameter, that one's gradient would be smaller from then on.
TEST(History, OfAnUpdateThatReadsAnotherParameter) {
  // w becomes w - g / 10 by g = s^2 w, so w s is w s (1 - s^2 / 10) after a step.
  auto gradients = [](bool detached, bool reads) {
    const Tensor s = parameter(1.5, 0.5), w = parameter(0.8, 2);
    std::vector<Numbers> of_s;
    std::vector<Tensor> later;
    for (int step = 0; step < 3; ++step) {
      s.set_grad({});
      w.set_grad({});
      ((s * w).square() * 0.5).sum().backward();
      const Tensor g = detached ? w.grad().detach() : w.grad();
      w.assign(w - g * 0.1);
      if (reads)
        of_s.push_back(s.grad().to_vector<double>());
      else
        later.push_back(s.grad());
    }
    for (const Tensor& g : later) of_s.push_back(g.to_vector<double>());
    return of_s;
  };
  auto expect = [](const std::vector<Numbers>& found, bool through) {
    // s^2 w^2 / 2 after so many steps, by s: with w as it is then, or as what it is made of.
    for (size_t i = 0; i < 2; ++i) {
      const double s = i == 0 ? 1.5 : 0.5, rate = 1 - s * s / 10;
      double w = i == 0 ? 0.8 : 2, slope = 0;
      for (const Numbers& step : found) {
        EXPECT_NEAR(step[i], s * w * w + (through ? s * s * w * slope : 0), 1e-12);
        slope = slope * rate - w * s / 5;
        w *= rate;
      }
    }
  };
  expect(gradients(true, true), false);
  expect(gradients(true, false), false);
  expect(gradients(false, false), true);
  const std::string text = message_of<UserError>([&] { gradients(false, true); });
  EXPECT_NE(text.find("written over"), std::string::npos) << text;
}

// An order is of whole numbers, through which nothing goes back: that it was read in between is no loss.
TEST(History, OfWholeNumbersIsNotMissed) {
  const Tensor x = pair(3, 1).realize(), order = x.sort(0).second, copy = order.clone();
  const Tensor loss = (copy * x).sum() + (Tensor::rand({}) > 2).cast(DType::F64);
  Tensor::rand({2}).realize();
  EXPECT_EQ(copy.to_vector<double>(), (Numbers{1, 0}));
  Tensor::rand({2}).realize();
  EXPECT_EQ(copy.to_vector<double>(), (Numbers{1, 0}));
  EXPECT_EQ(loss.gradient({x})[0].to_vector<double>(), (Numbers{1, 0}));
}

TEST(History, WhatMayHaveEndedItIsNamed) {
  const Tensor x = Tensor({1.f, 2.f}).realize(), w = Tensor({3.f, 4.f}).realize();
  const Tensor h = (x * w).realize();
  const std::string computed = test::message_of<UserError>([&] { (h * h).sum().gradient({w}); });
  EXPECT_NE(computed.find("computed"), std::string::npos) << computed;
  EXPECT_EQ(computed.find("is_param_()"), std::string::npos) << computed;
}

}  // namespace
}  // namespace tinyshard::history_test
