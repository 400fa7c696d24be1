// Code for GPUs as far as it can be judged without one: what the PTX of typical kernels is made of.
#include <filesystem>
#include <regex>
#include <unistd.h>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "devices/cuda/gpu_target.h"
#include "devices/cuda/planned_gpu.h"
#include "tests/core/codegen/harness.h"

namespace tinyshard::test {
namespace {

const Target kHopper = cuda::planned_h200().target;

ObjectCode compile(Kernel& k, const Target& target = kHopper) {
  const KernelSource* pointer = &k.source();
  return compile_kernels(std::span(&pointer, 1), target)[0]->code;
}
std::string text(const ObjectCode& code) { return code.bytes.data(); }
int64_t count(const std::string& ptx, const std::string& pattern) {
  std::regex expression(pattern);
  return std::distance(std::sregex_iterator(ptx.begin(), ptx.end(), expression),
                       std::sregex_iterator());
}

TEST(Ptx, EntryAndShape) {
  Kernel k("shape");
  int in = k.param(DType::F32, 400), out = k.param(DType::F32, 100);
  UOp i = k.loop(100), place = UOp::make(Op::DeviceCoordinate, DType::Index, {}, Dims{1, 4});
  k.store(out, i, k.load(in, place * 100 + i));
  ObjectCode code = compile(k);
  std::string ptx = text(code);
  EXPECT_EQ(code.bytes.back(), '\0');
  EXPECT_EQ(count(ptx, "\\.target sm_90a"), 1);
  EXPECT_EQ(count(ptx, "\\.visible \\.entry " + code.entry), 1);
  EXPECT_EQ(count(ptx, "\\.param \\.u64"), 2 + 2) << "two buffers, coordinates 0 and 1";
  EXPECT_EQ(code.coordinates, 2);
  EXPECT_EQ(code.block % 32, 0);
  EXPECT_GE(code.work_items * code.block * 4, 100);
}

// Constants that come with a call are integers behind the coordinates; the rest of the code is that
// of the constant.
TEST(Ptx, ScalarsAreArguments) {
  for (DType t : {DType::F32, DType::BF16, DType::F16, DType::F64}) {
    auto code_of = [&](double c, int scalars) {
      Kernel k("scaled");
      int in = k.param(t, 4096), out = k.param(t, 64);
      UOp i = k.loop(64), f = k.fold_range(64);
      UOp constant = real(c, t);
      k.store(out, i, fold(ReduceOp::Max, k.load(in, i * 64 + f) * constant, {f}));
      if (scalars >= 0) k.source().scalars = {scalars, {constant}};
      return compile(k);
    };
    const ObjectCode plain = code_of(7.3, -1), first = code_of(7.3, 1), other = code_of(13.1, 1);
    EXPECT_EQ(text(first), text(other)) << name(t);
    EXPECT_EQ(first.coordinates, 2) << "behind one of a mesh";
    EXPECT_EQ(count(text(first), "\\.param \\.u64"), 2 + 2);
    EXPECT_EQ(plain.work_items, first.work_items);
    EXPECT_EQ(plain.block, first.block);
    for (const char* what : {"ld\\.global", "mul\\.", "max\\.", "shfl\\."})
      EXPECT_EQ(count(text(plain), what), count(text(first), what)) << name(t) << " " << what;
  }
}

TEST(Ptx, ElementwiseKernelsMoveSixteenBytes) {
  for (DType t : {DType::F32, DType::BF16, DType::F16, DType::U8, DType::F64}) {
    Kernel k("map_" + std::string(name(t)));
    constexpr int64_t n = 1 << 20;
    int in = k.param(t, 1), out = k.param(t, 1);
    for (ParamInfo& p : k.source().params) p.numel = n;
    UOp i = k.loop(n / 1024), j = k.loop(1024);
    k.store(out, i * 1024 + j, k.load(in, i * 1024 + j) + k.load(in, i * 1024 + j));
    std::string ptx = text(compile(k));
    int64_t wide = count(ptx, "ld\\.global\\.nc\\.v[24]\\.");
    EXPECT_GE(wide, 1) << ptx;
    EXPECT_EQ(wide, count(ptx, "ld\\.global")) << name(t);
    EXPECT_EQ(count(ptx, "st\\.global\\.v[24]\\."), count(ptx, "st\\.global")) << name(t);
  }
}

TEST(Ptx, ARowIsReadOnce) {
  Kernel k("softmax");
  constexpr int64_t rows = 4096, n = 4096;
  int in = k.param(DType::F32, 1), out = k.param(DType::F32, 1);
  for (ParamInfo& p : k.source().params) p.numel = rows * n;
  UOp i = k.loop(rows), j = k.loop(n), f = k.fold_range(n);
  UOp top = fold(ReduceOp::Max, k.load(in, i * n + f), {f});
  UOp total = sum(exp(k.load(in, i * n + f) - top), {f});
  k.store(out, i * n + j, exp(k.load(in, i * n + j) - top) * unary(Op::Recip, total));
  ObjectCode code = compile(k);
  int64_t threads = code.work_items * code.block;
  EXPECT_EQ(count(text(code), "ld\\.global") * threads * 4, rows * n);
  EXPECT_EQ(count(text(code), "ex2\\.approx") * threads, rows * n) << "nor is exp computed twice";
}

// Writes one of a cache's 4096 rows: there are no blocks for the others, nor loops over them.
TEST(Ptx, TheOnlyRowIsNoLoop) {
  auto code_of = [&](int64_t rows) {
    Kernel k("row");
    int cache = k.param(DType::F32, rows * 64), at = k.param(DType::I64, 1),
        x = k.param(DType::F32, 2048), w = k.param(DType::F32, 64 * 2048);
    UOp j = k.loop(64), row = k.loop(rows), f = k.fold_range(2048);
    UOp here = binary(Op::CmpEq, cast(row, DType::I64), k.load(at, index_const(0)));
    k.store(cache, row * 64 + j, sum(k.load(x, f) * k.load(w, j * 2048 + f), {f}), here);
    return compile(k);
  };
  const ObjectCode few = code_of(16), many = code_of(4096);
  EXPECT_EQ(few.work_items, many.work_items);
  EXPECT_EQ(few.block, many.block);
  EXPECT_EQ(count(text(few), "bra"), count(text(many), "bra"));
  EXPECT_LE(many.work_items, 64);
}

// Two folds over the same two ranges of one size: where one runs along the rows and the other along the
// columns, a thread's place in one is not its place in the other.
TEST(Ptx, FoldsInTwoOrdersOfTheirRangesAreNotOne) {
  Kernel k("two_orders");
  constexpr int64_t n = 64;
  int out = k.param(DType::F32, 1), x = k.param(DType::F32, n * n), top = k.param(DType::F32, n),
      ties = k.param(DType::F32, n), whole = k.param(DType::F32, 1), y = k.param(DType::F32, n * n);
  UOp r = k.fold_range(n), c = k.fold_range(n), place = r * n + c;
  UOp value = k.load(x, place), zero = real(0, DType::F32);
  UOp slope =
      where(binary(Op::CmpEq, value, k.load(top, r)), unary(Op::Recip, k.load(ties, r)), zero);
  UOp share = binary(Op::Div, slope, k.load(whole, index_const(0)));
  UOp rest = sum(unary(Op::Neg, share * value), {r, c});
  UOp other = k.load(y, place);
  UOp half = where(binary(Op::CmpLt, unary(Op::Neg, other), other), rest, zero);
  k.store(out, index_const(0), fold(ReduceOp::Max, share + half, {r, c}));
  std::string ptx = text(compile(k));
  // A place of one walk in the other steps along the diagonal: 65 elements.
  EXPECT_EQ(count(ptx, "ld\\.global[^\n]*\\+260\\]"), 0) << ptx;
  EXPECT_GE(count(ptx, "ld\\.global(\\.nc)?\\.v4"), 1) << ptx;
}

TEST(Ptx, FewResultsAreSharedByACluster) {
  Kernel k("total");
  int in = k.param(DType::F32, 1), out = k.param(DType::F32, 1);
  k.source().params[0].numel = 1 << 24;
  UOp f = k.fold_range(1 << 24);
  k.store(out, index_const(0), sum(k.load(in, f), {f}));
  ObjectCode code = compile(k);
  EXPECT_EQ(code.work_items, 8);
  EXPECT_EQ(count(text(code), "\\.reqnctapercluster 8, 1, 1"), 1);
  Target older = kHopper;
  older.cpu = "sm_80";
  EXPECT_EQ(count(text(compile(k, older)), "cluster"), 0);
}

TEST(Ptx, TransposesGoThroughSharedMemory) {
  Kernel k("transpose");
  int in = k.param(DType::F32, 1), out = k.param(DType::F32, 1);
  for (ParamInfo& p : k.source().params) p.numel = 1 << 20;
  UOp i = k.loop(1024), j = k.loop(1024);
  k.store(out, i * 1024 + j, k.load(in, j * 1024 + i));
  std::string ptx = text(compile(k));
  EXPECT_GE(count(ptx, "st\\.shared"), 1);
  EXPECT_EQ(count(ptx, "ld\\.global\\.nc\\.v4"), count(ptx, "ld\\.global"));
  EXPECT_EQ(count(ptx, "st\\.global\\.v4"), count(ptx, "st\\.global"));
}

TEST(Ptx, SoDoStoresInASecondOrder) {
  Kernel k("two_orders");
  int in = k.param(DType::F32, 1), rows = k.param(DType::F32, 1), columns = k.param(DType::F32, 1);
  for (ParamInfo& p : k.source().params) p.numel = 1 << 20;
  UOp i = k.loop(1024), j = k.loop(1024);
  UOp x = exp(k.load(in, i * 1024 + j));
  k.store(rows, i * 1024 + j, x);
  k.store(columns, j * 1024 + i, x);
  std::string ptx = text(compile(k));
  EXPECT_EQ(count(ptx, "ex2"), count(ptx, "st\\.shared"));  // computed once
  EXPECT_EQ(count(ptx, "ld\\.global\\.nc\\.v4"), count(ptx, "ld\\.global"));
  EXPECT_EQ(count(ptx, "st\\.global\\.v4"), count(ptx, "st\\.global"));
}

// Whoever launches it before others have ended relies on that.
TEST(Ptx, WaitsForWhatItDependsOnBeforeItReads) {
  Kernel k("waits");
  int in = k.param(DType::F32, 64), out = k.param(DType::F32, 64);
  UOp i = k.loop(64);
  k.store(out, i, k.load(in, i) * real(2));
  ObjectCode code = compile(k);
  EXPECT_TRUE(code.waits_itself);
  std::string ptx = text(code);
  size_t wait = ptx.find("griddepcontrol.wait"), told = ptx.find("griddepcontrol.launch");
  ASSERT_NE(wait, std::string::npos);
  EXPECT_LT(wait, told);
  EXPECT_LT(wait, ptx.find("ld.global"));
  Target older = kHopper;
  older.cpu = "sm_80";
  ObjectCode other = compile(k, older);
  EXPECT_FALSE(other.waits_itself);
  EXPECT_EQ(count(text(other), "griddepcontrol"), 0);
}

// LLVM would take its oldest architecture for one that it does not know.
TEST(Ptx, IsOfAnArchitectureThatLlvmKnows) {
  Kernel k("copy");
  int in = k.param(DType::F32, 1), out = k.param(DType::F32, 1);
  for (ParamInfo& p : k.source().params) p.numel = 1 << 20;
  UOp i = k.loop(1 << 20);
  k.store(out, i, k.load(in, i));
  for (auto [major, minor] : {std::pair{6, 0},
                              {6, 1},
                              {7, 0},
                              {7, 5},
                              {8, 0},
                              {8, 6},
                              {8, 9},
                              {9, 0},
                              {10, 0},
                              {12, 0}}) {
    Target target = cuda::gpu_target(major, minor, 13000);
    target.multiprocessors = 100;
    target.shared_bytes = 49152;
    EXPECT_EQ(count(text(compile(k, target)), "\\.target " + target.cpu), 1);
  }
  Target unknown = kHopper;
  unknown.cpu = "sm_100a";
  EXPECT_THROW(compile(k, unknown), InternalError);
}

// Steps of several elements may be few enough for 32 bits where their elements are not.
TEST(Ptx, ElementsBeyondThirtyTwoBitsHaveWideIndices) {
  auto ptx_of = [](int64_t size) {
    Kernel k("long");
    int in = k.param(DType::BF16, 1), out = k.param(DType::BF16, 1);
    for (ParamInfo& p : k.source().params) p.numel = size;
    UOp i = k.loop(size);
    k.store(out, i, k.load(in, i));
    return text(compile(k));
  };
  // The address at which a block begins, 8192 elements after the one before.
  const char* wide = "mul\\.wide\\.u32\\s+%rd\\d+, %r\\d+, 8192";
  EXPECT_EQ(count(ptx_of(int64_t{1} << 30), wide), 0);
  EXPECT_EQ(count(ptx_of(int64_t{3} << 30), wide), 1);
}

// A product of two factors of 32 bits needs 64.
TEST(Ptx, ProductsOfCountsAreWide) {
  Kernel k("squares");
  int out = k.param(DType::I64, 70000);
  UOp i = k.loop(70000);
  k.store(out, i, cast(i * i, DType::I64));
  EXPECT_GT(count(text(compile(k)), "mul\\.(wide\\.[su]32|lo\\.s64)\\s+%rd\\d+, (%rd?\\d+), \\2;"),
            0);
}

// A conversion to f32 and back would make another NaN of a NaN.
TEST(Ptx, NumbersOfSixteenBitsThatAreOnlyMovedKeepTheirBits) {
  for (DType dtype : {DType::F16, DType::BF16}) {
    Kernel k("moved");
    int in = k.param(dtype, 4096), padded = k.param(dtype, 4096), out = k.param(dtype, 4096);
    UOp i = k.loop(4096);
    UOp x = k.load(in, i);
    k.store(out, i, x);
    k.store(padded, i, where(i < index_const(4000), x, const_like(x, 0)));
    const std::string ptx = text(compile(k));
    EXPECT_EQ(count(ptx, "cvt[^ ]*\\.b?f(16|32)\\."), 0) << name(dtype) << ptx;
  }
}

TEST(Ptx, IsKeptOnDiskAsItWas) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "tinyshard-ptx-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ::setenv("TS_CACHE_DIR", folder.c_str(), 1);
  ::setenv("TS_CACHE", "1", 1);
  reload_options();
  clear_codegen_cache();
  auto make = [](const Target& target) {
    Kernel k("kept");
    int in = k.param(DType::F32, 100), out = k.param(DType::F32, 100);
    UOp i = k.loop(100), place = UOp::make(Op::DeviceCoordinate, DType::Index, {}, Dims{0, 2});
    k.store(out, i, k.load(in, i) + cast(place, DType::F32));
    return compile(k, target);
  };
  ObjectCode first = make(kHopper);
  clear_codegen_cache();
  int64_t hits = codegen_statistics().disk_hits;
  ObjectCode second = make(kHopper);
  EXPECT_EQ(codegen_statistics().disk_hits, hits + 1);
  EXPECT_TRUE(second == first);
  Target smaller = kHopper;
  smaller.multiprocessors = 64;
  make(smaller);
  EXPECT_EQ(codegen_statistics().disk_hits, hits + 1) << "another target is another kernel";
  ::unsetenv("TS_CACHE_DIR");
  ::setenv("TS_CACHE", "0", 1);
  reload_options();
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tinyshard::test
