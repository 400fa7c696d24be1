// Matrix products of each library against double precision: layouts, batches, types, epilogues.
#include <array>
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "devices/cpu/gemm.h"
#include "devices/cpu/library.h"
#include "devices/cpu/onednn.h"
#include "devices/cpu/thread_pool.h"
#include "tests/devices/cpu/alarms.h"
#include "tests/devices/cpu/reference.h"

namespace tinyshard::matmul_test {
namespace {

using test::Buffer;

enum class Order { Row, Column };

MatmulSpec product(int64_t m, int64_t k, int64_t n, Order a = Order::Row, Order b = Order::Row,
                   Order c = Order::Row, int64_t pad = 0) {
  MatmulSpec s;
  s.m = m, s.k = k, s.n = n;
  s.a_m = a == Order::Row ? k + pad : 1, s.a_k = a == Order::Row ? 1 : m + pad;
  s.b_k = b == Order::Row ? n + pad : 1, s.b_n = b == Order::Row ? 1 : k + pad;
  s.c_m = c == Order::Row ? n + pad : 1, s.c_n = c == Order::Row ? 1 : m + pad;
  return s;
}

std::vector<MatmulSpec> specs() {
  std::vector<MatmulSpec> all;
  int64_t sizes[][3] = {{1, 1, 1},     {1, 7, 5},     {5, 1, 3},     {3, 5, 1},    {2, 0, 3},
                        {7, 13, 11},   {8, 16, 48},   {17, 33, 65},  {50, 20, 10}, {20, 513, 49},
                        {128, 70, 10}, {10, 40, 128}, {25, 600, 97}, {97, 40, 200}};
  for (auto& [m, k, n] : sizes)
    for (Order a : {Order::Row, Order::Column})
      for (Order b : {Order::Row, Order::Column})
        for (Order c : {Order::Row, Order::Column})
          all.push_back(product(m, k, n, a, b, c, (m + n) % 3));

  MatmulSpec views = product(19, 23, 29);  // no unit stride anywhere
  views.a_m = 50, views.a_k = 2, views.b_k = 3, views.b_n = 80, views.c_m = 2, views.c_n = 40;
  all.push_back(views);
  MatmulSpec broadcast = product(9, 8, 40);  // one row of a and one column of b, repeated
  broadcast.a_m = 0, broadcast.b_n = 0;
  all.push_back(broadcast);

  MatmulSpec batched = MatmulSpec::contiguous(24, 16, 40, 6);
  all.push_back(batched);
  batched.b_batch[0] = 0;  // rows that share b
  all.push_back(batched);
  batched.a_batch[0] = 0;
  all.push_back(batched);
  // Attention: [batch, time, heads, width] views, transposed keys, three batch dimensions.
  MatmulSpec heads = product(12, 8, 12);
  heads.batch_rank = 3;
  heads.batch = {2, 3, 2};
  heads.a_m = 3 * 3 * 8, heads.a_k = 1, heads.b_k = 1, heads.b_n = 3 * 3 * 8;
  heads.a_batch = {12 * 72, 8, 24}, heads.b_batch = {12 * 72, 8, 0};
  heads.c_batch = {6 * 144, 144, 3 * 144};
  all.push_back(heads);
  return all;
}

// "oneDNN" or an instruction set of our own kernels.
std::vector<std::string> implementations() {
  auto all = gemm::instruction_sets();
  all.push_back("oneDNN");
  return all;
}

std::shared_ptr<const MatmulProgram> make(const std::string& implementation, const MatmulSpec& s,
                                          int threads) {
  if (implementation != "oneDNN") return gemm::make_program(s, threads, implementation);
  return onednn::supports(s) ? onednn::make_program(s, threads) : nullptr;
}

struct Types {
  DType in, out;
};

// Runs `program`, compares with the reference, and checks that nothing outside c was written.
void expect_matches(const MatmulSpec& s, const MatmulProgram& program, int threads) {
  SCOPED_TRACE(s.to_string() + " by " + program.describe());
  Buffer a = Buffer::random(s.dtype, test::a_span(s), 1);
  Buffer b = Buffer::random(s.dtype, test::b_span(s), 2);
  DType bias_type = s.dtype == DType::F64 ? DType::F64 : DType::F32;
  Buffer bias = Buffer::random(bias_type, s.n, 3);
  constexpr double kUntouched = 12345;
  int64_t size = test::c_span(s);
  Buffer c = Buffer::filled(s.out_dtype, size, kUntouched);
  double untouched = c.get(0);
  std::vector<double> expected(static_cast<size_t>(size), untouched);
  test::matmul_reference(s, a, b, s.has_bias ? &bias : nullptr, expected);

  ThreadPool pool(threads);
  program.run(a.data(), b.data(), c.data(), s.has_bias ? bias.data() : nullptr, pool);
  double store = s.out_dtype == DType::BF16 ? 4e-3 : s.out_dtype == DType::F16 ? 6e-4 : 0;
  double sum = s.dtype == DType::F64 ? 1e-15 : 3e-7;
  for (int64_t i = 0; i < size; ++i)
    ASSERT_NEAR(c.get(i), expected[i],
                store * std::abs(expected[i]) + sum * (static_cast<double>(s.k) + 4))
        << "at " << i;

  Buffer again = Buffer::filled(s.out_dtype, size, kUntouched);
  program.run(a.data(), b.data(), again.data(), s.has_bias ? bias.data() : nullptr, pool);
  ASSERT_EQ(c.bytes(), again.bytes()) << "two runs differ";
}

class Matmul : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Matmul, MatchesDoublePrecisionInEveryLayout) {
  auto [implementation, threads] = GetParam();
  int ran = 0;
  for (const auto& s : specs())
    if (auto program = make(implementation, s, threads)) {
      expect_matches(s, *program, threads);
      ++ran;
      if (::testing::Test::HasFatalFailure()) return;
    }
  if (!ran) GTEST_SKIP() << implementation << " is not in this build";
}

class MatmulTypes : public ::testing::TestWithParam<std::string> {};

TEST_P(MatmulTypes, MatchDoublePrecision) {
  const std::string implementation = GetParam();
  const int threads = 2;
  int ran = 0;
  for (Types types :
       {Types{DType::F64, DType::F64}, Types{DType::F16, DType::F16}, Types{DType::F16, DType::F32},
        Types{DType::BF16, DType::BF16}, Types{DType::BF16, DType::F32}})
    for (auto s : specs()) {
      s.dtype = types.in, s.out_dtype = types.out;
      auto program = make(implementation, s, threads);
      if (!program) continue;
      expect_matches(s, *program, threads);
      ++ran;
      if (::testing::Test::HasFatalFailure()) return;
    }
  if (!ran) GTEST_SKIP() << implementation << " has none of these types";
}

TEST_P(Matmul, AddsBiasAndActivates) {
  auto [implementation, threads] = GetParam();
  for (DType dtype : {DType::F32, DType::F64, DType::BF16})
    for (bool has_bias : {false, true})
      for (auto activation : {Activation::None, Activation::Relu, Activation::GeluTanh})
        for (const auto& shape :
             {product(33, 20, 50), product(33, 20, 50, Order::Row, Order::Column),
              product(33, 20, 50, Order::Row, Order::Row, Order::Column),
              MatmulSpec::contiguous(5, 600, 70, 4), product(4, 0, 9)}) {
          MatmulSpec s = shape;
          s.dtype = s.out_dtype = dtype;
          s.has_bias = has_bias, s.activation = activation;
          if (auto program = make(implementation, s, threads)) expect_matches(s, *program, threads);
          if (::testing::Test::HasFatalFailure()) return;
        }
}

std::string test_name(std::string text) {
  std::erase(text, '-');
  return text;
}

INSTANTIATE_TEST_SUITE_P(All, MatmulTypes, ::testing::ValuesIn(implementations()),
                         [](const auto& info) { return test_name(info.param); });
INSTANTIATE_TEST_SUITE_P(All, Matmul,
                         ::testing::Combine(::testing::ValuesIn(implementations()),
                                            ::testing::Values(1, 2, 6)),
                         [](const auto& info) {
                           return test_name(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param)) + "_threads";
                         });

// Data parallelism relies on this: cutting the rows, or the threads, changes no bit.
TEST(GemmBits, DependOnKAlone) {
  for (DType dtype : {DType::F32, DType::F64}) {
    MatmulSpec s = MatmulSpec::contiguous(96, 700, 80, 1, dtype);
    Buffer a = Buffer::random(dtype, 96 * 700, 1), b = Buffer::random(dtype, 700 * 80, 2);
    Buffer whole(dtype, 96 * 80);
    ThreadPool pool(3);
    gemm::make_program(s, 1)->run(a.data(), b.data(), whole.data(), nullptr, pool);
    Buffer threaded(dtype, 96 * 80);
    gemm::make_program(s, 3)->run(a.data(), b.data(), threaded.data(), nullptr, pool);
    EXPECT_EQ(whole.bytes(), threaded.bytes());
    auto bytes = static_cast<int64_t>(itemsize(dtype));
    Buffer parts(dtype, 96 * 80);
    for (int64_t row : {0, 5, 41}) {
      int64_t end = row == 0 ? 5 : row == 5 ? 41 : 96;
      MatmulSpec part = MatmulSpec::contiguous(end - row, 700, 80, 1, dtype);
      gemm::make_program(part, 2)->run(static_cast<char*>(a.data()) + row * 700 * bytes, b.data(),
                                       static_cast<char*>(parts.data()) + row * 80 * bytes, nullptr,
                                       pool);
    }
    EXPECT_EQ(whole.bytes(), parts.bytes());
  }
}

TEST(MatmulLibrary, ChoosesAProgramForEveryFloat) {
  ThreadPool pool(2);
  for (DType dtype : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
    MatmulSpec s = MatmulSpec::contiguous(40, 30, 50, 2, dtype);
    ASSERT_TRUE(library_supports(s));
    EXPECT_EQ(library_program(s, 2), library_program(s, 2));
    expect_matches(s, *library_program(s, 2), 2);
    for (const auto& candidate : library_candidates(s, 2)) expect_matches(s, *candidate, 2);
  }
}

// Whatever library is chosen: a job of several ranks, each with fewer threads, ends with the weights
// of one process.
TEST(MatmulLibrary, BitsDoNotDependOnThreads) {
  std::vector<MatmulSpec> all = specs();
  for (Order b : {Order::Row, Order::Column}) {
    for (auto [m, k, n] : {std::array<int64_t, 3>{32, 24, 2},
                           {32, 2, 24},
                           {64, 784, 512},
                           {37, 300, 130},
                           {130, 300, 37},
                           {48, 1100, 48}})
      all.push_back(product(m, k, n, Order::Row, b));
  }
  for (DType dtype : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
    for (MatmulSpec s : all) {
      s.dtype = s.out_dtype = dtype;
      if (!library_supports(s)) continue;
      Buffer a = Buffer::random(dtype, test::a_span(s), 1);
      Buffer b = Buffer::random(dtype, test::b_span(s), 2);
      Buffer once(dtype, test::c_span(s));
      ThreadPool pool(5);
      library_program(s, 1)->run(a.data(), b.data(), once.data(), nullptr, pool);
      for (int threads : {2, 3, 5}) {
        Buffer threaded(dtype, test::c_span(s));
        library_program(s, threads)->run(a.data(), b.data(), threaded.data(), nullptr, pool);
        EXPECT_EQ(once.bytes(), threaded.bytes()) << s.to_string() << ", " << threads << " threads";
      }
    }
  }
}

// The kernels of a library may use memory that a signal's handler is given.
TEST(MatmulLibrary, HandlersOfSignalsMayRunMeanwhile) {
  const test::Alarms alarms;
  for (DType dtype : {DType::F32, DType::BF16}) {
    const MatmulSpec s = product(64, 512, 512);
    const Buffer a = Buffer::random(dtype, test::a_span(s), 1);
    const Buffer b = Buffer::random(dtype, test::b_span(s), 2);
    for (int threads : {1, 2}) {
      ThreadPool pool(threads);
      MatmulSpec typed = s;
      typed.dtype = typed.out_dtype = dtype;
      const auto program = library_program(typed, threads);
      Buffer first(dtype, test::c_span(s)), again(dtype, test::c_span(s));
      program->run(a.data(), b.data(), first.data(), nullptr, pool);
      for (int before = alarms.count(); alarms.count() < before + 200;) {
        program->run(a.data(), b.data(), again.data(), nullptr, pool);
        ASSERT_EQ(first.bytes(), again.bytes());
      }
    }
  }
}

TEST(MatmulLibrary, ProgramsAreMadeAndRunFromSeveralThreads) {
  std::vector<MatmulSpec> some;
  for (int64_t n : {3, 20, 64, 90}) {
    some.push_back(MatmulSpec::contiguous(41, 57, n));
    some.push_back(product(41, 57, n, Order::Row, Order::Column));
  }
  ThreadPool shared(2);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 3; ++caller)
    callers.emplace_back([&, caller] {
      ThreadPool own(2);
      for (const auto& s : some) {
        Buffer a = Buffer::random(DType::F32, test::a_span(s), 10 + caller);
        Buffer b = Buffer::random(DType::F32, test::b_span(s), 20 + caller);
        std::vector<double> expected(static_cast<size_t>(test::c_span(s)));
        test::matmul_reference(s, a, b, nullptr, expected);
        Buffer c(DType::F32, test::c_span(s));
        auto program = library_program(s, 2);
        for (int round = 0; round < 20; ++round) {
          program->run(a.data(), b.data(), c.data(), nullptr, round % 2 ? own : shared);
          for (int64_t i = 0; i < c.size(); ++i)
            if (std::abs(c.get(i) - expected[i]) > 1e-4) ++wrong;
        }
      }
    });
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(MatmulLibrary, SaysWhyNot) {
  MatmulSpec s = MatmulSpec::contiguous(4, 4, 4);
  s.dtype = DType::I32;
  std::string why;
  EXPECT_FALSE(library_supports(s, &why));
  EXPECT_NE(why.find("i32"), std::string::npos) << why;
  EXPECT_THROW(library_program(s, 1), UserError);
  EXPECT_THROW(gemm::make_program(s, 1), UserError);
  EXPECT_THROW(onednn::make_program(s, 1), UserError);
  EXPECT_THROW(gemm::make_program(MatmulSpec::contiguous(4, 4, 4), 1, "MMX"), UserError);
}

TEST(MatmulLibrary, ReportsWhatThereIs) {
  bool own = false;
  for (const auto& report : library_reports()) {
    EXPECT_FALSE(report.name.empty());
    EXPECT_EQ(report.available, report.why_not.empty());
    EXPECT_TRUE(!report.available || !(report.version.empty() || report.isa.empty()));
    own = own || report.name == "gemm";
  }
  EXPECT_TRUE(own);
}

}  // namespace
}  // namespace tinyshard::matmul_test
