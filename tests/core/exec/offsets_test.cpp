// Slices that move: how often code is made, and that each reads what it names.
#include "core/codegen/offsets.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/codegen/codegen.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"
#include "core/uop/args.h"

namespace tinyshard::offsets_test {
namespace {

int64_t made() {
  const CodegenStatistics s = codegen_statistics();
  return s.compiled + s.disk_hits;
}

constexpr int kRows = 40, kColumns = 48;

// Element i is i % 251.
Tensor numbers(const Dims& shape, DType type = DType::F32) {
  std::vector<float> values(size_t(product(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i % 251);
  return Tensor(values, shape).cast(type).realize();
}
float number(int64_t row, int64_t column) { return float((row * kColumns + column) % 251); }

using Step = std::function<Tensor(int)>;

// How often code is made for n places of a slice.
int64_t made_by(const Step& step, int n) {
  const int64_t before = made();
  for (int i = 0; i < n; ++i) step(i).realize();
  return made() - before;
}

TEST(Offsets, RowsAreOneKernel) {
  const Tensor x = numbers({kRows, kColumns}), w = numbers({kRows, kColumns});
  const std::vector<std::pair<const char*, Step>> steps{
      {"row", [&](int i) { return x[i] + 3; }},
      {"copied", [&](int i) { return x[i].contiguous(); }},
      {"rows", [&](int i) { return x[Slice(i, i + 5)] * 3; }},
      {"sum", [&](int i) { return x[Slice(i, i + 5)].sum(0); }},
      {"neighbours", [&](int i) { return x[i] * 2 + x[i + 1]; }},
      {"of two", [&](int i) { return x[i] - w[kRows - 1 - i]; }},
      {"turned", [&](int i) { return x[Slice(i, i + 4)].transpose() + 7; }},
  };
  for (const auto& [name, step] : steps) EXPECT_LE(made_by(step, kRows - 5), 1) << name;
}

// A kernel for each place within 64 bytes, of which f32 has 16.
TEST(Offsets, ElementsAndColumnsAreFewKernels) {
  const Tensor x = numbers({kRows, 96}), v = numbers({200}), small = numbers({400}, DType::F16);
  EXPECT_LE(made_by([&](int i) { return v[i] + 3; }, 200), 16);
  EXPECT_LE(made_by([&](int i) { return v[Slice(i, i + 9)] * 3; }, 190), 16);
  EXPECT_LE(made_by([&](int i) { return x[{Slice(), i}] + 3; }, 96), 16);
  EXPECT_LE(made_by([&](int i) { return small[i] + 3; }, 400), 32);
}

TEST(Offsets, EachPlaceHasItsValues) {
  const Tensor x = numbers({kRows, kColumns});
  const Tensor places = Tensor(std::vector<float>{3, 0, 39}, {3}).cast(DType::I64).realize();
  for (int i = 0; i < kRows - 4; ++i) {
    SCOPED_TRACE(i);
    const auto row = (x[i] + 3).to_vector<float>();
    const auto backwards = (x[Slice(i, i + 4)].flip({0, 1}) * 2).to_vector<float>();
    const auto column = (x[{Slice(), i}] + 1).to_vector<float>();
    const auto padded = x[Slice(i, i + 2)].pad({{1, 1}, {2, 0}}).contiguous().to_vector<float>();
    const auto taken = (x[Slice(i, i + 4)][Tensor::arange(3) + 1] + x[places]).to_vector<float>();
    for (int c = 0; c < kColumns; ++c) {
      EXPECT_EQ(row[size_t(c)], number(i, c) + 3);
      for (int r = 0; r < 4; ++r) {
        EXPECT_EQ(backwards[size_t(r * kColumns + c)], 2 * number(i + 3 - r, kColumns - 1 - c));
        const bool inside = r >= 1 && r <= 2;
        EXPECT_EQ(padded[size_t(r * (kColumns + 2) + c + 2)], inside ? number(i + r - 1, c) : 0);
      }
      const int picked[] = {3, 0, 39};
      for (int r = 0; r < 3; ++r)
        EXPECT_EQ(taken[size_t(r * kColumns + c)], number(i + r + 1, c) + number(picked[r], c));
    }
    for (int r = 0; r < kRows; ++r) EXPECT_EQ(column[size_t(r)], number(r, i) + 1);
  }
}

// The bits of sums are those of a captured step, whose kernel has the offset in its code.
TEST(Offsets, SumsHaveTheBitsOfACapturedStep) {
  const Tensor x = (numbers({kRows, kColumns}) * 0.37).sin().realize();
  for (int i = 0; i < 12; ++i) {
    auto step = [&](const Tensor& t) {
      return t[Slice(i, i + 20)].sum(0).cat({t[Slice(i + 3, i + 23)].softmax(0)[7]});
    };
    Jit captured = [&](Tensor t) { return step(t); };
    EXPECT_EQ(step(x).to_vector<float>(), captured(x).clone().to_vector<float>()) << i;
  }
}

TEST(Offsets, WhatIsWrittenStaysWhereItIs) {
  Tensor x = numbers({kRows, kColumns});
  for (int i = 1; i < 6; ++i) {
    Tensor moved = x[Slice(i, i + 8)].contiguous().realize();
    x.setitem({Slice(0, 8)}, moved + 1);
    x.realize();
  }
  // Rows 0 to 7 become rows 1 to 8 plus 1, then rows 2 to 9 of that plus 1, and so on.
  std::vector<std::vector<float>> rows(kRows, std::vector<float>(kColumns));
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) rows[size_t(r)][size_t(c)] = number(r, c);
  }
  for (int i = 1; i < 6; ++i) {
    const auto before = rows;
    for (int r = 0; r < 8; ++r) {
      for (int c = 0; c < kColumns; ++c)
        rows[size_t(r)][size_t(c)] = before[size_t(r) + size_t(i)][size_t(c)] + 1;
    }
  }
  const auto found = x.to_vector<float>();
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c)
      EXPECT_EQ(found[size_t(r * kColumns + c)], rows[size_t(r)][size_t(c)]) << r << " " << c;
  }
}

// --- of one kernel -------------------------------------------------------------------------------

UOp load(int64_t slot, const UOp& index, const UOp& valid = UOp()) {
  std::vector<UOp> sources{UOp::make(Op::Param, DType::F32, {}, Dims{slot}), index};
  if (valid) sources.push_back(valid);
  return UOp::make(Op::Load, DType::F32, sources);
}

KernelSource kernel_of(const UOp& value, const UOp& i) {
  KernelSource kernel;
  kernel.name = "test";
  kernel.loops = {i};
  kernel.params = {{DType::F32, 1000, true}, {DType::F32, 1000}, {DType::F32, 1000}};
  const UOp out = UOp::make(Op::Param, DType::F32, {}, Dims{0});
  const UOp store = UOp::make(Op::Store, DType::F32, {out, i, value});
  kernel.sink = UOp::make(Op::Sink, DType::Bool, {store});
  return kernel;
}
UOp plus(const UOp& x, int64_t by) { return binary(Op::Add, x, index_const(by)); }

TEST(Offsets, ALoadInsideOfAMaskMovesToo) {
  const UOp i = range(0, 10, RangeKind::Loop);
  auto value = [&](int64_t a, int64_t b) {
    const UOp mask = binary(Op::CmpLt, load(2, plus(i, b)), const_float(DType::F32, 1));
    return load(1, plus(i, a), mask);
  };
  KernelSource moved = kernel_of(value(100, 40), i);
  begin_at_slices(moved);
  const KernelSource expected = kernel_of(value(4, 8), i);
  EXPECT_EQ(print(moved.sink), print(expected.sink));
  EXPECT_EQ(moved.params[1].offset, 384);
  EXPECT_EQ(moved.params[1].numel, 14);
  EXPECT_EQ(moved.params[2].offset, 128);
  EXPECT_EQ(moved.params[2].numel, 18);
}

TEST(Offsets, NothingElseMoves) {
  const UOp i = range(0, 10, RangeKind::Loop);
  const UOp backwards = binary(Op::Add, binary(Op::Mul, i, index_const(-1)), index_const(9));
  const UOp read = UOp::make(Op::Cast, DType::Index, {load(2, i)});
  const UOp below = plus(i, -20);
  for (const UOp& index : {backwards, plus(read, 100), below}) {
    KernelSource kernel = kernel_of(load(1, index, binary(Op::CmpLt, i, index_const(7))), i);
    const UOp before = kernel.sink;
    begin_at_slices(kernel);
    EXPECT_EQ(print(kernel.sink), print(before));
    EXPECT_EQ(kernel.params[1].offset, 0);
  }
  for (bool written : {true, false}) {  // in place, by this slot or another one
    KernelSource kernel = kernel_of(load(1, plus(i, 100)), i);
    kernel.params[1].written = written;
    if (!written) kernel.params[1].alias = 0;
    const UOp before = kernel.sink;
    begin_at_slices(kernel);
    EXPECT_EQ(print(kernel.sink), print(before));
  }
}

}  // namespace
}  // namespace tinyshard::offsets_test
