// That a pass left the values of a graph alone, on random inputs.
#pragma once
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/core/passes/evaluate.h"

namespace tinyshard::test {

inline UOp buffer(int64_t id, DimSpan shape, DType dtype) {
  Dims arg{id};
  arg.insert(arg.end(), shape.begin(), shape.end());
  return UOp::make(Op::Buffer, dtype, {}, arg);
}

inline std::vector<Values> evaluated(std::span<const UOp> roots, const std::vector<UOp>& leaves) {
  // The rounding to 16 bits that these passes move is what they are for (tests/core/tensor/bits_test.cpp).
  Evaluator evaluator(Evaluator::Casts::KeepDoubles);
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(-1.5, 1.5);
  for (const UOp& b : leaves) {
    Values values(size_t(b->numel()));
    for (double& v : values) v = uniform(random);
    evaluator.set(b, values);
  }
  std::vector<Values> out;
  for (const UOp& root : roots) out.push_back(evaluator(root));
  return out;
}

inline void expect_same(const std::vector<UOp>& a, const std::vector<UOp>& b,
                        const std::vector<UOp>& leaves) {
  std::vector<Values> left = evaluated(a, leaves), right = evaluated(b, leaves);
  ASSERT_EQ(left.size(), right.size());
  for (size_t r = 0; r < left.size(); ++r) {
    ASSERT_EQ(left[r].size(), right[r].size());
    ASSERT_EQ(a[r].dtype(), b[r].dtype());
    // All is computed in f64, but constants are those of their type, and a rewrite has its own.
    const double near = a[r].dtype() == DType::F64 ? 1e-12 : 1e-7;
    for (size_t i = 0; i < left[r].size(); ++i)
      ASSERT_NEAR(left[r][i], right[r][i], near) << "root " << r << " at " << i;
  }
}

}  // namespace tinyshard::test
