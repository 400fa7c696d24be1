// Containers and structs as arguments and results of a step.
#include <array>
#include <map>
#include <optional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace tinyshard::jit_arguments_test {
namespace {

Tensor number(double value) { return Tensor(std::vector<double>{value}).realize(); }
double value(const Tensor& t) { return t.item<double>(); }
std::string error(const std::function<void()>& call) { return test::message_of<UserError>(call); }
void expect(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

struct Pair {
  Tensor a, b;  // b may be absent
  TS_FIELDS(a, b)
};
struct Batch {
  Tensor tokens;
  std::map<std::string, Tensor> extra;
  std::vector<Pair> pairs;
  int64_t rows = 1;
  TS_FIELDS(tokens, extra, pairs, rows)
};

Batch batch(double from) {
  return {number(from),
          {{"mask", number(from + 1)}, {"scale", number(from + 2)}},
          {{number(from + 3), number(from + 4)}, {number(from + 5), Tensor()}}};
}

TEST(JitArguments, StructsAreTakenApart) {
  int traces = 0;
  Jit step = [&](const Batch& b) {
    ++traces;
    EXPECT_FALSE(b.pairs[1].b.defined());
    return b.tokens + b.extra.at("mask") * 10 + b.extra.at("scale") * 100 + b.pairs[0].a * 1e3 +
           b.pairs[0].b * 1e4 + b.pairs[1].a * 1e5;
  };
  for (double from : {0, 1, 2}) {
    double expected = 0;
    for (int i = 5; i >= 0; --i) expected = expected * 10 + from + i;
    EXPECT_EQ(value(step(batch(from))), expected);
  }
  EXPECT_EQ(traces, 1);
  Batch other = batch(0);
  other.pairs[1].a = Tensor::ones({3}, DType::F64);
  expect(error([&] { step(other); }),
         {"captured step: input 0.pairs[1].a is f64[3]", "f64[1]", "jit_arguments_test.cpp:"});
  other = batch(0);
  other.extra["mask"] = Tensor::ones({1});
  expect(error([&] { step(other); }), {"input 0.extra[\"mask\"] is f32[1]"});
  other = batch(0);
  other.extra["more"] = number(1);
  expect(error([&] { step(other); }), {"input 0 is {", "\"more\": tensor", "captured with {"});
  other = batch(0);
  other.rows = 2;
  expect(error([&] { step(other); }), {"rows: 2", "rows: 1"});
  other = batch(0);
  other.pairs[1].b = number(1);
  expect(error([&] { step(other); }), {"captured with"});
  EXPECT_EQ(value(step(batch(0))), 543210) << "the step is still usable";
}

TEST(JitArguments, ContainersOfEachKind) {
  Jit step = [](const std::vector<Tensor>& list, std::array<Tensor, 2> two,
                std::optional<Tensor> maybe, std::pair<Tensor, Tensor> pair,
                std::tuple<Tensor, std::vector<Tensor>> nested) {
    Tensor sum = two[0] + two[1] * 2 + pair.first * pair.second + std::get<0>(nested);
    for (const Tensor& t : list) sum = sum + t;
    for (const Tensor& t : std::get<1>(nested)) sum = sum - t;
    return maybe ? sum * *maybe : sum;
  };
  auto call = [&](double x) {
    return value(step(std::vector<Tensor>{number(x), number(2)},
                      std::array<Tensor, 2>{number(3), number(x)}, std::optional(number(2)),
                      std::pair(number(x), 5.0), std::tuple(x, std::vector<double>{1, x})));
  };
  for (double x : {1, 7}) EXPECT_EQ(call(x), 2 * (x + 2 + 3 + 2 * x + 5 * x + x - 1 - x));
  const std::string text = error([&] {
    step(std::vector<Tensor>{number(1)}, std::array<Tensor, 2>{number(3), number(1)},
         std::optional(number(2)), std::pair(number(1), 5.0),
         std::tuple(1.0, std::vector<double>{1, 1}));
  });
  expect(text, {"input 0 is [tensor]", "captured with [tensor, tensor]"});
}

TEST(JitArguments, StateDictsAndVariablesInside) {
  const Variable n("n", 0, 9);
  Jit step = [](const nn::StateDict& weights, const std::vector<Variable>& sizes) {
    nn::StateDict out;
    for (const auto& [name, w] : weights) out[name + ".twice"] = w * 2 + sizes[0] * 10 + sizes[1];
    return out;
  };
  for (int64_t i : {1, 3}) {
    const nn::StateDict out = step(nn::StateDict{{"a", number(double(i))}, {"b", number(5)}},
                                   std::vector<Variable>{n.bind(i), n.bind(i + 1)});
    EXPECT_EQ(out.size(), 2u);
    EXPECT_EQ(value(out.at("a.twice")), double(2 * i + 10 * i + i + 1));
    EXPECT_EQ(value(out.at("b.twice")), double(10 + 10 * i + i + 1));
  }
}

TEST(JitArguments, ResultsKeepTheirForm) {
  Jit step = [](Tensor x) {
    return std::tuple(Batch{x, {{"sum", x + 1}}, {{x * 2, Tensor()}}, 7}, std::optional<Tensor>(),
                      std::array<Tensor, 2>{x * 3, x * 4});
  };
  for (double x : {1, 2}) {
    auto [b, none, two] = step(number(x));
    EXPECT_EQ(value(b.tokens), x);
    EXPECT_EQ(value(b.extra.at("sum")), x + 1);
    EXPECT_EQ(value(b.pairs.at(0).a), 2 * x);
    EXPECT_FALSE(b.pairs.at(0).b.defined());
    EXPECT_EQ(b.rows, 7);
    EXPECT_FALSE(none);
    EXPECT_EQ(value(two[0]) + value(two[1]), 7 * x);
  }
}

TEST(JitArguments, UndefinedTensorsAreNamed) {
  Jit step = [](const std::vector<Tensor>& list) { return list[0]; };
  expect(error([&] { step(std::vector<Tensor>{number(1), Tensor()}); }),
         {"input 0[1] is a tensor that was never given a value"});
}

TEST(JitArguments, ManyArguments) {
  Jit step = [](auto... x) { return std::vector<Tensor>{x...}; };
  const auto out = step(1, 2, 3, 4, 5, 6, 7, 8, 9);
  ASSERT_EQ(out.size(), 9u);
  EXPECT_EQ(out[8].item<int>(), 9);
}

}  // namespace
}  // namespace tinyshard::jit_arguments_test
