// Independent kernels in one launch: which join, and that each still does what it did.
#include <functional>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/exec/executable.h"
#include "core/exec/explain.h"
#include "core/exec/make_executable.h"
#include "core/exec/state.h"
#include "core/exec/storage.h"
#include "core/schedule/horizontal.h"
#include "multi/rewrite.h"

namespace tinyshard::join_test {
namespace {

std::vector<UOp> nodes(const std::vector<Tensor>& tensors) {
  std::vector<UOp> roots;
  for (const Tensor& t : tensors) roots.push_back(t.uop());
  return without_names(roots);
}

Schedule joined(const std::vector<Tensor>& tensors) {
  std::vector<UOp> roots = nodes(tensors);
  std::vector<Sharding> shardings(roots.size(), replicated(default_mesh()));
  return make_schedule(roots, shardings, {.join_kernels = true});
}

// Returns the values that the joined schedule computes.
std::vector<std::vector<float>> values(const std::vector<Tensor>& tensors) {
  std::vector<Sharding> shardings(tensors.size(), replicated(default_mesh()));
  std::vector<Dims> shapes;
  for (const Tensor& t : tensors) shapes.push_back(t.shape());
  Executable executable(joined(tensors), false);
  executable.prepare(shardings, shapes);
  executable.run();
  std::vector<std::vector<float>> all;
  for (const auto& storage : executable.roots())
    all.push_back(Tensor(buffer_node(storage)).to_vector<float>());
  return all;
}

Tensor data(const Ints& shape) { return Tensor::randn(shape).realize(); }

TEST(JoinTest, LikeKernelsRunTogether) {
  using Make = std::function<Tensor()>;
  for (const Make& make : {Make([] { return data({333}).exp(); }),
                           Make([] { return data({30, 40}).transpose(0, 1).tanh().contiguous(); }),
                           Make([] { return data({70, 50}).softmax(); }),
                           Make([] { return data({1000}).square().sum(); })}) {
    std::vector<Tensor> results;
    for (int i = 0; i < 5; ++i) results.push_back(make());
    EXPECT_EQ(summarize(joined(results)).kernels, 1);
    std::vector<std::vector<float>> together = values(results);
    for (size_t i = 0; i < results.size(); ++i)
      EXPECT_EQ(together[i], results[i].to_vector<float>()) << i;
  }
}

// As a sharded optimizer has them: a part of the state is written, and of the parameter sent.
TEST(JoinTest, UpdatesOfPartsRunTogether) {
  Mesh mesh = Mesh::of({"CPU:0", "CPU:1"});
  const std::vector<AxisPlacement> rows{{mesh.axes()[0].name, Shard(0)}};
  std::vector<Tensor> roots;
  for (int i = 0; i < 5; ++i) {
    Tensor parameter = data({400, 100}).shard(mesh).clone().realize();
    Tensor state = data({400, 100}).shard(mesh, rows).clone().realize();
    Tensor gradient =
        data({400, 8}).shard(mesh, rows).realize().matmul(data({8, 100}).shard(mesh).realize());
    state.assign(state + gradient);
    parameter.assign((parameter.shard_like(gradient) - state).shard_like(parameter));
    roots.insert(roots.end(), {state, parameter});
  }
  LocalGraph local = to_local(nodes(roots));
  Schedule schedule = make_schedule(
      local.graph, local.shardings,
      {.library_supports = [](const LibraryCall&) { return true; }, .join_kernels = true});
  EXPECT_EQ(summarize(schedule).library_calls, 5);
  EXPECT_EQ(summarize(schedule).kernels, 1);
  EXPECT_EQ(summarize(schedule).collectives, 1);
}

TEST(JoinTest, OthersStayApart) {
  std::vector<Tensor> results;
  for (int64_t n : {1, 5, 100}) results.push_back(data({n}) * 2);
  results.push_back(data({100}).exp());
  EXPECT_EQ(summarize(joined(results)).kernels, 4);
}

TEST(JoinTest, AreOfALimitedSize) {
  std::vector<Tensor> results;
  for (int64_t n = 0; n < 40; ++n) results.push_back(data({50}) * 2);
  int64_t kernels = summarize(joined(results)).kernels;
  EXPECT_GE(kernels, 3);
  EXPECT_LE(kernels, 8);
}

// x is there until the last of what is made from it; joined with the sum of another such value, it
// would be there until that one is as well.
TEST(JoinTest, NothingIsKeptLonger) {
  Tensor x = data({1 << 17}).exp().contiguous(), y = (data({1 << 17}) + x.sum()).contiguous();
  Tensor a = x.max(), b = y.max();
  int64_t kernels = summarize(joined({a + b})).kernels;
  EXPECT_GE(kernels, 4);
  float want = (a + b).item<float>();
  EXPECT_NEAR(values({a + b})[0][0], want, 1e-4f * want);
}

TEST(JoinTest, UpdatesInPlaceRunTogether) {
  Tensor a = data({2000}).clone().realize(), b = data({2000}).clone().realize();
  std::vector<float> want_a = (a * 2).to_vector<float>(), want_b = (b * 3).to_vector<float>();
  Tensor stored_a(a.uop()), stored_b(b.uop());
  std::vector<Tensor> updates{a.assign(a * 2), b.assign(b * 3)};
  EXPECT_EQ(summarize(joined(updates)).kernels, 1);
  values(updates);  // runs them once
  EXPECT_EQ(stored_a.to_vector<float>(), want_a);
  EXPECT_EQ(stored_b.to_vector<float>(), want_b);
}

}  // namespace
}  // namespace tinyshard::join_test
