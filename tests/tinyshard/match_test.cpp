// Patterns and rules: where they fit, what they make, and what is said of wrong ones.
#include <sstream>

#include <gtest/gtest.h>

#include "tests/message_of.h"
#include "tinyshard/tinyshard.h"
#include "tinyshard/uop.h"

namespace tinyshard::match_test {
namespace {

using test::message_of;

// A value of its own for each number.
UOp value(int64_t number, const Dims& shape = {2}) {
  const UOp counted = UOp::make(Op::Iota, DType::I64, {}, Dims{product(shape)});
  return cast(reshape(counted, shape), DType::F32) * (1000 + number);
}
const UOp a = value(1), b = value(2), c = value(3);
const Pattern x = Pattern::any("x"), y = Pattern::any("y");

PatternMatcher one(const Pattern& pattern, std::function<UOp(const Match&)> replace,
                   std::string name = "rule") {
  return PatternMatcher({{std::move(name), pattern, std::move(replace)}});
}
bool fits(const Pattern& pattern, const UOp& node) {
  bool found = false;
  (void)one(pattern, [&](const Match&) {
    found = true;
    return UOp();
  }).rewrite(node);
  return found;
}

TEST(Match, FindsAnOpWithItsSources) {
  EXPECT_TRUE(fits(Pattern(Op::Add), a + b));
  EXPECT_TRUE(fits(Pattern(Op::Add, {x, y}), a + b));
  EXPECT_FALSE(fits(Pattern(Op::Add), a * b));
  EXPECT_FALSE(fits(Pattern(Op::Add, {x}), a + b));
  EXPECT_TRUE(fits(Pattern({Op::Add, Op::Mul}, {x, y}), a * b));
  EXPECT_TRUE(fits(Pattern::any(), a + b));
}

TEST(Match, ANameIsOneNode) {
  const Pattern twice(Op::Add, {x, x});
  EXPECT_TRUE(fits(twice, a + a));
  EXPECT_FALSE(fits(twice, a + b));
}

TEST(Match, TriesBothOrdersOfACommutativeOp) {
  const Pattern scaled(Op::Mul, {x, Pattern::constant("k")});
  EXPECT_TRUE(fits(scaled, a * 2));
  EXPECT_TRUE(fits(scaled, 2 * a));
  EXPECT_FALSE(fits(Pattern(Op::Sub, {x, Pattern::constant()}), 2 - a));
  EXPECT_TRUE(fits(Pattern(Op::Sub, {x, Pattern::constant()}), a - 2));
}

// A source that fits at first may keep a later one from fitting.
TEST(Match, GoesBackToAnotherOrder) {
  const Pattern pattern(Op::Add, {Pattern(Op::Mul, {y, x}), x});
  EXPECT_TRUE(fits(pattern, a * b + b));
  EXPECT_TRUE(fits(pattern, b * a + b));
  EXPECT_TRUE(fits(pattern, b + b * a));
  EXPECT_FALSE(fits(pattern, a * b + c));
}

TEST(Match, SeesNumbersTypesAndConditions) {
  EXPECT_TRUE(fits(Pattern(Op::Mul, {x, Pattern::constant(2.0)}), a * 2));
  EXPECT_FALSE(fits(Pattern(Op::Mul, {x, Pattern::constant(2.0)}), a * 3));
  EXPECT_TRUE(fits(Pattern(Op::Add).of_type(DType::F32), a + b));
  EXPECT_FALSE(fits(Pattern(Op::Add).of_type(DType::F64), a + b));
  const auto is_long = [](const UOp& node) { return node->numel() > 2; };
  EXPECT_FALSE(fits(Pattern(Op::Add).where(is_long), a + b));
  EXPECT_TRUE(
      fits(Pattern(Op::Neg, {Pattern(Op::Add).where(is_long)}), -(value(1, {3}) + value(2, {3}))));
}

TEST(Match, LooksThroughNamesOfTensors) {
  EXPECT_TRUE(fits(Pattern(Op::Neg, {Pattern(Op::Add)}), -named(a + b)));
  EXPECT_TRUE(fits(Pattern(Op::Add, {x, x}), named(a) + a));
}

TEST(GraphRewrite, AppliesRulesUntilNoneFits) {
  const PatternMatcher rules({
      {"no zero", Pattern(Op::Add, {x, Pattern::constant(0.0)}),
       [](const Match& m) { return m["x"]; }},
      {"twice", Pattern(Op::Add, {x, x}), [](const Match& m) { return m["x"] * 2; }},
      {"never", Pattern(Op::Add, {x, x}), [](const Match& m) { return m["x"] * 5; }},
      {"negative", Pattern(Op::Neg, {Pattern(Op::Neg, {x})}),
       [](const Match& m) { return m["x"]; }},
  });
  EXPECT_EQ(graph_rewrite(-(-(a + 0)), rules), a);
  EXPECT_EQ(graph_rewrite((a + 0) + a, rules), a * 2);
  EXPECT_EQ(graph_rewrite(sqrt(b), rules), sqrt(b));
  EXPECT_EQ(rules.names(), (std::vector<std::string>{"no zero", "twice", "never", "negative"}));
}

TEST(GraphRewrite, RulesOfTwoListsComeInOrder) {
  const PatternMatcher two =
                           one(Pattern(Op::Add, {x, x}), [](const Match& m) { return m["x"] * 2; }),
                       five =
                           one(Pattern(Op::Add, {x, x}), [](const Match& m) { return m["x"] * 5; });
  EXPECT_EQ(graph_rewrite(a + a, two + five), a * 2);
  EXPECT_EQ(graph_rewrite(a + a, five + two), a * 5);
}

TEST(GraphRewrite, RewritesTensorsWithTheirGradients) {
  const Tensor t(std::vector<float>{1, 2, 3});
  const PatternMatcher squares =
      one(Pattern(Op::Sin, {x}), [](const Match& m) { return m["x"] * m["x"]; });
  const Tensor squared = graph_rewrite(t.sin(), squares);
  EXPECT_EQ(squared.to_vector<float>(), (std::vector<float>{1, 4, 9}));
  const Tensor again = graph_rewrite(t.sin(), squares).sum();
  EXPECT_EQ(again.gradient({t})[0].to_vector<float>(), (std::vector<float>{2, 4, 6}));
}

// A rule looks into no composite until another one opens it.
TEST(GraphRewrite, OpensComposites) {
  const Tensor x({-1.0F, 2.0F}), y = x.gelu() + x.relu() + x.pow(Tensor({2.0F, 3.0F}));
  int seen = 0;
  const auto count = [&](const Match&) {
    ++seen;
    return UOp();
  };
  const Pattern composite = Pattern(Op::Composite).named("x");
  graph_rewrite(y, PatternMatcher({{"exp2", Pattern(Op::Exp2), count}}));
  EXPECT_EQ(seen, 0);
  const Tensor open = graph_rewrite(
      y, PatternMatcher({{"open", composite, [](const Match& m) { return spelled_out(m["x"]); }},
                         {"exp2", Pattern(Op::Exp2), count}}));
  EXPECT_EQ(seen, 2) << "of the GELU and of the power";
  EXPECT_EQ(open.to_vector<float>(), y.to_vector<float>());
  EXPECT_FALSE(spelled_out(x.uop()));
}

TEST(GraphOf, PrintsWithoutNames) {
  const Tensor t(std::vector<float>{1, 2, 3});
  std::ostringstream text;
  text << graph_of(t.exp2() + t);
  EXPECT_NE(text.str().find("= exp2 f32[3] %0"), std::string::npos) << text.str();
  EXPECT_EQ(text.str().find("identity"), std::string::npos) << text.str();
  const Tensor back(graph_of(t + 1));
  EXPECT_EQ(back.to_vector<float>(), (std::vector<float>{2, 3, 4}));
}

void expect_error(const std::string& text, std::initializer_list<const char*> parts) {
  EXPECT_NE(text, "") << "no UserError";
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(GraphRewriteMistakes, NameRuleAndNode) {
  const Pattern sum(Op::Add, {x, y});
  auto error = [&](std::function<UOp(const Match&)> replace) {
    return message_of<UserError>(
        [&] { (void)graph_rewrite(a + b, one(sum, std::move(replace), "wrong")); });
  };
  expect_error(
      error([](const Match& m) { return cast(m["x"], DType::F64); }),
      {"rule \"wrong\" at add f32[2]", "the replacement is cast f64[2]", "it must be f32[2]"});
  expect_error(error([](const Match& m) { return reshape(m["x"], Dims{2, 1}); }),
               {"rule \"wrong\" at add f32[2]", "[2, 1]"});
  expect_error(error([](const Match& m) { return m["z"]; }),
               {"rule \"wrong\" at add f32[2]", "no name \"z\"; it has \"x\" \"y\""});
  expect_error(
      error([](const Match& m) { return binary(Op::Add, m["x"], cast(m["y"], DType::F64)); }),
      {"rule \"wrong\" at add f32[2]"});
  expect_error(error([](const Match& m) { return m["x"] + cast(m["y"], DType::F64); }),
               {"rule \"wrong\" at add f32[2]", "differ in type or shape"});
  expect_error(error([](const Match& m) { return UOp::make(Op::Add, DType::F32, {m["x"]}); }),
               {"rule \"wrong\" at add f32[2]", "wrong number of sources"});
  expect_error(message_of<UserError>([&] { PatternMatcher({{"empty", sum, {}}}); }), {"\"empty\""});
}

TEST(GraphRewriteMistakes, ARewriteWithoutAnEndNamesItsRule) {
  const PatternMatcher grows({
      {"harmless", Pattern(Op::Sqrt, {x}), [](const Match&) { return UOp(); }},
      {"grows", Pattern(Op::Add, {x, y}), [](const Match& m) { return (m["x"] + 1) + m["y"]; }},
  });
  expect_error(message_of<UserError>([&] { (void)graph_rewrite(sqrt(a + b), grows); }),
               {"rule \"grows\" at add f32[2]", "does not end"});
  const PatternMatcher turns({
      {"there", Pattern(Op::Add, {x, y}), [](const Match& m) { return m["x"] * m["y"]; }},
      {"back", Pattern(Op::Mul, {x, y}), [](const Match& m) { return m["x"] + m["y"]; }},
  });
  expect_error(message_of<UserError>([&] { (void)graph_rewrite(a + b, turns); }), {"does not end"});
}

TEST(GraphRewriteMistakes, OfATensorNameTheCall) {
  const Tensor t(std::vector<float>{1, 2, 3});
  const PatternMatcher wrong =
      one(Pattern(Op::Exp2, {x}), [](const Match& m) { return cast(m["x"], DType::I32); });
  expect_error(message_of<UserError>([&] { (void)graph_rewrite(t.exp2(), wrong); }),
               {"graph_rewrite: rule", "exp2 f32[3]", "match_test.cpp:"});
}

TEST(Expressions, SayWhatDoesNotFit) {
  const UOp integers = cast(a, DType::I32);
  expect_error(message_of<UserError>([&] { (void)(a + UOp()); }), {"add", "a null UOp"});
  expect_error(message_of<UserError>([&] { (void)sqrt(integers); }), {"sqrt", "floats"});
  expect_error(message_of<UserError>([&] { (void)(integers * 0.5); }), {"0.5"});
  expect_error(message_of<UserError>([&] { (void)choose(a, a, b); }), {"where", "no condition"});
  expect_error(message_of<UserError>([&] { (void)(a + value(1, {3})); }),
               {"add", "differ in type or shape"});
}

}  // namespace
}  // namespace tinyshard::match_test
