// A library that fuses what nothing else in the tree has heard of: on devices of the test's own, a
// product and its negation are one call, and so are a product and the maximum with what lies in a
// storage. They are found, planned and run, and are spelled out again wherever the library is not.
#include "core/runtime/library_provider.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "core/exec/make_executable.h"
#include "core/exec/state.h"
#include "core/uop/args.h"
#include "core/uop/product_region.h"
#include "tests/device_on_cpu.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard::library_provider_test {
namespace {

// --- the provider --------------------------------------------------------------------------------

UOp negated(const UOp& sums, std::span<const UOp>) { return unary(Op::Neg, sums); }
const char* no_operand(DType, DimSpan, std::span<const UOp> operands) {
  return operands.empty() ? nullptr : "no operand";
}
UOp largest(const UOp& sums, std::span<const UOp> old) { return binary(Op::Max, old[0], sums); }
const char* old_value(DType dtype, DimSpan shape, std::span<const UOp> operands) {
  const bool fits = operands.size() == 1 && operands[0].dtype() == dtype &&
                    std::ranges::equal(operands[0].shape(), shape);
  return fits ? nullptr : "the old value";
}

constexpr ProductRegion kNegated{1001, "negated", negated, no_operand};
constexpr ProductRegion kLargest{1002, "largest", largest, old_value, true};

class Made final : public LibraryProvider {
 public:
  std::vector<Replacement> find(const RegionQuery& query) const override {
    std::vector<Replacement> found;
    for (const UOp& x : query.graph().order()) {
      if (x.op() != Op::Neg || !is_plain(x.src(0)) || query.uses().at(x.src(0)) > 1) continue;
      if (UOp fused = asked(query, kNegated, x.src(0), {})) found.push_back({x, fused});
    }
    return found;
  }
  std::vector<Replacement> find_in_place(const RegionQuery& query) const override {
    std::vector<Replacement> found;
    for (const UOp& x : query.graph().order()) {
      if (x.op() != Op::Assign || x.src(1).op() != Op::Max) continue;
      const UOp &old = x.src(0), &largest = x.src(1);
      if (!(largest.src(0) == old) || !is_plain(largest.src(1))) continue;
      if (UOp fused = asked(query, kLargest, largest.src(1), std::span(&old, 1)))
        found.push_back({largest, fused});
    }
    return found;
  }

 private:
  static bool is_plain(const UOp& x) { return x.op() == Op::Dot && !region_of(x); }
  static UOp asked(const RegionQuery& query, const ProductRegion& region, const UOp& product,
                   std::span<const UOp> operands) {
    UOp x = region_product(region, product.dtype(), product.src(0), product.src(1),
                           dot_batch(*product), operands);
    return query.supports(row_major_call(x)) ? x : UOp();
  }
};

// --- the device, a CPU whose library has them ----------------------------------------------------

int launches = 0;
bool refuses = false;

class Fused final : public Program {
 public:
  Fused(std::unique_ptr<Program> product, const LibraryCall& call)
      : product_(std::move(product)),
        region_(region_of(call.node)),
        sums_(size_t(call.node->numel())) {}
  void launch(void* const* buffers, const int64_t* coordinates) override {
    ++launches;
    void* plain[] = {buffers[0], buffers[1], sums_.data()};
    product_->launch(plain, coordinates);
    const bool in_place = region_ == &kLargest;
    auto* result = static_cast<float*>(buffers[in_place ? 3 : 2]);
    for (size_t i = 0; i < sums_.size(); ++i)
      result[i] =
          in_place ? std::max(static_cast<const float*>(buffers[2])[i], sums_[i]) : -sums_[i];
  }
  std::string describe() const override { return std::string(region_->name); }

 private:
  std::unique_ptr<Program> product_;
  const ProductRegion* region_;
  std::vector<float> sums_;
};

class FusingDevice final : public test::DeviceOnCpu {
 public:
  explicit FusingDevice(int index) : DeviceOnCpu("FUSING", index) {}

  bool supports(const LibraryCall& call, std::string* why) const override {
    const ProductRegion* region = region_of(call.node);
    if (!region) return cpu().supports(call, why);
    if (refuses && why) *why = "not today";
    return !refuses && (region == &kNegated || region == &kLargest) &&
           cpu().supports(plain(call), why);
  }
  const LibraryProvider* library_provider() const override {
    static const Made provider;
    return &provider;
  }
  std::unique_ptr<Program> library(const LibraryCall& call) override {
    if (!region_of(call.node)) return cpu().library(call);
    return std::make_unique<Fused>(cpu().library(plain(call)), call);
  }

 private:
  static LibraryCall plain(const LibraryCall& call) {
    return {sums_of(call.node), {call.operands[0], call.operands[1]}};
  }
};

// --- programs on it ------------------------------------------------------------------------------

class LibraryProviderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // A kind of device is a row of the library's list; this one is there for the test alone.
    auto& kinds = const_cast<Builtins&>(builtins()).devices;
    kinds.push_back({"FUSING", [] { return 2; }, [] { return std::string("of a test"); },
                     [](int index, int) { return std::make_unique<FusingDevice>(index); }});
  }
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"FUSING:0"}});
    launches = 0;
    refuses = false;
    a = values({24, 40}, 0.31F);
    b = values({40, 32}, 0.73F);
    product = a.matmul(b).to_vector<float>();
  }
  void TearDown() override {
    for (const char* name : {"TS_LIBRARIES", "TS_DISABLE_PASSES", "BEAM", "TS_CACHE_DIR"})
      set(name, nullptr);
    a = b = Tensor();
    Runtime::shutdown();
  }
  static void set(const char* name, const char* value) {
    value ? setenv(name, value, 1) : unsetenv(name);
    reload_options();
  }
  static Tensor values(const Dims& shape, float step) {
    return (Tensor::arange(tinyshard::product(shape)).cast(DType::F32) * step)
        .sin()
        .reshape(shape)
        .realize();
  }
  void expect_negated(const Tensor& x) const {
    const std::vector<float> found = x.to_vector<float>();
    ASSERT_EQ(found.size(), product.size());
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], -product[i], 1e-4) << i;
  }
  // Lines of the plan, of which there are so many.
  static std::vector<std::string> lines(const Tensor& x, size_t count) {
    const UOp& root = x.uop();
    const Schedule schedule = make_plan(std::span(&root, 1));
    EXPECT_EQ(schedule.items.size(), count) << ::testing::PrintToString(schedule.lines());
    return schedule.lines();
  }

  Tensor a, b;
  std::vector<float> product;
};

TEST_F(LibraryProviderTest, WhatItFindsIsOneCall) {
  const Tensor x = -a.matmul(b);
  EXPECT_NE(lines(x, 1)[0].find("[0, 1001]"), std::string::npos);
  expect_negated(x);
  EXPECT_EQ(launches, 1);
}

TEST_F(LibraryProviderTest, WhatOthersReadStaysAsItIs) {
  const Tensor sums = a.matmul(b), x = -sums, y = sums + 1;
  Tensor::realize({x, y});
  expect_negated(x);
  EXPECT_EQ(launches, 0);
}

TEST_F(LibraryProviderTest, WhatTheDeviceRefusesStaysAsItIs) {
  refuses = true;
  const Tensor x = -a.matmul(b);
  lines(x, 2);
  expect_negated(x);
  EXPECT_EQ(launches, 0);
}

TEST_F(LibraryProviderTest, NobodyAsksItWithoutLibrariesOrWithoutThePass) {
  for (auto [name, value] : {std::pair("TS_LIBRARIES", "0"), {"TS_DISABLE_PASSES", "epilogues"}}) {
    set(name, value);
    expect_negated(-a.matmul(b));
    EXPECT_EQ(launches, 0) << name;
    set(name, nullptr);
  }
}

TEST_F(LibraryProviderTest, WhatItMadeIsSpelledOutWhereNoLibraryTakesIt) {
  // A graph may have the region already when the device refuses it.
  const UOp plain = under_names(a.matmul(b).uop());
  ASSERT_EQ(plain.op(), Op::Dot);
  const UOp fused = region_product(kNegated, plain.dtype(), plain.src(0), plain.src(1), 0, {});
  refuses = true;
  auto executable = make_executable(std::span(&fused, 1), false, {});
  for (const Item& item : executable->schedule().items) {
    EXPECT_EQ(item.kind, Item::Kind::Kernel);
  }
  executable->run();
  Storage& result = *executable->roots()[0];
  const auto* found = static_cast<const float*>(result.memory()[0]);
  for (size_t i = 0; i < product.size(); ++i) ASSERT_NEAR(found[i], -product[i], 1e-4) << i;
}

TEST_F(LibraryProviderTest, LoopsAreTimedBesideIt) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("library_provider_" + std::to_string(getpid()));
  set("TS_CACHE_DIR", folder.c_str());  // where no choice is remembered
  set("BEAM", "2");
  expect_negated(-a.matmul(b));
  EXPECT_GT(launches, 1) << "trials of what it fuses, whichever of the two won";
  std::filesystem::remove_all(folder);
}

TEST_F(LibraryProviderTest, AStorageIsWrittenInPlace) {
  const Tensor most = values({24, 32}, 1.7F);
  const std::vector<float> old = most.to_vector<float>();
  most.assign(most.maximum(a.matmul(b)));
  const std::vector<std::string> plan = lines(most, 1);
  EXPECT_NE(plan[0].find("[0, 1002]"), std::string::npos) << plan[0];
  const std::vector<float> found = most.to_vector<float>();
  EXPECT_EQ(launches, 1);
  for (size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], std::max(old[i], product[i]), 1e-4) << i;
}

TEST_F(LibraryProviderTest, ACapturedStepRunsIt) {
  Jit step = [](const Tensor& x, const Tensor& y) { return -x.matmul(y); };
  for (int call = 0; call < 4; ++call) expect_negated(step(a, b));
  EXPECT_GE(launches, 3);
}

}  // namespace
}  // namespace tinyshard::library_provider_test
