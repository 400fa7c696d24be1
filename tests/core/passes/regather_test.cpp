// Which reads of a gathered parameter share a gather, on graphs of local values.
#include "core/passes/regather.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "core/uop/node_map.h"
#include "multi/collective.h"

namespace tinyshard::regather_test {
namespace {

const Mesh& mesh() {
  static const Mesh m({{"d", 2}}, {{"NULL", 0, 0}, {"NULL", 0, 1}});
  return m;
}

UOp leaf(int64_t id, int64_t rows) {
  return UOp::make(Op::Buffer, DType::F32, {}, Dims{id, rows, 4},
                   std::make_shared<Placed>(replicated(mesh())));
}

// A parameter of [2 * rows, 4] in two parts, whole as its readers see it.
UOp parameter(int64_t block, int64_t rows, bool keep = false) {
  const GatherOnUse how{block, 1, keep, {true}};
  UOp gather = timed_gather(leaf(100 * block + rows, rows), mesh(), 0, how, 0);
  return reshape(gather, Dims{2 * rows, 4});
}

// Adds a step to a chain of ops: reads x and a sum of the parameter.
UOp read(const UOp& x, const UOp& w, ReduceOp how) {
  return binary(Op::Add, x, reshape(reduce(how, w, Dims{0}), Dims{4}));
}

// The turns of the gathers below, in the order of their readers.
std::vector<int64_t> turns(const std::vector<UOp>& roots) {
  std::vector<int64_t> found;
  for (const UOp& x : toposort(roots)) {
    if (x.op() == Op::Reduce) found.push_back(gather_time(under_views(x.src(0))).turn);
  }
  return found;
}

struct Chain {
  UOp x = reshape(leaf(1, 1), Dims{4});
  std::map<const Node*, int> readings;
  // Each reading of a parameter is another op.
  Chain& operator<<(const UOp& w) {
    x = read(x, w, readings[w.get()]++ == 0 ? ReduceOp::Sum : ReduceOp::Max);
    return *this;
  }
};

TEST(Regather, EachBlockHasATurnForEachPass) {
  UOp a = parameter(7, 8), b = parameter(9, 8), c = parameter(4, 8);
  Chain chain;
  chain << a << b << c << b << a;
  EXPECT_EQ(turns(gather_in_turns(std::vector{chain.x})), (std::vector<int64_t>{1, 2, 3, 4, 5}));
}

TEST(Regather, WhatIsReadInARowIsGatheredOnce) {
  UOp a = parameter(7, 8), also_a = parameter(7, 16), b = parameter(9, 8);
  Chain chain;
  chain << a << also_a << a << b << b << also_a;
  EXPECT_EQ(turns(gather_in_turns(std::vector{chain.x})), (std::vector<int64_t>{1, 1, 1, 2, 2, 3}));
}

TEST(Regather, KeptBlocksHaveOneTurn) {
  UOp a = parameter(7, 8, true), b = parameter(9, 8);
  Chain chain;
  chain << a << b << a;
  EXPECT_EQ(turns(gather_in_turns(std::vector{chain.x})), (std::vector<int64_t>{1, 2, 1}));
}

TEST(Regather, LittleInBetweenEndsNoTurn) {
  UOp a = parameter(7, 64), norm = parameter(9, 1);
  Chain chain;
  chain << a << norm << a;
  EXPECT_EQ(turns(gather_in_turns(std::vector{chain.x})), (std::vector<int64_t>{1, 2, 1}));
}

TEST(Regather, WhatIsComputedToBeSentIsComputedForEachTurn) {
  const GatherOnUse how{7, 1, false, {true}};
  UOp narrow = cast(leaf(7, 8), DType::BF16);
  UOp a = reshape(timed_gather(narrow, mesh(), 0, how, 0), Dims{16, 4});
  auto sum = [&](const UOp& x, ReduceOp op) {
    return binary(Op::Add, x, cast(reshape(reduce(op, a, Dims{0}), Dims{4}), DType::F32));
  };
  Chain chain;
  chain.x = sum(chain.x, ReduceOp::Sum);
  chain << parameter(9, 8);
  chain.x = sum(chain.x, ReduceOp::Max);
  std::vector<UOp> sent;
  const std::vector<UOp> gathered = gather_in_turns(std::vector{chain.x});
  for (const UOp& x : toposort(gathered)) {
    if (gather_time(x).turn && x.dtype() == DType::BF16) sent.push_back(x.src(0));
  }
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_FALSE(sent[0] == sent[1]);
  EXPECT_EQ(sent[0].src(0), sent[1].src(0));
}

TEST(Regather, AViewThatIsAResultIsGatheredToo) {
  UOp a = parameter(7, 8);
  std::vector<UOp> made = gather_in_turns(std::vector{a});
  EXPECT_EQ(gather_time(under_views(made[0])).turn, 1);
}

TEST(Regather, OtherGraphsStayAsTheyAre) {
  std::vector<UOp> roots{read(reshape(leaf(1, 1), Dims{4}), leaf(2, 8), ReduceOp::Sum)};
  EXPECT_EQ(gather_in_turns(roots), roots);
}

}  // namespace
}  // namespace tinyshard::regather_test
