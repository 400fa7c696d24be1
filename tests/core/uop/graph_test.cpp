#include "core/uop/graph.h"

#include <set>

#include <gtest/gtest.h>

#include "core/uop/node_map.h"
#include "core/uop/uop.h"

namespace tinyshard::graph_test {
namespace {

UOp buffer(int64_t id, Dims shape = {2, 3}, DType d = DType::F32) {
  shape.insert(shape.begin(), id);
  return UOp::make(Op::Buffer, d, {}, shape);
}

TEST(Toposort, PutsSourcesFirst) {
  UOp a = buffer(1), b = buffer(2);
  UOp sum = binary(Op::Add, a, b), product = binary(Op::Mul, sum, a);
  UOp roots[] = {product, sum, unary(Op::Neg, b)};
  std::vector<UOp> order = toposort(roots);
  EXPECT_EQ(order, (std::vector<UOp>{a, b, sum, product, roots[2]}));
}

TEST(Toposort, DependsOnStructureAlone) {
  // Nodes made in another order, with others in between: the same positions.
  auto build = [](bool reversed) {
    UOp a = buffer(1), b = buffer(2), keep_first, keep_second;
    if (reversed) keep_first = unary(Op::Sqrt, b), keep_second = unary(Op::Exp2, a);
    return binary(Op::Add, unary(Op::Exp2, a), binary(Op::Mul, unary(Op::Sqrt, b), a));
  };
  auto ops = [](const UOp& x) {
    std::vector<Op> list;
    for (const UOp& n : toposort(std::span(&x, 1))) list.push_back(n.op());
    return list;
  };
  EXPECT_EQ(ops(build(false)), ops(build(true)));
}

TEST(Toposort, HandlesDepthAndSharing) {
  UOp x = buffer(1);
  for (int i = 0; i < 100000; ++i) x = binary(Op::Add, x, x);
  std::vector<UOp> order = toposort(std::span(&x, 1));
  ASSERT_EQ(order.size(), 100001u);
  NodeMap<bool> seen(order.size());
  for (const UOp& n : order) {
    for (const UOp& s : n->src()) ASSERT_TRUE(seen.contains(s));
    seen[n] = true;
  }
}

TEST(Print, OneLinePerNode) {
  UOp a = buffer(7), b = const_float(DType::F32, 0.5, Dims{2, 3});
  UOp x = reduce(ReduceOp::Sum, binary(Op::Mul, a, b), Dims{1});
  EXPECT_EQ(print(x),
            "%0 = buffer f32[2, 3] #7\n"
            "%1 = const f32[2, 3] 0.5\n"
            "%2 = mul f32[2, 3] %0 %1\n"
            "%3 = reduce f32[2, 1] sum over [1] %2\n");
  EXPECT_EQ(describe(*permute(a, Dims{1, 0})), "permute f32[3, 2] [1, 0]");
  EXPECT_EQ(describe(*reshape(a, Dims{6})), "reshape f32[6]");
  EXPECT_EQ(describe(*const_int(DType::I32, -4)), "const i32[] -4");
  EXPECT_EQ(describe(*range(3, 10, RangeKind::Loop)), "range index [3, 10, 0]");
}

TEST(StructuralHash, DoesNotSeeIdentities) {
  auto build = [](int64_t first, int64_t second) {
    UOp a = buffer(first), b = buffer(second);
    return binary(Op::Add, binary(Op::Mul, a, b), a);
  };
  auto hash = [](const UOp& x) { return structural_hash(std::span(&x, 1)); };
  EXPECT_EQ(hash(build(1, 2)), hash(build(8, 5)));
  EXPECT_EQ(hash(build(1, 2)), hash(build(2, 1))) << "counted by order of appearance";
  EXPECT_NE(hash(build(1, 2)), hash(build(3, 3))) << "one buffer twice is another program";
}

TEST(StructuralHash, SeesEverythingElse) {
  UOp a = buffer(1), b = buffer(2);
  std::vector<UOp> graphs{binary(Op::Add, a, b),
                          binary(Op::Mul, a, b),
                          binary(Op::Add, a, a),
                          unary(Op::Neg, a),
                          a,
                          buffer(1, {3, 2}),
                          buffer(1, {2, 3}, DType::F64),
                          cast(a, DType::F16),
                          cast(a, DType::F64),
                          const_float(DType::F32, 1),
                          const_float(DType::F32, 2),
                          const_float(DType::F32, 1, Dims{1}),
                          reduce(ReduceOp::Sum, a, Dims{0}),
                          reduce(ReduceOp::Max, a, Dims{0}),
                          reduce(ReduceOp::Sum, a, Dims{1}),
                          permute(a, Dims{1, 0}),
                          reshape(a, Dims{3, 2}),
                          pad(a, Dims{1, 0, 0, 0}),
                          pad(a, Dims{0, 1, 0, 0}),
                          range(0, 4, RangeKind::Loop),
                          range(1, 4, RangeKind::Loop),
                          range(0, 4, RangeKind::Fold),
                          binary(Op::Sub, a, b),
                          binary(Op::Add, binary(Op::Add, a, b), b),
                          binary(Op::Add, binary(Op::Add, b, a), b)};
  std::set<uint64_t> hashes;
  for (const UOp& x : graphs) hashes.insert(structural_hash(std::span(&x, 1)));
  // The last two differ in which buffer comes again: a b b, and b a b.
  EXPECT_EQ(hashes.size(), graphs.size());
  UOp ab[] = {a, unary(Op::Neg, a)}, ba[] = {unary(Op::Neg, a), a}, one[] = {a};
  EXPECT_NE(structural_hash(ab), structural_hash(ba));
  EXPECT_NE(structural_hash(ab), structural_hash(one));
}

TEST(WithoutWaits, LeavesTheValueAlone) {
  const UOp a = buffer(1), other = unary(Op::Sqrt, buffer(2));
  auto after = [&](const UOp& x) { return UOp::make(Op::After, x.dtype(), {x, other}); };
  const UOp twice = after(after(unary(Op::Neg, a)));
  EXPECT_EQ(without_waits(binary(Op::Mul, twice, after(a))), binary(Op::Mul, unary(Op::Neg, a), a));
  EXPECT_EQ(without_waits(other), other);
}

TEST(StructuralHash, IsTheSameEveryTime) {
  auto build = [] {
    UOp x = buffer(1);
    for (int i = 0; i < 50; ++i) x = binary(i % 2 ? Op::Add : Op::Max, x, unary(Op::Exp2, x));
    return structural_hash(std::span(&x, 1));
  };
  uint64_t first = build();
  UOp noise = unary(Op::Sqrt, buffer(1));
  EXPECT_EQ(build(), first);
}

TEST(LiveNodes, CountsAll) {
  size_t before = live_nodes();
  UOp a = buffer(41), b = binary(Op::Add, a, a);
  EXPECT_EQ(live_nodes(), before + 2);
  UOp again = binary(Op::Add, a, a);
  EXPECT_EQ(live_nodes(), before + 2);
}

}  // namespace
}  // namespace tinyshard::graph_test
