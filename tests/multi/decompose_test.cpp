// Decompositions on meshes: each device decomposes its matrices and sends nothing, divided matrices
// are gathered, and those of devices without a library go to a CPU and back.
#include <cmath>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <gtest/gtest.h>

#include "core/exec/executable.h"
#include "core/exec/make_executable.h"
#include "core/exec/state.h"
#include "core/exec/storage.h"
#include "core/schedule/schedule.h"
#include "core/uop/args.h"
#include "multi/rewrite.h"
#include "tests/multi/bytes.h"
#include "tests/multi/one_device.h"

namespace tinyshard::decompose_test {
namespace {

Tensor matrices(const Dims& shape, int seed) {
  std::vector<double> values(size_t(product(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 3 * std::sin(double(i * i + 7 * i) + seed);
  return Tensor(values, shape).cast(DType::F32).realize();
}

std::vector<Tensor> factors(const Tensor& x) {
  const auto [q, r] = x.qr();
  const Tensor::Svd full = x.svd(), reduced = x.svd(false);
  return {q, r, full.u, full.s, full.vt, reduced.u, reduced.vt};
}

struct Lying {
  std::string name;
  std::vector<MeshAxis> axes;
  std::vector<AxisPlacement> place;
};

std::vector<Lying> placements() {
  std::vector<Lying> all;
  for (int64_t n : {1, 3, 4}) {
    const std::string on = "_on_" + std::to_string(n);
    const std::vector<MeshAxis> axes{{"data", n}};
    all.push_back({"replicated" + on, axes, {}});
    for (int dim = 0; dim < 4; ++dim)
      all.push_back({"dim_" + std::to_string(dim) + on, axes, {{"data", Shard(dim)}}});
  }
  const std::vector<MeshAxis> grid{{"r", 2}, {"c", 2}};
  all.push_back({"batch_on_2x2", grid, {{"r", Shard(0)}, {"c", Shard(1)}}});
  all.push_back({"one_dim_on_2x2", grid, {{"r", Shard(0)}, {"c", Shard(0)}}});
  all.push_back({"batch_and_rows_on_2x2", grid, {{"r", Shard(0)}, {"c", Shard(2)}}});
  return all;
}

void PrintTo(const Lying& lying, std::ostream* out) { *out << lying.name; }

using DecomposeTest = OnDevices<4, testing::TestWithParam<Lying>>;

TEST_P(DecomposeTest, GivesTheBitsOfOneDevice) {
  const Mesh mesh(GetParam().axes);
  for (const Dims& shape : {Dims{4, 2, 3, 3}, Dims{5, 3, 4, 2}, Dims{3, 4, 2, 5}}) {
    const Tensor x = matrices(shape, 1), there = x.shard(mesh, GetParam().place).realize();
    const std::vector<Tensor> want = factors(x), got = factors(there);
    for (size_t i = 0; i < want.size(); ++i) expect_same(got[i], want[i], 0, std::to_string(i));
  }
}

TEST_P(DecomposeTest, ACapturedStepGivesTheBitsOfOneDevice) {
  const Mesh mesh(GetParam().axes);
  Jit step = [](const Tensor& x) { return factors(x * 2); };
  for (int seed = 0; seed < 3; ++seed) {
    const Tensor x = matrices({5, 2, 4, 3}, seed);
    const std::vector<Tensor> want = factors(x * 2),
                              got = step(x.shard(mesh, GetParam().place).realize());
    for (size_t i = 0; i < want.size(); ++i) expect_same(got[i], want[i], 0, std::to_string(i));
  }
}

INSTANTIATE_TEST_SUITE_P(Placements, DecomposeTest, testing::ValuesIn(placements()),
                         [](const auto& info) { return info.param.name; });

using DecomposePending = OnDevices<4, testing::Test>;

TEST_F(DecomposePending, SumsAreCompletedFirst) {
  const Mesh mesh({{"data", 4}});
  const Tensor x = matrices({8, 3, 4}, 2), there = x.shard(mesh, {{"data", Shard(0)}}).realize();
  // Another order of the sum has other roundings: these are sums of whole numbers.
  const Tensor want = x.trunc().sum(0), pending = there.trunc().sum(0);
  expect_same(pending.qr().second, want.qr().second, 0, "R");
  expect_same(pending.svd().s, want.svd().s, 0, "S");
}

TEST_F(DecomposePending, MatricesOfEachDeviceInsideOfShardMap) {
  const Mesh mesh({{"data", 4}});
  const Tensor x = matrices({8, 3, 4}, 3), there = x.shard(mesh, {{"data", Shard(0)}}).realize();
  auto step = shard_map(mesh, [](Tensor part) { return part.qr().second; },
                        {.in = {{{"data", Shard(0)}}}, .out = {{{"data", Shard(0)}}}});
  expect_same(step(there), x.qr().second, 0, "R");
}

// How matrices go from GPUs to the CPUs beside them and back: here other devices are the CPUs.
TEST(DecomposeBeside, EachDeviceGetsWhatTheOneInItsPlaceHas) {
  Runtime::shutdown();
  const Mesh from = Mesh::of({"CPU:0", "CPU:1", "CPU:2"}),
             to = Mesh::of({"CPU:5", "CPU:4", "CPU:3"});
  const std::vector<AxisPlacement> rows{{"data", Shard(0)}};
  const Tensor x = matrices({6, 4, 3}, 1), there = x.shard(from, rows).realize();
  const auto copied = [](const UOp& v, const Mesh& mesh) {
    return UOp::make(Op::CopyIn, v.dtype(), {v}, Dims{kFromItsPlace}, mesh.payload());
  };
  const std::vector<UOp> global{there.uop()};
  const LocalGraph local = to_local(without_names(global), Planning::Alone);
  const UOp brought = copied(local.graph.roots()[0], to);
  const UOp r =
      UOp::make(Op::Decompose, brought.dtype(), {brought}, to_ints(DecomposeArg{Factor::R, true}));
  const std::vector<UOp> roots{brought, copied(r, from)};
  const std::vector<Sharding> shardings{{to, {Shard(0)}}, {from, {Shard(0)}}};
  Executable executable(make_schedule(roots, shardings, {}), false);
  executable.prepare(shardings, std::vector<Dims>{x.shape(), x.shape()});
  for (int run = 0; run < 2; ++run) {
    executable.run();
    const auto& results = executable.roots();
    expect_same(Tensor(buffer_node(results[0])), x, 0, "the matrices");
    expect_same(Tensor(buffer_node(results[1])), x.qr().second, 0, "R");
  }
}

class DecomposeBytes : public test::Planned {};

TEST_F(DecomposeBytes, MatricesOfADividedBatchStayWhereTheyLie) {
  for (int n : {1, 3, 4}) {
    devices(n);
    const Tensor x = split({12, 6, 6}, 0), uneven = split({7, 2, 3, 5}, 0);
    EXPECT_EQ(sent(factors(x)), 0) << n;
    EXPECT_EQ(sent(factors(uneven)), 0) << n;
    EXPECT_EQ(sent(split({3, 12, 6, 6}, 1).svd().s), 0) << n;
    EXPECT_EQ(summarize(factors(x)).library_calls, 1) << n;
  }
  devices(2, 2);
  EXPECT_EQ(sent(factors(stored({4, 6, 3, 3}, {Shard(0), Shard(1)}))), 0);
  EXPECT_EQ(sent(factors(stored({8, 3, 3}, {Shard(0), Shard(0)}))), 0);
}

// Once for all factors.
TEST_F(DecomposeBytes, DividedMatricesAreGathered) {
  devices(4);
  const double bytes = 3.0 / 4 * (8 * 16 * 16 * 4);
  for (int dim : {1, 2}) {
    const int64_t all = sent(factors(split({8, 16, 16}, dim)));
    EXPECT_GT(all, 0) << dim;
    EXPECT_LE(all, bound(bytes)) << dim;
  }
}

// Kinds of devices of the library calls of a plan.
std::vector<std::string> kinds_of_calls(const std::vector<Tensor>& values) {
  std::vector<UOp> roots;
  for (const Tensor& x : values) roots.push_back(x.uop());
  std::vector<std::string> kinds;
  for (const Item& item : make_plan(roots).items) {
    if (item.kind == Item::Kind::Library) kinds.push_back(item.mesh.devices()[0].kind);
  }
  return kinds;
}

class DecomposeElsewhere : public testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL_H200"}, .devices_per_rank = 4});
  }
  void TearDown() override { Runtime::shutdown(); }
};

TEST_F(DecomposeElsewhere, ACpuDecomposesForADeviceWithoutALibrary) {
  const std::vector<std::string> one_call{"CPU"};
  const Tensor x = Tensor::empty({3, 4, 4}).realize();
  EXPECT_EQ(kinds_of_calls(factors(x)), one_call);
  // The matrices, and seven factors that come back.
  EXPECT_EQ(summarize(factors(x)).copies, 8);
  EXPECT_EQ(kinds_of_calls(factors(Tensor::eye(3))), one_call);
  // The factors of constants lie where these would, too.
  EXPECT_EQ(kinds_of_calls({x[{0}] + Tensor::eye(4).qr().second}), one_call);
  EXPECT_EQ(kinds_of_calls({x[{0}] + Tensor::eye(4).to("CPU:1").qr().second.to("NULL_H200:0")}),
            one_call);
  const Mesh mesh({{"data", 4}});
  const Tensor divided =
      Tensor::zeros({8, 4, 4}).contiguous().shard(mesh, {{"data", Shard(0)}}).realize();
  EXPECT_EQ(kinds_of_calls(factors(divided)), one_call);
  // From device to device of one process, and so is nothing sent.
  EXPECT_EQ(summarize(factors(divided)).copies, 8);
  EXPECT_EQ(summarize(factors(divided)).collectives, 0);
}

TEST_F(DecomposeElsewhere, OtherOpsKeepTheirLibraries) {
  const Tensor x = Tensor::empty({64, 64}, DType::BF16).realize();
  const Tensor product = x.matmul(x);
  const std::vector<std::string> kinds = kinds_of_calls({product, product.qr().second.matmul(x)});
  EXPECT_EQ(std::ranges::count(kinds, "CPU"), 1);
  EXPECT_EQ(std::ranges::count(kinds, "NULL_H200"), 2);
}

TEST_F(DecomposeElsewhere, ACapturedStepIsPlanned) {
  Jit step = [](const Tensor& x) {
    const auto [q, r] = (x * 2).qr();
    return q.matmul(r) + 1;
  };
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(step(Tensor::empty({4, 4}).realize()).shape(), (Dims{4, 4}));
  const PlanSummary plan = summarize(step);
  EXPECT_EQ(plan.copies, 3);
}

}  // namespace
}  // namespace tinyshard::decompose_test
