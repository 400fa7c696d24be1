// summarize() and explain(): what they say of tensors and of captured steps, and that asking
// changes nothing. What they say of the gradients of a step that trains: public_face_test.cpp.
#include <gtest/gtest.h>

#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "core/exec/state.h"
#include "tests/message_of.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard::explain_test {
namespace {

class Explain : public ::testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  }
  void TearDown() override { Runtime::shutdown(); }

  static Tensor rows(const Mesh& mesh, int64_t n, int64_t m) {
    return Tensor::arange(n * m).reshape({n, m}).cast(DType::F32).shard(mesh, {{"data", Shard(0)}});
  }
};

TEST_F(Explain, SumsAndItemsOfATensor) {
  Mesh mesh = Mesh::world({{"data", 4}});
  Tensor x = rows(mesh, 64, 8).realize();
  Tensor sum = x.sum(0);
  const int64_t runs = counters().runs;
  PlanSummary s = summarize(sum);
  EXPECT_EQ(counters().runs, runs);
  EXPECT_EQ(s.devices, 4);
  EXPECT_EQ(s.collectives, 1);
  ASSERT_EQ(s.collective_items.size(), 1u);
  const CollectiveItem& item = s.collective_items[0];
  EXPECT_EQ(item.op, "all_reduce");
  EXPECT_EQ(item.axis, "data");
  EXPECT_EQ(item.purpose, "completes the sum of sum");
  EXPECT_TRUE(item.source.starts_with("explain_test.cpp:")) << item.source;
  EXPECT_EQ(item.bytes, 2 * 8 * 4 * 3 / 4);  // a ring sends (n - 1) / n of the vector, twice
  EXPECT_EQ(s.collective_bytes, item.bytes);
  EXPECT_EQ(s.collective_kinds.at("all_reduce over data"), item.bytes);

  Tensor whole = x.shard(mesh);  // three more parts of 16 rows arrive
  s = summarize({sum, whole});
  ASSERT_EQ(s.collective_items.size(), 2u);
  int64_t bytes = 0;
  for (const CollectiveItem& i : s.collective_items) bytes += i.bytes;
  EXPECT_EQ(s.collective_bytes, bytes);
  EXPECT_EQ(s.collective_kinds.at("all_gather over data"), 3 * 16 * 8 * 4);

  std::string text = explain({sum, whole});
  EXPECT_NE(text.find("all_gather over data"), std::string::npos) << text;
  EXPECT_NE(explain(sum, true).find("all_reduce"), std::string::npos);
}

TEST_F(Explain, ArithmeticIsCounted) {
  const Tensor x = Tensor::arange(512).reshape({64, 8}).cast(DType::F32).realize();
  const Tensor w = Tensor::arange(128).reshape({8, 16}).cast(DType::F32).realize();
  EXPECT_EQ(summarize(x * 2 + 1).operations, 2 * 512);
  EXPECT_EQ(summarize(x.sum(1)).operations, 512);
  EXPECT_EQ(summarize((x * x).sum(1)).operations, 2 * 512);
  EXPECT_EQ(summarize(x.cast(DType::F64)).operations, 0);
  EXPECT_EQ(summarize(x.matmul(w)).operations, 2.0 * 64 * 8 * 16);
  // Places cost nothing; a mask spares nothing, and is one more choice.
  EXPECT_EQ(summarize((x + 1).pad({{0, 0}, {0, 8}})).operations, 2 * 1024);
  EXPECT_EQ(summarize(x.flip(0).clone()).operations, 0);
  // A divided value counts each device's share.
  const Mesh mesh = Mesh::world({{"data", 4}});
  EXPECT_EQ(summarize(rows(mesh, 64, 8).realize() * 2).operations, 128);
  const std::string text = explain(x * 2 + 1, true);
  EXPECT_NE(text.find("arithmetic       1.0 K operations, per device"), std::string::npos) << text;
  EXPECT_NE(text.find("4.0 KiB, 1.0 K operations"), std::string::npos) << text;
}

TEST_F(Explain, AskingChangesNothing) {
  Tensor a = Tensor::arange(8).cast(DType::F32).realize();
  Tensor b = a + 1, untouched = a * 2;
  Tensor c = a.assign(b);
  const uint64_t newest = newest_value();
  const Storage* storage = Storage::of(*storage_node(c.state()->value));
  const TensorState* before = holder(*storage);
  const UOp value = c.state()->value;
  PlanSummary first = summarize(c);
  EXPECT_FALSE(explain({b, c, untouched}, true).empty());
  EXPECT_EQ(newest_value(), newest);
  EXPECT_EQ(holder(*storage), before);
  EXPECT_EQ(c.state()->value, value);
  EXPECT_EQ(summarize(c).kernels, first.kernels);
  EXPECT_GE(first.kernels, 1);
  EXPECT_EQ(c.to_vector<float>(), (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(b.to_vector<float>(), (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(untouched.to_vector<float>(), (std::vector<float>{0, 2, 4, 6, 8, 10, 12, 14}));
  EXPECT_EQ(summarize(c).kernels, 0);  // it is there
}

// A storage that waits for its first value is for the tensor that is computed first, not for the
// one that was asked about first.
TEST_F(Explain, AskingGivesNoStorageAHolder) {
  Tensor a = Tensor::ones({4}).contiguous().realize();
  Tensor waiting = (a + 1).clone();
  ASSERT_EQ(waiting.state()->value.op(), Op::Assign);
  const Storage& storage = *Storage::of(*storage_node(waiting.state()->value));
  ASSERT_EQ(holder(storage), nullptr);
  EXPECT_EQ(summarize(waiting).kernels, 1);
  EXPECT_EQ(holder(storage), nullptr);
  waiting.realize();
  EXPECT_EQ(holder(storage), waiting.state().get());
}

TEST_F(Explain, StepsSayWhatOneCallDoes) {
  Mesh mesh = Mesh::world({{"data", 4}});
  Tensor state = Tensor::zeros({8}).shard(mesh).contiguous().realize();
  Jit step = [&](Tensor x) {
    state.assign(state + x.sum(0));
    return (x * 2).sum();
  };
  EXPECT_NE(test::message_of<UserError>([&] { summarize(step); }).find("before its first call"),
            std::string::npos);
  step(rows(mesh, 16, 8));
  const int64_t runs = counters().runs;
  std::vector<float> before = state.to_vector<float>();
  PlanSummary s = summarize(step);
  EXPECT_EQ(s.collectives, int64_t(s.collective_items.size()));
  EXPECT_GE(s.collectives, 1);
  EXPECT_NE(explain(step).find("all_reduce over data"), std::string::npos);
  EXPECT_EQ(counters().runs, runs);
  EXPECT_EQ(state.to_vector<float>(), before);
  Runtime::shutdown();
  EXPECT_EQ(summarize(step).collectives, s.collectives);
}

TEST_F(Explain, MistakesAreSentences) {
  Tensor x = Tensor::ones({4});
  Jit step = [&](Tensor y) {
    EXPECT_NE(test::message_of<UserError>([&] { summarize(y + x); }).find("summarize"),
              std::string::npos);
    return y + 1;
  };
  step(x);
  EXPECT_NE(test::message_of<UserError>([&] { explain(Tensor()); }).find("never given a value"),
            std::string::npos);
  Tensor made = (x.contiguous().realize() + 1).realize(), later = made + 1;
  Runtime::shutdown();
  EXPECT_NE(test::message_of<UserError>([&] { summarize(later); }).find("lost"), std::string::npos);
}

// Two meshes, as stages of a pipeline have them: each device is told what it does itself.
TEST_F(Explain, DevicesOfTwoMeshesAreCountedApart) {
  const Mesh mesh({{"data", 2}, {"pipe", 2}}), first = mesh.at("pipe", 0),
                                               last = mesh.at("pipe", 1);
  const Tensor a = rows(first, 64, 8).realize(), b = rows(last, 64, 8).realize();
  const PlanSummary one = summarize((a * 2).sum(0)),
                    both = summarize({(a * 2).sum(0), (b * 2).sum(0)});
  EXPECT_EQ(both.collectives, 2 * one.collectives);
  EXPECT_EQ(both.kernels, 2 * one.kernels);
  EXPECT_EQ(both.collective_bytes, one.collective_bytes);
  EXPECT_EQ(both.collective_kinds, one.collective_kinds);
  EXPECT_EQ(both.bytes_read, one.bytes_read);
  EXPECT_EQ(both.bytes_written, one.bytes_written);
  // A device on several meshes sends what each of them asks for.
  const Tensor c = rows(Mesh({{"data", 4}}), 64, 8).realize();
  EXPECT_GT(summarize({(a * 2).sum(0), (c * 2).sum(0)}).collective_bytes, one.collective_bytes);
  // Between stages of one device each, too, values are sent.
  const Mesh alone({{"pipe", 2}});
  const Tensor h = Tensor::ones({64, 8}).shard(alone.at("pipe", 0)).realize();
  const PlanSummary moved = summarize((h.shard(alone.at("pipe", 1)) * 2).sum());
  EXPECT_EQ(moved.collective_bytes, 64 * 8 * 4);
  EXPECT_EQ(moved.collective_kinds.at("copy between meshes"), 64 * 8 * 4);
}

TEST_F(Explain, PartsAreCountedAsParts) {
  const Tensor table = Tensor::empty({4096, 64}).contiguous().realize(),
               ids = Tensor{5, 7}.realize();
  EXPECT_LE(summarize(table.embedding(ids)).bytes_read, 2 * 64 * 4 + 64);
  EXPECT_LE(summarize((table[{Slice(), 3}] * 2).contiguous()).bytes_read, 4096 * 4 + 64);
  EXPECT_LE(summarize(table[Slice(10, 12)] + 1).bytes_read, 2 * 64 * 4 + 64);
  EXPECT_EQ(summarize(table + 1).bytes_read, 4096 * 64 * 4);
  EXPECT_EQ(summarize(table + table.flip({0})).bytes_read, 4096 * 64 * 4) << "one buffer, twice";
  Tensor cache = Tensor::zeros({1024, 64}).clone().realize();
  Variable p("p", 0, 1023);
  Jit write = [&](Tensor row, Variable at) { cache.setitem({at}, row); };
  write(Tensor::ones({64}).contiguous(), p.bind(3));
  EXPECT_LE(summarize(write).bytes_written, 64 * 4);
  EXPECT_LE(summarize(write).bytes_read, 64 * 4 + 64);
}

}  // namespace
}  // namespace tinyshard::explain_test
