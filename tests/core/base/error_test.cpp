#include "core/base/error.h"

#include <gtest/gtest.h>

namespace tinyshard {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Error, EachKindIsAnError) {
  EXPECT_THROW(throw UserError("x"), Error);
  EXPECT_THROW(throw DeviceError("x"), Error);
  EXPECT_THROW(throw InternalError("x"), Error);
  EXPECT_THROW(throw CommError(CommErrorInfo{}), Error);
  EXPECT_THROW(throw UserError("x"), std::runtime_error);
}

// Not by the folder of the machine that built the library.
TEST(Error, InternalErrorsNameSourcesByTheirPathInTheRepository) {
  EXPECT_TRUE(contains(InternalError("x").what(), ", tests/core/base/error_test.cpp:"))
      << InternalError("x").what();
  try {
    check_internal(false, "x");
  } catch (const InternalError& error) {
    EXPECT_TRUE(contains(error.what(), ", tests/core/base/error_test.cpp:")) << error.what();
  }
}

TEST(Error, InternalErrorsSayWhere) {
  InternalError e("shapes match");
  EXPECT_TRUE(contains(e.what(), "shapes match")) << e.what();
  EXPECT_TRUE(contains(e.what(), "error_test.cpp")) << e.what();
  EXPECT_NO_THROW(check_internal(true, "fine"));
  try {
    check_internal(false, "sources come first");
    ADD_FAILURE();
  } catch (const InternalError& failed) {
    EXPECT_TRUE(contains(failed.what(), "sources come first")) << failed.what();
    EXPECT_TRUE(contains(failed.what(), "error_test.cpp")) << failed.what();
  }
}

// Ranks that meet make no call that could have a number.
TEST(Error, OnlyCallsAreNumbered) {
  EXPECT_TRUE(
      contains(CommError({.rank = 0, .operation = "all_reduce sum f32 x 4"}).what(), "x 4 #0,"));
  EXPECT_TRUE(
      contains(CommError({.rank = 0, .operation = "connect"}).what(), "rank 0: connect, after"));
}

TEST(Error, CommErrorsNameThePeer) {
  CommError e({.rank = 2,
               .peer = 5,
               .operation = "all_reduce",
               .sequence = 17,
               .elapsed_s = 3.25,
               .detail = "connection closed"});
  for (const char* part : {"rank 2", "all_reduce", "17", "rank 5", "3.2", "connection closed"}) {
    EXPECT_TRUE(contains(e.what(), part)) << e.what();
  }
  EXPECT_EQ(e.info().peer, 5);
  EXPECT_EQ(e.info().sequence, 17u);
  CommError known({.rank = 2,
                   .peer = 5,
                   .process = "process 812 on node02",
                   .operation = "barrier",
                   .detail = "the deadline passed"});
  EXPECT_TRUE(contains(known.what(), "rank 5 did not answer (process 812 on node02), after"))
      << known.what();
  CommError told({.rank = 2,
                  .peer = 5,
                  .process = "process 812 on node02",
                  .operation = "barrier",
                  .detail = "process 812 on node02 has ended"});
  EXPECT_TRUE(contains(told.what(), "rank 5 did not answer, after")) << told.what();
  CommError unknown({.rank = 0, .operation = "barrier", .sequence = 1, .detail = {}});
  EXPECT_FALSE(contains(unknown.what(), "did not answer")) << unknown.what();
}

}  // namespace
}  // namespace tinyshard
