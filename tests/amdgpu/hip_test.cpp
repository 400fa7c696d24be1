// The HIP calls of the stand-in: order of streams, events, captures, graphs whose kernels change, and how a fault ends.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/amdgpu/kernels.h"

extern "C" {
int hipGetDeviceCount(int* count);
int hipSetDevice(int device);
int hipDeviceEnablePeerAccess(int peer, unsigned flags);
int hipGetDevicePropertiesR0600(void* properties, int device);
int hipDeviceGetAttribute(int* value, int which, int device);
const char* hipGetErrorName(int error);
int hipMalloc(void** pointer, std::size_t size);
int hipFree(void* pointer);
int hipHostMalloc(void** pointer, std::size_t size, unsigned flags);
int hipHostFree(void* pointer);
int hipMemcpyHtoDAsync(void* to, void* from, std::size_t size, void* stream);
int hipMemcpyDtoHAsync(void* to, void* from, std::size_t size, void* stream);
int hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, std::size_t size,
                       void* stream);
int hipMemsetD8Async(void* to, unsigned char value, std::size_t size, void* stream);
int hipStreamCreateWithPriority(void** stream, unsigned flags, int priority);
int hipStreamDestroy(void* stream);
int hipStreamWaitEvent(void* stream, void* event, unsigned flags);
int hipEventCreateWithFlags(void** event, unsigned flags);
int hipEventDestroy(void* event);
int hipEventRecord(void* event, void* stream);
int hipEventQuery(void* event);
int hipModuleLoadData(void** module, const void* image);
int hipModuleUnload(void* module);
int hipModuleGetFunction(void** function, void* module, const char* name);
int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned local, void* stream, void** params,
                          void** extra);
int hipStreamBeginCapture(void* stream, int mode);
int hipStreamEndCapture(void* stream, void** graph);
int hipStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                               void* const** nodes, std::size_t* count);
int hipGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long flags);
int hipGraphLaunch(void* exec, void* stream);
int hipGraphDestroy(void* graph);
int hipGraphExecDestroy(void* exec);
int hipGraphExecKernelNodeSetParams(void* exec, void* node, const void* params);
}

namespace amdgpu_emulator::hip_test {

constexpr unsigned kCount = 64;

std::string target() {
  const char* name = std::getenv("AMDGPU_EMULATOR_TARGET");
  return name == nullptr ? "gfx942" : name;
}

// p1[i] = 3 * p0[i] + 1, and a kernel that writes behind the end.
std::vector<std::uint8_t> code() {
  const std::string triple = R"(
  %q = getelementptr i32, ptr addrspace(1) %p0, i64 %x
  %v = load i32, ptr addrspace(1) %q
  %m = mul i32 %v, 3
  %r = add i32 %m, 1
  %s = getelementptr i32, ptr addrspace(1) %p1, i64 %x
  store i32 %r, ptr addrspace(1) %s
  ret void)";
  const std::string wild = R"(
  %far = add i64 %x, 100000
  %s = getelementptr i32, ptr addrspace(1) %p1, i64 %far
  store i32 1, ptr addrspace(1) %s
  ret void)";
  return compile(
      declarations() + kernel_ir("triple", 2, kCount, triple) + kernel_ir("wild", 2, kCount, wild),
      target());
}

class Hip : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(hipSetDevice(0), 0);
    const auto file = code();
    ASSERT_EQ(hipModuleLoadData(&module_, file.data()), 0);
    ASSERT_EQ(hipModuleGetFunction(&triple_, module_, "triple"), 0);
    EXPECT_EQ(hipModuleGetFunction(&wild_, module_, "none"), 500);
    ASSERT_EQ(hipModuleGetFunction(&wild_, module_, "wild"), 0);
    ASSERT_EQ(hipStreamCreateWithPriority(&stream_, 1, 0), 0);
    ASSERT_EQ(hipStreamCreateWithPriority(&other_, 1, -5), 0);
    ASSERT_EQ(hipEventCreateWithFlags(&event_, 2), 0);
    ASSERT_EQ(hipMalloc(&a_, 4 * kCount), 0);
    ASSERT_EQ(hipMalloc(&b_, 4 * kCount), 0);
    ASSERT_EQ(hipHostMalloc(&host_, 4 * kCount, 0), 0);
  }
  void TearDown() override {
    hipFree(a_);
    hipFree(b_);
    hipHostFree(host_);
    hipEventDestroy(event_);
    hipStreamDestroy(stream_);
    hipStreamDestroy(other_);
    hipModuleUnload(module_);
  }

  int launch(void* function, void* from, void* to, void* stream) {
    void* params[] = {&from, &to};
    return hipModuleLaunchKernel(function, 1, 1, 1, kCount, 1, 1, 0, stream, params, nullptr);
  }
  int finish(void* stream) {
    hipEventRecord(event_, stream);
    int status = 600;
    for (int i = 0; status == 600 && i < 10000; ++i) {
      status = hipEventQuery(event_);
    }
    return status;
  }
  void fill_host() { std::iota(words(), words() + kCount, 5U); }
  std::uint32_t* words() { return static_cast<std::uint32_t*>(host_); }

  void* module_ = nullptr;
  void* triple_ = nullptr;
  void* wild_ = nullptr;
  void* stream_ = nullptr;
  void* other_ = nullptr;
  void* event_ = nullptr;
  void* a_ = nullptr;
  void* b_ = nullptr;
  void* host_ = nullptr;
};

std::uint32_t tripled(std::uint32_t v, int times) {
  for (int i = 0; i < times; ++i) {
    v = 3 * v + 1;
  }
  return v;
}

TEST_F(Hip, TellsOfItsDevices) {
  int count = 0;
  EXPECT_EQ(hipGetDeviceCount(&count), 0);
  EXPECT_EQ(count, 2);
  std::vector<char> properties(4096);
  EXPECT_EQ(hipGetDevicePropertiesR0600(properties.data(), 1), 0);
  EXPECT_TRUE(std::string(properties.data() + 1160).starts_with(target()));
  int lanes = 0;
  EXPECT_EQ(hipDeviceGetAttribute(&lanes, 87, 0), 0);
  EXPECT_EQ(lanes, target() == "gfx942" ? 64 : 32);
  EXPECT_STREQ(hipGetErrorName(719), "hipErrorLaunchFailure");
  EXPECT_EQ(hipSetDevice(2), 101);
}

TEST_F(Hip, AStreamKeepsItsOrderAndEventsJoinStreams) {
  fill_host();
  EXPECT_EQ(hipMemcpyHtoDAsync(a_, host_, 4 * kCount, stream_), 0);
  EXPECT_EQ(launch(triple_, a_, b_, stream_), 0);
  EXPECT_EQ(hipEventRecord(event_, stream_), 0);
  EXPECT_EQ(hipStreamWaitEvent(other_, event_, 0), 0);
  EXPECT_EQ(launch(triple_, b_, a_, other_), 0);
  EXPECT_EQ(hipMemcpyDtoHAsync(host_, a_, 4 * kCount, other_), 0);
  EXPECT_EQ(finish(other_), 0);
  for (unsigned i = 0; i < kCount; ++i) {
    ASSERT_EQ(words()[i], tripled(i + 5, 2));
  }
}

// Without the event the two streams may run in either order: the seed draws both in some tries.
TEST_F(Hip, StreamsThatNothingJoinsRunInAnyOrder) {
  bool first = false;
  bool second = false;
  for (int i = 0; i < 64 && !(first && second); ++i) {
    EXPECT_EQ(hipMemsetD8Async(a_, 1, 4, stream_), 0);
    EXPECT_EQ(hipMemsetD8Async(a_, 2, 4, other_), 0);
    EXPECT_EQ(finish(stream_), 0);
    EXPECT_EQ(finish(other_), 0);
    EXPECT_EQ(hipMemcpyDtoHAsync(host_, a_, 4, stream_), 0);
    EXPECT_EQ(finish(stream_), 0);
    first = first || words()[0] == 0x01010101U;
    second = second || words()[0] == 0x02020202U;
  }
  EXPECT_TRUE(first && second);
}

TEST_F(Hip, ACaptureBecomesAGraphWhoseKernelsChange) {
  ASSERT_EQ(hipStreamBeginCapture(stream_, 2), 0);
  EXPECT_EQ(launch(triple_, a_, b_, stream_), 0);
  int status = 0;
  std::size_t count = 0;
  void* const* nodes = nullptr;
  EXPECT_EQ(hipStreamGetCaptureInfo_v2(stream_, &status, nullptr, nullptr, &nodes, &count), 0);
  EXPECT_EQ(status, 1);
  ASSERT_EQ(count, 1U);
  void* const node = nodes[0];
  EXPECT_EQ(hipEventRecord(event_, stream_), 0);
  EXPECT_EQ(hipStreamWaitEvent(other_, event_, 0), 0);
  EXPECT_EQ(launch(triple_, b_, a_, other_), 0);
  EXPECT_EQ(hipEventRecord(event_, other_), 0);
  EXPECT_EQ(hipStreamWaitEvent(stream_, event_, 0), 0);
  void* graph = nullptr;
  ASSERT_EQ(hipStreamEndCapture(stream_, &graph), 0);
  void* exec = nullptr;
  ASSERT_EQ(hipGraphInstantiateWithFlags(&exec, graph, 0), 0);

  fill_host();
  EXPECT_EQ(hipMemcpyHtoDAsync(a_, host_, 4 * kCount, stream_), 0);
  EXPECT_EQ(hipGraphLaunch(exec, stream_), 0);
  EXPECT_EQ(hipGraphLaunch(exec, stream_), 0);
  EXPECT_EQ(hipMemcpyDtoHAsync(host_, a_, 4 * kCount, stream_), 0);
  EXPECT_EQ(finish(stream_), 0);
  for (unsigned i = 0; i < kCount; ++i) {
    ASSERT_EQ(words()[i], tripled(i + 5, 4));
  }

  // The first kernel reads elsewhere from now on.
  void* third = nullptr;
  ASSERT_EQ(hipMalloc(&third, 4 * kCount), 0);
  EXPECT_EQ(hipMemsetD8Async(third, 0, 4 * kCount, stream_), 0);
  void* params[] = {&third, &b_};
  const struct {
    std::uint32_t block[3];
    void** extra;
    void* function;
    std::uint32_t grid[3];
    void** params;
    unsigned local;
  } changed = {{kCount, 1, 1}, nullptr, triple_, {1, 1, 1}, params, 0};
  EXPECT_EQ(hipGraphExecKernelNodeSetParams(exec, node, &changed), 0);
  EXPECT_EQ(hipGraphLaunch(exec, stream_), 0);
  EXPECT_EQ(hipMemcpyDtoHAsync(host_, a_, 4 * kCount, stream_), 0);
  EXPECT_EQ(finish(stream_), 0);
  EXPECT_EQ(words()[9], tripled(0, 2));
  EXPECT_EQ(hipGraphExecDestroy(exec), 0);
  EXPECT_EQ(hipGraphDestroy(graph), 0);
  EXPECT_EQ(hipFree(third), 0);
}

TEST_F(Hip, DevicesCopyToEachOther) {
  void* far = nullptr;
  ASSERT_EQ(hipSetDevice(1), 0);
  ASSERT_EQ(hipMalloc(&far, 4 * kCount), 0);
  ASSERT_EQ(hipSetDevice(0), 0);
  fill_host();
  EXPECT_EQ(hipMemcpyHtoDAsync(a_, host_, 4 * kCount, stream_), 0);
  EXPECT_EQ(hipMemcpyPeerAsync(far, 1, a_, 0, 4 * kCount, stream_), 0);
  EXPECT_EQ(hipDeviceEnablePeerAccess(1, 0), 0);
  EXPECT_EQ(hipDeviceEnablePeerAccess(1, 0), 704);
  EXPECT_EQ(launch(triple_, far, b_, stream_), 0);
  EXPECT_EQ(hipMemcpyDtoHAsync(host_, b_, 4 * kCount, stream_), 0);
  EXPECT_EQ(finish(stream_), 0);
  EXPECT_EQ(words()[7], tripled(12, 1));
  EXPECT_EQ(hipFree(far), 0);
  EXPECT_EQ(hipFree(far), 1);
}

// The last test: a fault stays with the process, as it does on a GPU.
TEST_F(Hip, ZAFaultIsTheNextCallsError) {
  EXPECT_EQ(launch(wild_, a_, b_, stream_), 0);
  testing::internal::CaptureStderr();
  EXPECT_EQ(finish(stream_), 700);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("a wild address"), std::string::npos) << text;
  EXPECT_NE(text.find("kernel wild"), std::string::npos) << text;
  EXPECT_EQ(launch(triple_, a_, b_, stream_), 700);
}

}  // namespace amdgpu_emulator::hip_test
