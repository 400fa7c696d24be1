#include "core/nn/name_pattern.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/message_of.h"

namespace tinyshard::nn::name_pattern_test {
namespace {

std::string beginning(const char* pattern, const char* name) {
  return NamePattern(pattern).beginning_of(name).value_or("(none)");
}

TEST(NamePattern, MatchesTheBeginningOfAName) {
  EXPECT_EQ(beginning("h.*", "h.0.attn.weight"), "h.0");
  EXPECT_EQ(beginning("h.*", "h.12"), "h.12");
  EXPECT_EQ(beginning("h.*", "h"), "(none)");
  EXPECT_EQ(beginning("h.*", "head.0.weight"), "(none)");
  EXPECT_EQ(beginning("embed|head", "head.weight"), "head");
  EXPECT_EQ(beginning("embed|head", "heads.weight"), "(none)");
  EXPECT_EQ(beginning("layer_*.w?|w1", "layer_3.w1.bias"), "layer_3.w1");
}

TEST(NamePattern, ALoneStarIsAsManySegmentsAsAreNeeded) {
  EXPECT_EQ(beginning("h.*.wq|wk", "h.0.wq.weight"), "h.0.wq");
  EXPECT_EQ(beginning("h.*.wq|wk", "h.0.attention.wk"), "h.0.attention.wk");
  EXPECT_EQ(beginning("h.*.wq|wk", "h.wq"), "(none)");
  EXPECT_EQ(beginning("*.wq", "a.wq.wq"), "a.wq");
  EXPECT_EQ(beginning("a.*.b.*.c", "a.x.b.b.y.c"), "a.x.b.b.y.c");
}

TEST(NamePattern, RefusesEmptyParts) {
  for (const char* bad : {"", "h..w", "h.a||b", "h."}) {
    EXPECT_NE(test::message_of<UserError>([&] { NamePattern p(bad); }).find("has an empty part"),
              std::string::npos)
        << bad;
  }
}

}  // namespace
}  // namespace tinyshard::nn::name_pattern_test
