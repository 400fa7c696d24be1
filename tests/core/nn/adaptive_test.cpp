// RMSprop and Adagrad against their formulas in f64.
#include "core/nn/adaptive.h"

#include <cmath>

#include <gtest/gtest.h>

#include "core/nn/nn.h"
#include "core/tensor/jit.h"
#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::adaptive_test {
namespace {

using nn::optim::Adagrad;
using nn::optim::RMSprop;

// The loss is sum(c * w^2 / 2), so that the gradient is c * w.
const std::vector<double> kCurves{0.5, -2, 3, 1};

template <class Optim>
void expect_steps(Optim& optim, const Tensor& w, bool captured,
                  const std::function<double(size_t i, double w, double g)>& formula) {
  const Tensor curves = Tensor(kCurves).shard_like(w);
  const auto once = [&] {
    TrainingMode on;
    optim.zero_grad();
    (curves * w.square() * 0.5).sum().backward();
    optim.step();
  };
  Jit step = once;
  std::vector<double> want{1, -0.5, 0.25, 2};
  for (int n = 0; n < 5; ++n) {
    captured ? step() : once();
    for (size_t i = 0; i < want.size(); ++i) want[i] = formula(i, want[i], kCurves[i] * want[i]);
    const std::vector<double> got = w.to_vector<double>();
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12) << n;
  }
}

Tensor weights(const Mesh* mesh) {
  Tensor w(std::vector<double>{1, -0.5, 0.25, 2});
  if (mesh) w = w.shard(*mesh, {{"d", Shard(0)}});
  return w.clone().is_param_();
}

TEST(Adaptive, RmspropIsItsFormula) {
  TINYSHARD_NEED_DEVICES(2);
  const Mesh mesh = Mesh::of(device_names(2), "d");
  for (const Mesh* on : {static_cast<const Mesh*>(nullptr), &mesh}) {
    for (const bool centered : {false, true}) {
      for (const double momentum : {0.0, 0.9}) {
        for (const bool inside : {false, true}) {
          const Tensor w = weights(on);
          RMSprop optim({w}, {.lr = 0.1,
                              .alpha = 0.8,
                              .eps = 0.01,
                              .weight_decay = 0.2,
                              .momentum = momentum,
                              .centered = centered,
                              .eps_inside = inside});
          std::vector<double> v(4), mean(4), m(4);
          expect_steps(optim, w, inside, [&](size_t i, double value, double g) {
            g += 0.2 * value;
            v[i] = 0.8 * v[i] + 0.2 * g * g;
            mean[i] = centered ? 0.8 * mean[i] + 0.2 * g : 0;
            const double size = v[i] - mean[i] * mean[i];
            m[i] = momentum * m[i] + g / (inside ? std::sqrt(size + 0.01) : std::sqrt(size) + 0.01);
            return value - 0.1 * m[i];
          });
        }
      }
    }
  }
}

TEST(Adaptive, AdagradIsItsFormula) {
  TINYSHARD_NEED_DEVICES(2);
  const Mesh mesh = Mesh::of(device_names(2), "d");
  for (const Mesh* on : {static_cast<const Mesh*>(nullptr), &mesh}) {
    for (const bool captured : {false, true}) {
      const Tensor w = weights(on);
      Adagrad optim({w},
                    {.lr = 0.1, .lr_decay = 0.5, .eps = 0.01, .weight_decay = 0.2, .initial = 0.3});
      std::vector<double> sum(4, 0.3);
      int step = 0;
      expect_steps(optim, w, captured, [&](size_t i, double value, double g) {
        const double rate = 0.1 / (1 + 0.5 * step);
        step += i == 3 ? 1 : 0;
        g += 0.2 * value;
        sum[i] += g * g;
        return value - rate * g / (std::sqrt(sum[i]) + 0.01);
      });
    }
  }
}

TEST(Adaptive, SaysWhatIsWrong) {
  const Tensor w = weights(nullptr);
  const auto message = [](const auto& call) { return test::message_of<UserError>(call); };
  EXPECT_NE(message([&] { RMSprop({w}, {.alpha = 1}); }).find("alpha is 1"), std::string::npos);
  EXPECT_NE(message([&] { Adagrad({w}, {.initial = -1}); }).find("initial is -1"),
            std::string::npos);
}

}  // namespace
}  // namespace tinyshard::adaptive_test
