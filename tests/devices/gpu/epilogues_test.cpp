// Products with epilogues compute what the nodes that they replace compute, and replace them only
// where the device says yes and nobody reads what would be lost.
#include "devices/gpu/epilogues.h"

#include <cmath>
#include <functional>
#include <iterator>
#include <numbers>
#include <tuple>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/ops/activations.h"
#include "core/passes/gradient.h"
#include "core/passes/narrow.h"
#include "core/passes/products.h"
#include "core/passes/replaced.h"
#include "core/passes/tidy.h"
#include "devices/gpu/product_regions.h"
#include "tests/core/passes/same_values.h"

namespace tinyshard::epilogues_test {
namespace {

using gpu::Epilogue;
using gpu::epilogue_of;
using test::buffer;
using test::evaluated;
using test::expect_same;
using test::Values;

bool all(const LibraryCall&) { return true; }
bool none(const LibraryCall&) { return false; }
bool plain_only(const LibraryCall& call) { return epilogue_of(call.node) == Epilogue::None; }
bool one_result(const LibraryCall& call) { return call.also.empty(); }
bool no_gradient(const LibraryCall& call) {
  return epilogue_of(call.node) != Epilogue::GeluBackward;
}

// As the pass `epilogues` does it.
std::vector<UOp> fuse_epilogues(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& supports) {
  const RegionQuery query(graph, supports, tidy);
  std::vector<Replacement> found = gpu::products_provider().find(query);
  std::ranges::copy(find_narrow_products(query), std::back_inserter(found));
  return replaced(graph, found);
}

// Linear, GELU, Linear on [2, 3, 8] with 16 inside, as the tensor API builds it in this type: sums
// of 16-bit products are rounded once the bias is added.
struct Mlp {
  DType type;
  UOp x, up, up_bias, down, down_bias;
  UOp before;  // what the GELU sees
  UOp y;

  explicit Mlp(DType t, DType master)
      : type(t),
        x(buffer(1, Dims{2, 3, 8}, t)),
        up(buffer(2, Dims{16, 8}, master)),
        up_bias(buffer(3, Dims{16}, master)),
        down(buffer(4, Dims{8, 16}, master)),
        down_bias(buffer(5, Dims{8}, master)) {
    before = linear(x, up, up_bias);
    y = linear(gelu(before), down, down_bias);
  }
  UOp linear(const UOp& in, const UOp& w, const UOp& b) const {
    int64_t k = in.shape().back(), n = w.shape()[0];
    UOp product = UOp::make(Op::Dot, accumulator(type),
                            {reshape(in, Dims{6, k}), permute(cast(w, type), Dims{1, 0})}, Dims{0});
    UOp out = reshape(product, Dims{2, 3, n});
    UOp row = reshape(cast(cast(b, type), accumulator(type)), Dims{1, 1, n});
    return cast(binary(Op::Add, out, expand(row, out.shape())), type);
  }
  std::vector<UOp> inputs() const { return {x, up, up_bias, down, down_bias}; }
  UOp seed() const { return buffer(6, Dims{2, 3, 8}, type); }
  std::vector<UOp> leaves() const { return {x, up, up_bias, down, down_bias, seed()}; }

  // The result and the gradients of all inputs, tidied as the passes before leave them.
  std::vector<UOp> trained() const {
    UOp at_y = seed();
    std::vector<UOp> roots = gradient(std::span(&y, 1), {&at_y, 1}, inputs());
    roots.push_back(y);
    return transpose_products(tidy(roots));
  }
};

int count(std::span<const UOp> roots, Epilogue epilogue) {
  int n = 0;
  for (const UOp& x : toposort(roots)) n += x.op() == Op::Dot && epilogue_of(x) == epilogue;
  return n;
}

// Elementwise nodes over the six rows of the hidden layer.
int over_hidden(std::span<const UOp> roots) {
  int n = 0;
  for (const UOp& x : toposort(roots))
    n += is_elementwise(x.op()) && !x.shape().empty() && x.shape().back() == 16 &&
         x->numel() == 6 * 16;
  return n;
}

struct Types {
  DType type, master;
};
void PrintTo(const Types& t, std::ostream* out) { *out << name(t.type) << '/' << name(t.master); }

class Epilogues : public ::testing::TestWithParam<Types> {
 protected:
  Mlp mlp{GetParam().type, GetParam().master};
};

TEST_P(Epilogues, DoAllThatFollowsTheProductsOfAnMlp) {
  std::vector<UOp> before = mlp.trained(), after = fuse_epilogues(before, all);
  expect_same(before, after, mlp.leaves());
  EXPECT_EQ(count(after, Epilogue::Bias), 2) << print(after);
  EXPECT_EQ(count(after, Epilogue::BiasGelu), 1) << print(after);
  EXPECT_EQ(count(after, Epilogue::GeluBackward), 1) << print(after);
  // The one left widens the hidden gradient for the bias's sum.
  EXPECT_EQ(over_hidden(after), GetParam().type == DType::F32 ? 0 : 1) << print(after);
}

TEST_P(Epilogues, StoreNothingBeforeTheGeluWhenNobodyAsks) {
  std::vector<UOp> roots = fuse_epilogues(tidy(std::vector<UOp>{mlp.y}), all);
  EXPECT_EQ(count(roots, Epilogue::Bias), 1) << print(roots);  // of the second product
  EXPECT_EQ(count(roots, Epilogue::BiasGelu), 1);
}

TEST_P(Epilogues, LeaveTheGraphWhereTheDeviceHasNone) {
  std::vector<UOp> before = mlp.trained();
  EXPECT_EQ(fuse_epilogues(before, none), before);
  std::vector<UOp> after = fuse_epilogues(before, plain_only);  // may still round
  EXPECT_EQ(count(after, Epilogue::Bias), 0);
  expect_same(before, after, mlp.leaves());
}

TEST_P(Epilogues, KeepTheGeluApartWhereOneCallCannotStoreBoth) {
  std::vector<UOp> before = mlp.trained(), after = fuse_epilogues(before, one_result);
  EXPECT_EQ(count(after, Epilogue::BiasGelu), 0);
  EXPECT_EQ(count(after, Epilogue::Bias), 2);
  expect_same(before, after, mlp.leaves());
}

TEST_P(Epilogues, OfTheGradientMayBeMissing) {
  std::vector<UOp> before = mlp.trained(), after = fuse_epilogues(before, no_gradient);
  EXPECT_EQ(count(after, Epilogue::BiasGelu), 1);
  EXPECT_EQ(count(after, Epilogue::GeluBackward), 0);
  expect_same(before, after, mlp.leaves());
}

TEST_P(Epilogues, AreSpelledOutAgainForWhatTakesNone) {
  std::vector<UOp> before = mlp.trained();
  std::vector<UOp> after = lower_products(fuse_epilogues(before, all), none);
  for (const UOp& x : toposort(after)) EXPECT_NE(x.op(), Op::Dot);
  expect_same(before, after, mlp.leaves());
}

TEST_P(Epilogues, LeaveASumThatOthersReadHalfway) {
  UOp product;
  for (const UOp& x : toposort({&mlp.before, 1})) {
    if (x.op() == Op::Dot) product = x;
  }
  std::vector<UOp> before = tidy(std::vector<UOp>{mlp.before, product});
  EXPECT_EQ(fuse_epilogues(before, all), before);
}

INSTANTIATE_TEST_SUITE_P(, Epilogues,
                         ::testing::Values(Types{DType::F32, DType::F32},
                                           Types{DType::BF16, DType::BF16},
                                           Types{DType::BF16, DType::F32},
                                           Types{DType::F16, DType::F16}));

// A layer with a ReLU, as the tensor API writes it, and what trains it.
struct ReluLayer {
  UOp x = buffer(1, Dims{2, 3, 8}, DType::F32), w = buffer(2, Dims{16, 8}, DType::F32),
      b = buffer(3, Dims{16}, DType::F32), seed = buffer(6, Dims{2, 3, 16}, DType::F32);
  UOp sum = binary(Op::Add,
                   reshape(UOp::make(Op::Dot, DType::F32,
                                     {reshape(x, Dims{6, 8}), permute(w, Dims{1, 0})}, Dims{0}),
                           Dims{2, 3, 16}),
                   expand(reshape(b, Dims{1, 1, 16}), Dims{2, 3, 16}));
  UOp y = relu(sum);
  std::vector<UOp> trained() const {
    std::vector<UOp> roots = gradient(std::span(&y, 1), {&seed, 1}, std::vector<UOp>{x, w, b});
    roots.push_back(y);
    return transpose_products(tidy(roots));
  }
  std::vector<UOp> leaves() const { return {x, w, b, seed}; }
};

TEST(EpilogueOf, AReluAndItsGradientNeedNotWhatPrecedesIt) {
  ReluLayer layer;
  std::vector<UOp> before = layer.trained(), after = fuse_epilogues(before, all);
  EXPECT_EQ(count(after, Epilogue::BiasRelu), 1) << print(after);
  EXPECT_EQ(count(after, Epilogue::Bias), 0) << print(after);
  EXPECT_EQ(
      int(std::ranges::count_if(toposort(after), [](const UOp& x) { return x.op() == Op::Add; })),
      0);
  std::vector<Values> want = evaluated(before, layer.leaves());
  EXPECT_EQ(evaluated(after, layer.leaves()), want);
  EXPECT_EQ(evaluated(lower_products(after, none), layer.leaves()), want);
}

TEST(EpilogueOf, AReluIsApartWhereOthersReadWhatPrecedesIt) {
  ReluLayer layer;
  std::vector<UOp> roots = tidy(std::vector<UOp>{layer.y, binary(Op::Mul, layer.sum, layer.sum)});
  std::vector<UOp> after = fuse_epilogues(roots, all);
  EXPECT_EQ(count(after, Epilogue::BiasRelu), 0);
  EXPECT_EQ(count(after, Epilogue::Bias), 1);
  // So it is where somebody asks for the sign alone.
  roots = tidy(std::vector<UOp>{layer.y, binary(Op::CmpLt, const_like(layer.sum, 0), layer.sum)});
  EXPECT_EQ(count(fuse_epilogues(roots, all), Epilogue::BiasRelu), 0);
}

TEST(EpilogueOf, AResultReadAsAnotherShapeOnly) {
  // A bias along another dim than the product's columns is no bias of it.
  DType f32 = DType::F32;
  UOp a = buffer(1, Dims{6, 4}, f32), b = buffer(2, Dims{4, 6}, f32), c = buffer(3, Dims{12}, f32);
  UOp dot = UOp::make(Op::Dot, f32, {a, b}, Dims{0}), wide = reshape(dot, Dims{3, 12});
  UOp sum = binary(Op::Add, wide, expand(reshape(c, Dims{1, 12}), wide.shape()));
  std::vector<UOp> roots{sum};
  EXPECT_EQ(fuse_epilogues(roots, all), roots);
  UOp column = buffer(4, Dims{6, 1}, f32);
  roots = {binary(Op::Add, dot, expand(column, dot.shape()))};
  EXPECT_EQ(fuse_epilogues(roots, all), roots);
}

// Against the formulas in double precision: x is a sum, c an operand's element, s the factors.
TEST(EpilogueOf, AProductIsSpelledAsItsFormula) {
  const DType f64 = DType::F64;
  const UOp a = buffer(1, Dims{3, 2}, f64), b = buffer(2, Dims{2, 5}, f64),
            row = buffer(3, Dims{5}, f64), whole = buffer(4, Dims{3, 5}, f64),
            factors = buffer(5, Dims{2}, DType::F32);
  auto slope = [](double v) {
    const double k = std::sqrt(2 / std::numbers::pi), t = std::tanh(k * (v + 0.044715 * v * v * v));
    return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * k * (1 + 3 * 0.044715 * v * v);
  };
  auto gelu_of = [](double v) {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
  };
  using Formula = std::function<double(double x, double c, const Values& s)>;
  const std::vector<std::tuple<Epilogue, std::vector<UOp>, Formula>> regions{
      {Epilogue::Bias, {row}, [](double x, double c, const Values&) { return x + c; }},
      {Epilogue::BiasRelu,
       {row},
       [](double x, double c, const Values&) { return std::max(x + c, 0.0); }},
      {Epilogue::BiasGelu,
       {row},
       [&](double x, double c, const Values&) { return gelu_of(x + c); }},
      {Epilogue::GeluBackward,
       {whole},
       [&](double x, double c, const Values&) { return x * slope(c); }},
      {Epilogue::Update, {whole}, [](double x, double c, const Values&) { return x + c; }},
      {Epilogue::Update,
       {whole, factors},
       [](double x, double c, const Values& s) { return s[0] * x + s[1] * c; }},
  };
  const UOp plain = gpu::product_with(Epilogue::None, f64, a, b, 0, {});
  for (const auto& [epilogue, operands, formula] : regions) {
    const UOp x = gpu::product_with(epilogue, f64, a, b, 0, operands);
    EXPECT_EQ(epilogue_of(x), epilogue);
    EXPECT_EQ(gpu::product_region(epilogue).number, int64_t(epilogue));
    const std::vector<Values> found =
        evaluated(std::vector<UOp>{from_sums(x, sums_of(x)), plain, operands[0], factors},
                  {a, b, row, whole, factors});
    for (size_t i = 0; i < 15; ++i) {
      const double c = found[2][found[2].size() == 5 ? i % 5 : i];
      EXPECT_NEAR(found[0][i], formula(found[1][i], c, found[3]), 1e-12) << int(epilogue);
    }
  }
}

TEST(EpilogueOf, AProductTakesTheOperandsOfItsRegionAlone) {
  const DType f32 = DType::F32;
  const UOp a = buffer(1, Dims{2, 3}, f32), b = buffer(2, Dims{3, 5}, f32),
            row = buffer(3, Dims{5}, f32), whole = buffer(4, Dims{2, 5}, f32),
            narrow = buffer(5, Dims{5}, DType::BF16), two = buffer(6, Dims{2}, f32);
  auto makes = [&](Epilogue epilogue, const std::vector<UOp>& operands) {
    try {
      gpu::product_with(epilogue, f32, a, b, 0, operands);
      return true;
    } catch (const InternalError&) {
      return false;
    }
  };
  for (Epilogue e : {Epilogue::Bias, Epilogue::BiasRelu, Epilogue::BiasGelu}) {
    EXPECT_TRUE(makes(e, {row}));
    EXPECT_FALSE(makes(e, {whole})) << int(e);
    EXPECT_FALSE(makes(e, {narrow})) << int(e);
    EXPECT_FALSE(makes(e, {})) << int(e);
  }
  EXPECT_TRUE(makes(Epilogue::GeluBackward, {whole}));
  EXPECT_FALSE(makes(Epilogue::GeluBackward, {row}));
  EXPECT_FALSE(makes(Epilogue::GeluBackward, {whole, two}));
  EXPECT_TRUE(makes(Epilogue::Update, {whole}));
  EXPECT_TRUE(makes(Epilogue::Update, {whole, two}));
  EXPECT_FALSE(makes(Epilogue::Update, {whole, row}));
  EXPECT_FALSE(makes(Epilogue::Update, {}));
}

TEST(EpilogueOf, ACastThereAndBackIsNone) {
  UOp x = buffer(1, Dims{4}, DType::BF16), wide = cast(x, DType::F32);
  EXPECT_EQ(tidy(std::vector<UOp>{cast(wide, DType::BF16)})[0], x);
  UOp y = buffer(1, Dims{4}, DType::F32), narrow = cast(y, DType::BF16);
  EXPECT_NE(tidy(std::vector<UOp>{cast(narrow, DType::F32)})[0], y);
}

}  // namespace
}  // namespace tinyshard::epilogues_test
