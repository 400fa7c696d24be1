// Kernels that a program writes: values against those of methods, devices, captured steps, mistakes.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/devices.h"
#include "tests/message_of.h"
#include "tinyshard/tinyshard.h"
#include "tinyshard/uop.h"

namespace tinyshard::custom_kernel_test {
namespace {

using test::message_of;
using Floats = std::vector<float>;

Floats values(const Tensor& x) { return x.to_vector<float>(); }
Tensor counted(const Ints& shape) {
  int64_t n = 1;
  for (const int64_t d : shape.values) n *= d;
  return Tensor::arange(n).cast(DType::F32).reshape(shape);
}

// The sums of squares of the rows of a matrix.
Tensor row_squares(const Tensor& x) {
  return custom_kernel("row_squares", {x}, {x.shape(0)}, DType::F32, [&](KernelBuilder& k) {
    const UOp column = k.range(k.shape_of(0)[1]);
    const UOp v = k.load(0, {k.index(0), column});
    return k.fold(ReduceOp::Sum, v * v, {column});
  });
}

TEST(CustomKernel, ComputesElements) {
  const Tensor a = counted({3, 4}), b = counted({4, 3});
  const Tensor y =
      custom_kernel("add_transposed", {a, b}, {3, 4}, DType::F32, [](KernelBuilder& k) {
        const UOp i = k.index(0), j = k.index(1);
        return k.load(0, {i, j}) + k.load(1, {j, i}) * 2;
      });
  EXPECT_EQ(values(y), values(a + b.T() * 2));
}

TEST(CustomKernel, Folds) {
  const Tensor x = counted({5, 7}) * 0.25;
  EXPECT_EQ(values(row_squares(x)), values((x * x).sum(1)));
  const Tensor scaled = custom_kernel("softmax_max", {x}, {5, 7}, DType::F32, [](KernelBuilder& k) {
    const UOp j = k.range(7), row = k.index(0);
    const UOp most = k.fold(ReduceOp::Max, k.load(0, {row, j}), {j});
    return k.load(0, {row, k.index(1)}) / most;
  });
  EXPECT_EQ(values(scaled), values(x / x.max(1, true)));
  const Tensor total = custom_kernel("total", {x}, {}, DType::F32, [](KernelBuilder& k) {
    const UOp i = k.range(5), j = k.range(7);
    return k.fold(ReduceOp::Sum, k.load(0, {i, j}), {i, j});
  });
  EXPECT_EQ(total.shape(), Dims{});
  EXPECT_NEAR(total.item<float>(), x.sum().item<float>(), 1e-4);
}

TEST(CustomKernel, ReadsAtPlacesThatWereLoadedAndZeroOutside) {
  const Tensor table(Floats{10, 20, 30}), index(std::vector<int32_t>{2, 0, -1, 3, 1});
  const Tensor y = custom_kernel("lookup", {table, index}, {5}, DType::F32, [](KernelBuilder& k) {
    return k.load(0, {k.load(1, {k.index(0)})});
  });
  EXPECT_EQ(values(y), (Floats{30, 10, 0, 0, 20}));
  const Tensor shifted = custom_kernel("shifted", {table}, {5}, DType::F32, [](KernelBuilder& k) {
    return k.load(0, {k.index(0) - 1});
  });
  EXPECT_EQ(values(shifted), (Floats{0, 10, 20, 30, 0}));
}

// Composites of the tensor API are spelled, also within folds.
TEST(CustomKernel, TakesOpsOfTensors) {
  const Tensor x = Tensor({-1.0F, 2.0F, 3.0F, 0.5F}).reshape({2, 2});
  const Tensor sums = custom_kernel("gelu_sums", {x}, {2}, DType::F32, [](KernelBuilder& k) {
    const UOp column = k.range(2), v = k.load(0, {k.index(0), column});
    return k.fold(ReduceOp::Sum, graph_of(Tensor(v).gelu()), {column});
  });
  const std::vector<float> got = sums.to_vector<float>(),
                           wanted = x.gelu().sum(1).to_vector<float>();
  for (size_t i = 0; i < 2; ++i) EXPECT_FLOAT_EQ(got[i], wanted[i]);
}

TEST(CustomKernel, HasTypes) {
  const Tensor i(std::vector<int32_t>{7, -7, 9});
  const Tensor y = custom_kernel("halves", {i}, {3}, DType::I32,
                                 [](KernelBuilder& k) { return k.load(0, {k.index(0)}) / 2; });
  EXPECT_EQ(y.to_vector<int32_t>(), (std::vector<int32_t>{3, -3, 4}));
  const Tensor h = custom_kernel("narrow", {i}, {3}, DType::F16, [](KernelBuilder& k) {
    return choose(less(k.load(0, {k.index(0)}), 0), const_float(DType::F16, 0.5),
                  cast(k.load(0, {k.index(0)}), DType::F16));
  });
  EXPECT_EQ(values(h), (Floats{7, 0.5, 9}));
  const Tensor places = custom_kernel("places", {}, {2, 3}, DType::I64, [](KernelBuilder& k) {
    return cast(k.index(0) * 10 + k.index(1), DType::I64);
  });
  EXPECT_EQ(places.to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 2, 10, 11, 12}));
}

TEST(CustomKernel, OfNothing) {
  const Tensor none = custom_kernel("none", {counted({4})}, {0, 3}, DType::F32,
                                    [](KernelBuilder& k) { return k.load(0, {k.index(1)}); });
  EXPECT_EQ(values(none), Floats());
  const Tensor empty = Tensor::zeros({0});
  const Tensor sums = custom_kernel("of_empty", {empty}, {2}, DType::F32, [](KernelBuilder& k) {
    const UOp i = k.range(0);
    return k.fold(ReduceOp::Sum, k.load(0, {i}), {i}) + 5;
  });
  EXPECT_EQ(values(sums), (Floats{5, 5}));
}

TEST(CustomKernel, AmongOtherOpsIsALaunchOfItsOwn) {
  const Tensor x = counted({4, 8}).realize();
  const Tensor y = row_squares(x.exp2() * 0.01) * 2 + 1;
  const PlanSummary plan = summarize(y);
  EXPECT_EQ(plan.kernels, 3);
  const Tensor e = x.exp2() * 0.01;
  const Floats want = values((e * e).sum(1) * 2 + 1), got = values(y);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, 1e-5);
  EXPECT_NE(explain(row_squares(x), true).find("row_squares"), std::string::npos);
}

TEST(CustomKernel, OnShardedValues) {
  TINYSHARD_NEED_DEVICES(2);
  const Mesh mesh = Mesh::of(device_names(2), "d");
  const Tensor x = counted({6, 4});
  const Floats want = values((x * x).sum(1));
  for (const Placement& place : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate)}) {
    const Tensor s = x.shard(mesh, {{"d", place}}).realize();
    EXPECT_EQ(values(row_squares(s)), want);
    EXPECT_EQ(values(row_squares(s.sum(0, true)) + s.sum()),
              values(row_squares(x.sum(0, true)) + x.sum()));
  }
  auto f = shard_map(mesh, row_squares, {.in = {{{"d", Shard(0)}}}, .out = {{{"d", Shard(0)}}}});
  const Tensor y = f(x);
  EXPECT_EQ(values(y), want);
  EXPECT_EQ(y.sharding().placements[0], Placement(Shard(0)));
}

TEST(CustomKernel, InACapturedStep) {
  Jit step([](const Tensor& x) { return row_squares(x + 1) - 1; });
  for (int i = 0; i < 4; ++i) {
    const Tensor x = (counted({3, 2}) + i).realize();
    EXPECT_EQ(values(step(x)), values(((x + 1) * (x + 1)).sum(1) - 1));
  }
}

TEST(CustomKernel, HasTheGradientThatIsGivenWithIt) {
  auto cube = [](const Tensor& x) {
    return custom_kernel(
        "cube", {x}, x.shape(), DType::F32,
        [](KernelBuilder& k) {
          const UOp v = k.load(0, {k.index(0)});
          return v * v * v;
        },
        [](const Tensor& gradient, const std::vector<Tensor>& in) {
          return std::vector<Tensor>{gradient * in[0] * in[0] * 3};
        });
  };
  const Tensor x(Floats{1, 2, 3});
  EXPECT_EQ(values(cube(x).sum().gradient({x})[0]), (Floats{3, 12, 27}));
  TINYSHARD_NEED_DEVICES(3);
  const Mesh mesh = Mesh::of(device_names(3), "d");
  const Tensor s = x.shard(mesh, {{"d", Shard(0)}}).realize();
  EXPECT_EQ(values(cube(s).sum().gradient({s})[0]), (Floats{3, 12, 27}));
  const Tensor y = counted({2, 2});
  const std::string text = message_of<UserError>([&] { (void)row_squares(y).sum().gradient({y}); });
  EXPECT_NE(text.find("the kernel row_squares was given none"), std::string::npos) << text;
}

TEST(CustomKernelMistakes, NameTheKernel) {
  const Tensor x = counted({3, 4});
  auto error = [&](const KernelBody& body, const std::string& name = "mine",
                   DType dtype = DType::F32) {
    return message_of<UserError>([&] { (void)custom_kernel(name, {x}, {3}, dtype, body); });
  };
  auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  };
  const std::string text = error([](KernelBuilder& k) { return k.load(0, {k.index(0)}); });
  expect(text, "custom_kernel: mine: load: 1 places for input 0, which has 2 dims");
  expect(text, "custom_kernel_test.cpp:");
  expect(error([](KernelBuilder& k) { return k.load(1, {k.index(0)}); }), "input 1 of 1");
  expect(error([](KernelBuilder& k) { return k.index(1); }), "index(1) of a result of 1 dims");
  expect(error([](KernelBuilder& k) { return k.index(0); }), "an element of the result is f32[]");
  expect(error([](KernelBuilder&) { return UOp(); }), "null UOp");
  expect(error([](KernelBuilder& k) { return k.load(0, {k.index(0), k.range(4)}); }),
         "used outside of a fold");
  expect(error([&](KernelBuilder&) { return x.sum().uop(); }),
         "is no scalar: a kernel is made of single elements");
  expect(error([](KernelBuilder& k) {
           return k.fold(ReduceOp::Sum, k.load(0, {k.index(0), k.index(0)}),
                         {range(7, 3, RangeKind::Fold)});
         }),
         "no range of this kernel");
  expect(
      error([](KernelBuilder& k) { return k.load(0, {k.index(0), range(9, 3, RangeKind::Loop)}); }),
      "range of another kernel");
  expect(error([](KernelBuilder& k) {
           return binary(Op::Add, k.load(0, {k.index(0), k.index(0)}), const_float(DType::F64, 1));
         }),
         "mine: ");
  expect(error([](KernelBuilder& k) {
           return k.load(0, {k.load(0, {k.index(0), k.index(0)}), k.index(0)});
         }),
         "no Index or integer");
  expect(error([](KernelBuilder& k) { return k.load(0, {k.index(0), k.index(0)}); }, "a name"),
         "letters");
  expect(error([](KernelBuilder&) { return UOp::make(Op::Param, DType::F32, {}, Dims{0}); }),
         "is no element");
  expect(error([](KernelBuilder&) { return -UOp::make(Op::Param, DType::F32, {}, Dims{0}); }),
         "reads a whole input");
  expect(error([](KernelBuilder& k) {
           return UOp::make(Op::Fold, DType::F32, {k.load(0, {k.index(0), k.place(0)}), k.index(0)},
                            Dims{0});
         }),
         "no fold of this kernel");
  expect(error({}), "mine has no body");
}

}  // namespace
}  // namespace tinyshard::custom_kernel_test
