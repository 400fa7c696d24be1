// Targets of gradients: each tensor is a target of its own, whatever else has its value, and
// whatever is made of it. Random programs are compared with differences that a small interpreter of
// this file takes, which shares nothing with the library and knows no equal values.
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/checkpoint_activations.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "tests/message_of.h"

namespace tinyshard::target_test {
namespace {

using Numbers = std::vector<double>;
using test::message_of;

Numbers of_sum(const Tensor& y, const Tensor& target) {
  return y.sum().gradient({target})[0].to_vector<double>();
}

// --- programs ------------------------------------------------------------------------------------

enum class Kind {
  Data,
  Constant,  // full, or zeros_like and ones_like of another one
  Add,
  Mul,
  Sin,
  Reshape,
  Transpose,
  Expand,  // a new dim in front
  Sum,     // of dim 0, or of no dim
  Slice,   // rows from 1 on, or all
  Same,    // of the same shape, type and place: by one of many ways
  PowerOfZero,
  Detach,
};

struct Step {
  Kind kind;
  int a = 0, b = 0;  // operands
  int choice = 0;
  Dims shape;
  bool read = false;  // computed before the gradient is taken
};

int64_t count(const Dims& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

class Program {
 public:
  explicit Program(unsigned seed) : random_(seed) {
    int length = 4 + pick(9);
    add({Kind::Data, 0, 0, 0, {2, 3}});
    while (int(steps_.size()) < length) add(random_step());
  }

  std::string text() const {
    static const char* const kNames[] = {"data",    "constant",      "add",    "mul", "sin",
                                         "reshape", "transpose",     "expand", "sum", "slice",
                                         "same",    "power_of_zero", "detach"};
    std::string out;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& s = steps_[i];
      out += "%" + std::to_string(i) + " = " + kNames[int(s.kind)] + " %" + std::to_string(s.a) +
             " %" + std::to_string(s.b) + " choice " + std::to_string(s.choice) + " " +
             to_string(s.shape) + (s.read ? " read" : "") + "\n";
    }
    return out;
  }

  // Through steps that a derivative follows, or not: whether the result was computed from it.
  bool uses(size_t target) const {
    std::vector<bool> from(steps_.size());
    from[target] = true;
    for (size_t i = target + 1; i < steps_.size(); ++i) {
      if (is_leaf(steps_[i].kind)) continue;
      from[i] = from[i] || from[size_t(steps_[i].a)] ||
                (is_binary(steps_[i].kind) && from[size_t(steps_[i].b)]);
    }
    return from.back();
  }

  // d sum(result) / d target, by central differences.
  Numbers expected(size_t target) const {
    auto moved = [&](int64_t element, double h) {
      Numbers result = values(target, element, h).back();
      return std::accumulate(result.begin(), result.end(), 0.0);
    };
    Numbers out;
    const double h = 1e-5;
    for (int64_t j = 0; j < count(steps_[target].shape); ++j)
      out.push_back((moved(j, h) - moved(j, -h)) / (2 * h));
    return out;
  }

  std::vector<Tensor> build() const {
    std::vector<Tensor> made;
    for (const Step& s : steps_) made.push_back(build(s, made));
    return made;
  }
  bool is_read(size_t step) const { return steps_[step].read; }

  size_t size() const { return steps_.size(); }

 private:
  int pick(int n) { return int(random_() % unsigned(n)); }
  static bool is_leaf(Kind k) { return k == Kind::Data || k == Kind::Constant; }
  static bool is_binary(Kind k) { return k == Kind::Add || k == Kind::Mul; }
  static double number(const Step& s) { return s.choice < 2 ? s.choice : 0.5 * s.choice; }

  void add(Step s) {
    s.read = pick(8) == 0;
    steps_.push_back(std::move(s));
  }

  Step random_step() {
    if (pick(5) == 0) return steps_[size_t(pick(int(steps_.size())))];  // the same once more
    Step s{Kind(pick(13)), pick(int(steps_.size())), 0, pick(4), {}};
    s.shape = steps_[size_t(s.a)].shape;
    const int64_t n = count(s.shape);
    switch (s.kind) {
      case Kind::Add:
      case Kind::Mul: {
        std::vector<int> fitting;
        for (int i = 0; i < int(steps_.size()); ++i) {
          if (steps_[size_t(i)].shape == s.shape) fitting.push_back(i);
        }
        s.b = fitting[size_t(pick(int(fitting.size())))];
        break;
      }
      case Kind::Reshape:
        if (s.choice < 3)
          s.shape = s.choice == 0 ? Dims{n} : s.choice == 1 ? Dims{1, n} : Dims{n, 1};
        break;
      case Kind::Transpose:
        std::reverse(s.shape.begin(), s.shape.end());
        break;
      case Kind::Expand:
        if (n > 12)
          s.kind = Kind::Sin;
        else
          s.shape.insert(s.shape.begin(), 1 + s.choice % 2);
        break;
      case Kind::Sum:
        if (s.choice > 0 && !s.shape.empty()) s.shape.erase(s.shape.begin());
        break;
      case Kind::Slice:
        if (s.shape.empty()) s.kind = Kind::Sin;
        if (s.choice > 0 && !s.shape.empty() && s.shape[0] > 1) s.shape[0] -= 1;
        break;
      default:
        break;
    }
    return s;
  }

  // Returns the values of all steps, one element of one of them moved. Detached values do not move.
  std::vector<Numbers> values(size_t target, int64_t element, double h) const {
    std::vector<Numbers> v;
    const std::vector<Numbers> still = h == 0 ? std::vector<Numbers>() : values(target, element, 0);
    for (const Step& s : steps_) {
      v.push_back(s.kind == Kind::Detach && h != 0 ? still[v.size()] : value(s, v));
      if (v.size() - 1 == target) v.back()[size_t(element)] += h;
    }
    return v;
  }

  static Numbers value(const Step& s, const std::vector<Numbers>& v) {
    const size_t n = size_t(count(s.shape));
    const Numbers none, &a = is_leaf(s.kind) ? none : v[size_t(s.a)];
    Numbers out;
    for (size_t i = 0; i < n; ++i) {
      double y = 0;
      switch (s.kind) {
        case Kind::Data:
          y = 0.3 + 0.17 * double(i);
          break;
        case Kind::Constant:
          y = number(s);
          break;
        case Kind::Add:
          y = a[i] + v[size_t(s.b)][i];
          break;
        case Kind::Mul:
          y = a[i] * v[size_t(s.b)][i];
          break;
        case Kind::Sin:
          y = std::sin(a[i]);
          break;
        case Kind::PowerOfZero:
          y = 1;
          break;
        case Kind::Expand:
          y = a[i % a.size()];
          break;
        case Kind::Slice:
          y = a[i + a.size() - n];
          break;
        case Kind::Sum:
          for (size_t j = i; j < a.size(); j += n) y += a[j];
          break;
        case Kind::Transpose:
          y = a[before_transpose(s.shape, i)];
          break;
        default:
          y = a[i];
      }
      out.push_back(y);
    }
    return out;
  }

  static size_t before_transpose(const Dims& shape, size_t i) {
    std::vector<size_t> index(shape.size());
    for (size_t d = shape.size(); d-- > 0; i /= size_t(shape[d])) index[d] = i % size_t(shape[d]);
    size_t from = 0;
    for (size_t d = shape.size(); d-- > 0;) from = from * size_t(shape[d]) + index[d];
    return from;
  }

  static Tensor build(const Step& s, const std::vector<Tensor>& made) {
    const Tensor none, &a = is_leaf(s.kind) ? none : made[size_t(s.a)];
    switch (s.kind) {
      case Kind::Data: {
        return Tensor(value(s, {}), s.shape);
      }
      case Kind::Constant:
        return s.choice == 0   ? Tensor::zeros(s.shape, DType::F64)
               : s.choice == 1 ? Tensor::ones(s.shape, DType::F64)
                               : Tensor::full(s.shape, number(s), DType::F64);
      case Kind::Add:
        return a + made[size_t(s.b)];
      case Kind::Mul:
        return a * made[size_t(s.b)];
      case Kind::Sin:
        return a.sin();
      case Kind::Reshape:
        return a.reshape(s.shape);
      case Kind::Transpose:
        return a.T();
      case Kind::Expand:
        return a.unsqueeze(0).expand(s.shape);
      case Kind::Sum:
        return s.choice == 0 ? a.sum(Axes(Dims{})) : a.ndim() == 0 ? a.sum() : a.sum(0);
      case Kind::Slice:
        return s.shape == a.shape() ? a[Slice()] : a[Slice(1, {})];
      case Kind::Same:
        return s.choice == 0   ? a.reshape(s.shape)
               : s.choice == 1 ? a.contiguous()
               : s.choice == 2 ? a.cast(DType::F64)
                               : a.expand(s.shape);
      case Kind::PowerOfZero:
        return a.pow(0);
      case Kind::Detach:
        return a.detach();
    }
    return {};
  }

  std::mt19937 random_;
  std::vector<Step> steps_;
};

TEST(Targets, OfRandomProgramsAreTensorsOfTheirOwn) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    const Program program(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + program.text());
    const std::vector<Tensor> tensors = program.build();
    const Tensor y = (tensors.back() * 1.0).sum();
    for (size_t t = 0; t < program.size(); ++t) {
      if (program.is_read(t)) tensors[t].realize();
    }
    const std::vector<Tensor> gradients = y.gradient(tensors, {}, true);
    Tensor::realize(gradients);
    for (size_t t = 0; t < program.size(); ++t) {
      const Numbers actual = gradients[t].to_vector<double>(), expected = program.expected(t);
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < actual.size(); ++i)
        ASSERT_NEAR(actual[i], expected[i], 1e-6 * (1 + std::abs(expected[i]))) << "target " << t;
      EXPECT_EQ(message_of<UserError>([&] { y.gradient({tensors[t]}); }).empty(), program.uses(t))
          << "target " << t;
    }
  }
}

// --- each kind by itself -------------------------------------------------------------------------

TEST(Targets, EqualConstantsAreSeveral) {
  Tensor p = Tensor::full({2}, 5.0);
  EXPECT_EQ(of_sum(p * 5, p), (Numbers{5, 5}));
  Tensor w = Tensor::ones({2}), v = Tensor::ones({2});
  EXPECT_EQ(of_sum(w + v * 3, v), (Numbers{3, 3}));
  EXPECT_NE(
      message_of<UserError>([&] { w.sum().gradient({v}); }).find("does not depend on target 0"),
      std::string::npos);
}

TEST(Targets, UnusedOnesAreZerosWhereAskedFor) {
  Tensor x = Tensor{1.0, 2.0}, unused = Tensor{3.0, 4.0, 5.0};
  std::vector<Tensor> g = (x * x).sum().gradient({x, unused}, {}, true);
  EXPECT_EQ(g[0].to_vector<double>(), (Numbers{2, 4}));
  EXPECT_EQ(g[1].to_vector<double>(), (Numbers{0, 0, 0}));
  const std::string text = message_of<UserError>([&] { (x * x).sum().gradient({x, unused}); });
  EXPECT_NE(text.find("target 1, f32[3]"), std::string::npos) << text;
  EXPECT_NE(text.find("materialize_grads"), std::string::npos) << text;
}

TEST(Targets, ReadingAValueKeepsItATarget) {
  Tensor x{1.0, 2.0}, y = x * x, z = (y * y).sum();
  y.realize();
  EXPECT_EQ(z.gradient({y})[0].to_vector<double>(), (Numbers{2, 8}));
  EXPECT_EQ(((y * 3).sum() + z).gradient({y})[0].to_vector<double>(), (Numbers{5, 11}));
  y.assign(y + 1);
  EXPECT_FALSE(message_of<UserError>([&] { z.gradient({y}); }).empty())
      << "it is another value now";
}

TEST(Targets, OfBackwardCountWhatWasMadeBeforeTheyWereParameters) {
  Tensor p = Tensor::full({2}, 5.0), y = (p * 5).sum();
  p.is_param_();
  (y + (p * 2).sum()).backward();
  EXPECT_EQ(p.grad().to_vector<double>(), (Numbers{7, 7}));
}

TEST(Targets, OfSecondDerivativesAreIntermediatesToo) {
  Tensor x{2.0, 3.0}, m = x * x, y = (m * m * m).sum();                            // y = m^3
  Tensor by_x = y.gradient({x})[0];                                                // 3 m^2 * 2 x
  EXPECT_EQ(by_x.sum().gradient({m})[0].to_vector<double>(), (Numbers{96, 324}));  // 6 m * 2 x
}

// Both lead to w: the weight made of it, which the function shares with what is around it, and the
// activation inside, which is computed again.
TEST(Targets, AroundRecomputedActivationsCountOnce) {
  Tensor x{1.0, 2.0}, w{3.0, 4.0}, shared = w * 2, inside;
  auto block = [&](const Tensor& t) {
    inside = t * shared;
    return inside.square();
  };
  Tensor y = nn::recomputed_from(block(x), {x}).sum();
  std::vector<Tensor> g = y.gradient({x, w, shared, inside});
  EXPECT_EQ(g[0].to_vector<double>(), (Numbers{72, 256}));  // 2 (x s) s
  EXPECT_EQ(g[1].to_vector<double>(), (Numbers{24, 128}));  // 2 (x s) x 2
  EXPECT_EQ(g[2].to_vector<double>(), (Numbers{12, 64}));   // 2 (x s) x
  EXPECT_EQ(g[3].to_vector<double>(), (Numbers{12, 32}));   // 2 (x s)
}

// --- values that lie in one storage --------------------------------------------------------------

TEST(SharedStorages, ChangeForTheTensorThatIsAssigned) {
  Tensor x{1.0, 2.0}, a = x * 2, b = x * 2;
  Tensor::realize({a, b});
  EXPECT_EQ(of_sum(a + b * 3, a), (Numbers{1, 1}));
  EXPECT_EQ(of_sum(a + b * 3, b), (Numbers{3, 3}));
  a.assign(a + 1).realize();
  EXPECT_EQ(a.to_vector<double>(), (Numbers{3, 5}));
  EXPECT_EQ(b.to_vector<double>(), (Numbers{2, 4}));
  Tensor view = x.reshape({2}), same = x.cast(x.dtype()), whole = x.contiguous();
  x.assign(x * 10).realize();
  for (const Tensor& t : {view, same, whole}) EXPECT_EQ(t.to_vector<double>(), (Numbers{1, 2}));
  EXPECT_EQ(x.to_vector<double>(), (Numbers{10, 20}));
}

TEST(SharedStorages, AreInputsOfStepsWithoutACopy) {
  Jit step = [](Tensor t) { return std::pair{t * 2, t * 2}; };
  Tensor x{1.0, 2.0};
  for (int i = 0; i < 3; ++i) {
    auto [a, b] = step(x.reshape({2}));
    EXPECT_EQ(a.to_vector<double>(), (Numbers{2, 4}));
    EXPECT_EQ(b.to_vector<double>(), (Numbers{2, 4}));
  }
}

}  // namespace
}  // namespace tinyshard::target_test
