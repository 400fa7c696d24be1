// Scans that no library takes are spelled, and mean the same; their gradients are those of what they
// mean.
#include "core/passes/scans.h"

#include <cmath>

#include <gtest/gtest.h>

#include "core/passes/gradient.h"
#include "core/uop/scan.h"
#include "tests/core/passes/evaluate.h"

namespace tinyshard::scans_test {
namespace {

using test::Evaluator;
using test::Values;

UOp buffer(int64_t id, const Dims& shape) {
  Dims arg{id};
  arg.insert(arg.end(), shape.begin(), shape.end());
  return UOp::make(Op::Buffer, DType::F64, {}, arg);
}

Values waves(int64_t n) {
  Values x;
  for (int64_t i = 0; i < n; ++i) x.push_back(1 + 0.01 * std::floor(50 * std::sin(double(i * i))));
  return x;
}

const ScanArg kArgs[] = {{.kind = ScanKind::Sum},
                         {.kind = ScanKind::Sum, .reverse = true},
                         {.kind = ScanKind::Prod},
                         {.kind = ScanKind::Max},
                         {.kind = ScanKind::Max, .places = true},
                         {.kind = ScanKind::Min},
                         {.kind = ScanKind::Min, .places = true},
                         {.kind = ScanKind::LogSumExp}};

bool refuses(const LibraryCall&) { return false; }
bool takes(const LibraryCall&) { return true; }

bool is_whole(const UOp& root) {
  for (const UOp& x : toposort(std::span(&root, 1))) {
    if (x.op() == Op::Scan) return true;
  }
  return false;
}

void expect_near(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 1e-9 * (1 + std::abs(want[i]))) << what << ", element " << i;
}

TEST(LowerScans, MeanTheSameSpelled) {
  for (bool short_chunks : {false, true}) {
    for (const Dims& shape : {Dims{1}, Dims{5}, Dims{2, 33}, Dims{40, 3}, Dims{1500}, Dims{4500}}) {
      for (ScanArg arg : kArgs) {
        for (arg.axis = 0; arg.axis < int64_t(shape.size()); ++arg.axis) {
          const UOp x = buffer(1, shape), whole = scan(x, arg);
          const UOp spelled = lower_scans({{whole}}, refuses, {.short_chunks = short_chunks})[0];
          EXPECT_FALSE(is_whole(spelled));
          Evaluator evaluator;
          evaluator.set(x, waves(x->numel()));
          expect_near(evaluator(spelled), evaluator(whole), describe(*whole));
        }
      }
    }
  }
}

TEST(LowerScans, LongRowsStayWholeForALibrary) {
  const UOp rows = buffer(1, {4, 9}), columns = buffer(2, {4, 9});
  const UOp along_rows = scan(rows, {.axis = 1}), along_columns = scan(columns, {.axis = 0});
  EXPECT_TRUE(is_whole(lower_scans({{along_rows}}, takes, {.pairs = 8})[0]));
  EXPECT_FALSE(is_whole(lower_scans({{along_columns}}, takes, {.pairs = 8})[0]));
}

// The slope of sum(w * scan(x)) by each element, beside quotients of differences.
TEST(LowerScans, GradientsOfWholeOnes) {
  const Dims shape{11, 3};
  for (ScanArg arg : kArgs) {
    if (arg.places) continue;
    for (arg.axis = 0; arg.axis < 2; ++arg.axis) {
      const UOp x = named(buffer(1, shape)), w = buffer(2, shape), y = scan(x, arg);
      const UOp slope = gradient({{y}}, std::span(&w, 1), std::span(&x, 1))[0];
      Values at, weights = waves(33);
      // No ties: a maximum has a slope there.
      for (int i = 0; i < 33; ++i) at.push_back(0.5 + 0.031 * (i * 17 % 33));
      auto value = [&](const Values& of) {
        Evaluator evaluator;
        evaluator.set(x.src(0), of);
        const Values scanned = evaluator(y);
        double sum = 0;
        for (size_t i = 0; i < scanned.size(); ++i) sum += scanned[i] * weights[i];
        return sum;
      };
      Evaluator evaluator;
      evaluator.set(x.src(0), at);
      evaluator.set(w, weights);
      const Values got = evaluator(slope);
      for (size_t i = 0; i < got.size(); ++i) {
        constexpr double kStep = 1e-5;
        Values above = at, below = at;
        above[i] += kStep, below[i] -= kStep;
        const double want = (value(above) - value(below)) / (2 * kStep);
        ASSERT_NEAR(got[i], want, 1e-6 * (1 + std::abs(want))) << describe(*y) << ", element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tinyshard::scans_test
