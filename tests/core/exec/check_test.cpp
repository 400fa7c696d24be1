// TS_CHECK=values in a program: a kernel whose code computes something else is found and named. The
// wrong code gets in through the folder of compiled kernels, where two kernels change places.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/base/options.h"
#include "core/codegen/codegen.h"
#include "core/runtime/file_cache.h"
#include "tests/io/temp_folder.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard::check_test {
namespace {

using testing::HasSubstr;

class ValueCheck : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TS_CACHE_DIR", (folder_ / "cache").c_str(), 1);
    ::setenv("TS_CACHE", "1", 1);
    check("");
    Tensor::ones({1}).contiguous().realize();  // whatever the runtime compiles for itself
  }
  void TearDown() override {
    ::unsetenv("TS_CACHE_DIR");
    ::unsetenv("TS_CACHE");
    check("");
  }
  static void check(const char* what) {
    ::setenv("TS_CHECK", what, 1);
    reload_options();
  }

  // The key in a file of the cache that was not there before.
  std::string new_key() {
    std::string key;
    for (const std::string& name : test::names_in(folder_ / "cache")) {
      if (std::ranges::find(seen_, name) != seen_.end() || name == "tally") continue;
      seen_.push_back(name);
      const std::string bytes = test::get(folder_ / "cache" / name);
      uint64_t header[4];  // core/runtime/file_cache.cpp: magic, size of the key, ...
      std::memcpy(header, bytes.data(), sizeof header);
      key = bytes.substr(sizeof header, header[1]);
    }
    return key;
  }

  test::TempFolder folder_;
  std::vector<std::string> seen_;
};

TEST_F(ValueCheck, NamesKernelElementAndBothValues) {
  const Tensor x = Tensor(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3}).realize();
  new_key();
  EXPECT_EQ((x * 3).to_vector<float>()[4], 15);
  const std::string times = new_key();
  EXPECT_EQ((x + 1).to_vector<float>()[4], 6);
  const std::string plus = new_key();
  ASSERT_FALSE(times.empty() || plus.empty());
  file_cache::store(times, "kernel", *file_cache::load(plus, "kernel"));
  clear_codegen_cache();

  EXPECT_EQ((x * 3).to_vector<float>()[4], 6) << "the wrong code runs, and nobody says so";
  check("values");
  const std::string line = ":" + std::to_string(__LINE__ + 1);
  const std::string error = test::message_of<InternalError>([&] { (x * 3).to_vector<float>(); });
  EXPECT_THAT(error,
              HasSubstr("element [0, 0] of its parameter 0, f32 [2, 3], is 2; 3 was expected"));
  EXPECT_THAT(error, HasSubstr("on CPU:0"));
  EXPECT_THAT(error, HasSubstr("as the value of mul f32[] (mul, check_test.cpp" + line + ")"));
  EXPECT_EQ((x + 1).to_vector<float>()[4], 6);
}

// The larger one of two zeros is either of them: what hangs on its sign is left open.
TEST_F(ValueCheck, TheSignOfAnExtremumOfZerosIsLeftOpen) {
  check("values");
  const Tensor x = Tensor(std::vector<float>{-0.0f, 0.0f, 3}).realize();
  const Tensor y = Tensor(std::vector<float>{0.0f, -0.0f, 4}).realize();
  const Tensor rows = stack({x, y}, 1);
  for (const bool in_rows : {false, true}) {
    const Tensor larger = in_rows ? rows.max(1) : x.maximum(y);
    const std::vector<float> inverse = larger.reciprocal().to_vector<float>();
    EXPECT_TRUE(std::isinf(inverse[0]) && std::isinf(inverse[1])) << in_rows;
    EXPECT_EQ(inverse[2], 0.25f) << in_rows;
  }
}

// A captured step, several kernels, state and sums: nothing is said of right code.
TEST_F(ValueCheck, RightCodePasses) {
  check("values,memory");
  Tensor w = Tensor::full({7, 5}, 0.25).contiguous().realize();
  Jit step([&](Tensor x) {
    Tensor loss = (x.matmul(w).tanh().softmax(1) * 3).sum();
    w.assign(w * 0.5 + x.sum(0).reshape({7, 1}) * 0.01);
    return loss;
  });
  for (int i = 0; i < 3; ++i) {
    const auto loss = step(Tensor::arange(28).reshape({4, 7}) * 0.1f + float(i)).to_vector<float>();
    EXPECT_NEAR(loss[0], 12, 1e-4);
  }
}

}  // namespace
}  // namespace tinyshard::check_test
