// Every op gives the same values on a mesh as on one device, however its operands lie: the table of
// ops below is run for each placement, on even, uneven and two-dimensional meshes.
#include <cmath>
#include <functional>
#include <numeric>
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/exec/context.h"
#include "tests/devices.h"
#include "tests/message_of.h"
#include "tests/multi/one_device.h"

namespace tinyshard::sharding_test {
namespace {

struct OpCase {
  std::string name;
  std::function<Tensor(const Tensor& x, const Tensor& w)> run;  // x [8, 12], w [12, 8]
};

std::vector<OpCase> op_cases() {
  using T = const Tensor&;
  return {
      {"elementwise", [](T x, T) { return (x * 2 + 1).relu(); }},
      {"transpose_sum", [](T x, T w) { return x + w.transpose(0, 1); }},
      {"sum_all", [](T x, T) { return x.sum(); }},
      {"sum_rows", [](T x, T) { return x.sum(0); }},
      {"sum_columns", [](T x, T) { return x.sum(1); }},
      {"max_rows", [](T x, T) { return x.max(0); }},
      {"max_columns", [](T x, T) { return x.max(1); }},
      {"min_all", [](T x, T) { return x.min(); }},
      {"mean_minus", [](T x, T) { return x - x.mean(0, true); }},
      {"softmax_rows", [](T x, T) { return x.softmax(0); }},
      {"softmax_columns", [](T x, T) { return x.softmax(1); }},
      {"layernorm", [](T x, T) { return x.layernorm(); }},
      {"var", [](T x, T) { return x.var(0); }},
      {"argmax", [](T x, T) { return x.argmax(0).cast(DType::F32); }},
      {"matmul", [](T x, T w) { return x.matmul(w); }},
      {"matmul_chain", [](T x, T w) { return x.matmul(w).matmul(x); }},
      {"matmul_self", [](T x, T) { return x.matmul(x.transpose(0, 1)); }},
      {"reshape_merge", [](T x, T) { return x.reshape({96}) * 2; }},
      {"reshape_split", [](T x, T) { return x.reshape({2, 4, 12}).sum(1); }},
      {"reshape_across", [](T x, T) { return x.reshape({4, 24}) + 1; }},
      {"permute", [](T x, T) { return x.transpose(0, 1).contiguous(); }},
      {"expand", [](T x, T) { return x.reshape({8, 1, 12}).expand({8, 3, 12}).sum(2); }},
      {"pad", [](T x, T) { return x.pad({{1, 2}, {0, 3}}); }},
      {"shrink", [](T x, T) { return x.shrink({{1, 5}, {2, 11}}); }},
      {"flip", [](T x, T) { return x.flip({0, 1}); }},
      {"unfold", [](T x, T) { return x.unfold(0, 3, 1); }},
      {"unfold_steps", [](T x, T) { return x.unfold(1, 4, 3) * 2; }},
      {"unfold_both", [](T x, T) { return x.unfold(0, 3, 2).unfold(1, 5, 2).sum(2); }},
      {"max_pool", [](T x, T) { return x.max_pool2d(3, {.stride = 2, .padding = 1}); }},
      {"max_pool_1", [](T x, T) { return x.max_pool2d({3, 2}, {.stride = 1}); }},
      {"max_pool_apart", [](T x, T) { return x.max_pool2d(2, {.stride = {3, 5}}); }},
      {"max_pool_dilated",
       [](T x, T) { return x.max_pool2d({2, 3}, {.stride = 1, .dilation = 2}); }},
      {"avg_pool",
       [](T x, T) { return x.avg_pool2d(3, {.stride = 2, .padding = 1, .ceil_mode = true}); }},
      {"cat", [](T x, T) { return x.cat({x * 3}, 0); }},
      {"stack", [](T x, T) { return x.stack({x * 3}, 1); }},
      {"cumsum", [](T x, T) { return x.cumsum(0); }},
      {"where", [](T x, T) { return (x > 0).where(x, x * 0.1); }},
      {"triu", [](T x, T) { return x.triu(); }},
      {"gather_rows",
       [](T x, T) { return x.gather(0, Tensor({{1, 0, 7, 3, 2, 2, 5, 6, 4, 1, 0, 3}})); }},
      {"embedding", [](T x, T) { return x.embedding(Tensor({3, 0, 7, 7})); }},
      {"sort", [](T x, T) { return x.sort(0).first; }},
      {"conv",
       [](T x, T w) {
         return x.reshape({8, 1, 3, 4})
             .conv2d(w.reshape({12, 1, 2, 4}).shrink({{0, 5}, {0, 1}, {0, 2}, {0, 4}}));
       }},
      {"loss",
       [](T x, T) { return x.sparse_categorical_crossentropy(Tensor({1, 0, 7, 3, 2, 2, 5, 11})); }},
  };
}

struct Layout {
  std::string name;
  std::vector<MeshAxis> axes;
  std::vector<AxisPlacement> x, w;
};

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (int64_t n : {2, 3, 4}) {
    std::vector<MeshAxis> axes{{"data", n}};
    std::string size = "_on_" + std::to_string(n);
    all.push_back({"replicated" + size, axes, {}, {}});
    all.push_back({"rows" + size, axes, {{"data", Shard(0)}}, {}});
    all.push_back({"columns" + size, axes, {{"data", Shard(1)}}, {}});
    all.push_back({"both_inner" + size, axes, {{"data", Shard(1)}}, {{"data", Shard(0)}}});
    all.push_back({"rows_and_columns" + size, axes, {{"data", Shard(0)}}, {{"data", Shard(1)}}});
    all.push_back({"weights_inner" + size, axes, {}, {{"data", Shard(0)}}});
  }
  std::vector<MeshAxis> grid{{"data", 2}, {"model", 2}};
  all.push_back({"grid", grid, {{"data", Shard(0)}, {"model", Shard(1)}}, {{"model", Shard(0)}}});
  all.push_back(
      {"grid_twice_rows", grid, {{"data", Shard(0)}, {"model", Shard(0)}}, {{"model", Shard(1)}}});
  all.push_back({"grid_model", grid, {{"model", Shard(0)}}, {{"data", Shard(1)}}});
  return all;
}

using ShardingTest = OnDevices<4, testing::TestWithParam<Layout>>;

TEST_P(ShardingTest, GivesTheValuesOfOneDevice) {
  const Layout& layout = GetParam();
  Mesh mesh(layout.axes);
  Tensor::manual_seed(7);
  Tensor x = Tensor::randn({8, 12}).realize(), w = Tensor::randn({12, 8}).realize();
  Tensor xs = x.shard(mesh, layout.x).realize(), ws = w.shard(mesh, layout.w).realize();
  expect_same(xs, x, 0, "the sharded tensor itself");
  for (const OpCase& op : op_cases()) {
    SCOPED_TRACE(op.name);
    expect_same(op.run(xs, ws), op.run(x, w), 2e-5, op.name);
  }
}

TEST_P(ShardingTest, GradientsAreThoseOfOneDevice) {
  const Layout& layout = GetParam();
  Mesh mesh(layout.axes);
  Tensor::manual_seed(8);
  Tensor x = Tensor::randn({8, 12}).realize(), w = Tensor::randn({12, 8}).realize();
  auto loss = [](const Tensor& a, const Tensor& b) {
    return a.matmul(b).tanh().matmul(a).log_softmax(1).square().mean();
  };
  Tensor xs = x.shard(mesh, layout.x).realize(), ws = w.shard(mesh, layout.w).realize();
  auto one = loss(x, w).gradient({x, w}), many = loss(xs, ws).gradient({xs, ws});
  expect_same(many[0], one[0], 5e-5, "gradient of x");
  expect_same(many[1], one[1], 5e-5, "gradient of w");
}

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

INSTANTIATE_TEST_SUITE_P(Layouts, ShardingTest, testing::ValuesIn(layouts()),
                         [](const auto& info) { return info.param.name; });

// --- reductions that are pending when an op meets them -------------------------------------------

struct Pending {
  std::string name;
  std::function<Tensor(const Tensor& rows)> reduce;  // over dim 0, which is split
};

// Applied to p, with q another pending value of its type and r one that is complete.
struct Applied {
  std::string name;
  UOp node;
};

// Every elementwise op of the table, on every type that it takes.
std::vector<Applied> applied_to(const UOp& p, const UOp& q, const UOp& r) {
  std::vector<Applied> all;
  const DType type = p.dtype();
  for (int i = 0; i < kOps; ++i) {
    const Op op = Op(i);
    const OpInfo& facts = info(op);
    if (facts.op_class != OpClass::Elementwise || op == Op::Composite ||
        (facts.element.floats_only && !is_float(type)))
      continue;
    const bool bits_only = op == Op::Not || op == Op::And || op == Op::Or || op == Op::Xor ||
                           op == Op::IDiv || op == Op::Mod || op == Op::Shl || op == Op::Shr;
    if ((bits_only && is_float(type)) || (op == Op::Threefry && type != DType::U64)) continue;
    auto add = [&](const std::string& how, const UOp& node) {
      all.push_back({std::string(facts.name) + how, node});
    };
    if (op == Op::Cast) {
      for (DType to : {DType::F32, DType::F64, DType::I64, DType::I32, DType::U8, DType::Bool})
        if (to != type) add(fmt::format(" to {}", name(to)), cast(p, to));
    } else if (op == Op::Bitcast) {
      if (type == DType::F32) add("", UOp::make(op, DType::I32, {p}));
    } else if (facts.arity == 1) {
      add("", unary(op, p));
    } else if (facts.arity == 2) {
      add(" of two", binary(op, p, q));
      add(" of itself", binary(op, p, p));
      add(" and a complete one", binary(op, p, r));
      add(" of a complete one", binary(op, r, p));
    } else {
      UOp condition = binary(Op::CmpLt, r, q);
      add(" chosen by a complete one", where(binary(Op::CmpLt, r, const_like(r, 1)), p, q));
      add(" chosen by a pending one", where(condition, p, r));
      add(" or a complete one", where(binary(Op::CmpLt, r, const_like(r, 1)), r, p));
    }
  }
  return all;
}

TEST(Sharding, EveryOpMeetsPendingReductions) {
  TINYSHARD_NEED_DEVICES(3);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(3), .devices_per_rank = 0});
  Mesh mesh({{"data", 3}});
  const std::vector<Pending> reductions = {
      {"sum", [](const Tensor& x) { return x.sum(0, false, x.dtype()); }},
      {"max", [](const Tensor& x) { return x.max(0); }},
      {"prod", [](const Tensor& x) { return x.prod(0); }},
  };
  for (DType type : {DType::F32, DType::I32, DType::U8, DType::U64}) {
    Tensor count = Tensor::arange(84).reshape({7, 12});
    // Floats whose sums and products are exact in any order, of all signs and none of them 0.
    auto data = [&](int64_t factor) {
      Tensor whole = count * factor % 7;
      return is_float(type) ? (whole.cast(type) - 2.5) / 4 : (whole * 37 % 256).cast(type);
    };
    Tensor x = data(37), y = data(5);
    x = x.contiguous().realize(), y = y.contiguous().realize();
    Tensor r = y.shrink({{0, 1}, {0, 12}}).reshape({12}).contiguous().realize();
    Tensor xs = x.shard(mesh, {{"data", Shard(0)}}).realize(),
           ys = y.shard(mesh, {{"data", Shard(0)}}).realize(), rs = r.shard(mesh).realize();
    for (const Pending& reduction : reductions) {
      auto expected = applied_to(reduction.reduce(x).uop(), reduction.reduce(y).uop(), r.uop());
      auto actual = applied_to(reduction.reduce(xs).uop(), reduction.reduce(ys).uop(), rs.uop());
      for (size_t i = 0; i < actual.size(); ++i) {
        std::string what =
            fmt::format("{} of {} of {}", actual[i].name, reduction.name, name(type));
        Tensor got(actual[i].node), want(expected[i].node);
        if (!is_float(got.dtype())) {
          EXPECT_EQ(got.to_vector<int64_t>(), want.to_vector<int64_t>()) << what;
          continue;
        }
        auto a = got.to_vector<double>(), b = want.to_vector<double>();
        for (size_t k = 0; k < a.size(); ++k) {
          if (std::isnan(a[k]) && std::isnan(b[k])) continue;
          EXPECT_NEAR(a[k], b[k], 5e-5 * (1 + std::abs(b[k]))) << what << " element " << k;
        }
      }
    }
  }
}

// A pending sum that is multiplied term by term is no number where the factor is infinite, or is
// the inverse of 0: of the terms 3, -1 and 0 none may meet it alone.
TEST(Sharding, PendingSumsMeetInfinity) {
  TINYSHARD_NEED_DEVICES(3);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(3), .devices_per_rank = 0});
  Mesh mesh({{"data", 3}});
  Tensor sum =
      Tensor({{3.0, 6.0}, {-1.0, -6.0}, {0.0, 0.0}}).shard(mesh, {{"data", Shard(0)}}).sum(0);
  Tensor infinite = Tensor({INFINITY, 1.0}).shard(mesh), zero = Tensor({0.0, 2.0}).shard(mesh);
  const auto values = [](const Tensor& x) { return x.to_vector<float>(); };
  EXPECT_EQ(values(sum * infinite), (std::vector<float>{INFINITY, 0}));
  EXPECT_EQ(values(infinite * sum), (std::vector<float>{INFINITY, 0}));
  EXPECT_EQ(values((sum + 1) / zero), (std::vector<float>{INFINITY, 0.5f}));
  EXPECT_EQ(values((sum / 0)[0]), (std::vector<float>{INFINITY}));
  EXPECT_EQ(values((sum * INFINITY)[0]), (std::vector<float>{INFINITY}));
  Tensor columns = Tensor({{INFINITY, 2.0}, {1.0, 1.0}}).shard(mesh);
  EXPECT_EQ(values(sum.unsqueeze(0).matmul(columns)), (std::vector<float>{INFINITY, 4}));
  // Factors of at most 1 cost no collective of their own: one completes all sums.
  EXPECT_EQ((sum / 2 + sum / 4 - sum * (zero == 0)).sharding().placements[0], Partial());
  // By larger ones the terms may overflow where their sum does not.
  EXPECT_EQ((sum * 2).sharding().placements[0], Replicate);
  EXPECT_EQ(values(sum * 1.5e38), (std::vector<float>{3e38f, 0}));
}

// A value that is stored in one shape and divided in another is cut in the latter.
TEST(Sharding, AViewIsDivided) {
  TINYSHARD_NEED_DEVICES(3);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(3), .devices_per_rank = 0});
  std::vector<float> expected(24);
  std::iota(expected.begin(), expected.end(), 0.f);
  const Tensor stored = Tensor(expected).realize();
  for (const Dims& shape : {Dims{4, 6}, Dims{2, 3, 4}, Dims{1, 24}, Dims{24, 1}}) {
    for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim) {
      const Tensor parts = stored.reshape(shape).shard(device_names(3), dim);
      EXPECT_EQ(parts.to_vector<float>(), expected);
      EXPECT_EQ((parts + 0.5).sum().item<float>(), 276 + 12);
    }
  }
  const Tensor scalar = Tensor(std::vector<float>{5}, Ints(Dims{})).realize();
  EXPECT_EQ(scalar.reshape({1, 1}).shard(device_names(3), 1).to_vector<float>()[0], 5);
}

// A parameter is known through its value elsewhere, computed already or not.
TEST(Sharding, APartOfAParameterLeadsToItsGradient) {
  TINYSHARD_NEED_DEVICES(2);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(2), .devices_per_rank = 0});
  const std::vector<float> expected{3, 3, 3, 7, 7, 7};  // sums of the columns of x
  for (bool computed : {true, false}) {
    for (int way = 0; way < 5; ++way) {
      SCOPED_TRACE(fmt::format("way {}, {}", way, computed ? "computed" : "not computed"));
      Tensor::manual_seed(3);
      Tensor w = Tensor::rand({2, 3}).is_param_(), other = Tensor::full({2, 3}, 1.0).is_param_();
      if (computed) w.realize();
      auto used = [&]() -> Tensor {
        if (way < 2) return w.shard(device_names(2), way);
        if (way == 2) return w.shard(device_names(2));
        if (way == 3) return w.to(device_name(1)).to(device_name(0)).shard(device_names(2));
        return w.replace(w.shard(device_names(2)).shard(device_names(2), 1));
      }();
      Tensor x = Tensor(std::vector<float>{1, 3, 2, 4}, {2, 2}).shard(device_names(2));
      (x.matmul(used) + other.shard(device_names(2)) * x.sum(1, true)).sum().backward();
      ASSERT_TRUE(w.grad().defined() && other.grad().defined());
      EXPECT_EQ(w.grad().to_vector<float>(), expected);
      Tensor::manual_seed(3);
      EXPECT_EQ(w.to_vector<float>(), Tensor::rand({2, 3}).to_vector<float>());
    }
  }
}

TEST(Sharding, ToAndFromOneDevice) {
  TINYSHARD_NEED_DEVICES(2);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(2), .devices_per_rank = 0});
  Tensor x = Tensor::arange(6).reshape({2, 3}).contiguous().realize();
  Tensor there = x.to(device_name(1)).realize();
  EXPECT_EQ(there.to_vector<int>(), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(there.to(device_name(0)).to_vector<int>(), x.to_vector<int>());
  EXPECT_THROW((x + there).realize(), UserError);
}

TEST(Sharding, RandomNumbersDoNotDependOnDevices) {
  TINYSHARD_NEED_DEVICES(3);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(3), .devices_per_rank = 0});
  Tensor::manual_seed(3);
  auto one = Tensor::rand({7, 5}).to_vector<float>();
  Tensor::manual_seed(3);
  Tensor many = Tensor::rand({7, 5}).shard(Mesh({{"data", 3}}), {{"data", Shard(0)}});
  EXPECT_EQ(many.to_vector<float>(), one);
}

// Random numbers are drawn where what they meet lies, and none of them travels there.
TEST(Sharding, RandomNumbersJoinAnotherDevice) {
  TINYSHARD_NEED_DEVICES(2);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(2), .devices_per_rank = 0});
  const TrainingMode on;
  using T = const Tensor&;
  const std::vector<std::pair<std::string, std::function<Tensor(T)>>> cases{
      {"dropout", [](T x) { return x.dropout(0.5); }},
      {"noise", [](T x) { return x + Tensor::randn(x.shape()); }},
      {"noise first", [](T x) { return Tensor::rand(x.shape(), DType::F64) * x; }},
      {"three operands",
       [](T x) {
         return (Tensor::rand(x.shape()) > 0.5).where(x, Tensor::randint(x.shape(), 0, 9));
       }},
      {"product", [](T x) { return x.matmul(Tensor::randn({16, 8})); }},
      {"attention",
       [](T x) {
         const Tensor h = x.reshape({1, 64, 16});
         return h.scaled_dot_product_attention(h, h, {}, {.dropout_p = 0.3});
       }},
      {"gradient",
       [](T x) {
         const Tensor w = (x * 1).realize().is_param_();
         (w.dropout(0.5) * w).sum().backward();
         return w.grad();
       }},
      {"captured",
       [](T x) {
         Jit step = [](Tensor y) { return y.dropout(0.5); };
         for (int i = 0; i < 2; ++i) step(x);
         return step(x);
       }},
  };
  const Tensor x = (Tensor::arange(64 * 16).reshape({64, 16}) / 512.0 - 1).realize();
  const Tensor plain = x.to(device_name(1)).realize(),
               on_mesh = x.shard(Mesh::of({device_name(1)})).realize();
  for (const auto& [name, run] : cases) {
    auto values = [&run = run](T given) {
      Tensor::manual_seed(3);
      return run(given).to_vector<float>();
    };
    const std::vector<float> here = values(x);
    EXPECT_EQ(values(plain), here) << name;
    EXPECT_EQ(values(on_mesh), here) << name << ", on a mesh of one device";
  }
  for (const Tensor& there : {plain, on_mesh}) {
    const Tensor y = there.dropout(0.5) + Tensor::rand(x.shape());
    EXPECT_EQ(y.sharding().mesh, there.sharding().mesh);
    for (const DeviceMemory& m : summarize({y}).memory) {
      if (m.device == device_name(0)) {
        EXPECT_LE(m.peak_bytes(), 256) << "the first device has but counts and seeds";
      }
    }
  }
  // A draw that somebody stored or placed stays.
  EXPECT_THROW((plain + Tensor::rand({64, 16}).realize()).realize(), UserError);
  EXPECT_THROW((x + Tensor::rand({64, 16}).to(device_name(1))).realize(), UserError);
}

// A mesh of one device is one, as a mesh of several is: a value of a device without a mesh joins it.
TEST(Sharding, AMeshOfOneDeviceIsJoined) {
  TINYSHARD_NEED_DEVICES(2);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(2), .devices_per_rank = 0});
  const Tensor x = Tensor::arange(6).contiguous().realize();
  const Mesh first = Mesh::of({device_name(0)}), second = Mesh::of({device_name(1)});
  const Tensor sum = x + x.shard(second).realize();
  EXPECT_EQ(sum.sharding().mesh, second);
  EXPECT_EQ(sum.to_vector<int>(), (std::vector<int>{0, 2, 4, 6, 8, 10}));
  EXPECT_THROW((x.shard(first) + x.shard(second)).realize(), UserError);
}

TEST(Sharding, OperandsThatDoNotMeetAreNamed) {
  TINYSHARD_NEED_DEVICES(3);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(3), .devices_per_rank = 0});
  const Tensor x = Tensor::ones({2, 3}).contiguous().realize(), y = x.to(device_name(1)).realize();
  auto expect = [](const Tensor& made, const std::string& begin) {
    const std::string text = test::message_of<UserError>([&] { made.realize(); });
    EXPECT_EQ(text.find(begin), 0) << text;
    EXPECT_NE(text.find("(sharding_test.cpp:"), std::string::npos) << text;
  };
  const std::string devices = device_name(0) + " and on " + device_name(1);
  expect(x + y, "add, which makes f32[2, 3]: operands live on " + devices);
  expect(x.matmul(y.T()).exp(), "matmul, which makes f32[2, 2]: operands live on " + devices);
  expect(x.shard(Mesh({{"a", 2}})) * y.shard(Mesh({{"b", 3}})),
         "mul, which makes f32[2, 3]: operands live on mesh(a=2) and on mesh(b=3)");
}

TEST(Sharding, TooManyDevicesIsAnError) {
  TINYSHARD_NEED_DEVICES(2);
  Runtime::shutdown();
  Runtime::configure({.devices = device_names(2), .devices_per_rank = 0});
  try {
    Mesh mesh({{"data", 5}});
    FAIL() << "a mesh of five devices out of two";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find('5'), std::string::npos);
    EXPECT_NE(std::string(error.what()).find('2'), std::string::npos);
  }
  Runtime::shutdown();
}

}  // namespace
}  // namespace tinyshard::sharding_test
