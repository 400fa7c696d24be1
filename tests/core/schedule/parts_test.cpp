// Values that consist of others' elements, and library calls that write their results there.
#include "core/schedule/parts.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <random>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "core/exec/explain.h"
#include "core/exec/make_executable.h"
#include "core/passes/passes.h"

namespace tinyshard::parts_test {
namespace {

std::vector<int32_t> numbers_from(int64_t first, int64_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), int32_t(first));
  return numbers;
}

UOp plain(const Tensor& x) { return without_names(std::span(&x.uop(), 1))[0]; }

// The parts of sums, moves and paddings of buffers.
std::optional<std::vector<Part>> parts(const Tensor& whole) {
  return parts_of(plain(whole), [](const UOp& x) { return x.op() == Op::Buffer; });
}

// Writes numbers where the parts lie and compares with the value of the whole. Each part holds the
// numbers from `first` on.
void expect_parts(const Tensor& whole, const std::vector<std::pair<UOp, int64_t>>& first) {
  auto found = parts(whole);
  ASSERT_TRUE(found) << print(whole.uop());
  std::vector<int32_t> written(size_t(whole.numel()), -1);
  for (const Part& part : *found) {
    auto of = std::ranges::find(first, part.value, &std::pair<UOp, int64_t>::first);
    ASSERT_NE(of, first.end());
    ASSERT_EQ(part.view.shape, Dims(part.value.shape().begin(), part.value.shape().end()));
    for (int64_t i = 0; i < part.value->numel(); ++i) {
      int64_t at = part.view.offset, rest = i;
      for (size_t d = part.view.shape.size(); d-- > 0; rest /= part.view.shape[d])
        at += rest % part.view.shape[d] * part.view.strides[d];
      EXPECT_EQ(written.at(size_t(at)), -1) << "written twice";
      written.at(size_t(at)) = int32_t(of->second + i);
    }
  }
  EXPECT_EQ(written, whole.to_vector<int32_t>()) << print(whole.uop());
}

TEST(Parts, LieWhereTheirElementsAre) {
  std::mt19937 random(5);
  auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  std::array<int, 3> done{};  // transposes, reshapes, concatenations
  for (int round = 0; round < 200; ++round) {
    int64_t count = 1;
    std::vector<std::pair<UOp, int64_t>> first;
    auto part = [&](const Dims& shape) {
      Tensor x = Tensor(numbers_from(count, product(shape)), shape).contiguous().realize();
      first.emplace_back(plain(x), count);
      count += x.numel();
      return x;
    };
    Tensor x = part({1 + below(3), 2 + below(3), 4, 6});
    for (int step = 0; step < 5; ++step) {
      int64_t axis = below(x.ndim()), kind = below(3);
      Tensor next;
      if (kind == 0) {
        next = x.transpose(axis, below(x.ndim()));
      } else if (kind == 1) {
        next = x.shape(axis) % 2 == 0 ? x.unflatten(axis, {2, -1})
               : axis + 1 < x.ndim()  ? x.flatten(axis, axis + 1)
                                      : x.unsqueeze(axis);
      } else {
        Dims shape = x.shape();
        shape[size_t(axis)] = 1 + below(3);
        std::swap(shape.front(), shape.back());
        Tensor other = part(shape).transpose(0, -1);
        next = below(2) ? cat({x, other}, axis) : cat({other, x, part(other.shape())}, axis);
      }
      // Not all that is moved has elements that lie evenly.
      if (next.ndim() > 6 || !parts(next)) continue;
      x = next;
      ++done[size_t(kind)];
    }
    if (round % 2) x = x.contiguous();
    if (plain(x).op() != Op::Buffer) expect_parts(x, first);
  }
  for (int count : done) EXPECT_GT(count, 100);
}

TEST(Parts, AreNotThereWhereElementsAreOthersOrTwice) {
  auto made = [](const Dims& shape) {
    return Tensor(numbers_from(1, product(shape)), shape).contiguous().realize();
  };
  Tensor a = made({4, 3}), b = made({4, 3}), line = made({12});
  auto at = [](const Tensor& x, int64_t low, int64_t high) { return x.pad({{0, 0}, {low, high}}); };
  EXPECT_TRUE(parts(at(a, 0, 3) + at(b, 3, 0)));
  EXPECT_FALSE(parts(at(a, 0, 2) + at(b, 2, 0))) << "they overlap";
  EXPECT_FALSE(parts(at(a, 0, 4) + at(b, 4, 0))) << "a gap";
  EXPECT_FALSE(parts(at(a, 0, 3) + at(b, 0, 3))) << "as many elements";
  EXPECT_FALSE(parts(at(a, 0, 3)));
  EXPECT_FALSE(parts(a + b));
  EXPECT_FALSE(parts(at(a, 0, 3) + at(b.cast(DType::F32).cast(DType::I32), 3, 0)));
  EXPECT_FALSE(parts(at(a, 0, 3) - at(b, 3, 0)));
  EXPECT_FALSE(parts(a.flip({0})));
  EXPECT_FALSE(parts(a.unsqueeze(0).expand({2, 4, 3})));
  EXPECT_FALSE(parts(at(a, 0, 3) + at(made({4, 5})[{Slice(), Slice(0, 3)}], 3, 0)));
  EXPECT_FALSE(parts(at(line.reshape({4, 3}), 0, 3) + at(b, 3, 0))) << "no strides for the line";
  EXPECT_TRUE(parts(line.reshape({4, 3}).pad({{0, 4}, {0, 0}}) + b.pad({{4, 0}, {0, 0}})));
}

// On the CPU, whose libraries write contiguous results.
TEST(Parts, OfAProductAreMovedByAKernel) {
  Runtime::shutdown();
  Runtime::configure({.devices = {"CPU:0"}});
  constexpr int64_t kBatch = 4, kSize = 64;
  Tensor x =
      Tensor::arange(kBatch * kSize * kSize).cast(DType::F32).reshape({kBatch, kSize, kSize});
  Tensor one = Tensor::eye(kSize).expand({kBatch, kSize, kSize}).contiguous().realize();
  x.realize();
  auto check = [&](const std::function<Tensor(const Tensor&)>& moved, int kernels) {
    Tensor y = moved(x.matmul(one));
    std::vector<UOp> roots{y.uop()};
    EXPECT_EQ(summarize(make_plan(roots)).library_calls, 1);
    EXPECT_EQ(summarize(make_plan(roots)).kernels, kernels);
    EXPECT_EQ(y.to_vector<float>(), moved(x).to_vector<float>());
  };
  check([](const Tensor& y) { return y.reshape({16, 16, 8, 8}).contiguous(); }, 0);
  check([](const Tensor& y) { return y.transpose(0, 1).contiguous(); }, 1);
}

// Attention to parts of one projection, whose three gradients a library computes in one call.
class LibraryParts : public ::testing::Test {
 protected:
  static constexpr int64_t kBatch = 2, kRows = 32, kHeads = 4, kWidth = 64, kPart = kHeads * kWidth;

  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL:0", "NULL:1"}});
  }
  void TearDown() override { Runtime::shutdown(); }

  static Tensor empty(const Ints& shape) { return Tensor::empty(shape, DType::BF16).realize(); }

  struct Attention {
    Tensor packed = empty({kBatch, kRows, 3 * kPart});
    std::vector<Tensor> part = packed.chunk(3, -1);  // of q, k, v, with the heads in the rows
    Tensor result = by_head(part[0]).scaled_dot_product_attention(
        by_head(part[1]), by_head(part[2]), {}, {.is_causal = true});
    Tensor d_result = empty({kBatch, kRows, kHeads, kWidth}).transpose(1, 2);

    static Tensor by_head(const Tensor& x) { return x.unflatten(-1, {kHeads, -1}).transpose(1, 2); }
    std::vector<Tensor> gradients(const std::vector<Tensor>& of) const {
      return result.gradient(of, d_result);
    }
  };

  static Schedule planned(const std::vector<Tensor>& tensors) {
    std::vector<UOp> roots;
    for (const Tensor& t : tensors) roots.push_back(t.uop());
    return make_plan(roots);
  }
  static const Item& backward(const Schedule& schedule) {
    auto found = std::ranges::find_if(schedule.items, [](const Item& item) {
      return item.kind == Item::Kind::Library && item.call.node.op() == Op::AttentionBackward;
    });
    if (found == schedule.items.end()) throw InternalError("no gradient of attention");
    return *found;
  }
  // Kernels copy what the call stores in three buffers.
  static void expect_copies(const std::vector<Tensor>& tensors) {
    Schedule schedule = planned(tensors);
    EXPECT_GE(summarize(schedule).kernels, 1);
    EXPECT_EQ(backward(schedule).writes.size(), 3);
    for (int b : backward(schedule).writes)
      EXPECT_EQ(schedule.buffers[size_t(b)].numel(), kBatch * kRows * kPart);
  }
};

TEST_F(LibraryParts, AreWrittenIntoTheGradientOfAProjection) {
  Attention a;
  Tensor d = a.gradients({a.packed})[0];
  for (bool read : {false, true}) {  // by a product, or by the caller
    Tensor root = read ? d.flatten(0, 1).matmul(empty({3 * kPart, 8})) : d;
    Schedule schedule = planned({root});
    EXPECT_EQ(summarize(schedule).kernels, 0) << ::testing::PrintToString(schedule.lines());
    const Item& item = backward(schedule);
    ASSERT_EQ(item.writes.size(), 1);
    const VirtualBuffer& whole = schedule.buffers[size_t(item.writes[0])];
    EXPECT_EQ(whole.numel(), d.numel());
    EXPECT_EQ(whole.output, !read);
    EXPECT_EQ(Dims(item.buffers.end() - 3, item.buffers.end()), Dims(3, item.writes[0]));
    ASSERT_EQ(item.call.results.size(), 3);
    for (size_t i = 0; i < 3; ++i) {
      const UOp& node = i == 0 ? item.call.node : item.call.also[i - 1];
      const StridedView& view = item.call.results[i];
      EXPECT_EQ(view.offset, attention_arg(*node).which * kPart);
      EXPECT_EQ(view.shape, (Dims{kBatch, kRows, kHeads, kWidth}));
      EXPECT_EQ(view.strides, (Dims{kRows * 3 * kPart, 3 * kPart, kWidth, 1}));
    }
    // No memory for the results themselves: the gradient, the result, the statistics.
    int64_t bytes = (read ? d.numel() * 2 : 0) + kBatch * kRows * (kPart * 2 + kHeads * 4);
    EXPECT_EQ(schedule.arena_bytes, bytes);
  }
}

TEST_F(LibraryParts, MakeAProgramOfTheirOwn) {
  Attention a;
  const LibraryCall into = backward(planned(a.gradients({a.packed}))).call;
  LibraryCall apart = into;
  apart.results.clear();
  Context& context = Context::get();
  Device& device = context.device(Mesh::of({"NULL:0"}).devices()[0]);
  ProgramCache& programs = context.programs();
  EXPECT_NE(programs.of(device, into), programs.of(device, apart));
  EXPECT_EQ(programs.of(device, into), programs.of(device, LibraryCall(into)));
}

TEST_F(LibraryParts, AreWrittenIntoSeveralValues) {
  Attention a;
  std::vector<Tensor> d = a.gradients(a.part);
  Schedule schedule = planned({cat({d[2], d[0]}, 1), Attention::by_head(d[1]).contiguous()});
  EXPECT_EQ(summarize(schedule).kernels, 0) << ::testing::PrintToString(schedule.lines());
  EXPECT_EQ(backward(schedule).writes.size(), 2);
  EXPECT_EQ(backward(schedule).call.results.size(), 3);
  // Two of them contiguous in buffers of their own.
  schedule = planned({d[0], d[1], Attention::by_head(d[2]).contiguous()});
  EXPECT_EQ(summarize(schedule).kernels, 0) << ::testing::PrintToString(schedule.lines());
  EXPECT_EQ(backward(schedule).writes.size(), 3);
}

TEST_F(LibraryParts, AreWrittenByEachDeviceForItself) {
  Mesh mesh = Mesh::of({"NULL:0", "NULL:1"});
  Attention a;
  a.packed = empty({2 * kBatch, kRows, 3 * kPart}).shard(mesh, {{"data", Shard(0)}}).realize();
  a.d_result = empty({2 * kBatch, kRows, kHeads, kWidth})
                   .shard(mesh, {{"data", Shard(0)}})
                   .realize()
                   .transpose(1, 2);
  a.part = a.packed.chunk(3, -1);
  for (Tensor& p : a.part) p = Attention::by_head(p);
  a.result = a.part[0].scaled_dot_product_attention(a.part[1], a.part[2], {}, {.is_causal = true});
  Schedule schedule = planned(a.gradients({a.packed}));
  EXPECT_EQ(summarize(schedule).kernels, 0) << ::testing::PrintToString(schedule.lines());
  EXPECT_EQ(summarize(schedule).collectives, 0);
  EXPECT_EQ(backward(schedule).mesh.size(), 2);
  EXPECT_EQ(backward(schedule).writes.size(), 1);
}

TEST_F(LibraryParts, StayWhereOthersReadThem) {
  Attention a;
  std::vector<Tensor> d = a.gradients({a.packed, a.part[1]});
  expect_copies({d[0], d[1]});
  expect_copies({d[0], d[1].square().sum()});
  std::vector<Tensor> each = a.gradients(a.part);
  expect_copies({cat({each[0], each[1], each[2], each[0]}, -1)});
  // These results are in the order in which they are read.
  std::vector<Tensor> x;
  for (int i = 0; i < 4; ++i) x.push_back(empty({kBatch, kHeads, kRows, kWidth}));
  each = x[0].scaled_dot_product_attention(x[1], x[2]).gradient({x[0], x[1], x[2]}, x[3]);
  Tensor stacked = stack(each, 0);
  EXPECT_EQ(summarize(planned({stacked})).kernels, 0);
  expect_copies({stacked, each[0].square().sum()});
}

TEST_F(LibraryParts, StayWhereTheyAreNotAllOfAValue) {
  Attention a, b;
  std::vector<Tensor> d = a.gradients(a.part);
  auto at = [&](int part, int64_t low, int64_t whole) {
    return d[size_t(part)].pad({{0, 0}, {0, 0}, {low, whole - low - kPart}});
  };
  auto sum = [&](int64_t second, int64_t third, int64_t whole) {
    return (at(0, 0, whole) + at(1, second, whole) + at(2, third, whole)).contiguous();
  };
  EXPECT_EQ(summarize(planned({sum(kPart, 2 * kPart, 3 * kPart)})).kernels, 0);
  expect_copies({sum(kPart, 2 * kPart, 3 * kPart + 8)});
  expect_copies({sum(kPart - 8, 2 * kPart - 8, 3 * kPart - 8)});
  expect_copies({sum(kPart - 8, 2 * kPart, 3 * kPart)});
  expect_copies({cat({d[0], d[1], d[2], empty({kBatch, kRows, 8})}, -1)});
  expect_copies({cat({d[0], d[1], d[2] * 2}, -1)});
  expect_copies({cat({d[0], d[1], d[2]}, -1).cast(DType::F32)});
  std::vector<Tensor> other = b.gradients(b.part);
  d.insert(d.end(), other.begin(), other.end());
  expect_copies({cat(d, -1)});  // of two calls
}

TEST_F(LibraryParts, StayWhereTheLibraryCannotPutThem) {
  Attention a;
  PassContext context;
  context.graph.become({a.gradients({a.packed})[0].uop()});
  context.library_supports = [](const LibraryCall& call) { return call.results.empty(); };
  run_passes(context);
  Schedule schedule = make_schedule(context.graph, context.shardings,
                                    {.library_supports = context.library_supports});
  EXPECT_EQ(summarize(schedule).kernels, 1);
  EXPECT_TRUE(backward(schedule).call.results.empty());
  EXPECT_EQ(backward(schedule).writes.size(), 3);
}

}  // namespace
}  // namespace tinyshard::parts_test
