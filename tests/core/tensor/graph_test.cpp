// Graphs that the methods build, without running them: types, shapes, and no idle nodes.
#include "core/uop/graph.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/tensor/tensor.h"

namespace tinyshard::graph_test {
namespace {

UOp plain(const Tensor& x) { return without_names(std::span(&x.uop(), 1))[0]; }

size_t nodes(const Tensor& x) {
  UOp node = plain(x);
  return toposort(std::span(&node, 1)).size();
}

int64_t count(const Tensor& x, Op op) {
  std::vector<UOp> all = toposort(std::span(&x.uop(), 1));
  return std::ranges::count_if(all, [op](const UOp& u) { return u.op() == op; });
}

Tensor of(const Dims& shape, DType dtype = DType::F32) { return Tensor::empty(shape, dtype); }

TEST(Types, NumbersTakeTheTypeOfTheTensorTheyMeet) {
  Tensor i = of({2}, DType::I8), h = of({2}, DType::F16), b = of({2}, DType::Bool), f = of({2});
  EXPECT_EQ((i + 2).dtype(), DType::I8);
  EXPECT_EQ((2 * i).dtype(), DType::I8);
  EXPECT_EQ((i + 2.5).dtype(), DType::F32);
  EXPECT_EQ((h * 2.5).dtype(), DType::F16);
  EXPECT_EQ((1 - h).dtype(), DType::F16);
  EXPECT_EQ((b + 1).dtype(), DType::I32);
  EXPECT_EQ((b + true).dtype(), DType::Bool);
  EXPECT_EQ((i + true).dtype(), DType::I8);
  EXPECT_EQ((f + 1).dtype(), DType::F32);
  EXPECT_EQ((i + h).dtype(), DType::F16);
  EXPECT_EQ((of({2}, DType::I64) + of({2}, DType::U64)).dtype(), DType::F32);
  EXPECT_EQ((h + of({2}, DType::BF16)).dtype(), DType::F32);
  EXPECT_EQ((i / i).dtype(), DType::F32);
  EXPECT_EQ((i / 3).dtype(), DType::F32);
  EXPECT_EQ(i.floor_div(3).dtype(), DType::I8);
  EXPECT_EQ((i < 3).dtype(), DType::Bool);
  EXPECT_EQ(i.exp().dtype(), DType::F32);
  EXPECT_EQ(b.where(1, 2).dtype(), DType::I32);
  EXPECT_EQ(b.where(h, 2.0).dtype(), DType::F16);
}

TEST(Types, ReductionsWidenWhatWouldOverflow) {
  EXPECT_EQ(of({2}, DType::Bool).sum().dtype(), DType::I32);
  EXPECT_EQ(of({2}, DType::U8).sum().dtype(), DType::U32);
  EXPECT_EQ(of({2}, DType::F16).sum().dtype(), DType::F16);
  EXPECT_EQ(of({2}, DType::I8).prod().dtype(), DType::I8);
  EXPECT_EQ(of({2}, DType::I8).mean().dtype(), DType::F32);
  EXPECT_EQ(of({2}, DType::I8).max().dtype(), DType::I8);
  EXPECT_EQ(of({2}).argmax().dtype(), DType::I32);
  EXPECT_EQ(of({2}, DType::I8).sum(0, false, DType::I64).dtype(), DType::I64);
  // f16 is summed in f32.
  EXPECT_EQ(count(of({8}, DType::F16).sum(), Op::Cast), 2);
}

TEST(Types, DefaultFloatDecidesWhatNumbersBecome) {
  set_default_float(DType::F64);
  EXPECT_EQ((of({2}, DType::I32) + 0.5).dtype(), DType::F64);
  EXPECT_EQ(Tensor::zeros({2}).dtype(), DType::F64);
  EXPECT_EQ(Tensor::rand({2}).dtype(), DType::F64);
  EXPECT_EQ((Tensor{1.0, 2.0}).dtype(), DType::F64);
  set_default_float(DType::F32);
  EXPECT_EQ(Tensor::zeros({2}).dtype(), DType::F32);
  EXPECT_THROW(set_default_float(DType::I32), UserError);
}

// They accumulate in f32 inside: only the result is narrow, so that no wide one needs memory.
TEST(Types, ProductsOfNarrowFloatsAreNarrow) {
  Tensor p = of({3, 4}, DType::F16).matmul(of({4, 5}, DType::F16));
  EXPECT_EQ(p.dtype(), DType::F16);
  EXPECT_EQ(plain(p).op(), Op::Dot);
  EXPECT_EQ(plain(of({3, 4}, DType::I8).matmul(of({4, 5}, DType::I8))).op(), Op::Cast);
  EXPECT_EQ(plain(of({3, 4}, DType::F16).matmul(of({4, 5}, DType::F16), DType::F32)).op(), Op::Dot);
}

TEST(Shapes, FollowNumpy) {
  Tensor x = of({2, 3, 4});
  EXPECT_EQ((x + of({3, 1})).shape(), (Dims{2, 3, 4}));
  EXPECT_EQ((of({3, 1, 1}) * of({2, 4})).shape(), (Dims{3, 2, 4}));
  EXPECT_EQ(x.sum(1).shape(), (Dims{2, 4}));
  EXPECT_EQ(x.sum({0, -1}, true).shape(), (Dims{1, 3, 1}));
  EXPECT_EQ(x.sum().shape(), (Dims{}));
  EXPECT_EQ(x.reshape({-1, 6}).shape(), (Dims{4, 6}));
  EXPECT_EQ(x.permute({2, 0, 1}).shape(), (Dims{4, 2, 3}));
  EXPECT_EQ(x.transpose(-1, 0).shape(), (Dims{4, 3, 2}));
  EXPECT_EQ(x.T().shape(), (Dims{4, 3, 2}));
  EXPECT_EQ(x.flatten(1).shape(), (Dims{2, 12}));
  EXPECT_EQ(x.unsqueeze(-1).shape(), (Dims{2, 3, 4, 1}));
  EXPECT_EQ(x[0].shape(), (Dims{3, 4}));
  EXPECT_EQ((x[{kEllipsis, Slice(1, 3)}].shape()), (Dims{2, 3, 2}));
  EXPECT_EQ((x[{Slice(), kNewAxis, -1, Slice({}, {}, -2)}].shape()), (Dims{2, 1, 2}));
  EXPECT_EQ(x.matmul(of({2, 4, 5})).shape(), (Dims{2, 3, 5}));
  EXPECT_EQ(of({4}).matmul(of({4, 5})).shape(), (Dims{5}));
  EXPECT_EQ(of({4}).dot(of({4})).shape(), (Dims{}));
  EXPECT_EQ(of({2, 3, 9, 8}).conv2d(of({6, 3, 3, 3}), {}, {.stride = 2, .padding = {1, 0}}).shape(),
            (Dims{2, 6, 5, 3}));
  EXPECT_EQ(of({2, 3, 9, 8}).max_pool2d().shape(), (Dims{2, 3, 4, 4}));
  EXPECT_EQ(of({2, 3, 9, 8}).max_pool2d({3, 3}, {.stride = 2, .padding = 1}).shape(),
            (Dims{2, 3, 5, 4}));
  EXPECT_EQ(of({10, 4}).embedding(of({2, 5}, DType::I32)).shape(), (Dims{2, 5, 4}));
  EXPECT_EQ(of({5}, DType::I32).one_hot(7).shape(), (Dims{5, 7}));
  EXPECT_EQ(x.split({1, 2}, 1)[1].shape(), (Dims{2, 2, 4}));
  EXPECT_EQ(x.chunk(3, -1).size(), 2u);
  EXPECT_EQ(cat({x, x}, -1).shape(), (Dims{2, 3, 8}));
  EXPECT_EQ(stack({x, x}, -1).shape(), (Dims{2, 3, 4, 2}));
  EXPECT_EQ(Tensor::arange(1, 10, 3).shape(), (Dims{3}));
}

TEST(Graphs, HaveNoIdleNodes) {
  Tensor x = of({3, 4});
  EXPECT_TRUE(plain(x.reshape({3, 4})) == x.uop());
  EXPECT_TRUE(plain(x.reshape({12}).reshape({3, 4})) == x.uop());
  EXPECT_TRUE(plain(x.cast(DType::F32)) == x.uop());
  EXPECT_TRUE(plain(x.permute({1, 0}).permute({1, 0})) == x.uop());
  EXPECT_TRUE(plain(x.sum(Axes(Dims{}))) == x.uop());
  EXPECT_TRUE(plain(x.dropout(0.5)) == x.uop()) << "outside of training";
  EXPECT_TRUE(plain(x.contiguous()) == x.uop()) << "a buffer is contiguous";
  EXPECT_EQ(nodes(x + 1), 3u) << "a shaped constant, nothing expanded";
  EXPECT_EQ(nodes(x.relu()), 2u) << "a composite, until somebody spells it";
  EXPECT_TRUE(plain(x + 1) == plain(x + 1)) << "equal graphs are the same node";
  EXPECT_FALSE((x + 1).uop() == (x + 1).uop()) << "but two tensors to differentiate by";
}

TEST(Graphs, KeepWholeWhatLibrariesKnow) {
  Tensor x = of({2, 5, 4}), w = of({4, 3});
  EXPECT_EQ(count(x.linear(w, of({3})), Op::Dot), 1);
  EXPECT_EQ(count(x.matmul(w), Op::Expand), 0) << "a weight is not repeated for the batch";
  EXPECT_EQ(nodes(x.matmul(w)), 5u) << "two reshapes around one product";
  EXPECT_EQ(nodes(of({2, 3, 8, 8}).conv2d(of({4, 3, 3, 3}), {}, {.padding = 1})), 3u);
  EXPECT_EQ(count(of({2, 3, 8}).conv2d(of({4, 3, 3})), Op::Conv), 1);
  for (DType type : {DType::BF16, DType::F16}) {  // in their own type: no operand is widened
    Tensor image = of({2, 3, 8, 8}, type), kernel = of({4, 3, 3, 3}, type);
    for (const Tensor& y : {image.conv2d(kernel), image.conv2d(kernel, {}, {.dtype = type}),
                            of({2, 4, 8, 8}, type).conv_transpose2d(kernel)}) {
      EXPECT_EQ(y.dtype(), type);
      EXPECT_EQ(count(y, Op::Cast), 0);
    }
    EXPECT_EQ(count(image.conv2d(kernel, {}, {.dtype = DType::F32}), Op::Conv), 1);
    EXPECT_EQ(image.conv2d(kernel, {}, {.dtype = DType::F32}).dtype(), DType::F32);
  }
  EXPECT_EQ(count(of({10, 4}).embedding(of({6}, DType::I64)), Op::Gather), 1);
  Tensor loss = of({6, 10}).sparse_categorical_crossentropy(of({6}, DType::I64));
  EXPECT_EQ(count(loss, Op::Gather), 1);
  EXPECT_EQ(count(loss, Op::Iota), 0);
  EXPECT_EQ(count(of({1, 1, 8, 8}).max_pool2d(), Op::Expand), 0)
      << "windows that touch are a reshape";
}

TEST(Graphs, OfCommonLayersAreSmall) {
  Tensor x = of({8, 16});
  EXPECT_LE(nodes(x.softmax()), 12u);
  EXPECT_LE(nodes(x.log_softmax()), 14u);
  EXPECT_LE(nodes(x.layernorm()), 18u);
  EXPECT_LE(nodes(x.gelu()), 22u);
  EXPECT_LE(nodes(x.sigmoid()), 14u);
  EXPECT_LE(nodes(x.tanh()), 47u)
      << "a rational near zero, which keeps its sign and all derivatives, exponentials beyond";
}

TEST(Lookups, UnknownAndUndefined) {
  Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(none.describe(), "no tensor");
  EXPECT_THROW(none.shape(), UserError);
  EXPECT_THROW(of({2}) + none, UserError);
}

}  // namespace
}  // namespace tinyshard::graph_test
