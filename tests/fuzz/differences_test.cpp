// Gradients are given, right and wrong, and the comparison with differences says which they are.
#include "tests/fuzz/differences.h"

#include <gtest/gtest.h>

#include "tests/fuzz/execute.h"

namespace fuzz {
namespace {

// The library's results, with `by` added to an element of the first target's gradient.
std::optional<WrongGradient> judged(const std::string& text, size_t element = 0, double by = 0) {
  Program p = parse(text);
  Results results = execute(p, Way::Lazy, false);
  Result& gradient = results[0].at(p.roots.size());
  Array values = from_bytes(type_named(gradient.type), gradient.shape, gradient.data);
  values.at.at(element).v += by;
  gradient.data = to_bytes(values);
  return wrong_gradient(p, results[0]);
}

// The program whose sums show it: three equal values each are sorted, of which a gradient may take
// the middle one and differences the two others.
const std::string kTies =
    "leaf f64 6,2,1 seed=341029 style=uniform role=constant\n"
    "repeat_interleave in=0 n=3,0\n"
    "cumsum in=1 n=2\n"
    "permute in=2 n=2,1,0\n"
    "sort_values in=1 n=0,0,18\n"
    "operator/ in=1,1 n=0,0\n"
    "logaddexp in=3,3\n"
    "cumsum in=6 n=1\n"
    "add in=7,3\n"
    "targets 1,2\n"
    "roots 4,8,5\n";

const std::string kSmooth =
    "leaf f64 1 seed=7 style=uniform role=constant\n"
    "exp in=0\n"
    "mul in=0,1\n"
    "targets 0\n"
    "roots 2\n";

TEST(Differences, SayNothingAtAKink) {
  EXPECT_FALSE(judged(kTies));
  // |x| at zero, and the larger of two equal values.
  for (const char* op : {"abs in=1", "maximum in=1,2", "relu in=1"}) {
    std::string text = "leaf f64 1 seed=7 style=uniform role=constant\nsub in=0,0\nsub in=0,0\n" +
                       std::string(op) + "\ntargets 1\nroots 3\n";
    EXPECT_FALSE(judged(text)) << op;
    // Whatever is given for a slope there.
    EXPECT_FALSE(judged(text, 0, 0.25)) << op;
  }
}

TEST(Differences, FindErrorsOfSmoothFunctions) {
  EXPECT_FALSE(judged(kSmooth));
  for (double by : {1.0, 0.01, -1e-3}) {
    auto wrong = judged(kSmooth, 0, by);
    ASSERT_TRUE(wrong) << by;
    EXPECT_EQ(wrong->kind, "gradient");
  }
  EXPECT_TRUE(judged(kSmooth, 0, std::numeric_limits<double>::quiet_NaN()));
}

// A function that bends so much that its slopes differ on both sides has no kink.
TEST(Differences, FindErrorsWhereAFunctionBends) {
  const std::string text =
      "leaf f64 1 seed=7 style=uniform role=constant\n"
      "mul in=0 n=0 d=30\n"
      "sin in=1\n"
      "targets 0\n"
      "roots 2\n";
  EXPECT_FALSE(judged(text));
  EXPECT_TRUE(judged(text, 0, 0.05));
}

// max(x, min(x, y)) is x, and has no kink where x = y, as its parts have.
TEST(Differences, SayNothingWhereKinksCancel) {
  const std::string text =
      "leaf f64 2,1 seed=7 style=uniform role=constant\n"
      "clone in=0\n"
      "detach in=1\n"
      "minimum in=0,2\n"
      "maximum in=0,3\n"
      "targets 0\n"
      "roots 4\n";
  EXPECT_FALSE(judged(text));
  EXPECT_FALSE(judged(text, 0, 0.25));
}

// Rounding leaves no digit of 1 - p with p nearly 1, and nothing is known of a slope by its logarithm.
TEST(Differences, SayNothingOfTheLogarithmOfWhatRoundingLeft) {
  auto text = [](int factor) {
    return "leaf f64 1 seed=7 style=uniform role=constant\n"
           "square in=0\n"
           "mul in=1 n=0 d=" +
           std::to_string(factor) +
           "\n"
           "sigmoid in=2\n"
           "binary_crossentropy in=3,1 n=0\n"
           "targets 0\n"
           "roots 4\n";
  };
  EXPECT_TRUE(judged(text(1), 0, 0.05));
  EXPECT_THROW(judged(text(100), 0, 0.05), Invalid);
}

// A sorted value without an equal one is smooth, however many others are equal.
TEST(Differences, FindErrorsBesideTies) {
  const std::string text =
      "leaf f64 1 seed=7 style=uniform role=constant\n"
      "leaf f64 3 seed=9 style=same role=constant\n"
      "cat in=0,1 n=0\n"
      "sort_values in=2 n=0,0,4\n"
      "targets 0\n"
      "roots 3\n";
  EXPECT_FALSE(judged(text));
  EXPECT_TRUE(judged(text, 0, 0.05));
}

}  // namespace
}  // namespace fuzz
