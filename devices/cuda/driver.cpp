// Symbols are named as the library exports them, with the versions of
// their parameters (_v2); the table is complete by a static_assert. A
// driver in which one is missing counts as too old, and is not used.
#include "devices/cuda/driver.h"

#include "core/base/options.h"

// The name in libcuda.so.1 of each function of the table.
#define TINYSHARD_CUDA_SYMBOLS(X)                           \
  X(init, "cuInit")                                         \
  X(driver_version, "cuDriverGetVersion")                   \
  X(error_name, "cuGetErrorName")                           \
  X(error_string, "cuGetErrorString")                       \
  X(device_count, "cuDeviceGetCount")                       \
  X(device_get, "cuDeviceGet")                              \
  X(device_name, "cuDeviceGetName")                         \
  X(device_uuid, "cuDeviceGetUuid")                         \
  X(device_attribute, "cuDeviceGetAttribute")               \
  X(device_total_memory, "cuDeviceTotalMem_v2")             \
  X(device_can_access_peer, "cuDeviceCanAccessPeer")        \
  X(primary_retain, "cuDevicePrimaryCtxRetain")             \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2")        \
  X(set_current, "cuCtxSetCurrent")                         \
  X(enable_peer_access, "cuCtxEnablePeerAccess")            \
  X(memory_info, "cuMemGetInfo_v2")                         \
  X(memory_allocate, "cuMemAlloc_v2")                       \
  X(memory_free, "cuMemFree_v2")                            \
  X(host_allocate, "cuMemHostAlloc")                        \
  X(host_free, "cuMemFreeHost")                             \
  X(host_register, "cuMemHostRegister_v2")                  \
  X(host_unregister, "cuMemHostUnregister")                 \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2")                 \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2")                   \
  X(copy_on_device, "cuMemcpyDtoDAsync_v2")                 \
  X(copy_peer, "cuMemcpyPeerAsync")                         \
  X(fill_bytes, "cuMemsetD8Async")                          \
  X(stream_create, "cuStreamCreateWithPriority")            \
  X(stream_destroy, "cuStreamDestroy_v2")                   \
  X(stream_wait, "cuStreamWaitEvent")                       \
  X(event_create, "cuEventCreate")                          \
  X(event_destroy, "cuEventDestroy_v2")                     \
  X(event_record, "cuEventRecord")                          \
  X(event_query, "cuEventQuery")                            \
  X(event_elapsed, "cuEventElapsedTime")                    \
  X(module_load, "cuModuleLoadDataEx")                      \
  X(module_unload, "cuModuleUnload")                        \
  X(module_function, "cuModuleGetFunction")                 \
  X(function_set, "cuFuncSetAttribute")                     \
  X(function_get, "cuFuncGetAttribute")                     \
  X(launch, "cuLaunchKernel")                               \
  X(begin_capture, "cuStreamBeginCapture_v2")               \
  X(end_capture, "cuStreamEndCapture")                      \
  X(capture_info, "cuStreamGetCaptureInfo_v3")              \
  X(capture_set, "cuStreamUpdateCaptureDependencies_v2")    \
  X(graph_instantiate, "cuGraphInstantiateWithFlags")       \
  X(graph_upload, "cuGraphUpload")                          \
  X(graph_launch, "cuGraphLaunch")                          \
  X(graph_destroy, "cuGraphDestroy")                        \
  X(graph_exec_destroy, "cuGraphExecDestroy")               \
  X(node_type, "cuGraphNodeGetType")                        \
  X(node_dependencies, "cuGraphNodeGetDependencies_v2")     \
  X(kernel_node_get, "cuGraphKernelNodeGetParams_v2")       \
  X(kernel_node_set, "cuGraphExecKernelNodeSetParams_v2")   \
  X(kernel_node_attribute, "cuGraphKernelNodeSetAttribute") \
  X(memset_node_get, "cuGraphMemsetNodeGetParams")          \
  X(memset_node_set, "cuGraphExecMemsetNodeSetParams")

namespace tinyshard::cuda {
namespace {

#define TINYSHARD_ONE(...) +1
static_assert(TINYSHARD_GPU_FUNCTIONS(TINYSHARD_ONE)
                      TINYSHARD_GPU_OPTIONAL_FUNCTIONS(TINYSHARD_ONE) ==
                  TINYSHARD_CUDA_SYMBOLS(TINYSHARD_ONE),
              "each function of the table has a symbol");
#undef TINYSHARD_ONE

// CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, ..._MULTIPROCESSOR_COUNT;
// CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY: otherwise all nodes have that of the stream that
// launches the graph, collectives included.
constexpr gpu::Driver::Maker kMaker{.kind = "CUDA",
                                    .shared_per_block = 8,
                                    .multiprocessors = 16,
                                    .early_launches = true,
                                    .graph_flags = 8};

}  // namespace

const CudaDriver& CudaDriver::get() {
  static const CudaDriver* driver = new CudaDriver;  // outlives every static tensor
  return *driver;
}

std::pair<int, int> CudaDriver::capability(gpu::DeviceId id) const {
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
  std::pair<int, int> numbers;
  check(device_attribute(&numbers.first, kMajor, id), "CUDA", "the capability of a GPU");
  check(device_attribute(&numbers.second, kMinor, id), "CUDA", "the capability of a GPU");
  return numbers;
}

CudaDriver::CudaDriver() : Driver(kMaker, options().cuda_path, {"libcuda.so.1"}) {
#define TINYSHARD_RESOLVE(name, symbol, ...) resolve(name, symbol);
  TINYSHARD_CUDA_SYMBOLS(TINYSHARD_RESOLVE)
  TINYSHARD_CUDA_LINKER(TINYSHARD_RESOLVE)
#undef TINYSHARD_RESOLVE
  start();
}

}  // namespace tinyshard::cuda
