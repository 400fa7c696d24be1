// Each rule against finite differences of a literal evaluation of the graph, first and second
// order, and the shape of the graphs that come out.
#include "core/passes/gradient.h"

#include <chrono>
#include <random>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "multi/mesh.h"
#include "tests/core/passes/evaluate.h"

namespace tinyshard::gradient_test {
namespace {

using test::Evaluator;
using test::Values;

UOp buffer(int64_t id, DimSpan shape, DType dtype = DType::F64) {
  Dims arg{id};
  arg.insert(arg.end(), shape.begin(), shape.end());
  return UOp::make(Op::Buffer, dtype, {}, arg);
}
UOp mul(const UOp& a, const UOp& b) { return binary(Op::Mul, a, b); }
UOp add(const UOp& a, const UOp& b) { return binary(Op::Add, a, b); }
UOp sum_all(const UOp& x) {
  Dims axes;
  for (size_t i = 0; i < x.shape().size(); ++i) axes.push_back(int64_t(i));
  return reshape(reduce(ReduceOp::Sum, x, axes), {});
}
UOp one_gradient(const UOp& root, const UOp& seed, const UOp& target) {
  return gradient(std::span(&root, 1), {&seed, 1}, {&target, 1})[0];
}
size_t nodes(const UOp& root) { return toposort({&root, 1}).size(); }
size_t count(const UOp& root, Op op) {
  size_t n = 0;
  for (const UOp& x : toposort({&root, 1})) n += x.op() == op;
  return n;
}

// --- finite differences --------------------------------------------------------------------------

struct Case {
  const char* name;
  std::vector<Dims> inputs;
  std::function<UOp(std::span<const UOp>)> build;
  double low = -1, high = 1;  // of the inputs
  Values first = {};          // values of the first input, when they matter
  bool second_order = true;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

ConvArg conv(Dims result, Dims stride, Dims dilation, Dims pads, int64_t groups) {
  return {{stride[0], stride[1]},
          {dilation[0], dilation[1]},
          {pads[0], pads[1]},
          {pads[2], pads[3]},
          groups,
          {result[0], result[1], result[2], result[3]}};
}
UOp index_of(const Values& values, DimSpan shape) {  // a constant index, out of a float computation
  UOp iota = UOp::make(Op::Iota, DType::I64, {}, Dims{int64_t(values.size())});
  UOp out = const_int(DType::I32, 0, Dims{int64_t(values.size())});
  for (size_t i = 0; i < values.size(); ++i) {
    UOp here = binary(Op::CmpEq, iota, const_int(DType::I64, int64_t(i), iota.shape()));
    out = where(here, const_int(DType::I32, int64_t(values[i]), out.shape()), out);
  }
  return reshape(out, shape);
}

const std::vector<Case>& cases() {
  using In = std::span<const UOp>;
  static const std::vector<Case> all = {
      {"neg", {{3}}, [](In x) { return unary(Op::Neg, x[0]); }},
      {"exp2", {{3}}, [](In x) { return unary(Op::Exp2, x[0]); }},
      {"log2", {{3}}, [](In x) { return unary(Op::Log2, x[0]); }, 0.5, 2},
      {"sin", {{4}}, [](In x) { return unary(Op::Sin, x[0]); }, -4, 4},
      {"sqrt", {{3}}, [](In x) { return unary(Op::Sqrt, x[0]); }, 0.5, 2},
      {"recip", {{3}}, [](In x) { return unary(Op::Recip, x[0]); }, 0.5, 2},
      {"trunc", {{3}}, [](In x) { return mul(x[0], add(x[0], unary(Op::Trunc, x[0]))); }, 1.2, 1.8},
      {"add", {{3}, {3}}, [](In x) { return add(x[0], x[1]); }},
      {"add_self", {{3}}, [](In x) { return add(x[0], x[0]); }},
      {"sub", {{3}, {3}}, [](In x) { return binary(Op::Sub, x[0], x[1]); }},
      {"mul", {{3}, {3}}, [](In x) { return mul(x[0], x[1]); }},
      {"square", {{3}}, [](In x) { return mul(x[0], x[0]); }},
      {"div", {{3}, {3}}, [](In x) { return binary(Op::Div, x[0], x[1]); }, 0.5, 2},
      {"max", {{4}, {4}}, [](In x) { return binary(Op::Max, x[0], x[1]); }},
      {"where",
       {{4}, {4}},
       [](In x) {
         return where(binary(Op::CmpLt, x[0], const_like(x[0], 0)), mul(x[0], x[1]),
                      mul(x[1], x[1]));
       }},
      {"cast", {{3}}, [](In x) { return cast(cast(x[0], DType::F32), DType::F64); }},
      {"reshape", {{2, 3}}, [](In x) { return reshape(x[0], Dims{3, 2}); }},
      {"expand", {{2, 1, 3}}, [](In x) { return expand(x[0], Dims{2, 4, 3}); }},
      {"permute", {{2, 3, 4}}, [](In x) { return permute(x[0], Dims{2, 0, 1}); }},
      {"pad", {{2, 3}}, [](In x) { return pad(x[0], Dims{1, 0, 0, 2}); }},
      {"shrink", {{3, 4}}, [](In x) { return shrink(x[0], Dims{1, 3, 0, 3}); }},
      {"flip", {{2, 3}}, [](In x) { return flip(x[0], Dims{1}); }},
      {"sum", {{2, 3}}, [](In x) { return reduce(ReduceOp::Sum, x[0], Dims{1}); }},
      {"prod", {{2, 3}}, [](In x) { return reduce(ReduceOp::Prod, x[0], Dims{0}); }, 0.5, 2},
      {"prod_with_zeros",
       {{4, 3}},
       [](In x) { return reduce(ReduceOp::Prod, x[0], Dims{1}); },
       -1,
       1,
       {1, 2, 3, 0, 2, 3, 0, 0, 3, 0, 0, 0},
       false},
      {"reduce_max", {{2, 3}}, [](In x) { return reduce(ReduceOp::Max, x[0], Dims{1}); }},
      {"reduce_min", {{2, 3}}, [](In x) { return reduce(ReduceOp::Min, x[0], Dims{0}); }},
      {"gather_one",
       {{3, 4}},
       [](In x) {
         return UOp::make(Op::Gather, DType::F64, {x[0], index_of({1, 3, 0}, Dims{3, 1})}, Dims{1});
       }},
      {"gather_many",
       {{3, 4}},
       [](In x) {
         return UOp::make(Op::Gather, DType::F64, {x[0], index_of({1, 3, 0, 1, 1, 2}, Dims{2, 3})},
                          Dims{1});
       }},
      {"gather_fewer_rows",
       {{3, 4}},
       [](In x) {
         return UOp::make(Op::Gather, DType::F64, {x[0], index_of({2, 3}, Dims{2, 1})}, Dims{1});
       }},
      {"scatter_add",
       {{2, 3}},
       [](In x) {
         return UOp::make(Op::ScatterAdd, DType::F64,
                          {index_of({1, 3, 0, 1, 1, 2}, Dims{2, 3}), x[0]}, Dims{1, 5});
       }},
      {"dot",
       {{2, 3}, {3, 4}},
       [](In x) { return UOp::make(Op::Dot, DType::F64, {x[0], x[1]}, Dims{0}); }},
      {"batched_dot",
       {{2, 2, 3}, {2, 3, 2}},
       [](In x) { return UOp::make(Op::Dot, DType::F64, {x[0], x[1]}, Dims{1}); }},
      {"conv",
       {{2, 2, 5, 4}, {4, 1, 3, 2}},
       [](In x) {
         return UOp::make(Op::Conv, DType::F64, {x[0], x[1]},
                          to_ints(conv({2, 4, 3, 4}, {2, 1}, {1, 2}, {1, 1, 1, 1}, 2)));
       }},
      {"conv_backward_data",
       {{2, 4, 3, 4}, {4, 1, 3, 2}},
       [](In x) {
         return UOp::make(Op::ConvBackwardData, DType::F64, {x[0], x[1]},
                          to_ints(conv({2, 2, 5, 4}, {2, 1}, {1, 2}, {1, 1, 1, 1}, 2)));
       }},
      {"conv_backward_weight",
       {{2, 2, 5, 4}, {2, 4, 3, 4}},
       [](In x) {
         return UOp::make(Op::ConvBackwardWeight, DType::F64, {x[0], x[1]},
                          to_ints(conv({4, 1, 3, 2}, {2, 1}, {1, 2}, {1, 1, 1, 1}, 2)));
       }},
      {"storage",
       {{3}},
       [](In x) { return unary(Op::ContiguousBackward, unary(Op::Contiguous, mul(x[0], x[0]))); }},
      {"assign",
       {{3}},
       [](In x) {
         return UOp::make(Op::Assign, DType::F64, {buffer(100, Dims{3}), mul(x[0], x[0])});
       }},
      {"softmax",
       {{2, 3}},
       [](In x) {
         UOp e = unary(
             Op::Exp2,
             binary(Op::Sub, x[0], expand(reduce(ReduceOp::Max, x[0], Dims{1}), x[0].shape())));
         return binary(Op::Div, e, expand(reduce(ReduceOp::Sum, e, Dims{1}), e.shape()));
       }},
  };
  return all;
}

class RuleTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr double kStep = 1e-5;

  // d root / d inputs[i] at each element by central differences, against the graph.
  void check(Evaluator& evaluate, const UOp& root, std::span<const UOp> inputs,
             std::vector<Values> values, const char* what) {
    UOp seed = const_like(root, 1);
    std::vector<UOp> gradients = gradient(std::span(&root, 1), {&seed, 1}, inputs);
    for (size_t k = 0; k < inputs.size(); ++k) {
      Values got = gradients[k] ? evaluate(gradients[k]) : Values(values[k].size(), 0.0);
      if (gradients[k]) {
        EXPECT_EQ(Dims(gradients[k].shape().begin(), gradients[k].shape().end()),
                  Dims(inputs[k].shape().begin(), inputs[k].shape().end()));
      }
      for (size_t i = 0; i < values[k].size(); ++i) {
        Values moved = values[k];
        moved[i] += kStep;
        evaluate.set(inputs[k], moved);
        double up = evaluate(root)[0];
        moved[i] -= 2 * kStep;
        evaluate.set(inputs[k], moved);
        double down = evaluate(root)[0];
        evaluate.set(inputs[k], values[k]);
        double expected = (up - down) / (2 * kStep);
        EXPECT_NEAR(got[i], expected, 1e-6 * std::max(1.0, std::abs(expected)))
            << what << ": input " << k << ", element " << i;
      }
    }
  }
};

TEST_P(RuleTest, AgreesWithFiniteDifferences) {
  const Case& c = GetParam();
  std::mt19937 random(7);
  auto fill = [&](DimSpan shape, double low, double high) {
    Values v(product(shape));
    for (double& x : v) x = std::uniform_real_distribution(low, high)(random);
    return v;
  };
  Evaluator evaluate(Evaluator::Casts::KeepDoubles);
  std::vector<UOp> inputs;
  std::vector<Values> values;
  for (size_t k = 0; k < c.inputs.size(); ++k) {
    inputs.push_back(buffer(int64_t(k), c.inputs[k]));
    values.push_back(k == 0 && !c.first.empty() ? c.first : fill(c.inputs[k], c.low, c.high));
    evaluate.set(inputs[k], values[k]);
  }
  UOp out = c.build(inputs);
  // A weight on each element, so that no two gradients are equal by accident.
  UOp weight = buffer(1000, out.shape());
  evaluate.set(weight, fill(out.shape(), 0.5, 1.5));
  UOp root = sum_all(mul(out, weight));
  check(evaluate, root, inputs, values, "first order");

  if (!c.second_order) return;
  UOp seed = const_like(root, 1), sum;
  size_t k = 0;
  for (const UOp& g : gradient(std::span(&root, 1), {&seed, 1}, inputs)) {
    UOp factor = buffer(int64_t(2000 + k), inputs[k].shape());
    evaluate.set(factor, fill(inputs[k].shape(), 0.5, 1.5));
    UOp term = sum_all(mul(g, factor));
    sum = sum ? add(sum, term) : term;
    ++k;
  }
  check(evaluate, sum, inputs, values, "second order");
}

INSTANTIATE_TEST_SUITE_P(Rules, RuleTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

// --- ties ----------------------------------------------------------------------------------------

TEST(Gradient, EqualOperandsOfMaxHaveHalfEach) {
  UOp a = buffer(0, Dims{3}), b = buffer(1, Dims{3});
  UOp root = binary(Op::Max, a, b), seed = const_like(root, 1);
  Evaluator evaluate;
  evaluate.set(a, {1, 2, 3});
  evaluate.set(b, {2, 2, 2});
  EXPECT_EQ(evaluate(one_gradient(root, seed, a)), (Values{0, 0.5, 1}));
  EXPECT_EQ(evaluate(one_gradient(root, seed, b)), (Values{1, 0.5, 0}));
  UOp same = binary(Op::Max, a, a);
  EXPECT_EQ(evaluate(one_gradient(same, seed, a)), (Values{1, 1, 1}));
}

TEST(Gradient, ReducedMaximumIsSharedByTies) {
  UOp x = buffer(0, Dims{2, 4});
  UOp root = reduce(ReduceOp::Max, x, Dims{1}), seed = const_like(root, 1);
  Evaluator evaluate;
  evaluate.set(x, {1, 3, 3, 0, 5, 5, 5, 5});
  EXPECT_EQ(evaluate(one_gradient(root, seed, x)),
            (Values{0, 0.5, 0.5, 0, 0.25, 0.25, 0.25, 0.25}));
}

// --- what the graph looks like -------------------------------------------------------------------

TEST(Gradient, IsTheSeedWhereTheTargetIsTheRoot) {
  UOp x = buffer(0, Dims{3}), seed = buffer(1, Dims{3});
  EXPECT_EQ(one_gradient(x, seed, x), seed);
}

TEST(Gradient, OfASeveralTimesUsedRootAddsUp) {
  UOp x = buffer(0, Dims{3}), y = mul(x, x);
  UOp roots[] = {y, y}, seeds[] = {const_like(x, 1), const_like(x, 1)};
  UOp g = gradient(roots, seeds, {&x, 1})[0];
  Evaluator evaluate;
  evaluate.set(x, {1, 2, 3});
  EXPECT_EQ(evaluate(g), (Values{4, 8, 12}));
}

TEST(Gradient, IsNullWithoutAPath) {
  UOp x = buffer(0, Dims{3}), y = buffer(1, Dims{3});
  UOp seed = const_like(x, 1);
  EXPECT_FALSE(one_gradient(unary(Op::Neg, x), seed, y));
  EXPECT_FALSE(one_gradient(unary(Op::Detach, x), seed, x));
  UOp compared = cast(binary(Op::CmpLt, x, y), DType::F64);
  EXPECT_FALSE(one_gradient(compared, seed, x));
  UOp through_integers = cast(cast(x, DType::I32), DType::F64);
  EXPECT_FALSE(one_gradient(through_integers, seed, x));
}

TEST(Gradient, RefusesOpsWithoutDerivativeOnThePathOnly) {
  UOp x = buffer(0, Dims{3}, DType::F16), y = buffer(1, Dims{3}, DType::BF16);
  UOp bits = UOp::make(Op::Bitcast, DType::BF16, {x});
  UOp root = mul(bits, y), seed = const_like(root, 1);
  EXPECT_EQ(one_gradient(root, seed, y), bits);
  try {
    one_gradient(root, seed, x);
    FAIL() << "no error";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("bitcast bf16[3]"), std::string::npos) << e.what();
  }
}

TEST(Gradient, OfAnIntegerIsRefused) {
  UOp x = buffer(0, Dims{3}, DType::I32), seed = const_like(x, 1);
  EXPECT_THROW(one_gradient(x, seed, x), UserError);
}

TEST(Gradient, OfExpAndLogHasNoConstantsLeft) {
  UOp x = buffer(0, Dims{3}), seed = buffer(1, Dims{3});
  UOp e = unary(Op::Exp2, mul(x, const_like(x, 1.4426950408889634)));
  EXPECT_EQ(one_gradient(e, seed, x), mul(seed, e));
  UOp l = mul(unary(Op::Log2, x), const_like(x, 0.6931471805599453));
  EXPECT_EQ(one_gradient(l, seed, x), binary(Op::Div, seed, x));
}

TEST(Gradient, OfAMeanIsOneConstant) {
  UOp x = buffer(0, Dims{2, 4});
  UOp mean = mul(sum_all(x), const_float(DType::F64, 1.0 / 8));
  EXPECT_EQ(one_gradient(mean, const_like(mean, 1), x), const_like(x, 1.0 / 8));
}

TEST(Gradient, OfAnUnneededSourceIsNotBuilt) {
  UOp x = buffer(0, Dims{2, 3}), w = buffer(1, Dims{3, 4});
  UOp y = UOp::make(Op::Dot, DType::F64, {x, w}, Dims{0});
  UOp seed = buffer(2, Dims{2, 4});
  EXPECT_EQ(count(one_gradient(y, seed, w), Op::Dot), 1u);
}

TEST(Gradient, PicksOfOneElementARowCompareInsteadOfScattering) {
  UOp x = buffer(0, Dims{5, 7}), one = buffer(1, Dims{5, 1}, DType::I32),
      many = buffer(2, Dims{5, 2}, DType::I32);
  UOp a = UOp::make(Op::Gather, DType::F64, {x, one}, Dims{1});
  EXPECT_EQ(count(one_gradient(a, const_like(a, 1), x), Op::ScatterAdd), 0u);
  UOp b = UOp::make(Op::Gather, DType::F64, {x, many}, Dims{1});
  EXPECT_EQ(count(one_gradient(b, const_like(b, 1), x), Op::ScatterAdd), 1u);
}

TEST(Gradient, NarrowFloatsAreSummedInTheirAccumulator) {
  UOp x = buffer(0, Dims{1, 3}, DType::BF16), seed = buffer(1, Dims{4, 3}, DType::BF16);
  UOp g = one_gradient(expand(x, Dims{4, 3}), seed, x);
  EXPECT_EQ(g.dtype(), DType::BF16);
  EXPECT_EQ(g, cast(reduce(ReduceOp::Sum, cast(seed, DType::F32), Dims{0}), DType::BF16));
}

TEST(Gradient, OfAStorageThatAValueWasToBeWrittenTo) {
  // A tensor before it was realized and the same tensor after that are one target.
  UOp storage = buffer(0, Dims{3}), x = buffer(1, Dims{3});
  UOp before = UOp::make(Op::Assign, DType::F64, {storage, mul(x, x)});
  UOp root = mul(before, before), seed = const_like(root, 1);
  EXPECT_TRUE(one_gradient(root, seed, storage));
  EXPECT_EQ(one_gradient(root, seed, storage), one_gradient(root, seed, before));
}

UOp redistributed(const UOp& x, const Mesh& mesh, Placement p) {
  return UOp::make(Op::Redistribute, x.dtype(), {x},
                   Dims{mesh.id(), int64_t(p.kind), p.dim, int64_t(p.op)}, mesh.payload());
}

TEST(Gradient, OfAPlacedValueLiesAsTheValueDid) {
  Mesh mesh({{"data", 2}}, {{"CPU", 0, 0}, {"CPU", 0, 1}});
  auto placed_buffer = [&](int64_t id, Placement p) {
    return UOp::make(Op::Buffer, DType::F32, {}, Dims{id, 4},
                     std::make_shared<Placed>(Sharding{mesh, {p}}));
  };
  UOp x = placed_buffer(300, Shard(0)), seed = placed_buffer(301, Replicate);
  UOp gathered = redistributed(x, mesh, Replicate);
  EXPECT_EQ(one_gradient(gathered, seed, x), redistributed(seed, mesh, Shard(0)));
  // Every term of a pending sum has the whole gradient.
  UOp pending = redistributed(seed, mesh, Partial()),
      complete = redistributed(pending, mesh, Replicate);
  EXPECT_EQ(one_gradient(complete, x, pending), redistributed(x, mesh, Replicate));
  // Where the placement follows from the rules only, they also place the gradient.
  UOp computed = binary(Op::Mul, x, x);
  EXPECT_EQ(one_gradient(redistributed(computed, mesh, Replicate), seed, computed), seed);
}

TEST(Gradient, OfALongChainDoesNotOverflowTheStack) {
  UOp x = buffer(0, Dims{1}), y = x;
  for (int i = 0; i < 200'000; ++i) y = unary(Op::Sin, y);
  EXPECT_TRUE(one_gradient(y, const_like(y, 1), x));
}

// Forward and loss of an MLP 784-1024-1024-10, as many nodes as a program of that size has.
std::pair<UOp, std::vector<UOp>> mlp() {
  int64_t id = 0;
  DType f32 = DType::F32;
  UOp h = buffer(id++, Dims{128, 784}, f32);
  std::vector<UOp> parameters;
  Dims sizes{784, 1024, 1024, 10};
  for (int layer = 0; layer < 3; ++layer) {
    UOp w = buffer(id++, Dims{sizes[layer + 1], sizes[layer]}, f32),
        b = buffer(id++, Dims{sizes[layer + 1]}, f32);
    parameters.insert(parameters.end(), {w, b});
    UOp out = UOp::make(Op::Dot, f32, {h, permute(w, Dims{1, 0})}, Dims{0});
    out = add(out, expand(reshape(b, Dims{1, sizes[layer + 1]}), out.shape()));
    h = layer == 2 ? out : binary(Op::Max, out, const_like(out, 0));
  }
  UOp shifted =
      binary(Op::Sub, h, expand(unary(Op::Detach, reduce(ReduceOp::Max, h, Dims{1})), h.shape()));
  UOp e = unary(Op::Exp2, mul(shifted, const_like(h, 1.4426950408889634)));
  UOp log_sum = mul(unary(Op::Log2, reduce(ReduceOp::Sum, e, Dims{1})),
                    const_float(f32, 0.6931471805599453, Dims{128, 1}));
  UOp picked =
      UOp::make(Op::Gather, f32, {shifted, buffer(id++, Dims{128, 1}, DType::I32)}, Dims{1});
  return {mul(sum_all(binary(Op::Sub, log_sum, picked)), const_float(f32, 1.0 / 128)), parameters};
}

TEST(Gradient, OfAnMlpStaysSmall) {
  auto [loss, parameters] = mlp();
  UOp seed = const_like(loss, 1);
  std::vector<UOp> all = gradient(std::span(&loss, 1), {&seed, 1}, parameters);
  size_t forward = nodes(loss), both = toposort(all).size();
  EXPECT_LT(both, forward + 60) << print(all);
  for (const UOp& x : toposort(all)) {
    for (const UOp& s : x->src()) {
      EXPECT_FALSE(x.op() == Op::Mul && is_const(s, 1)) << describe(*x);
      EXPECT_FALSE(x.op() == Op::Add && is_const(s, 0)) << describe(*x);
    }
  }
}

TEST(Gradient, OfAnMlpIsQuick) {
  auto [loss, parameters] = mlp();
  UOp seed = const_like(loss, 1);
  double best = 1e9;
  for (int i = 0; i < 50; ++i) {
    auto start = std::chrono::steady_clock::now();
    std::vector<UOp> all = gradient(std::span(&loss, 1), {&seed, 1}, parameters);
    best = std::min(
        best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                  .count());
  }
  RecordProperty("milliseconds", std::to_string(best));
  EXPECT_LT(best, 0.5);  // about 0.02 in a release build; sanitizers take ten times that
}

TEST(Oracle, RoundsCasts) {
  const UOp x = buffer(1, Dims{1});
  Evaluator evaluate;
  evaluate.set(x, {0.1});
  EXPECT_EQ(evaluate(cast(cast(x, DType::F32), DType::F64))[0], static_cast<double>(0.1f));
  EXPECT_EQ(evaluate(cast(cast(x, DType::BF16), DType::F64))[0], 0.10009765625);
}

}  // namespace
}  // namespace tinyshard::gradient_test
