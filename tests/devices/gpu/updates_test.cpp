// Products that are added to a storage: the same values, only where nobody needs the old ones any
// more, and written where they belong.
#include "devices/gpu/updates.h"

#include <gtest/gtest.h>

#include "core/passes/products.h"
#include "core/passes/replaced.h"
#include "core/passes/tidy.h"
#include "devices/gpu/product_regions.h"
#include "tests/core/passes/same_values.h"

namespace tinyshard::updates_test {
namespace {

using test::buffer;
using test::expect_same;

bool all(const LibraryCall&) { return true; }
bool none(const LibraryCall&) { return false; }

UOp dot(const UOp& a, const UOp& b) { return UOp::make(Op::Dot, a.dtype(), {a, b}, Dims{0}); }
UOp assign(const UOp& to, const UOp& x) { return UOp::make(Op::Assign, to.dtype(), {to, x}); }
UOp one_element(const UOp& x, const UOp& like) {
  return expand(reshape(x, Dims(like.shape().size(), 1)), like.shape());
}

std::vector<UOp> fuse_updates(const Graph& graph,
                              const std::function<bool(const LibraryCall&)>& supports) {
  return replaced(graph, gpu::find_updates({graph, supports, tidy}));
}

int updates_in(const UOp& root) {
  int n = 0;
  for (const UOp& x : toposort(std::span(&root, 1)))
    n += gpu::epilogue_of(x) == gpu::Epilogue::Update;
  return n;
}

// A weight [5, 4], the gradient of its product and the other operand of that.
struct Weight {
  UOp w = buffer(1, Dims{5, 4}, DType::F32);
  UOp gradient = buffer(2, Dims{3, 5}, DType::F32), x = buffer(3, Dims{3, 4}, DType::F32);
  UOp rate = buffer(4, Dims{}, DType::F32);
  UOp product = dot(permute(gradient, Dims{1, 0}), x);
  UOp step = binary(Op::Mul, product, one_element(rate, product));
  std::vector<UOp> leaves{w, gradient, x, rate};

  UOp fused(const UOp& root) const {
    UOp result = fuse_updates(std::span(&root, 1), all)[0];
    expect_same({root.src(1)}, {result.src(1)}, leaves);
    return result;
  }
};

TEST(Updates, AreStepsOfSgd) {
  Weight m;
  UOp root = assign(m.w, binary(Op::Sub, m.w, m.step));
  UOp result = m.fused(root);
  ASSERT_EQ(updates_in(result), 1) << print(std::span(&result, 1));
  EXPECT_EQ(result.src(1).op(), Op::Dot);
  EXPECT_EQ(result.src(1).src(2), m.w);
}

TEST(Updates, AreSumsWithAnyFactorInAnyOrderAndShape) {
  Weight m;
  UOp half = const_like(m.product, 0.5);
  UOp flat = reshape(m.w, Dims{20});
  for (const UOp& sum :
       {binary(Op::Add, m.w, m.product), binary(Op::Add, m.product, m.w),
        binary(Op::Sub, m.w, m.product), binary(Op::Add, binary(Op::Mul, half, m.product), m.w),
        reshape(binary(Op::Sub, flat, reshape(m.step, Dims{20})), Dims{5, 4})}) {
    UOp result = m.fused(assign(m.w, sum));
    EXPECT_EQ(updates_in(result), 1) << print(std::span(&result, 1));
  }
  EXPECT_EQ(m.fused(assign(m.w, binary(Op::Add, m.w, m.product))).src(1)->sources, 3)
      << "without factors";
}

// Gradients in bf16 that are summed up in f32: each is rounded before, as the graph says.
TEST(Updates, KeepTheRoundingOfWhatTheyAdd) {
  UOp sum = buffer(1, Dims{5, 4}, DType::F32), a = buffer(2, Dims{5, 3}, DType::BF16),
      b = buffer(3, Dims{3, 4}, DType::BF16);
  UOp product = UOp::make(Op::Dot, DType::BF16, {a, b}, Dims{0});
  for (const UOp& shown : {cast(product, DType::F32),
                           reshape(cast(reshape(product, Dims{20}), DType::F32), Dims{5, 4})}) {
    UOp root = assign(sum, binary(Op::Add, sum, shown));
    EXPECT_EQ(fuse_updates(std::span(&root, 1), all)[0], root);
  }
}

TEST(Updates, AreOnlyThose) {
  Weight m;
  UOp other = buffer(5, Dims{5, 4}, DType::F32);
  m.leaves.push_back(other);
  for (const UOp& sum :
       {binary(Op::Sub, m.product, m.w), binary(Op::Add, other, m.product),
        binary(Op::Add, m.w, binary(Op::Mul, m.product, other)), binary(Op::Mul, m.w, m.product)}) {
    EXPECT_EQ(updates_in(m.fused(assign(m.w, sum))), 0);
  }
  UOp root = assign(m.w, binary(Op::Sub, m.w, m.step));
  EXPECT_EQ(fuse_updates(std::span(&root, 1), none)[0], root) << "the device has none";
}

TEST(Updates, AreSpelledOutWhereNoLibraryTakesThem) {
  Weight m;
  for (const UOp& added : {m.step, m.product}) {
    UOp root = m.fused(assign(m.w, binary(Op::Add, m.w, added)));
    ASSERT_EQ(updates_in(root), 1);
    UOp loops = lower_products(std::span(&root, 1), none)[0];
    EXPECT_EQ(updates_in(loops), 0);
    expect_same({root.src(1)}, {loops.src(1)}, m.leaves);
  }
}

TEST(Updates, LeaveAProductThatSomebodyElseReads) {
  Weight m;
  UOp root = assign(m.w, binary(Op::Sub, m.w, m.step));
  for (const UOp& also : {m.product, unary(Op::Exp2, m.product), m.step}) {
    std::vector<UOp> roots{root, also};
    EXPECT_EQ(fuse_updates(roots, all), roots);
  }
}

TEST(Updates, WaitForNobodyWhoReadsTheOldValue) {
  Weight m;
  UOp root = assign(m.w, binary(Op::Sub, m.w, m.step));
  // Two readers of the old value: the gradient of the layer before, and a transpose that is a
  // result.
  for (const UOp& beside : {dot(m.gradient, m.w), permute(m.w, Dims{1, 0})}) {
    std::vector<UOp> roots{root, beside};
    EXPECT_EQ(fuse_updates(roots, all), roots);
  }
  // A reader that comes before the product, as the way forward does, is no hindrance.
  UOp y = unary(Op::Exp2, dot(m.x, permute(m.w, Dims{1, 0})));
  UOp product = dot(permute(y, Dims{1, 0}), m.x);
  UOp after = m.fused(assign(m.w, binary(Op::Add, m.w, product)));
  EXPECT_EQ(updates_in(after), 1) << print(std::span(&after, 1));
}

TEST(Updates, DoNotReadWhatTheyWrite) {
  UOp w = buffer(1, Dims{4, 4}, DType::F32), x = buffer(2, Dims{4, 4}, DType::F32);
  UOp turned = permute(w, Dims{1, 0});
  for (const UOp& product : {dot(w, x), dot(x, turned)}) {
    UOp root = assign(w, binary(Op::Add, w, product));
    EXPECT_EQ(fuse_updates(std::span(&root, 1), all)[0], root);
  }
}

}  // namespace
}  // namespace tinyshard::updates_test
