// Ops that others spell: values do not depend on how long one stays whole, on one device and on a mesh,
// and gradients are those of what it means.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/option_scope.h"
#include "core/ops/activations.h"
#include "core/ops/ops.h"
#include "core/ops/power.h"
#include "core/passes/gradient.h"
#include "core/passes/spell.h"
#include "core/passes/tidy.h"
#include "core/tensor/tensor.h"
#include "tests/core/passes/same_values.h"
#include "tests/devices.h"

namespace tinyshard::composites_test {
namespace {

using test::buffer;
using test::expect_same;

constexpr double kInf = std::numeric_limits<double>::infinity(),
                 kNan = std::numeric_limits<double>::quiet_NaN();

bool is_for(const Composite& row, DType dtype) { return &row != &kPower || !is_narrow(dtype); }

// A power of other bases is no number, and its parts have slopes that are none.
UOp positive(const UOp& x) { return binary(Op::Add, binary(Op::Mul, x, x), const_like(x, 0.5)); }

size_t count_composites(std::span<const UOp> roots) {
  return size_t(
      std::ranges::count_if(toposort(roots), [](const UOp& x) { return x.op() == Op::Composite; }));
}

TEST(Composites, EachRowHasANumberAndANameOfItsOwn) {
  std::set<std::string_view> names;
  int64_t number = 0;
  for (const Composite* row : composites()) {
    EXPECT_EQ(row->number, ++number) << row->name;
    EXPECT_TRUE(names.insert(row->name).second) << row->name;
    EXPECT_FALSE(row->meaning.empty()) << row->name;
  }
}

TEST(Composites, AreSpelledAndSayTheirNames) {
  for (const Composite* row : composites()) {
    const UOp x = positive(buffer(1, Dims{2, 3}, DType::F32)),
              y = buffer(2, Dims{2, 3}, DType::F32);
    const UOp whole = row->operands == 1 ? composite(*row, {x}) : composite(*row, {x, y});
    EXPECT_EQ(whole, row->operands == 1 ? composite(*row, {x}) : composite(*row, {x, y}));
    EXPECT_EQ(describe(*whole), std::string(row->name) + " f32[2, 3]");
    const std::vector<UOp> none = spell(std::vector{whole}, [](const Composite&) { return false; });
    EXPECT_EQ(count_composites(none), 0u) << print(none);
    EXPECT_EQ(spell(std::vector{whole}, [](const Composite&) { return true; })[0], whole);
    expect_same({whole}, none, {buffer(1, Dims{2, 3}, DType::F32), y});
  }
}

TEST(Composites, OfConstantsFold) {
  const UOp x = const_float(DType::F32, 2, Dims{3});
  for (const UOp& whole : {power(x, x), relu(x), gelu(x), gelu_slope(x, x), relu_slope(x, x)}) {
    const UOp folded = tidy(spell(std::vector{whole}, [](const Composite&) { return true; }))[0];
    ASSERT_TRUE(is_const(folded)) << print(whole);
  }
  EXPECT_TRUE(is_const(tidy(spell(std::vector{power(x, x)}, {}))[0], 4));
}

TEST(Composites, TakeTheOperandsOfTheirRow) {
  const UOp x = buffer(1, Dims{2}, DType::F32), wide = buffer(2, Dims{2}, DType::F64),
            longer = buffer(3, Dims{3}, DType::F32);
  EXPECT_THROW(composite(kPower, {x}), InternalError);
  EXPECT_THROW(composite(kGelu, {x, x}), InternalError);
  EXPECT_THROW(power(x, wide), InternalError);
  EXPECT_THROW(power(x, longer), InternalError);
}

// A gradient may be that of the row or of the spelling: the values are the same.
TEST(Composites, HaveTheGradientsOfTheirSpellings) {
  for (const Composite* row : composites()) {
    const UOp x = buffer(1, Dims{5}, DType::F64), y = buffer(2, Dims{5}, DType::F64),
              seed = buffer(3, Dims{5}, DType::F64);
    const UOp base = row == &kPower ? positive(x) : x;
    const UOp whole = row->operands == 1 ? composite(*row, {base}) : composite(*row, {base, y});
    const UOp parts = spelled(whole);
    const std::vector<UOp> targets{x, y};
    std::vector<UOp> kept = gradient(std::span(&whole, 1), {&seed, 1}, targets),
                     plain = gradient(std::span(&parts, 1), {&seed, 1}, targets);
    for (size_t i = 0; i < size_t(row->operands); ++i) {
      const UOp none =
          const_like(targets[i], 0);  // no way leads there through what it is spelled as
      expect_same({kept[i] ? kept[i] : none}, {plain[i] ? plain[i] : none}, {x, y, seed});
    }
  }
}

// --- bits ----------------------------------------------------------------------------------------

Tensor stored(const std::vector<double>& values, DType dtype) {
  return Tensor(values).cast(dtype).contiguous().realize();
}

std::vector<double> special() {
  std::vector<double> values{0.0, -0.0, 1, -1, 0.5, -2, 3, -1000, 1e30, -1e-30, kInf, -kInf, kNan};
  for (int i = 0; i < 300; ++i) values.push_back(3 * std::sin(1.7 * i));
  return values;
}

Tensor applied(const Composite& row, const Tensor& x, const Tensor& y) {
  return Tensor(row.operands == 1 ? composite(row, {x.uop()}) : composite(row, {x.uop(), y.uop()}));
}

void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
  ASSERT_EQ(a.dtype(), b.dtype()) << what;
  EXPECT_TRUE(a.data() == b.data()) << what << ": " << a << " is not " << b;
}

// Each way of TS_COMPOSITES, between ops that could be fused with it or folded into it.
TEST(Composites, HaveTheSameBitsKeptOrSpelled) {
  for (const Composite* row : composites()) {
    for (DType dtype : {DType::F32, DType::F64, DType::BF16, DType::F16}) {
      if (!is_for(*row, dtype)) continue;
      const std::string what = std::string(row->name) + " of " + std::string(name(dtype));
      const Tensor x = stored(special(), dtype), y = x.flip(0).contiguous().realize();
      const auto results = [&](const char* how) {
        const OptionScope on({{"TS_COMPOSITES", how}});
        const Tensor z = applied(*row, x * 1.5, y) + applied(*row, y, x);
        const std::vector<Tensor> out{z.contiguous().realize(),
                                      (-applied(*row, x, x)).contiguous().realize()};
        return out;
      };
      const std::vector<Tensor> spelled = results("spell"), kept = results("keep");
      for (size_t i = 0; i < spelled.size(); ++i) expect_same_bits(kept[i], spelled[i], what);
    }
  }
}

TEST(Composites, LieOnAMeshAsElementwiseOpsDo) {
  TINYSHARD_NEED_DEVICES(2);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(2), .devices_per_rank = 0});
  const Mesh mesh({{"d", 2}});
  for (const Composite* row : composites()) {
    const Tensor x = Tensor::arange(12).cast(DType::F32).reshape({4, 3}) / 7 - 0.6;
    const Tensor alone = applied(*row, x.abs(), x + 1),
                 sums = applied(*row, x.sum(0), x.sum(0) + 2);
    for (const char* how : {"spell", "keep"}) {
      const OptionScope on({{"TS_COMPOSITES", how}});
      const Tensor there = x.contiguous().shard(mesh, {{"d", Shard(0)}});
      const Tensor y = applied(*row, there.abs(), there + 1);
      EXPECT_EQ(y.sharding().placements[0], Shard(0)) << row->name << how;
      expect_same_bits(y, alone, std::string(row->name) + how);
      // Pending sums are completed first: none of these is linear.
      const Tensor pending = there.sum(0);
      const std::vector<float> a = applied(*row, pending, pending + 2).to_vector<float>(),
                               b = sums.to_vector<float>();
      for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5) << row->name << how;
    }
  }
  Runtime::shutdown();
}

}  // namespace
}  // namespace tinyshard::composites_test
