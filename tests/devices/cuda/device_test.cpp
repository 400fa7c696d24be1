// A GPU as the engine sees it: memory, copies, kernels from PTX, recordings and their changes.
#include <chrono>
#include <numeric>

#include "core/base/error.h"
#include "devices/cuda/driver.h"
#include "tests/devices/cuda/gpu_test.h"

namespace tinyshard::test::device_test {
namespace {

using CudaDevice = GpuTest;

// out[i] = in[i] * 2 + coordinate, for n elements.
ObjectCode twice_plus(int64_t n) {
  std::string text = R"(.version 7.1
.target sm_70
.address_size 64
.visible .entry twice(.param .u64 a, .param .u64 b, .param .u64 c)
{
  .reg .pred %p;
  .reg .b32 %t, %n, %x, %c32;
  .reg .b64 %a, %b, %c, %i;
  ld.param.u64 %a, [a];
  ld.param.u64 %b, [b];
  ld.param.u64 %c, [c];
  mov.u32 %t, %tid.x;
  mov.u32 %n, %ctaid.x;
  mad.lo.u32 %t, %n, 256, %t;
  setp.ge.u32 %p, %t, )" +
                     std::to_string(n) +
                     R"(;
  @%p ret;
  mul.wide.u32 %i, %t, 4;
  add.s64 %a, %a, %i;
  add.s64 %b, %b, %i;
  cvt.u32.u64 %c32, %c;
  ld.global.u32 %x, [%a];
  mad.lo.u32 %x, %x, 2, %c32;
  st.global.u32 [%b], %x;
  ret;
}
)";
  ObjectCode code;
  code.entry = "twice";
  code.bytes.assign(text.c_str(), text.c_str() + text.size() + 1);
  code.work_items = (n + 255) / 256;
  code.block = 256;
  code.coordinates = 1;
  return code;
}

std::vector<int32_t> iota(size_t n) {
  std::vector<int32_t> values(n);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST_F(CudaDevice, IsDescribed) {
  EXPECT_EQ(gpu->name(), "CUDA:0");
  EXPECT_GT(gpu->target().multiprocessors, 0);
  EXPECT_TRUE(gpu->target().cpu.starts_with("sm_")) << gpu->target().cpu;
  EXPECT_GT(gpu->target().multiprocessors, 0);
  EXPECT_EQ(gpu->hardware().size(), 32u);
  EXPECT_EQ(gpu->host_pointer(nullptr), nullptr);
}

TEST_F(CudaDevice, CopiesOfEverySize) {
  // Less than a piece of pinned memory, several pieces, more than all of it.
  for (size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{3} << 20, size_t{12} << 20}) {
    std::vector<int32_t> values = iota(n);
    OnGpu<int32_t> memory(*gpu, values);
    EXPECT_EQ(memory.values(), values) << n;
  }
}

TEST_F(CudaDevice, ManySmallCopiesKeepTheirOrder) {
  OnGpu<int32_t> memory(*gpu, 64);
  std::vector<int32_t> values(64);
  for (int i = 0; i < 5000; ++i) {
    values.assign(64, i);
    memory.set(values);
    values.assign(64, -1);  // the copy has its own
  }
  EXPECT_EQ(memory.values(), std::vector<int32_t>(64, 4999));
}

TEST_F(CudaDevice, CopiesOnTheDeviceAndZeros) {
  OnGpu<int32_t> a(*gpu, iota(1000)), b(*gpu, 1000);
  ASSERT_TRUE(b.get() && gpu->fill_zero(b.get(), 4000));
  EXPECT_EQ(b.values(), std::vector<int32_t>(1000));
  ASSERT_TRUE(gpu->copy_from(b.get(), *gpu, a.get(), 4000));
  EXPECT_EQ(b.values(), iota(1000));
}

TEST_F(CudaDevice, RunsPtx) {
  auto program = gpu->load(twice_plus(1000));
  OnGpu<int32_t> a(*gpu, iota(1000)), b(*gpu, 1000);
  void* buffers[] = {a.get(), b.get()};
  int64_t coordinate = 3;
  program->launch(buffers, &coordinate);
  std::vector<int32_t> result = b.values();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(result[size_t(i)], 2 * i + 3);
  EXPECT_NE(program->describe().find("0 bytes local"), std::string::npos) << program->describe();
}

TEST_F(CudaDevice, PtxErrorsBringTheCompilersLog) {
  ObjectCode code = twice_plus(10);
  std::string text(code.bytes.data());
  text.replace(text.find("mad.lo.u32 %x"), 3, "mud");
  code.bytes.assign(text.c_str(), text.c_str() + text.size() + 1);
  try {
    gpu->load(code);
    FAIL() << "nothing was thrown";
  } catch (const DeviceError& error) {
    std::string what = error.what();
    EXPECT_NE(what.find("CUDA:0"), std::string::npos) << what;
    EXPECT_NE(what.find("mud"), std::string::npos) << what;
  }
}

TEST_F(CudaDevice, LaunchesReturnBeforeTheyRun) {
  constexpr size_t n = size_t{64} << 20;
  auto program = gpu->load(twice_plus(n));
  OnGpu<int32_t> a(*gpu, n), b(*gpu, n);
  void* buffers[] = {a.get(), b.get()};
  int64_t coordinate = 0;
  program->launch(buffers, &coordinate);
  gpu->synchronize();
  using Clock = std::chrono::steady_clock;
  auto start = Clock::now();
  for (int i = 0; i < 200; ++i) program->launch(buffers, &coordinate);
  auto queued = Clock::now() - start;
  gpu->synchronize();
  auto done = Clock::now() - start;
  EXPECT_LT(queued * 5, done);
}

TEST_F(CudaDevice, RecordingsReplayAndAreRebound) {
  auto program = gpu->load(twice_plus(100));
  OnGpu<int32_t> a(*gpu, iota(100)), b(*gpu, 100), c(*gpu, 100),
      other(*gpu, std::vector<int32_t>(100, 7));
  void* first[] = {a.get(), b.get()};
  void* second[] = {b.get(), c.get()};
  int64_t coordinate = 1;
  gpu->begin_recording();
  program->launch(first, &coordinate);
  program->launch(second, &coordinate);
  auto recording = gpu->end_recording();
  gpu->fill_zero(c.get(), 400);
  EXPECT_EQ(c.values(), std::vector<int32_t>(100));  // recorded, not run
  recording->launch();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(c.values()[size_t(i)], 4 * i + 3);

  first[0] = other.get();
  void* const* changed[] = {first};
  ASSERT_TRUE(recording->update(changed));
  recording->launch();
  EXPECT_EQ(c.values(), std::vector<int32_t>(100, 31));
  void* unknown[] = {a.get()};
  void* const* elsewhere[] = {unknown};
  EXPECT_TRUE(recording->update(elsewhere));  // another device's
}

// Work of the other queue that goes back and forth, as collectives do.
TEST_F(CudaDevice, RecordedQueuesWaitForEachOtherAndForNoMoreThanThat) {
  const gpu::Driver& driver = cuda::CudaDriver::get();
  auto other = static_cast<gpu::Stream>(gpu->native_queue(Queue::Communication));
  OnGpu<int32_t> a(*gpu, std::vector<int32_t>(100, 9)), b(*gpu, 100), c(*gpu, 100);
  auto program = gpu->load(twice_plus(100));
  void *to_b[] = {a.get(), b.get()}, *to_c[] = {b.get(), c.get()};
  int64_t coordinate = 1;
  auto there = gpu->make_event(), back = gpu->make_event();
  auto fill = [&](unsigned char value) {
    gpu->record(*there, Queue::Compute);
    gpu->wait(*there, Queue::Communication);
    auto address = reinterpret_cast<gpu::Address>(a.get());
    ASSERT_EQ(driver.fill_bytes(address, value, 400, other), gpu::kSuccess);
    gpu->record(*back, Queue::Communication);
  };
  constexpr int kFills = 20;
  gpu->begin_recording();
  for (int i = 0; i < kFills; ++i) {
    fill(static_cast<unsigned char>(i));
    gpu->wait(*back, Queue::Compute);
  }
  size_t tips = 0;
  int status = 0;
  driver.capture_info(static_cast<gpu::Stream>(gpu->native_queue(Queue::Compute)), &status, nullptr,
                      nullptr, nullptr, nullptr, &tips);
  program->launch(to_b, &coordinate);  // of the last fill
  fill(0);                             // beside the next launch
  program->launch(to_c, &coordinate);
  gpu->wait(*back, Queue::Compute);
  auto recording = gpu->end_recording();
  EXPECT_EQ(tips, 1u);
  for (int run = 0; run < 2; ++run) {
    recording->launch();
    constexpr int32_t kLast = (kFills - 1) * 0x01010101;
    EXPECT_EQ(c.values(), std::vector<int32_t>(100, 4 * kLast + 3));
    EXPECT_EQ(a.values(), std::vector<int32_t>(100));
  }
}

TEST_F(CudaDevice, RecordedStepsComeAfterWhatTheyAreToldAndNothingElse) {
  OnGpu<int32_t> a(*gpu, iota(100)), b(*gpu, 100), c(*gpu, 100), d(*gpu, 100), e(*gpu, 100);
  auto program = gpu->load(twice_plus(100));
  void *to_b[] = {a.get(), b.get()}, *to_c[] = {a.get(), c.get()}, *to_d[] = {b.get(), d.get()},
       *to_e[] = {c.get(), e.get()}, *on_e[] = {e.get(), e.get()};
  int64_t coordinate = 1;
  auto tips = [&] {
    size_t count = 0;
    int status = 0;
    cuda::CudaDriver::get().capture_info(
        static_cast<gpu::Stream>(gpu->native_queue(Queue::Compute)), &status, nullptr, nullptr,
        nullptr, nullptr, &count);
    return count;
  };
  gpu->begin_recording();
  auto step = [&](std::vector<int> after, void* const* buffers) {
    gpu->record_step(after, after.empty());
    size_t begun_after = tips();
    program->launch(buffers, &coordinate);
    EXPECT_EQ(tips(), 1u);
    return begun_after;
  };
  EXPECT_EQ(step({}, to_b), 0u);
  EXPECT_EQ(step({}, to_c), 0u);
  EXPECT_EQ(step({0}, to_d), 1u);
  EXPECT_EQ(step({1}, to_e), 1u);
  EXPECT_EQ(step({2, 3}, on_e), 2u);
  auto recording = gpu->end_recording();
  for (int run = 0; run < 2; ++run) {
    recording->launch();
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(d.values()[size_t(i)], 4 * i + 3);
      ASSERT_EQ(e.values()[size_t(i)], 8 * i + 7);
    }
  }
}

TEST_F(CudaDevice, AnAbandonedRecordingLeavesTheDeviceAsItWas) {
  auto program = gpu->load(twice_plus(100));
  OnGpu<int32_t> a(*gpu, iota(100)), b(*gpu, 100);
  void* buffers[] = {a.get(), b.get()};
  int64_t coordinate = 0;
  gpu->begin_recording();
  program->launch(buffers, &coordinate);
  gpu->abandon_recording();
  program->launch(buffers, &coordinate);
  EXPECT_EQ(b.values()[9], 18);
}

TEST_F(CudaDevice, OutOfMemoryNamesWhatIsHeld) {
  OnGpu<char> held(*gpu, size_t{100} << 20);
  try {
    gpu->allocate(size_t{1} << 42, "temporaries");
    FAIL() << "nothing was thrown";
  } catch (const DeviceError& error) {
    std::string what = error.what();
    for (const char* part : {"CUDA:0: out of memory: 4194304.0 MiB asked for temporaries",
                             "100.0 MiB by tensors", "free of"})
      EXPECT_NE(what.find(part), std::string::npos) << what;
  }
  OnGpu<int32_t> fine(*gpu, iota(10));
  EXPECT_EQ(fine.values(), iota(10));
}

TEST_F(CudaDevice, ReportsMemory) {
  int64_t before = gpu->memory().used;
  {
    OnGpu<char> held(*gpu, 3 << 20);
    EXPECT_EQ(gpu->memory().used - before, 3 << 20);
    EXPECT_GE(gpu->memory().held, gpu->memory().used);
  }
  EXPECT_EQ(gpu->memory().used, before);
  EXPECT_GE(gpu->memory().peak, 3 << 20);
}

TEST_F(CudaDevice, WatchersEndAWait) {
  constexpr size_t n = size_t{64} << 20;
  auto program = gpu->load(twice_plus(n));
  OnGpu<int32_t> a(*gpu, n), b(*gpu, n);
  void* buffers[] = {a.get(), b.get()};
  int64_t coordinate = 0;
  for (int i = 0; i < 2000; ++i) program->launch(buffers, &coordinate);
  gpu->watch(this, [](std::chrono::nanoseconds) {
    throw CommError(CommErrorInfo{.operation = {}, .detail = "gone"});
  });
  EXPECT_THROW(gpu->synchronize(), CommError);
  gpu->unwatch(this);
  gpu->synchronize();
}

TEST_F(CudaDevice, GoesAndComesBack) {
  auto first = gpu->hardware();
  for (int i = 0; i < 3; ++i) {
    gpu.reset();
    gpu = make_cuda_device(0);
    OnGpu<int32_t> a(*gpu, iota(1000));
    EXPECT_EQ(a.values(), iota(1000));
  }
  EXPECT_EQ(gpu->hardware(), first);
}

}  // namespace
}  // namespace tinyshard::test::device_test
