// Passes of one's own: they change what is planned while their scope is open, and nothing else; steps
// that were captured know with which passes; wrong ones are told by name.
#include <gtest/gtest.h>

#include "tests/message_of.h"
#include "tinyshard/tinyshard.h"
#include "tinyshard/uop.h"

namespace tinyshard::program_pass_test {
namespace {

using test::message_of;
using Floats = std::vector<float>;

const Pattern x = Pattern::any("x");

// sin(x) becomes `factor` times x.
ProgramPass sin_is(double factor, std::string name = "sin") {
  return ProgramPass(std::move(name),
                     PatternMatcher({{"sin", Pattern(Op::Sin, {x}),
                                      [factor](const Match& m) { return m["x"] * factor; }}}));
}
Tensor ones() { return Tensor(Floats{1, 1}); }

TEST(ProgramPass, ChangesWhatIsPlannedWithinItsScope) {
  const ProgramPass pass = sin_is(10);
  const Tensor before = ones().sin(), within = ones().sin(), after = ones().sin();
  const float sine = before.to_vector<float>()[0];
  {
    const PassScope on(pass);
    EXPECT_EQ(within.to_vector<float>(), (Floats{10, 10}));
  }
  EXPECT_EQ(after.to_vector<float>(), (Floats{sine, sine}));
  EXPECT_NEAR(sine, 0.8415, 1e-4);
}

TEST(ProgramPass, ScopesRunInTheOrderInWhichTheyWereOpened) {
  const ProgramPass ten = sin_is(10),
                    adds("adds",
                         PatternMatcher({{"mul", Pattern(Op::Mul, {x, Pattern::constant(10.0)}),
                                          [](const Match& m) { return m["x"] + 5; }}}));
  {
    const PassScope first(ten), second(adds);
    EXPECT_EQ(ones().sin().to_vector<float>()[0], 6);
  }
  const PassScope first(adds), second(ten);
  EXPECT_EQ(ones().sin().to_vector<float>()[0], 10);
}

TEST(ProgramPass, MayBeAFunctionOfAllRoots) {
  size_t seen = 0;
  const ProgramPass pass("doubles", [&](std::span<const UOp> roots) {
    seen = roots.size();
    std::vector<UOp> doubled;
    for (const UOp& root : roots) doubled.push_back(root * 2);
    return doubled;
  });
  const Tensor a = ones() + 1, b = ones() + 2;
  const PassScope on(pass);
  Tensor::realize({a, b});
  EXPECT_EQ(seen, 2u);
  EXPECT_EQ(a.to_vector<float>()[0], 4);
  EXPECT_EQ(b.to_vector<float>()[0], 6);
}

// Rules may be written with methods of tensors, and read tensors from elsewhere.
TEST(ProgramPass, MayUseTensors) {
  const Tensor weight = (ones() * 3).realize();
  const ProgramPass pass("tensors",
                         PatternMatcher({{"sin", Pattern(Op::Sin, {x}), [&](const Match& m) {
                                            return (Tensor(m["x"]).exp() * 0 + weight).uop();
                                          }}}));
  const PassScope on(pass);
  EXPECT_EQ(ones().sin().to_vector<float>()[0], 3);
}

// A step is captured for the passes that are open; each list of them keeps its plan.
TEST(ProgramPass, IsPartOfWhatACapturedStepIsKnownBy) {
  int traces = 0;
  Jit step([&](const Tensor& t) {
    ++traces;
    return t.sin();
  });
  const ProgramPass ten = sin_is(10), twenty = sin_is(20);
  auto call = [&] { return step(ones()).to_vector<float>()[0]; };
  const float sine = call();
  EXPECT_EQ(call(), sine);
  EXPECT_EQ(traces, 1);
  for (int turn = 0; turn < 3; ++turn) {
    {
      const PassScope on(ten);
      EXPECT_EQ(call(), 10);
      EXPECT_EQ(call(), 10);
    }
    {
      const PassScope on(twenty);
      EXPECT_EQ(call(), 20);
    }
    EXPECT_EQ(call(), sine);
  }
  EXPECT_EQ(traces, 3);
  {
    const PassScope on(sin_is(30));  // of the same name, with other rules
    EXPECT_EQ(call(), 30);
  }
  const PassScope first(ten), second(twenty);
  EXPECT_EQ(call(), 10);
  EXPECT_EQ(traces, 5);
}

TEST(ProgramPass, SeesGlobalShapesOfShardedValues) {
  const Mesh mesh = Mesh::of({"CPU:0", "CPU:1"}, "d");
  std::vector<Dims> shapes;
  const ProgramPass pass("sharded",
                         PatternMatcher({{"sin", Pattern(Op::Sin, {x}), [&](const Match& m) {
                                            shapes.emplace_back(m.root().shape().begin(),
                                                                m.root().shape().end());
                                            return m["x"] * 10;
                                          }}}));
  const Tensor rows =
      Tensor::arange(6).cast(DType::F32).reshape({6, 1}).shard(mesh, {{"d", Shard(0)}});
  const PassScope on(pass);
  const Tensor y = rows.realize().sin();
  EXPECT_EQ(y.to_vector<float>(), (Floats{0, 10, 20, 30, 40, 50}));
  EXPECT_EQ(shapes, (std::vector<Dims>{{6, 1}}));
  EXPECT_EQ(y.sharding().to_string(), rows.sharding().to_string());
}

TEST(ProgramPass, RewritesGradientsWithTheRest) {
  const Tensor t = ones();
  const Tensor slope = t.sin().sum().gradient({t})[0];  // cos(t), as 1 - 2 sin(t / 2)^2
  const PassScope on(sin_is(0));
  EXPECT_EQ(slope.to_vector<float>(), (Floats{1, 1}));
}

void expect_error(const std::string& text, std::initializer_list<const char*> parts) {
  EXPECT_NE(text, "") << "no UserError";
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}
std::string error_of(const ProgramPass& pass, const Tensor& t) {
  const PassScope on(pass);
  return message_of<UserError>([&] { (void)t.to_vector<float>(); });
}
ProgramPass of_sin(std::function<UOp(const Match&)> replace) {
  return ProgramPass("mine", PatternMatcher({{"sin", Pattern(Op::Sin, {x}), std::move(replace)}}));
}

TEST(ProgramPassMistakes, NamePassRuleAndNode) {
  const auto error = [](std::function<UOp(const Match&)> replace) {
    return error_of(of_sin(std::move(replace)), ones().sin() + 1);
  };
  expect_error(error([](const Match& m) { return cast(m["x"], DType::I32); }),
               {"pass \"mine\": rule \"sin\" at sin f32[2]", "the replacement is cast i32[2]"});
  expect_error(error([](const Match& m) { return exp2(sin(m["x"])); }),
               {"pass \"mine\": rule \"sin\"", "does not end"});
  // An op of kernels has no place in a graph of tensors; nor has one of shapes that do not go together.
  expect_error(
      error([](const Match& m) {
        const UOp one = UOp::make(Op::Load, DType::F32,
                                  {UOp::make(Op::Param, DType::F32, {}, Dims{0}), index_const(0)});
        return m["x"] + UOp::make(Op::Expand, DType::F32,
                                  {UOp::make(Op::Reshape, DType::F32, {one}, Dims{1})}, Dims{2});
      }),
      {"pass \"mine\", rule \"sin\" at sin f32[2]",
       "cannot be there: kernel op in a tensor graph"});
  expect_error(error([](const Match& m) {
                 return UOp::make(Op::ShardSlice, DType::F32, {m["x"]}, Dims{0, 0, 1});
               }),
               {"pass \"mine\", rule \"sin\"", "shard_slice", "cannot be there"});
  expect_error(error([](const Match& m) {
                 return UOp::make(Op::Add, DType::F32, {m["x"], cast(m["x"], DType::F64)});
               }),
               {"pass \"mine\", rule \"sin\"", "sources of different types"});
}

TEST(ProgramPassMistakes, AScopeWithinACapturedStepWouldDoNothing) {
  Jit step([](const Tensor& t) {
    const PassScope on(sin_is(10));
    return t.sin();
  });
  expect_error(message_of<UserError>([&] { (void)step(ones()); }),
               {"a PassScope was opened within it"});
}

TEST(ProgramPassMistakes, OfRootsNameThePass) {
  const auto error = [](ProgramPass::Rewrite rewrite) {
    return error_of(ProgramPass("roots", std::move(rewrite)), ones().sin());
  };
  using Roots = std::span<const UOp>;
  expect_error(error([](Roots) { return std::vector<UOp>(); }),
               {"pass \"roots\": 0 roots came back for 1"});
  expect_error(error([](Roots) { return std::vector<UOp>(1); }),
               {"pass \"roots\": root 0 came back null"});
  expect_error(error([](Roots r) { return std::vector<UOp>{reshape(r[0], Dims{2, 1})}; }),
               {"pass \"roots\": root 0 was sin f32[2]", "another type or shape"});
  expect_error(message_of<UserError>([] { ProgramPass("none", ProgramPass::Rewrite()); }),
               {"\"none\""});
}

TEST(ProgramPassMistakes, WhatIsAssignedStaysSo) {
  const Tensor storage = (ones() * 2).realize();
  storage.assign(ones().sin());
  const ProgramPass drops("drops", [](std::span<const UOp> roots) {
    std::vector<UOp> values;
    for (const UOp& r : roots) values.push_back(r.op() == Op::Assign ? r.src(1) : r);
    return values;
  });
  expect_error(error_of(drops, storage), {"pass \"drops\": root 0", "writes to a storage"});
  const PassScope on(sin_is(7));
  EXPECT_EQ(storage.to_vector<float>()[0], 7);
}

}  // namespace
}  // namespace tinyshard::program_pass_test
