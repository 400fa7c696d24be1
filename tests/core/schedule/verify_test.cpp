// The proof about memory: it accepts what the scheduler makes, and finds what is broken by hand.
#include "core/schedule/verify.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/exec/make_executable.h"
#include "core/exec/state.h"
#include "core/passes/spell.h"
#include "core/schedule/memory.h"
#include "tests/message_of.h"

namespace tinyshard::verify_test {
namespace {

class Verify : public testing::Test {
 protected:
  void SetUp() override { Runtime::shutdown(); }
  void TearDown() override { Runtime::shutdown(); }
};

using Tensors = std::vector<Tensor>;

std::vector<UOp> nodes(const Tensors& tensors) {
  std::vector<UOp> roots;
  for (const Tensor& t : tensors) roots.push_back(t.uop());
  return without_names(roots);
}

Schedule plan(const Tensors& tensors) { return make_plan(nodes(tensors)); }

// Products are items of their own, and make what is computed from them have memory.
Schedule plan_with_libraries(const Tensors& tensors, bool joined = false) {
  const std::vector<UOp> roots =
      spell(Graph(nodes(tensors)), [](const Composite&) { return false; });
  std::vector<Sharding> shardings(roots.size(), replicated(default_mesh()));
  return make_schedule(roots, shardings,
                       {.library_supports = [](const LibraryCall&) { return true; },
                        .join_kernels = joined,
                        .spare_bytes = joined ? 1 << 20 : 0});
}

Tensor data(const Ints& shape) { return Tensor::randn(shape).realize(); }

std::string complaint(const Schedule& schedule) {
  return test::message_of<InternalError>([&] { verify_memory(schedule); });
}

#define EXPECT_COMPLAINT(schedule, ...)                         \
  for (const char* words : {__VA_ARGS__})                       \
  EXPECT_NE(complaint(schedule).find(words), std::string::npos) \
      << words << "\n is not in\n " << complaint(schedule)

size_t item_of(const Schedule& schedule, Item::Kind kind, size_t which = 0) {
  for (size_t i = 0; i < schedule.items.size(); ++i) {
    if (schedule.items[i].kind == kind && which-- == 0) return i;
  }
  ADD_FAILURE() << "there is no such item";
  return 0;
}

// --- schedules -----------------------------------------------------------------------------------

// Three products, of which the first two are added to each other.
Schedule three_products() {
  Tensor a = data({16, 16}), x = a.matmul(a), y = a.matmul(a.exp());
  return plan_with_libraries({(x + y).matmul(a)});
}

TEST_F(Verify, AcceptsAPlan) { EXPECT_EQ(complaint(three_products()), ""); }

TEST_F(Verify, FindsTwoValuesInOnePlace) {
  Schedule s = three_products();
  std::vector<int> results;
  for (const Item& item : s.items) {
    if (item.kind == Item::Kind::Library) results.push_back(item.writes[0]);
  }
  s.buffers[size_t(results[1])].arena_offset = s.buffers[size_t(results[0])].arena_offset;
  EXPECT_COMPLAINT(s, "reads buffer", "has written buffer", "over it", "library dot");
}

// Devices have arenas of their own: what lies on others may have the same offset, on one of them not.
TEST_F(Verify, KnowsWhichDevicesShareMemory) {
  auto device = [](int rank, int index) { return DeviceRef{"CPU", rank, index}; };
  auto pair = [](const DeviceRef& a, const DeviceRef& b) { return Mesh({{"x", 2}}, {a, b}); };
  const Mesh left = pair(device(0, 0), device(0, 1)), right = pair(device(0, 2), device(1, 0)),
             middle = pair(device(0, 1), device(0, 2)),
             here = Mesh::single(device(DeviceRef::kHere, 0));
  // Two values in the same bytes, both made before one is read.
  auto in_one_place = [](const Mesh& one, const Mesh& other) {
    Schedule s;
    for (const Mesh& mesh : {one, other}) {
      VirtualBuffer& b = s.buffers.emplace_back();
      b.dtype = DType::F32;
      b.shape = {16};
      b.mesh = mesh;
      b.arena_offset = 0;
    }
    s.arena_bytes = 64;
    for (const bool reads : {false, true}) {
      for (int b : {0, 1}) {
        Item& item = s.items.emplace_back();
        item.kind = Item::Kind::Copy;
        item.call.node = UOp::make(Op::Param, DType::F32, {}, Dims{b});
        item.mesh = s.buffers[size_t(b)].mesh;
        (reads ? item.reads : item.writes) = item.buffers = {b};
      }
    }
    return s;
  };
  EXPECT_EQ(complaint(in_one_place(left, right)), "");
  EXPECT_COMPLAINT(in_one_place(left, left), "over it");
  EXPECT_COMPLAINT(in_one_place(left, middle), "over it");
  EXPECT_COMPLAINT(in_one_place(middle, right), "over it");
  // A device of each process is that of every rank.
  EXPECT_COMPLAINT(in_one_place(left, here), "over it");
  EXPECT_COMPLAINT(in_one_place(right, here), "over it");
  EXPECT_EQ(complaint(in_one_place(middle, here)), "");
  // And so it is planned.
  auto planned = [&](const Mesh& one, const Mesh& other) {
    Schedule s = in_one_place(one, other);
    plan_memory(s);
    EXPECT_EQ(complaint(s), "");
    return s;
  };
  EXPECT_EQ(planned(left, right).arena_bytes, 64);
  EXPECT_EQ(planned(middle, here).arena_bytes, 64);
  EXPECT_EQ(planned(right, here).arena_bytes, 128);
  const Schedule s = planned(left, middle);
  EXPECT_EQ(s.arena_bytes, 128);
  const int64_t least = std::min(arena_bytes_on(s, device(0, 0)), arena_bytes_on(s, device(0, 2)));
  EXPECT_EQ(least, 64);
  EXPECT_EQ(arena_bytes_on(s, device(0, 1)), 128);
  EXPECT_EQ(arena_bytes_on(s, device(1, 1)), 0);
}

TEST_F(Verify, FindsAReaderBeforeTheWriter) {
  Schedule s = three_products();
  std::swap(s.items[s.items.size() - 2], s.items.back());
  EXPECT_COMPLAINT(s, "before anybody has written it");
}

TEST_F(Verify, FindsAnArenaThatIsTooSmall) {
  Schedule s = three_products();
  s.arena_bytes -= 64;
  EXPECT_COMPLAINT(s, "ends beyond the arena");
}

TEST_F(Verify, FindsABufferWithoutMemory) {
  Schedule s = three_products();
  s.buffers[size_t(s.items[item_of(s, Item::Kind::Library)].writes[0])].arena_offset = -1;
  EXPECT_COMPLAINT(s, "has no memory of that size");
}

TEST_F(Verify, FindsTwoWritersOfABuffer) {
  Schedule s = three_products();
  s.items.push_back(s.items[item_of(s, Item::Kind::Library)]);
  EXPECT_COMPLAINT(s, "write buffer");
}

TEST_F(Verify, FindsAnOldValueThatIsReadAfterTheNewOne) {
  Tensor state = data({16, 16}), a = data({16, 16}), old = state.matmul(a);
  state.assign(a.matmul(a) + 1);
  Schedule s = plan_with_libraries({old, state});
  EXPECT_EQ(complaint(s), "");
  auto reads_state = [&](const Item& item) {
    return std::ranges::any_of(item.reads, [&](int b) {
      const VirtualBuffer& v = s.buffers[size_t(b)];
      return v.storage && std::ranges::any_of(s.buffers, [&](const VirtualBuffer& other) {
               return other.previous == b;
             });
    });
  };
  auto reader = std::ranges::find_if(s.items, reads_state);
  ASSERT_NE(reader, s.items.end());
  std::rotate(reader, reader + 1, s.items.end());
  EXPECT_COMPLAINT(s, "item", "reads buffer", "after", "has written buffer", "over it");
}

// The root is read after the run.
TEST_F(Verify, FindsAResultThatIsWrittenOver) {
  Tensor a = data({16, 16}), first = a.matmul(a);
  Schedule s = plan_with_libraries({first, first.matmul(a)});
  s.buffers[size_t(s.roots[1])].previous = s.roots[0];
  s.items.back().reads = {s.items.back().reads[1]};
  EXPECT_COMPLAINT(s, "the caller reads", "has written");
}

TEST_F(Verify, FindsAKernelThatIsNotToldWhatItWritesOver) {
  Tensor a = data({16, 16});
  Schedule s = plan_with_libraries({(a.matmul(a) * 2).matmul(a)});
  Item& kernel = s.items[item_of(s, Item::Kind::Kernel)];
  ASSERT_GE(s.buffers[size_t(kernel.writes[0])].previous, 0);
  for (ParamInfo& p : kernel.kernel.params) p.alias = -1;
  EXPECT_COMPLAINT(s, "writes buffer", "was not told so");
}

TEST_F(Verify, FindsAKernelThatReadsWhatItHasReplaced) {
  Tensor a = data({16, 16}), turned = a.matmul(a).transpose(0, 1).exp();
  Schedule s = plan_with_libraries({turned.contiguous().matmul(a)});
  Item& kernel = s.items[item_of(s, Item::Kind::Kernel)];
  VirtualBuffer& result = s.buffers[size_t(kernel.writes[0])];
  ASSERT_LT(result.previous, 0);
  result.previous = kernel.reads[0];
  kernel.kernel.params[1].alias = 0;
  EXPECT_COMPLAINT(s, "kernel map", "an element that another iteration has stored");
}

TEST_F(Verify, FindsALibraryThatWritesOverItsOperand) {
  Tensor a = data({16, 16});
  Schedule s = plan_with_libraries({a.matmul(a).matmul(a).exp()});
  const Item& product = s.items[item_of(s, Item::Kind::Library, 1)];
  s.buffers[size_t(product.writes[0])].previous = product.reads[0];
  EXPECT_COMPLAINT(s, "library dot", "over its operand");
}

TEST_F(Verify, FindsWhatDoesNotWaitForACollective) {
  Runtime::configure({.devices = {"NULL:0", "NULL:1"}});
  Mesh mesh = Mesh::of({"NULL:0", "NULL:1"});
  Tensor x = Tensor::empty({64, 32}).shard(mesh, {{"data", Shard(0)}});
  Schedule s = plan({x.sum(0).exp() * 2});
  EXPECT_EQ(complaint(s), "");
  for (Item& item : s.items) item.waits.clear();
  EXPECT_COMPLAINT(s, "without waiting for", "all_reduce");
}

// --- kernels -------------------------------------------------------------------------------------

// A kernel of rows x columns elements that stores to slot 0 what is computed from slot 1.
class VerifyKernel : public testing::Test {
 protected:
  void size(int64_t rows, int64_t columns) {
    columns_ = columns;
    i_ = range(0, rows, RangeKind::Loop);
    j_ = range(1, columns, RangeKind::Loop);
    row_ = range(64, rows, RangeKind::Fold);
    column_ = range(65, columns, RangeKind::Fold);
    inner_ = range(128, rows, RangeKind::Fold);
  }
  UOp at(const UOp& row, const UOp& column) const {
    return binary(Op::Add, binary(Op::Mul, row, index_const(columns_)), column);
  }
  static UOp read_at(const UOp& index) {
    UOp param = UOp::make(Op::Param, DType::F32, {}, Dims{1});
    return UOp::make(Op::Load, DType::F32, {param, index});
  }
  UOp read(const UOp& row, const UOp& column) const { return read_at(at(row, column)); }
  static UOp sum(const UOp& x, const UOp& range) {
    return UOp::make(Op::Fold, DType::F32, {x, range}, Dims{int64_t(ReduceOp::Sum)});
  }
  static UOp up_to(const UOp& x, const UOp& range, const UOp& last) {
    return where(binary(Op::CmpLt, last, range), const_float(DType::F32, 0), x);
  }
  bool accepted(const UOp& value) const {
    UOp param = UOp::make(Op::Param, DType::F32, {}, Dims{0});
    UOp store = UOp::make(Op::Store, DType::F32, {param, at(i_, j_), value});
    KernelSource kernel;
    kernel.sink = UOp::make(Op::Sink, DType::Bool, {store});
    kernel.params.resize(2);
    const SharedParams share(2, std::vector<bool>(2, true));
    return test::message_of<InternalError>([&] { verify_in_place(kernel, share); }).empty();
  }
  void expect_answers() {
    UOp here = read(i_, j_);
    EXPECT_TRUE(accepted(binary(Op::Mul, here, here)));
    EXPECT_TRUE(accepted(binary(Op::Mul, here, sum(read(i_, column_), column_))));
    EXPECT_TRUE(accepted(binary(Op::Mul, here, sum(read(row_, j_), row_))));
    EXPECT_TRUE(accepted(binary(Op::Mul, here, sum(sum(read(row_, column_), row_), column_))));
    // Sums for each element of a column.
    EXPECT_FALSE(accepted(sum(up_to(read(row_, j_), row_, i_), row_)));
    // Sums of sums of a column, for all of it and for each element.
    UOp inner = sum(up_to(read(inner_, j_), inner_, row_), inner_);
    EXPECT_TRUE(accepted(sum(inner, row_)));
    EXPECT_FALSE(accepted(sum(up_to(inner, row_, i_), row_)));
    // The variance of a row; that of the row before.
    auto variance = [&](const UOp& row) {
      UOp other = range(130, columns_, RangeKind::Fold);
      UOp difference = binary(Op::Sub, read(row, column_), sum(read(row, other), other));
      return sum(binary(Op::Mul, difference, difference), column_);
    };
    EXPECT_TRUE(accepted(variance(i_)));
    EXPECT_FALSE(
        accepted(variance(binary(Op::Max, binary(Op::Sub, i_, index_const(1)), index_const(0)))));
  }

  int64_t columns_ = 0;
  UOp i_, j_, row_, column_, inner_;
};

TEST_F(VerifyKernel, GoesThroughSmallKernels) {
  size(6, 5);
  expect_answers();
  // Backwards; and masked so that it is the same element after all.
  EXPECT_FALSE(accepted(read(binary(Op::Sub, index_const(5), i_), j_)));
  UOp param = UOp::make(Op::Param, DType::F32, {}, Dims{1});
  UOp masked = UOp::make(
      Op::Load, DType::F32,
      {param, at(binary(Op::Mod, i_, index_const(3)), j_), binary(Op::CmpLt, i_, index_const(3))});
  EXPECT_TRUE(accepted(masked));
  // An index from data.
  UOp place = cast(read(i_, j_), DType::Index);
  EXPECT_FALSE(accepted(read_at(place)));
}

// A value that lies on one device of a 2x3 mesh alone, padded on the others: the same element,
// wherever it is there, or the one of the next row, which only some devices read.
TEST_F(VerifyKernel, GoesThroughTheDevicesOfAllAxes) {
  size(6, 5);
  UOp param = UOp::make(Op::Param, DType::F32, {}, Dims{1});
  auto coordinate = [](int64_t axis, int64_t size) {
    return UOp::make(Op::DeviceCoordinate, DType::Index, {}, Dims{axis, size});
  };
  auto read_where = [&](const UOp& row, const UOp& valid) {
    return UOp::make(Op::Load, DType::F32, {param, at(row, j_), valid});
  };
  UOp a = coordinate(0, 2), b = coordinate(1, 3), one = index_const(1);
  UOp first = binary(Op::And, binary(Op::CmpLt, a, one), binary(Op::CmpLt, b, one));
  EXPECT_TRUE(accepted(read_where(i_, first)));
  UOp next = binary(Op::Mod, binary(Op::Add, i_, binary(Op::Mul, a, b)), index_const(6));
  EXPECT_FALSE(accepted(read_where(next, binary(Op::CmpLt, i_, index_const(6)))));
  EXPECT_TRUE(accepted(read_where(next, first)));
}

TEST_F(VerifyKernel, ReasonsAboutLargeKernels) {
  size(40000, 30000);
  expect_answers();
  size(30000, 30000);
  EXPECT_FALSE(accepted(read(j_, i_)));
}

// --- what the scheduler makes --------------------------------------------------------------------

struct Program {
  const char* name;
  std::function<Tensors()> make;
};

Tensors step_of(const Tensor& loss, Tensors parameters) {
  Tensors results = loss.gradient(parameters);
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].assign(parameters[i] - results[i] * 0.1);
  results = parameters;
  results.push_back(loss);
  return results;
}

std::vector<Program> programs() {
  return {
      {"softmax of products",
       [] {
         Tensor a = data({40, 40});
         return Tensors{a.matmul(a).softmax(1).matmul(a).softmax(0).matmul(a)};
       }},
      {"cumulative sums of cumulative sums",
       [] {
         Tensor a = data({9, 5}), x = a.matmul(a.T()).roll(1, 1).cumsum(0) * 2;
         return Tensors{a.T().matmul(x.flip(0).cumsum(0).flip(0).roll(-1, 1))};
       }},
      {"a step of a small network",
       [] {
         Tensor x = data({32, 24}), w = data({24, 24}), v = data({24, 10}), b = data({24});
         Tensor labels = Tensor::randint({32}, 0, 10).realize();
         Tensor h = (x.matmul(w) + b).layernorm().gelu();
         return step_of(h.matmul(v).sparse_categorical_crossentropy(labels), {w, v, b});
       }},
      {"a step of a convolution",
       [] {
         Tensor x = data({4, 3, 12, 12}), w = data({8, 3, 3, 3});
         return step_of(x.conv2d(w).relu().max_pool2d({2, 2}).square().mean(), {w});
       }},
      {"attention, step and old values",
       [] {
         Tensor q = data({2, 4, 16, 8}), w = data({8, 8}), old = w.square().sum();
         Tensor scores = q.matmul(w).matmul(q.transpose(-1, -2)).softmax(-1);
         Tensors results = step_of(scores.matmul(q).square().mean(), {w});
         results.push_back(old);
         return results;
       }},
      {"a step that computes again",
       [] {
         Tensor x = data({16, 16}), w = data({16, 16}), b = data({16});
         auto block = [](const Tensor& h, const Tensor& m, const Tensor& c) {
           return (h.matmul(m) + c).tanh().layernorm();
         };
         Tensor y =
             nn::checkpoint_activations(block, nn::checkpoint_activations(block, x, w, b), w, b);
         return step_of(y.square().mean(), {w, b});
       }},
      {"two states that change places",
       [] {
         Tensor a = data({8, 8}), b = data({8, 8}), c = a * 2;
         a.assign(b + 1);
         b.assign(c);
         return Tensors{a, b};
       }},
      {"sorted, picked and scattered",
       [] {
         Tensor x = data({12, 9}), table = data({20, 4});
         Tensor index = Tensor::randint({6}, 0, 20).realize();
         Tensors results = table[index].square().sum().gradient({table});
         results.push_back(x.sort(1).first);
         results.push_back(x.topk(3, 0).second);
         return results;
       }},
  };
}

TEST_F(Verify, AcceptsEveryProgram) {
  for (const Program& program : programs()) {
    for (bool joined : {false, true}) {
      EXPECT_EQ(complaint(plan(program.make())), "") << program.name;
      EXPECT_EQ(complaint(plan_with_libraries(program.make(), joined)), "") << program.name;
    }
  }
}

TEST_F(Verify, AcceptsStepsOnAMesh) {
  Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  Mesh mesh({{"data", 2}, {"model", 2}});
  for (int64_t batch : {8, 7}) {
    Tensor x = data({batch, 16}).shard(mesh, {{"data", Shard(0)}}).realize();
    Tensor w = data({16, 24}).shard(mesh, {{"model", Shard(1)}}).realize();
    Tensor v = data({24, 16}).shard(mesh, {{"model", Shard(0)}}).realize();
    Tensor b = data({16}).shard(mesh).realize();
    Tensor loss = (x.matmul(w).gelu().matmul(v) + b).layernorm().square().mean();
    EXPECT_EQ(complaint(plan(step_of(loss, {w, v, b}))), "") << batch;
  }
}

}  // namespace
}  // namespace tinyshard::verify_test
