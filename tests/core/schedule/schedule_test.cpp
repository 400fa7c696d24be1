// Promises of the scheduler: few kernels for the usual layers, right order of reads and writes,
// one collective for many gradients, and a length that does not grow with the mesh.
#include <algorithm>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "core/exec/explain.h"
#include "core/exec/make_executable.h"
#include "core/exec/schedule_of.h"
#include "core/schedule/task.h"

namespace tinyshard::schedule_test {
namespace {

class ScheduleTest : public testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override { Runtime::shutdown(); }
};

PlanSummary plan(const std::vector<Tensor>& tensors) {
  std::vector<UOp> roots;
  for (const Tensor& t : tensors) roots.push_back(t.uop());
  return summarize(make_plan(roots));
}

Tensor data(const Ints& shape) { return Tensor::randn(shape).realize(); }

TEST_F(ScheduleTest, SoftmaxIsOneKernelEachWay) {
  Tensor x = data({64, 256}), g = data({64, 256});
  EXPECT_EQ(plan({x.softmax()}).kernels, 1);
  EXPECT_LE(plan(x.softmax().gradient({x}, g)).kernels, 2);
}

TEST_F(ScheduleTest, LayernormIsAtMostTwoKernelsEachWay) {
  Tensor x = data({64, 256}), g = data({64, 256}), w = data({256}), b = data({256});
  auto y = [&] { return x.layernorm() * w + b; };
  EXPECT_EQ(plan({y()}).kernels, 1);
  EXPECT_LE(plan(y().gradient({x}, g)).kernels, 2);
  // With the gradients of scale and shift: one kernel over rows, one over columns, and the row
  // statistics that both read.
  EXPECT_LE(plan(y().gradient({x, w, b}, g)).kernels, 2);
}

TEST_F(ScheduleTest, CrossEntropyIsAtMostTwoKernelsEachWay) {
  Tensor x = data({64, 256}), labels = Tensor::randint({64}, 0, 256).realize();
  EXPECT_LE(plan({x.sparse_categorical_crossentropy(labels)}).kernels, 2);
  EXPECT_LE(plan(x.sparse_categorical_crossentropy(labels).gradient({x})).kernels, 2);
}

TEST_F(ScheduleTest, ElementwiseChainsAreOneKernel) {
  Tensor x = data({100, 30});
  EXPECT_EQ(plan({((x * 2 + 1).relu() - x.tanh()).exp().transpose(0, 1).contiguous()}).kernels, 1);
}

// Where nothing is summed; and what only reads the same stays apart, as the copy may be wanted long
// before it.
TEST_F(ScheduleTest, AValueAndItsTransposeAreOneKernel) {
  Tensor x = data({128, 128}), y = x.exp(), sums = x.softmax();
  Tensor turned = y.transpose(0, 1).contiguous();
  EXPECT_EQ(plan({y, turned}).kernels, 1);
  EXPECT_EQ(plan({y, turned, x * 2}).kernels, 2);
  EXPECT_EQ(plan({y, x * 2}).kernels, 1);
  EXPECT_EQ(plan({sums, sums.transpose(0, 1).contiguous()}).kernels, 2);
}

// Gradients of weights that are summed over devices: nothing stands between the products and the
// collective.
TEST_F(ScheduleTest, ProductsStoreWhatACollectiveSends) {
  Runtime::configure({.devices = {"NULL:0", "NULL:1"}});
  Mesh mesh = Mesh::of({"NULL:0", "NULL:1"});
  auto empty = [&](const Ints& shape) { return Tensor::empty(shape).shard(mesh).realize(); };
  Tensor y =
      empty({4096, 32}).shard(mesh, {{"data", Shard(0)}});  // too many to be gathered instead
  std::vector<Tensor> weights;
  for (int layer = 0; layer < 3; ++layer) {
    weights.push_back(empty({32, 32}));
    y = y.matmul(weights.back()).tanh();
  }
  for (DType sent_as : {DType::F32, DType::BF16}) {
    std::vector<UOp> roots;
    for (const Tensor& g : y.square().sum().gradient(weights))
      roots.push_back(g.cast(sent_as).shard(mesh).uop());
    Schedule s = make_plan(roots);
    auto stored_by_product = [&](int b) {
      return std::ranges::any_of(s.items, [&](const Item& item) {
        return item.kind == Item::Kind::Library && std::ranges::count(item.writes, b) > 0;
      });
    };
    int sent = 0;
    for (const Item& item : s.items) {
      if (item.kind != Item::Kind::Collective) continue;
      for (int b : item.reads) {
        EXPECT_TRUE(stored_by_product(b)) << name(sent_as);
        ++sent;
      }
    }
    EXPECT_EQ(sent, 3);
  }
}

// The step of SGD of a first layer, whose weight nobody reads by then.
TEST_F(ScheduleTest, ProductsUpdateAWeightInPlace) {
  Runtime::configure({.devices = {"NULL:0"}});
  Tensor x = data({64, 32}), w = data({32, 48}), rate = Tensor::full({}, 0.1).clone().realize();
  Tensor gradient = x.matmul(w).square().sum().gradient({w})[0];
  w.assign(w - gradient * rate);
  std::vector<UOp> roots{w.uop()};
  Schedule s = make_plan(roots);
  int weight = -1;
  for (int b = 0; b < int(s.buffers.size()); ++b) {
    if (s.buffers[b].storage && s.buffers[b].shape == Dims{32, 48}) weight = b;
  }
  ASSERT_GE(weight, 0);
  const Item& last = s.items.back();
  EXPECT_EQ(last.kind, Item::Kind::Library) << last.describe();
  ASSERT_EQ(last.writes.size(), 1);
  EXPECT_EQ(first_version(s.buffers, last.writes[0]), weight);
  EXPECT_EQ(std::ranges::count(last.reads, weight), 1);
}

// The second one reads what the first one wrote.
TEST_F(ScheduleTest, UpdatesOfOneStorageRunInTurn) {
  Runtime::configure({.devices = {"NULL:0"}});
  Tensor x = data({64, 32}), y = data({64, 48}), sum = data({32, 48});
  auto product = [&](const Tensor& a) { return a.transpose(0, 1).matmul(y); };
  sum.assign(sum + product(x));
  sum.assign(sum + product(x.exp2()) * 0.5);
  std::vector<UOp> roots{sum.uop()};
  Schedule s = make_plan(roots);
  std::vector<const Item*> updates;
  for (const Item& item : s.items) {
    if (item.kind == Item::Kind::Library) updates.push_back(&item);
  }
  ASSERT_EQ(updates.size(), 2) << ::testing::PrintToString(s.lines());
  const int first = updates[0]->writes.at(0), second = updates[1]->writes.at(0);
  EXPECT_EQ(std::ranges::count(updates[1]->reads, first), 1);
  EXPECT_EQ(first_version(s.buffers, first), first_version(s.buffers, second));
  for (const VirtualBuffer& b : s.buffers) {
    bool copy = b.shape == Dims{32, 48} && !b.storage && b.previous < 0;
    EXPECT_FALSE(copy) << ::testing::PrintToString(s.lines());
  }
}

TEST_F(ScheduleTest, SwappedStoragesKeepTheirValues) {
  Tensor a = Tensor({1.f, 2.f}).clone().realize(), b = Tensor({3.f, 4.f}).clone().realize();
  Tensor old_a = a + 0, old_b = b + 0;
  a.assign(old_b);
  b.assign(old_a);
  Tensor::realize({a, b});
  EXPECT_EQ(a.to_vector<float>(), (std::vector<float>{3, 4}));
  EXPECT_EQ(b.to_vector<float>(), (std::vector<float>{1, 2}));
}

TEST_F(ScheduleTest, OldAndNewValueTogether) {
  Tensor a = Tensor({1.f, 2.f}).clone().realize();
  Tensor old = a * 1.5;
  a.assign(a + 10);
  Tensor both = old + a;
  Tensor::realize({both, a});
  EXPECT_EQ(both.to_vector<float>(), (std::vector<float>{12.5, 15}));
  EXPECT_EQ(a.to_vector<float>(), (std::vector<float>{11, 12}));
}

TEST_F(ScheduleTest, AssigningAPermutationOfItselfIsSafe) {
  Tensor a = Tensor::arange(64 * 64).cast(DType::F32).reshape({64, 64}).clone().realize();
  auto before = a.to_vector<float>();
  a.assign(a.transpose(0, 1) + 1).realize();
  auto after = a.to_vector<float>();
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j)
      ASSERT_EQ(after[size_t(i * 64 + j)], before[size_t(j * 64 + i)] + 1);
  }
}

TEST_F(ScheduleTest, OthersSeeTheValueBeforeAnAssignment) {
  Tensor a = Tensor({1.f, 2.f}).clone().realize();
  Tensor twice = a * 2;  // not computed yet
  a.assign(Tensor({5.f, 6.f})).realize();
  EXPECT_EQ(twice.to_vector<float>(), (std::vector<float>{2, 4}));
  EXPECT_EQ((a * 2).to_vector<float>(), (std::vector<float>{10, 12}));
}

struct Mlp {
  nn::Linear a{32, 64}, b{64, 64}, c{64, 10};
  TS_FIELDS(a, b, c)
  Tensor operator()(const Tensor& x) const { return c(b(a(x).relu()).relu()); }
};

// With products in bf16, of parameters and gradients in f32.
struct NarrowMlp : Mlp {
  Tensor operator()(const Tensor& x) const {
    auto layer = [](const nn::Linear& l, const Tensor& h) {
      return h.linear(l.weight.T().cast(DType::BF16), l.bias.cast(DType::BF16));
    };
    return layer(c, layer(b, layer(a, x.cast(DType::BF16)).relu()).relu()).cast(DType::F32);
  }
};

// The plan of a training step on `devices` NULL devices.
template <class Model = Mlp>
Schedule planned_step(int devices, bool clip = false, const char* shard_axis = "",
                      int64_t rows = 16, std::optional<DType> reduce_type = {}) {
  Runtime::shutdown();
  Runtime::configure({.devices = {"NULL"}, .devices_per_rank = devices});
  Mesh mesh = Mesh::world({{"data", -1}});
  Model net;
  nn::data_parallel(net, mesh, "data");
  auto optim = nn::optim::SGD(nn::parameters(net), {.lr = 0.1, .shard_axis = shard_axis});
  Tensor x = Tensor::zeros({rows * devices, 32}).contiguous().shard(mesh, {{"data", Shard(0)}});
  Tensor y =
      Tensor::zeros({rows * devices}, DType::I32).contiguous().shard(mesh, {{"data", Shard(0)}});
  Jit step = [&](Tensor images, Tensor labels) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = net(images).sparse_categorical_crossentropy(labels).backward();
    if (clip) {
      optim.place_grad(reduce_type);
      nn::clip_grad_norm(optim.params(), 1);
    }
    optim.step();
    return loss;
  };
  step(x, y);
  return schedule_of(step.captured_step());
}

TEST_F(ScheduleTest, LengthDoesNotDependOnTheDeviceCount) {
  Schedule two = planned_step(2), many = planned_step(1024);
  EXPECT_EQ(two.items.size(), many.items.size());
  EXPECT_EQ(summarize(many).devices, 1024);
}

TEST_F(ScheduleTest, GradientsShareOneAllReduce) {
  PlanSummary s = summarize(planned_step(4));
  EXPECT_LE(s.collectives, 2);  // the gradients' bucket and the loss
  EXPECT_GT(s.collective_bytes, 0);
}

TEST_F(ScheduleTest, PartsOfGradientsAndParametersTravelTogether) {
  Schedule schedule = planned_step(4, false, "data");
  int scatters = 0, gathers = 0, pieces = 0, arrived = 0;
  for (const Item& item : schedule.items) {
    if (item.kind != Item::Kind::Collective) continue;
    scatters += item.collective.op == CollectiveOp::ReduceScatter;
    if (item.collective.op != CollectiveOp::AllGather) continue;
    ++gathers;
    for (int b : item.writes) {
      ++pieces;
      int before = schedule.buffers[b].previous;
      arrived += before >= 0 && schedule.buffers[before].storage != nullptr;
    }
  }
  EXPECT_EQ(scatters, 1);
  EXPECT_EQ(gathers, 1);
  EXPECT_EQ(pieces, 6);
  EXPECT_EQ(arrived, 4) << "all but those whose parts are uneven, without a copy";
}

// With many small buckets, the first are on their way while gradients are still computed, and
// nothing waits for them before.
TEST_F(ScheduleTest, GradientsTravelBesideTheBackwardPass) {
  setenv("TS_BUCKET_BYTES", "4096", 1);
  reload_options();
  for (const char* shard_axis : {"", "data"}) {
    Schedule schedule = planned_step<NarrowMlp>(4, true, shard_axis, 1024);
    size_t last_product = 0, begun = 0;
    for (size_t i = 0; i < schedule.items.size(); ++i) {
      if (schedule.items[i].kind == Item::Kind::Library) last_product = i;
    }
    for (size_t i = 0; i < last_product; ++i) {
      begun += schedule.items[i].kind == Item::Kind::Collective;
      EXPECT_TRUE(schedule.items[i].waits.empty()) << schedule.items[i].describe();
    }
    EXPECT_GE(begun, 2) << shard_axis;
  }
  unsetenv("TS_BUCKET_BYTES");
  reload_options();
}

// A kernel that makes little of a collective's result would run early otherwise.
TEST_F(ScheduleTest, OtherWorkComesBeforeAWaitForACollective) {
  Runtime::configure({.devices = {"NULL"}, .devices_per_rank = 4});
  const Mesh mesh = Mesh::world({{"data", -1}});
  Tensor x = data({64, 8192}).shard(mesh, {{"data", Shard(0)}}).realize();
  Tensor y = data({512, 512}).shard(mesh, {{"data", Shard(0)}}).realize();
  Tensor w = data({512, 512}).shard(mesh).realize();
  Tensor norm = x.sum(0).shard(mesh).square().sum();
  std::vector<UOp> roots{y.matmul(w).softmax().uop(), norm.uop()};
  Schedule schedule = make_plan(roots);
  ASSERT_EQ(schedule.items.size(), 5);
  EXPECT_EQ(schedule.items[1].kind, Item::Kind::Collective);
  EXPECT_EQ(schedule.items[2].kind, Item::Kind::Library);
  EXPECT_EQ(schedule.items[4].waits, std::vector<int>{1});
}

// The columns of such a product are all the same: its rows alone are summed, each once.
TEST_F(ScheduleTest, AProductWithAConstantIsPlanned) {
  Tensor x = Tensor::full({6, 5000}, 3, DType::I32).contiguous().realize();
  Tensor product = (x * x).matmul(Tensor::full({5000, 6}, 2, DType::I32));
  std::vector<UOp> roots{product.uop()};
  EXPECT_LE(make_plan(roots).items.size(), 3u);
  EXPECT_EQ(product.to_vector<int>(), std::vector<int>(36, 90000));
}

// A block of a GPT without attention: its gradients and its value on a device whose products have
// epilogues, in the type that the parameters have.
TEST_F(ScheduleTest, AnMlpBlockTouchesItsHiddenLayerInProductsOnly) {
  for (auto [type, devices] :
       {std::pair(DType::F32, 1), std::pair(DType::BF16, 1), std::pair(DType::BF16, 2)}) {
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL"}, .devices_per_rank = devices});
    const Mesh mesh = Mesh::world({{"data", -1}});
    constexpr int64_t kWidth = 32, kRow = 512, kTokens = 2 * kRow;
    auto made = [&](const Ints& shape) {
      bool rows = shape.size() == 3;
      Tensor x = Tensor::zeros(shape, type);
      return (rows ? x.shard(mesh, {{"data", Shard(0)}}) : x.shard(mesh)).contiguous().realize();
    };
    Tensor x = made({2 * devices, kRow, kWidth}), up = made({4 * kWidth, kWidth}),
           up_bias = made({4 * kWidth}), down = made({kWidth, 4 * kWidth}),
           down_bias = made({kWidth}), seed = made({2 * devices, kRow, kWidth});
    Tensor y = x.linear(up.T(), up_bias).gelu().linear(down.T(), down_bias);
    std::vector<UOp> roots{y.uop()};
    for (const Tensor& g : y.gradient({x, up, up_bias, down, down_bias}, seed))
      roots.push_back(g.uop());
    Schedule schedule = make_plan(roots);
    auto hidden = [&](int b) { return schedule.buffers[b].numel() == kTokens * 4 * kWidth; };
    int products = 0, readers = 0;
    for (const Item& item : schedule.items) {
      products += item.kind == Item::Kind::Library;
      if (item.kind != Item::Kind::Kernel) continue;
      EXPECT_TRUE(std::ranges::none_of(item.writes, hidden)) << item.describe();
      readers += std::ranges::any_of(item.reads, hidden);
    }
    // Two forwards, one with two results, and four of the gradient.
    EXPECT_EQ(products, 6);
    EXPECT_EQ(readers, 1) << "the gradient of the bias";
    // Kernels of both biases; results are not copied, unless into the bucket in which they travel.
    if (devices == 1) {
      EXPECT_EQ(summarize(schedule).kernels, 2);
    }
  }
}

// Once for the norm and the update together: besides, only the norm itself, one number, travels.
TEST_F(ScheduleTest, ClippedGradientsTravelOnce) {
  for (const char* shard_axis : {"", "data"}) {
    int64_t bytes = summarize(planned_step(4, false, shard_axis)).collective_bytes;
    EXPECT_LE(summarize(planned_step(4, true, shard_axis)).collective_bytes, bytes + 256);
  }
}

TEST_F(ScheduleTest, NarrowGradientsAreHalfTheBytes) {
  for (const char* shard_axis : {"", "data"}) {
    auto bytes = [&](DType type) {
      PlanSummary s = summarize(planned_step<NarrowMlp>(4, true, shard_axis, 4096, type));
      return s.collective_bytes - s.collective_kinds["all_gather over data"];
    };
    EXPECT_LE(bytes(DType::BF16), bytes(DType::F32) / 2 + 1024) << shard_axis;
  }
}

}  // namespace
}  // namespace tinyshard::schedule_test
