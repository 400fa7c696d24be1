// Convolutions of the math library against double precision: every direction, on odd sizes.
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "devices/cpu/onednn.h"
#include "devices/cpu/thread_pool.h"
#include "tests/devices/cpu/alarms.h"
#include "tests/devices/cpu/reference.h"

namespace tinyshard::conv_test {
namespace {

using test::Buffer;

ConvSpec conv2d(int64_t n, int64_t c, int64_t oc, int64_t h, int64_t w, int64_t k,
                int64_t stride = 1, int64_t pad = 0, int64_t dilation = 1, int64_t groups = 1) {
  ConvSpec s;
  s.n = n, s.c = c, s.oc = oc, s.groups = groups;
  s.in = {h, w, 1}, s.kernel = {k, k, 1}, s.stride = {stride, stride, 1};
  s.dilation = {dilation, dilation, 1}, s.pad_lo = {pad, pad, 0}, s.pad_hi = {pad, pad, 0};
  return s;
}

std::vector<ConvSpec> specs() {
  std::vector<ConvSpec> all = {
      conv2d(4, 1, 32, 12, 12, 5),
      conv2d(5, 32, 32, 10, 10, 5),
      conv2d(3, 32, 64, 7, 7, 3),
      conv2d(2, 64, 64, 6, 6, 3),
      conv2d(3, 3, 5, 9, 11, 3),
      conv2d(2, 7, 13, 8, 8, 1),
      conv2d(2, 17, 19, 9, 9, 3, 2, 1),
      conv2d(3, 16, 16, 13, 9, 3, 1, 2, 2),
      conv2d(2, 8, 12, 8, 8, 3, 1, 1, 1, 4),
      conv2d(2, 16, 16, 8, 8, 3, 1, 1, 1, 16),
      conv2d(1, 32, 48, 9, 9, 3, 1, 1),
      conv2d(1, 5, 3, 6, 6, 3),
      conv2d(1, 32, 64, 8, 8, 3, 1, 1, 1, 2),
      conv2d(40, 16, 32, 20, 20, 3, 1, 1),
      conv2d(9, 6, 4, 5, 5, 5),
  };
  ConvSpec uneven = conv2d(2, 16, 16, 9, 7, 3);
  uneven.kernel = {3, 2, 1}, uneven.pad_lo = {1, 0, 0}, uneven.pad_hi = {0, 2, 0};
  uneven.stride = {1, 2, 1};
  all.push_back(uneven);
  ConvSpec line = conv2d(3, 16, 24, 31, 1, 5);
  line.rank = 1;
  all.push_back(line);
  ConvSpec volume = conv2d(2, 8, 16, 5, 6, 3);
  volume.rank = 3;
  volume.in = {5, 6, 7}, volume.kernel = {3, 2, 3}, volume.pad_lo = {1, 0, 1};
  all.push_back(volume);
  return all;
}

class Conv : public ::testing::TestWithParam<std::tuple<int, int, ConvDirection>> {};

TEST_P(Conv, MatchesDoublePrecision) {
  auto [index, threads, direction] = GetParam();
  ConvSpec s = specs()[static_cast<size_t>(index)];
  s.direction = direction;
  SCOPED_TRACE(s.to_string());
  if (std::string why; !onednn::supports(s, &why)) GTEST_SKIP() << why;
  auto program = onednn::make_program(s, threads);
  SCOPED_TRACE(program->describe());

  Buffer src = Buffer::random(DType::F32, s.src_elements(), 1);
  Buffer weights = Buffer::random(DType::F32, s.weight_elements(), 2);
  Buffer dst = Buffer::random(DType::F32, s.dst_elements(), 3);
  bool forward = direction == ConvDirection::Forward,
       data = direction == ConvDirection::BackwardData;
  const Buffer& a = data ? dst : src;
  const Buffer& b = forward || data ? weights : dst;
  int64_t elements = forward ? s.dst_elements() : data ? s.src_elements() : s.weight_elements();
  std::vector<double> expected(static_cast<size_t>(elements)), scale(expected.size());
  test::for_conv(s, [&](int64_t i, int64_t w, int64_t o) {
    double product = forward ? src.get(i) * weights.get(w)
                     : data  ? dst.get(o) * weights.get(w)
                             : src.get(i) * dst.get(o);
    int64_t at = forward ? o : data ? i : w;
    expected[at] += product;
    scale[at] += std::abs(product);
  });

  ThreadPool pool(threads);
  Buffer c = Buffer::filled(DType::F32, elements, NAN);
  program->run(a.data(), b.data(), c.data(), nullptr, pool);
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(c.get(static_cast<int64_t>(i)), expected[i], 1e-6 * scale[i] + 1e-7) << "at " << i;

  // Same bits again, with other data in the scratch in between.
  Buffer other = Buffer::random(DType::F32, a.size(), 7),
         again = Buffer::filled(DType::F32, elements, NAN);
  program->run(other.data(), b.data(), again.data(), nullptr, pool);
  program->run(a.data(), b.data(), again.data(), nullptr, pool);
  EXPECT_EQ(c.bytes(), again.bytes());
}

INSTANTIATE_TEST_SUITE_P(Onednn, Conv,
                         ::testing::Combine(::testing::Range(0, static_cast<int>(specs().size())),
                                            ::testing::Values(1, 2, 5),
                                            ::testing::Values(ConvDirection::Forward,
                                                              ConvDirection::BackwardData,
                                                              ConvDirection::BackwardWeights)));

TEST(ConvEpilogue, AddsBiasAndActivates) {
  for (auto activation : {Activation::None, Activation::Relu, Activation::GeluTanh})
    for (int64_t n : {1, 3}) {
      ConvSpec s = conv2d(n, 5, 37, 8, 8, 3);
      s.has_bias = true;
      s.activation = activation;
      if (!onednn::supports(s)) GTEST_SKIP();
      Buffer src = Buffer::random(DType::F32, s.src_elements(), 1);
      Buffer weights = Buffer::random(DType::F32, s.weight_elements(), 2);
      Buffer bias = Buffer::random(DType::F32, s.oc, 3);
      Buffer c = Buffer::filled(DType::F32, s.dst_elements(), NAN);
      std::vector<double> expected(static_cast<size_t>(s.dst_elements()));
      test::for_conv(s, [&](int64_t i, int64_t w, int64_t o) {
        expected[static_cast<size_t>(o)] += src.get(i) * weights.get(w);
      });
      ThreadPool pool(2);
      onednn::make_program(s, 2)->run(src.data(), weights.data(), c.data(), bias.data(), pool);
      for (int64_t i = 0; i < s.dst_elements(); ++i) {
        double sum = expected[static_cast<size_t>(i)] + bias.get(i / (6 * 6) % s.oc);
        ASSERT_NEAR(c.get(i), test::activate(sum, activation), 1e-4);
      }
    }
}

TEST(ConvSupport, SaysWhyNot) {
  std::string why;
  ConvSpec s = conv2d(2, 4, 4, 8, 8, 3);
  s.dtype = DType::F16;
  EXPECT_FALSE(onednn::supports(s, &why));
  EXPECT_FALSE(why.empty());
  EXPECT_THROW(onednn::make_program(s, 1), UserError);
  EXPECT_FALSE(onednn::supports(conv2d(2, 4, 4, 2, 2, 3), &why));
  EXPECT_FALSE(onednn::supports(conv2d(2, 4, 6, 8, 8, 3, 1, 0, 1, 4), &why));
}

TEST(ConvLibrary, HandlersOfSignalsMayRunMeanwhile) {
  const test::Alarms alarms;
  for (ConvDirection direction :
       {ConvDirection::Forward, ConvDirection::BackwardData, ConvDirection::BackwardWeights}) {
    ConvSpec s = conv2d(8, 32, 32, 10, 10, 5);
    s.direction = direction;
    if (std::string why; !onednn::supports(s, &why)) GTEST_SKIP() << why;
    ThreadPool pool(2);
    const auto program = library_program(s, 2);
    const int64_t elements = 8 * 32 * 10 * 10;  // of the largest operand, as many for the others
    const Buffer a = Buffer::random(DType::F32, elements, 1);
    const Buffer b = Buffer::random(DType::F32, elements, 2);
    Buffer first(DType::F32, elements), again(DType::F32, elements);
    program->run(a.data(), b.data(), first.data(), nullptr, pool);
    for (int before = alarms.count(); alarms.count() < before + 200;) {
      program->run(a.data(), b.data(), again.data(), nullptr, pool);
      ASSERT_EQ(first.bytes(), again.bytes());
    }
  }
}

TEST(ConvCache, ProgramsAreMadeAndRunFromSeveralThreads) {
  ConvSpec s = conv2d(4, 17, 20, 9, 9, 3, 1, 1);
  if (!onednn::supports(s)) GTEST_SKIP();
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 3; ++caller)
    callers.emplace_back([&, caller] {
      ThreadPool own(2);
      Buffer src = Buffer::random(DType::F32, s.src_elements(), 1 + caller);
      Buffer weights = Buffer::random(DType::F32, s.weight_elements(), 2);
      std::vector<double> expected(static_cast<size_t>(s.dst_elements()));
      test::for_conv(s, [&](int64_t i, int64_t w, int64_t o) {
        expected[static_cast<size_t>(o)] += src.get(i) * weights.get(w);
      });
      Buffer c(DType::F32, s.dst_elements());
      auto program = onednn::make_program(s, 2);
      for (int round = 0; round < 20; ++round) {
        program->run(src.data(), weights.data(), c.data(), nullptr, own);
        for (int64_t i = 0; i < c.size(); ++i)
          if (std::abs(c.get(i) - expected[i]) > 1e-4) ++wrong;
      }
    });
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ConvCache, EqualSpecsShareAProgram) {
  ConvSpec s = conv2d(2, 16, 16, 8, 8, 3);
  if (!onednn::supports(s)) GTEST_SKIP();
  EXPECT_EQ(onednn::make_program(s, 2), onednn::make_program(s, 2));
  EXPECT_NE(onednn::make_program(s, 2), onednn::make_program(s, 1));
}

}  // namespace
}  // namespace tinyshard::conv_test
