// DEFAULT_FLOAT, which is read once: each spelling has a process of its own.
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/tensor/tensor.h"

namespace tinyshard::default_float_test {
namespace {

enum Outcome { kAsWanted, kOther, kRefused };

// Returns what a new process finds with DEFAULT_FLOAT=text.
Outcome with(const char* text, DType wanted) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      ::setenv("DEFAULT_FLOAT", text, 1);
      reload_options();
      ::_exit(default_float() == wanted && Tensor{1.5}.dtype() == wanted ? kAsWanted : kOther);
    } catch (const UserError& error) {
      const std::string what = error.what();
      const bool named =
          what.find(std::string("DEFAULT_FLOAT=\"") + text + '"') != std::string::npos;
      ::_exit(named ? kRefused : kOther);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? Outcome(WEXITSTATUS(status)) : kOther;
}

TEST(DefaultFloat, IsWhatTheEnvironmentSays) {
  EXPECT_EQ(with("HALF", DType::F16), kAsWanted);
  EXPECT_EQ(with("float16", DType::F16), kAsWanted);
  EXPECT_EQ(with("BFLOAT16", DType::BF16), kAsWanted);
  EXPECT_EQ(with("bf16", DType::BF16), kAsWanted);
  EXPECT_EQ(with("DOUBLE", DType::F64), kAsWanted);
  EXPECT_EQ(with("f64", DType::F64), kAsWanted);
  EXPECT_EQ(with("FLOAT", DType::F32), kAsWanted);
  EXPECT_EQ(with("f32", DType::F32), kAsWanted);
  EXPECT_EQ(with("", DType::F32), kAsWanted);
  EXPECT_EQ(with("INT", DType::F32), kRefused);
  EXPECT_EQ(with("i32", DType::F32), kRefused);
}

}  // namespace
}  // namespace tinyshard::default_float_test
