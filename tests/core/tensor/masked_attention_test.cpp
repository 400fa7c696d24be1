// Queries that see no key give 0 and have no gradient; all other rows are as if these were not there.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/tensor/tensor.h"

namespace tinyshard::masked_attention_test {
namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kRows = 5, kKeys = 6, kWidth = 8;

struct Case {
  DType type;
  int64_t shared;  // heads of keys
  bool added;      // a float mask of minus infinity, and not bools
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
    for (int64_t shared : {kHeads, kHeads / 2}) {
      for (bool added : {false, true}) all.push_back({type, shared, added});
    }
  }
  return all;
}

// true: seen. Row 2 sees nothing, and in the second batch nor do rows 0 and 4.
std::vector<bool> seen() {
  std::vector<bool> mask;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t k = 0; k < kKeys; ++k) {
        const bool none = r == 2 || (b == 1 && (r == 0 || r == 4));
        mask.push_back(!none && (r + k) % 3 != 0);
      }
    }
  }
  return mask;
}

// Attention of one head and row by hand, in f64; 0 for what sees nothing.
std::vector<double> by_hand(const Tensor& q, const Tensor& k, const Tensor& v, int64_t shared) {
  const auto a = q.to_vector<double>(), b = k.to_vector<double>(), c = v.to_vector<double>();
  const auto mask = seen();
  std::vector<double> out;
  for (int64_t n = 0; n < kBatch; ++n) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t own = (n * shared + h * shared / kHeads) * kKeys * kWidth;
      for (int64_t r = 0; r < kRows; ++r) {
        std::vector<double> weight(kKeys, 0), row(kWidth, 0);
        double sum = 0;
        for (int64_t s = 0; s < kKeys; ++s) {
          if (!mask[size_t((n * kRows + r) * kKeys + s)]) continue;
          double score = 0;
          for (int64_t e = 0; e < kWidth; ++e)
            score += a[size_t(((n * kHeads + h) * kRows + r) * kWidth + e)] *
                     b[size_t(own + s * kWidth + e)];
          sum += weight[size_t(s)] = std::exp(score / std::sqrt(double(kWidth)));
        }
        for (int64_t s = 0; s < kKeys && sum > 0; ++s) {
          for (int64_t e = 0; e < kWidth; ++e)
            row[size_t(e)] += weight[size_t(s)] / sum * c[size_t(own + s * kWidth + e)];
        }
        out.insert(out.end(), row.begin(), row.end());
      }
    }
  }
  return out;
}

TEST(MaskedAttention, OfRowsWithoutKeysIsZero) {
  for (const Case& c : cases()) {
    Tensor::manual_seed(11);
    const Tensor q = Tensor::randn({kBatch, kHeads, kRows, kWidth}).cast(c.type).realize();
    const Tensor k = Tensor::randn({kBatch, c.shared, kKeys, kWidth}).cast(c.type).realize();
    const Tensor v = Tensor::randn({kBatch, c.shared, kKeys, kWidth}).cast(c.type).realize();
    Tensor mask = Tensor(seen(), {kBatch, 1, kRows, kKeys});
    if (c.added) mask = mask.where(Tensor::zeros({1}), -INFINITY).cast(c.type);
    const Tensor y = q.scaled_dot_product_attention(k, v, mask, {.enable_gqa = true});
    const auto slopes = y.square().sum().gradient({q, k, v});
    const auto got = y.to_vector<double>(), want = by_hand(q, k, v, c.shared);
    const double tolerance = c.type == DType::BF16 ? 0.05 : c.type == DType::F16 ? 0.01 : 1e-5;
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], tolerance) << name(c.type) << " element " << i;
    // The slopes are those of the rows that see keys alone.
    const Tensor wq = q.cast(DType::F64), wk = k.cast(DType::F64), wv = v.cast(DType::F64);
    for (const Tensor& slope : slopes) {
      for (double s : slope.to_vector<double>()) ASSERT_TRUE(std::isfinite(s)) << name(c.type);
    }
    const auto of_q = slopes[0].to_vector<double>();
    for (size_t i = 0; i < of_q.size(); ++i) {
      const size_t r = i / kWidth % kRows, b = i / (kWidth * kRows * kHeads);
      const bool none = r == 2 || (b == 1 && (r == 0 || r == 4));
      if (none) {
        ASSERT_EQ(of_q[i], 0) << "element " << i;
      }
    }
    // A step along the slope of v.
    auto loss = [&](const Tensor& values) {
      return wq
          .scaled_dot_product_attention(wk, values,
                                        mask.dtype() == DType::Bool ? mask : mask.cast(DType::F64),
                                        {.enable_gqa = true})
          .square()
          .sum()
          .item<double>();
    };
    const Tensor along = slopes[2].cast(DType::F64);
    const double step = 1e-3, length = along.square().sum().item<double>();
    EXPECT_NEAR((loss(wv + along * step) - loss(wv - along * step)) / (2 * step), length,
                0.05 * length);
  }
}

std::string said(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& e) {
    return e.what();
  }
  return "nothing";
}

TEST(MaskedAttention, RefusesMasksOfIntegers) {
  const Tensor x = Tensor::zeros({1, 4, 3, 8});
  const Tensor mask = Tensor::ones({1, 1, 3, 3}, DType::I32);
  const std::string text = said([&] { (void)x.scaled_dot_product_attention(x, x, mask); });
  EXPECT_NE(text.find("mask is i32[1, 1, 3, 3]"), std::string::npos) << text;
  EXPECT_NE(text.find("true where a query attends to a key"), std::string::npos) << text;
}

TEST(MaskedAttention, NamesTheOptionForSharedHeads) {
  const Tensor q = Tensor::zeros({1, 4, 3, 8}), k = Tensor::zeros({1, 2, 3, 8});
  const std::string text = said([&] { (void)q.scaled_dot_product_attention(k, k); });
  EXPECT_NE(text.find("query f32[1, 4, 3, 8] has 4 heads and key f32[1, 2, 3, 8] has 2"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("enable_gqa"), std::string::npos) << text;
}

}  // namespace
}  // namespace tinyshard::masked_attention_test
