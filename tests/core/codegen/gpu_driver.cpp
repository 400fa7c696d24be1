#include "tests/core/codegen/gpu_driver.h"

#include <algorithm>
#include <dlfcn.h>
#include <stdexcept>
#include <vector>

#include "devices/cuda/gpu_target.h"

namespace tinyshard::test {
namespace {

using Result = int;

struct Api {
  Result (*init)(unsigned);
  Result (*device_get)(int*, int);
  Result (*device_attribute)(int*, int, int);
  Result (*retain)(void**, int);
  Result (*set_current)(void*);
  Result (*alloc)(DevicePointer*, size_t);
  Result (*free)(DevicePointer);
  Result (*htod)(DevicePointer, const void*, size_t);
  Result (*dtoh)(void*, DevicePointer, size_t);
  Result (*load)(void**, const void*, unsigned, int*, void**);
  Result (*unload)(void*);
  Result (*function)(void**, void*, const char*);
  Result (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**);
  Result (*stream_create)(void**, unsigned);
  Result (*stream_synchronize)(void*);
  Result (*error_text)(Result, const char**);
};
Api api;

// The name of the first function that is not there, or null.
const char* resolve(void* library) {
  auto find = [&](auto& pointer, const char* name) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(::dlsym(library, name));
    return pointer != nullptr;
  };
#define FIND(member, name) \
  if (!find(api.member, name)) return name
  FIND(init, "cuInit");
  FIND(device_get, "cuDeviceGet");
  FIND(device_attribute, "cuDeviceGetAttribute");
  FIND(retain, "cuDevicePrimaryCtxRetain");
  FIND(set_current, "cuCtxSetCurrent");
  FIND(alloc, "cuMemAlloc_v2");
  FIND(free, "cuMemFree_v2");
  FIND(htod, "cuMemcpyHtoD_v2");
  FIND(dtoh, "cuMemcpyDtoH_v2");
  FIND(load, "cuModuleLoadDataEx");
  FIND(unload, "cuModuleUnload");
  FIND(function, "cuModuleGetFunction");
  FIND(launch, "cuLaunchKernel");
  FIND(stream_create, "cuStreamCreate");
  FIND(stream_synchronize, "cuStreamSynchronize");
  FIND(error_text, "cuGetErrorString");
#undef FIND
  return nullptr;
}

}  // namespace

void GpuDriver::check(int result, const char* call) {
  if (result == 0) return;
  const char* text = nullptr;
  api.error_text(result, &text);
  throw std::runtime_error(std::string(call) + ": " + (text ? text : "?") + " (" +
                           std::to_string(result) + ")");
}

GpuDriver* GpuDriver::open(std::string& reason) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    reason = ::dlerror();
    return nullptr;
  }
  if (const char* missing = resolve(library)) {
    reason = std::string("libcuda.so.1 has no ") + missing;
    return nullptr;
  }
  static GpuDriver driver;
  try {
    driver.check(api.init(0), "cuInit");
    int device = 0;
    driver.check(api.device_get(&device, 0), "cuDeviceGet");
    driver.check(api.retain(&driver.context_, device), "cuDevicePrimaryCtxRetain");
    driver.check(api.set_current(driver.context_), "cuCtxSetCurrent");
    // Waits for copies from pageable memory, which return before they are done.
    constexpr unsigned kDefault = 0;
    driver.check(api.stream_create(&driver.stream_, kDefault), "cuStreamCreate");
    constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76;
    int major = 0, minor = 0;
    Target& t = driver.target_;
    driver.check(api.device_attribute(&t.multiprocessors, kMultiprocessors, device), "attribute");
    driver.check(api.device_attribute(&major, kMajor, device), "attribute");
    driver.check(api.device_attribute(&minor, kMinor, device), "attribute");
    const int multiprocessors = t.multiprocessors, shared_bytes = 49152;
    t = cuda::gpu_target(major, minor, 12040);
    t.multiprocessors = multiprocessors, t.shared_bytes = shared_bytes;
  } catch (const std::exception& error) {
    reason = error.what();
    return nullptr;
  }
  return &driver;
}

DevicePointer GpuDriver::allocate(size_t bytes) {
  DevicePointer memory = 0;
  check(api.alloc(&memory, std::max<size_t>(bytes, 16)), "cuMemAlloc");
  return memory;
}
void GpuDriver::release(DevicePointer memory) { check(api.free(memory), "cuMemFree"); }
void GpuDriver::to_device(DevicePointer to, const void* from, size_t bytes) {
  check(api.htod(to, from, bytes), "cuMemcpyHtoD");
}
void GpuDriver::from_device(void* to, DevicePointer from, size_t bytes) {
  check(api.dtoh(to, from, bytes), "cuMemcpyDtoH");
}
void GpuDriver::synchronize() { check(api.stream_synchronize(stream_), "cuStreamSynchronize"); }

void* GpuDriver::load(const ObjectCode& code, void** module) {
  constexpr int kErrorLog = 5, kErrorLogBytes = 6;
  static char log[8192];
  log[0] = 0;
  int options[] = {kErrorLog, kErrorLogBytes};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver takes numbers as pointers
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
  void *loaded = nullptr, *function = nullptr;
  int result = api.load(&loaded, code.bytes.data(), 2, options, values);
  check(result, (code.entry + ": cuModuleLoadDataEx " + log).c_str());
  check(api.function(&function, loaded, code.entry.c_str()), "cuModuleGetFunction");
  if (module) *module = loaded;
  return function;
}
void GpuDriver::unload(void* module) { check(api.unload(module), "cuModuleUnload"); }

void GpuDriver::launch(void* function, const ObjectCode& code,
                       std::span<const DevicePointer> buffers,
                       std::span<const int64_t> coordinates) {
  std::vector<void*> arguments;
  for (const DevicePointer& b : buffers) arguments.push_back(const_cast<DevicePointer*>(&b));
  for (int i = 0; i < code.coordinates; ++i)
    arguments.push_back(const_cast<int64_t*>(&coordinates[static_cast<size_t>(i)]));
  if (code.work_items == 0) return;
  check(api.launch(function, static_cast<unsigned>(code.work_items), 1, 1,
                   static_cast<unsigned>(code.block), 1, 1,
                   static_cast<unsigned>(code.shared_bytes), stream_, arguments.data(), nullptr),
        "cuLaunchKernel");
}

}  // namespace tinyshard::test
