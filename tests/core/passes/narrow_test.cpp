// Products that store what is read of them: the same values, where the library takes it and nobody
// reads the sums themselves.
#include "core/passes/narrow.h"

#include <gtest/gtest.h>

#include "core/passes/replaced.h"
#include "core/passes/tidy.h"
#include "tests/core/passes/same_values.h"

namespace tinyshard::narrow_test {
namespace {

using test::buffer;
using test::expect_same;

bool all(const LibraryCall&) { return true; }
bool none(const LibraryCall&) { return false; }

std::vector<UOp> narrow_products(const Graph& graph,
                                 const std::function<bool(const LibraryCall&)>& supports) {
  return replaced(graph, find_narrow_products({graph, supports, tidy}));
}

struct Rounded {
  DType from = DType::F32, to = DType::BF16;
  UOp a = buffer(1, Dims{4, 3}, from), b = buffer(2, Dims{3, 6}, from);
  UOp product = UOp::make(Op::Dot, from, {a, b}, Dims{0});
  UOp seen = reshape(cast(product, to), Dims{2, 2, 6});
};

TEST(Narrow, ProductsRoundTheirSums) {
  Rounded r;
  std::vector<UOp> before{r.seen}, after = narrow_products(before, all);
  EXPECT_EQ(after[0], reshape(UOp::make(Op::Dot, r.to, {r.a, r.b}, Dims{0}), Dims{2, 2, 6}));
  expect_same(before, after, {r.a, r.b});
  EXPECT_EQ(narrow_products(before, none), before);
}

TEST(Narrow, ProductsThatOthersReadStay) {
  Rounded r;
  std::vector<UOp> roots{r.seen, r.product};
  EXPECT_EQ(narrow_products(roots, all), roots);
}

TEST(Narrow, OnlyF32IsRounded) {
  for (auto [from, to] : {std::pair(DType::F64, DType::F32), std::pair(DType::F64, DType::BF16),
                          std::pair(DType::BF16, DType::F32)}) {
    Rounded r{.from = from, .to = to};
    std::vector<UOp> roots{r.seen};
    EXPECT_EQ(narrow_products(roots, all), roots) << name(from) << " to " << name(to);
  }
}

// {CollectiveOp, ReduceOp, mesh axis, parts, has parts before, after}: an all-reduce of two devices.
UOp sent(const UOp& x) { return UOp::make(Op::Collective, x.dtype(), {x}, Dims{0, 0, 0, 2, 0, 0}); }
UOp stored(const UOp& x) { return UOp::make(Op::Contiguous, x.dtype(), {x}); }

TEST(Narrow, ProductsAreStoredForTheCollectiveThatSendsThem) {
  Rounded r;
  const UOp rounded = reshape(UOp::make(Op::Dot, r.to, {r.a, r.b}, Dims{0}), Dims{2, 2, 6}),
            wide = reshape(r.product, Dims{24});
  EXPECT_EQ(narrow_products(std::vector{sent(stored(r.seen))}, all)[0], sent(rounded));
  EXPECT_EQ(narrow_products(std::vector{sent(stored(wide))}, all)[0], sent(stored(wide)))
      << "a row of another length";
  EXPECT_EQ(narrow_products(std::vector{sent(stored(r.product))}, all)[0], sent(r.product));
  EXPECT_EQ(narrow_products(std::vector{sent(stored(r.product))}, none)[0],
            sent(stored(r.product)));
  EXPECT_EQ(narrow_products(std::vector{stored(r.product)}, all)[0], stored(r.product))
      << "a copy that somebody asked for";
}

}  // namespace
}  // namespace tinyshard::narrow_test
