// The decoding example as a program: each token is that of a pass over all tokens so far.
#include <gtest/gtest.h>

#include "tests/examples/run_program.h"

namespace tinyshard::test::decode_test {
namespace {

TEST(Decode, TokensAreThoseOfAPassOverAll) {
  Outcome o = run_program(std::string(DECODE) + " --layers 2 --width 64 --tokens 24 --check",
                          std::filesystem::temp_directory_path());
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("24 tokens, each as a pass over all makes it"), std::string::npos) << o.out;
}

TEST(Decode, TellsTimesAtPositions) {
  Outcome o = run_program(std::string(DECODE) + " --layers 1 --width 64 --cache 256",
                          std::filesystem::temp_directory_path());
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("position   100:"), std::string::npos) << o.out;
}

}  // namespace
}  // namespace tinyshard::test::decode_test
