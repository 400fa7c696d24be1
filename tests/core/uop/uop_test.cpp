#include "core/uop/uop.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

UOp buffer(int64_t id, DimSpan shape = {}, DType d = DType::F32) {
  Dims arg{id};
  arg.insert(arg.end(), shape.begin(), shape.end());
  return UOp::make(Op::Buffer, d, {}, arg);
}

TEST(Interning, EqualNodesAreOneNode) {
  UOp a = buffer(1), b = buffer(2);
  EXPECT_EQ(binary(Op::Add, a, b).get(), binary(Op::Add, a, b).get());
  UOp kept = binary(Op::Add, a, b);
  EXPECT_EQ(binary(Op::Add, a, b), kept);
  EXPECT_FALSE(binary(Op::Add, b, a) == kept) << "order of sources counts";
  EXPECT_FALSE(binary(Op::Mul, a, b) == kept);
  EXPECT_FALSE(buffer(3) == a);
  EXPECT_FALSE(buffer(1, {}, DType::I32) == a);
  EXPECT_EQ(const_float(DType::F32, 2), const_float(DType::F32, 2));
  EXPECT_FALSE(const_float(DType::F32, 2) == const_float(DType::F32, 2, Dims{3}));
  EXPECT_FALSE(const_float(DType::F32, 0.0) == const_float(DType::F32, -0.0));
}

TEST(Interning, DropsNodesWithTheirLastReference) {
  size_t before = live_nodes();
  {
    UOp a = buffer(1), b = unary(Op::Neg, a);
    EXPECT_EQ(live_nodes(), before + 2);
    UOp copy = b, moved = std::move(b);
    EXPECT_FALSE(bool(b));  // NOLINT(bugprone-use-after-move): empty is what it must be
    a = UOp();
    EXPECT_EQ(live_nodes(), before + 2) << "a source lives as long as its user";
    copy = moved;
    moved = UOp();
    EXPECT_EQ(live_nodes(), before + 2);
    UOp& self = copy;
    copy = self;
    EXPECT_EQ(copy.op(), Op::Neg);
  }
  EXPECT_EQ(live_nodes(), before);
}

TEST(Interning, ANodeMadeAgainIsANewNode) {
  uint64_t id = buffer(1)->id;
  EXPECT_GT(buffer(1)->id, id);
}

// A few users are known by their source, all others by a table.
TEST(Interning, FindsAnyNumberOfUsersOfASource) {
  size_t before = live_nodes();
  {
    constexpr int64_t kUsers = 40;
    const UOp x = buffer(1, Dims{kUsers});
    auto slice = [&](int64_t i) { return shrink(x, Dims{i, i + 1}); };
    std::vector<UOp> slices;
    for (int64_t i = 0; i < kUsers; ++i) slices.push_back(slice(i));
    EXPECT_EQ(live_nodes(), before + 1 + kUsers);
    // Some of both go, others take their places.
    for (size_t i = 0; i < kUsers; i += 3) slices[i] = UOp();
    for (size_t i = 0; i < kUsers; i += 2) slices[i] = slice(int64_t(i));
    for (size_t i = 0; i < kUsers; ++i) {
      if (slices[i]) {
        EXPECT_EQ(slice(int64_t(i)), slices[i]);
      }
    }
  }
  EXPECT_EQ(live_nodes(), before);
}

TEST(Interning, DropsLongChainsWithoutRecursion) {
  size_t before = live_nodes();
  UOp x = buffer(1);
  for (int i = 0; i < 1000000; ++i) x = unary(Op::Neg, x);
  EXPECT_EQ(live_nodes(), before + 1000001);
  x = UOp();
  EXPECT_EQ(live_nodes(), before);
}

TEST(Interning, ManyThreadsMakeTheSameGraph) {
  size_t before = live_nodes();
  {
    constexpr int kThreads = 8, kNodes = 2000;
    std::vector<std::vector<UOp>> made(kThreads);
    std::vector<std::thread> threads;
    UOp leaf = buffer(1);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        UOp x = leaf;
        for (int i = 0; i < kNodes; ++i) {
          x = binary(Op::Add, x, const_float(DType::F32, i % 37));
          unary(Op::Sqrt, x);  // dropped at once, while others may be finding it
          made[t].push_back(x);
        }
      });
    }
    for (std::thread& t : threads) t.join();
    for (int t = 1; t < kThreads; ++t) EXPECT_EQ(made[t], made[0]);
  }
  EXPECT_EQ(live_nodes(), before);
}

TEST(Interning, ThreadsDropAndFindTheSameNode) {
  size_t before = live_nodes();
  {
    UOp leaf = buffer(1);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 20000; ++i) {
          UOp x = unary(Op::Neg, unary(Op::Sqrt, leaf));
          if (x.op() != Op::Neg || x.src(0).src(0) != leaf) ++wrong;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong, 0);
  }
  EXPECT_EQ(live_nodes(), before);
}

TEST(Interning, PayloadsLiveAsLongAsTheirNode) {
  auto storage = std::make_shared<int>(7);
  std::weak_ptr<int> watch = storage;
  UOp a = UOp::make(Op::Buffer, DType::F32, {}, Dims{77}, storage);
  storage.reset();
  EXPECT_FALSE(watch.expired());
  UOp user = unary(Op::Neg, a);
  a = UOp();
  EXPECT_FALSE(watch.expired());
  user = UOp();
  EXPECT_TRUE(watch.expired());
}

TEST(Nodes, RefuseWhatBreaksTheirRules) {
  UOp a = buffer(1, Dims{2, 3}), b = buffer(2, Dims{3, 2});
  try {
    binary(Op::Add, a, b);
    ADD_FAILURE();
  } catch (const InternalError& e) {
    std::string what = e.what();
    EXPECT_NE(what.find("add"), std::string::npos) << what;
    EXPECT_NE(what.find("[2, 3]"), std::string::npos) << what;
    EXPECT_NE(what.find("[3, 2]"), std::string::npos) << what;
  }
  EXPECT_THROW(binary(Op::Add, a, buffer(3, Dims{2, 3}, DType::I32)), InternalError);
  EXPECT_THROW(where(a, a, a), InternalError);
  EXPECT_THROW(UOp::make(Op::Add, DType::F32, {a}), InternalError);
  EXPECT_THROW(UOp::make(Op::Neg, DType::F32, {UOp()}), InternalError);
}

TEST(Nodes, WithOtherSources) {
  UOp a = buffer(1), b = buffer(2), c = buffer(3, {}, DType::I32);
  UOp x = binary(Op::Add, a, b);
  std::vector<UOp> same{a, b}, ints{c, c};
  EXPECT_EQ(x.with_src(same), x);
  EXPECT_EQ(x.with_src(ints).dtype(), DType::I32);
  std::vector<UOp> one{c};
  EXPECT_EQ(cast(a, DType::F64).with_src(one), cast(c, DType::F64));
  UOp less = binary(Op::CmpLt, a, b);
  EXPECT_EQ(less.with_src(ints).dtype(), DType::Bool);
  UOp chosen = where(less, a, b);
  std::vector<UOp> other{less, c, c};
  EXPECT_EQ(chosen.with_src(other).dtype(), DType::I32);
}

TEST(Constants, KeepTheirValue) {
  EXPECT_EQ(const_as_double(const_float(DType::F64, 0.1)), 0.1);
  EXPECT_EQ(const_as_int(const_int(DType::I8, 300)), 44);
  EXPECT_EQ(const_as_int(const_int(DType::I8, 200)), -56);
  EXPECT_EQ(const_as_int(const_int(DType::U8, -1)), 255);
  EXPECT_EQ(const_as_int(const_int(DType::U32, -1)), 4294967295);
  EXPECT_EQ(const_as_double(const_int(DType::U64, -1)), 18446744073709551615.0);
  EXPECT_EQ(const_as_int(const_int(DType::Bool, 5)), 1);
  EXPECT_EQ(const_int(DType::I8, 300), const_int(DType::I8, 44));
  EXPECT_EQ(const_int(DType::F32, 3), const_float(DType::F32, 3));
  EXPECT_EQ(const_float(DType::I32, 3.9), const_int(DType::I32, 3));
  UOp x = buffer(1, Dims{2}, DType::F64);
  EXPECT_EQ(const_like(x, 5), const_float(DType::F64, 5, Dims{2}));
  EXPECT_TRUE(is_const(index_const(4), 4));
  EXPECT_FALSE(is_const(x));
  EXPECT_TRUE(is_const(const_float(DType::F16, 4), 4));
}

TEST(Builders, FoldWhatChangesNothing) {
  Dims shape{2, 3};
  UOp x = buffer(1, shape);
  EXPECT_EQ(reshape(x, shape), x);
  EXPECT_EQ(reshape(reshape(x, Dims{6}), shape), x);
  EXPECT_EQ(expand(x, shape), x);
  EXPECT_EQ(permute(x, Dims{0, 1}), x);
  EXPECT_EQ(permute(permute(x, Dims{1, 0}), Dims{1, 0}), x);
  EXPECT_EQ(pad(x, Dims{0, 0, 0, 0}), x);
  EXPECT_EQ(shrink(x, Dims{0, 2, 0, 3}), x);
  EXPECT_EQ(flip(x, Dims{}), x);
  EXPECT_EQ(reduce(ReduceOp::Sum, x, Dims{}), x);
  EXPECT_EQ(cast(x, DType::F32), x);
  UOp y = buffer(2, Dims{2, 3, 4});
  UOp turned = permute(permute(y, Dims{1, 2, 0}), Dims{2, 0, 1});
  EXPECT_EQ(turned, y);
  EXPECT_EQ(reduce(ReduceOp::Sum, y, Dims{2, 0}), reduce(ReduceOp::Sum, y, Dims{0, 2}));
}

TEST(Builders, MoveConstantsAsValues) {
  UOp one = const_float(DType::F32, 1, Dims{1, 3});
  EXPECT_EQ(expand(one, Dims{2, 3}), const_float(DType::F32, 1, Dims{2, 3}));
  EXPECT_EQ(reshape(one, Dims{3}), const_float(DType::F32, 1, Dims{3}));
  EXPECT_EQ(permute(one, Dims{1, 0}), const_float(DType::F32, 1, Dims{3, 1}));
  EXPECT_EQ(shrink(one, Dims{0, 1, 0, 2}), const_float(DType::F32, 1, Dims{1, 2}));
  EXPECT_EQ(flip(one, Dims{1}), one);
  EXPECT_EQ(pad(one, Dims{0, 1, 0, 0}).op(), Op::Pad) << "what is added is zero, not one";
}

TEST(NodeMaps, HoldValuesByNode) {
  NodeMap<int> map(4);
  std::vector<UOp> nodes;
  for (int i = 0; i < 1000; ++i) nodes.push_back(index_const(i));
  for (int i = 0; i < 1000; ++i) map[nodes[i]] = i;
  EXPECT_EQ(map.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(map.at(nodes[i]), i);
  EXPECT_FALSE(map.contains(index_const(1000)));
  EXPECT_EQ(map.find(index_const(-1)), nullptr);
  map[nodes[3]] = 33;
  EXPECT_EQ(map.at(nodes[3]), 33);
  EXPECT_EQ(map.size(), 1000u);
}

TEST(ConvArgs, GoThroughIntegers) {
  ConvArg arg{{1, 2}, {3, 4}, {5, 6}, {7, 8}, 2, {9, 10, 11, 12}};
  UOp x = buffer(1, Dims{9, 4, 8, 8}), w = buffer(2, Dims{10, 2, 3, 3});
  UOp conv = UOp::make(Op::Conv, DType::F32, {x, w}, to_ints(arg));
  ConvArg back = conv_arg(*conv);
  EXPECT_EQ(back.stride[1], 2);
  EXPECT_EQ(back.pad_high[0], 7);
  EXPECT_EQ(back.groups, 2);
  EXPECT_EQ(to_string(conv.shape()), "[9, 10, 11, 12]");
}

TEST(Constants, HaveShapesOfAnyRank) {
  for (size_t rank : {0, 1, 7, 8, 9, 40}) {
    Dims shape(rank, 1);
    if (rank > 0) shape.back() = 3;
    const UOp x = const_float(DType::F32, 2.5, shape);
    EXPECT_TRUE(std::ranges::equal(x.shape(), shape)) << rank;
    EXPECT_EQ(const_as_double(x), 2.5) << rank;
    EXPECT_EQ(x, const_float(DType::F32, 2.5, shape)) << rank;
  }
}

}  // namespace
}  // namespace tinyshard
