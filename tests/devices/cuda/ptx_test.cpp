// Parts of a GPU's programs that can be checked without a GPU.
#include "devices/cuda/ptx.h"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "devices/cuda/planned_gpu.h"
#include "devices/cuda/row_attention.h"
#include "devices/cuda/scatter.h"

namespace tinyshard::cuda::ptx_test {
namespace {

TEST(Ptx, ParametersOfAnEntryAreCounted) {
  const char* text = R"(
.visible .func (.param .b32 r) helper(.param .b64 a) { ret; }
.visible .entry other(
	.param .u64 other_param_0
)
{ ret; }
	// .globl	main
.visible .entry main(
	.param .u64 .ptr .align 1 main_param_0,
	.param .u64 .ptr .align 1 main_param_1,
	.param .u64 main_param_2
)
.maxntid 256
{ ret; }
.entry none { ret; }
)";
  EXPECT_EQ(count_parameters(text, "main"), 3);
  EXPECT_EQ(count_parameters(text, "other"), 1);
  EXPECT_EQ(count_parameters(text, "none"), 0);
  EXPECT_EQ(count_parameters(text, "absent"), -1);
  EXPECT_EQ(count_parameters("", "main"), -1);
}

TEST(Ptx, ScatterCoversEveryColumnAndRow) {
  ScatterShape shape;
  shape.outer = 3, shape.rows_in = 10, shape.rows_out = 65, shape.inner = 100;
  ObjectCode code = scatter_code(shape);
  EXPECT_EQ(code.work_items, 2 * 3);  // 300 columns by 256, 65 rows by 32
  EXPECT_EQ(count_parameters(code.bytes.data(), code.entry), 3);
  EXPECT_EQ(code.bytes.back(), '\0');
  shape.base = DType::F32;
  code = scatter_code(shape);
  EXPECT_EQ(count_parameters(code.bytes.data(), code.entry), 4);
}

RowAttentionShape row_attention(int64_t groups, int64_t rows, int64_t columns, int64_t width) {
  RowAttentionShape s;
  s.groups = groups, s.rows = rows, s.columns = columns, s.width = s.values = width;
  s.q = {0, rows * width, width};
  s.k = s.v = {0, columns * width, width};
  return s;
}

// A cluster for each group, as large as multiprocessors are there for and keys are worth.
TEST(Ptx, RowAttentionFillsTheGpu) {
  const Target target = planned_h200().target;
  auto blocks = [&](int64_t groups, int64_t columns) {
    const ObjectCode code = row_attention_code(row_attention(groups, 4, columns, 64), target);
    EXPECT_TRUE(code.waits_itself);
    EXPECT_EQ(count_parameters(code.bytes.data(), code.entry), 5);
    return code.work_items;
  };
  EXPECT_EQ(blocks(8, 4096), 64);
  EXPECT_EQ(blocks(32, 4096), 128);
  EXPECT_EQ(blocks(300, 4096), 300);
  EXPECT_EQ(blocks(1, 4096), 8);
  EXPECT_EQ(blocks(1, 64), 4);
  EXPECT_EQ(blocks(1, 16), 1);
}

// With TS_PTXAS in the environment, the assembler itself reads every variant.
TEST(Ptx, RowAttentionAssembles) {
  const char* ptxas = std::getenv("TS_PTXAS");
  if (!ptxas) GTEST_SKIP() << "TS_PTXAS names no assembler";
  const Target target = planned_h200().target;
  for (DType dtype : {DType::BF16, DType::F16}) {
    for (DType position : {DType::I64, DType::I32}) {
      for (int64_t groups : {8, 300}) {
        for (int64_t width : {64, 128}) {
          for (int64_t rows : {1, 4, 8}) {
            RowAttentionShape shape = row_attention(groups, rows, 4096, width);
            shape.dtype = dtype, shape.position_dtype = position;
            const std::string path = ::testing::TempDir() + "row_attention.ptx";
            std::ofstream(path) << row_attention_code(shape, target).bytes.data();
            const std::string command = std::string(ptxas) + " -arch=sm_90a -o /dev/null " + path;
            EXPECT_EQ(std::system(command.c_str()), 0)
                << name(dtype) << ' ' << name(position) << ' ' << groups << ' ' << width << ' '
                << rows;
          }
        }
      }
    }
  }
}

TEST(Ptx, ScatterAssembles) {
  const char* ptxas = std::getenv("TS_PTXAS");
  if (!ptxas) GTEST_SKIP() << "TS_PTXAS names no assembler";
  for (DType dtype : {DType::F64, DType::F32, DType::F16, DType::BF16, DType::I8, DType::U8,
                      DType::U16, DType::I32, DType::U32, DType::I64, DType::U64}) {
    for (DType index : {DType::I32, DType::I64}) {
      for (int64_t inner : {5, 64, 512}) {
        std::vector<std::optional<DType>> bases{std::nullopt, dtype};
        if (dtype == DType::F32) bases.insert(bases.end(), {DType::BF16, DType::F16});
        for (std::optional<DType> base : bases) {
          ScatterShape shape;
          shape.dtype = dtype, shape.index_dtype = index, shape.base = base;
          shape.outer = 2, shape.rows_in = 100, shape.rows_out = 70, shape.inner = inner;
          shape.writes = base == dtype && is_unsigned_int(dtype);
          shape.in_place = base == dtype && inner != 64;
          std::string path = ::testing::TempDir() + "scatter.ptx";
          std::ofstream(path) << scatter_code(shape).bytes.data();
          std::string command = std::string(ptxas) + " -arch=sm_90a -o /dev/null " + path;
          EXPECT_EQ(std::system(command.c_str()), 0)
              << name(dtype) << ' ' << name(index) << ' ' << inner << ' '
              << (base ? name(*base) : "zeros");
        }
      }
    }
  }
}

}  // namespace
}  // namespace tinyshard::cuda::ptx_test
