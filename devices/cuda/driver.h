// The CUDA driver API, as far as we use it: our own declarations of its types and functions, found
// in libcuda.so.1 at run time. Nothing of CUDA is needed to build.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/runtime/vendor_library.h"

namespace tinyshard::cuda {

using Result = int;
using DeviceId = int;
using Address = unsigned long long;  // in device memory
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using EventHandle = struct EventTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using LinkState = struct LinkStateTag*;
using Graph = struct GraphTag*;
using GraphExec = struct GraphExecTag*;
using GraphNode = struct GraphNodeTag*;
// Says how a node waits for another; libraries launch kernels that begin before the last one ends.
struct GraphEdge {
  unsigned char from_port = 0, to_port = 0, type = 0, reserved[5] = {};
  bool is_plain() const { return *this == GraphEdge{}; }  // the last one has ended
  bool operator==(const GraphEdge&) const = default;
};

constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100,
                 kNotReady = 600, kPeerAccessAlreadyEnabled = 704, kGraphExecUpdateFailure = 910;

struct KernelNodeParams {
  Function function;
  unsigned grid[3], block[3], shared_bytes;
  void** params;
  void** extra;
  void* kernel;
  Context context;
};
struct MemsetNodeParams {
  Address to;
  size_t pitch;
  unsigned value, element_size;
  size_t width, height;
};
struct LaunchAttribute {  // a union, of which this is what is used
  alignas(8) int priority;
  char others[60];
};
struct GraphUpdateResult {
  int result;
  GraphNode node, from;
};
enum class NodeType : int { Kernel = 0, Memcpy = 1, Memset = 2 };

// Name, exported symbol, parameters. All return a Result.
#define TINYSHARD_CUDA_FUNCTIONS(X)                                                            \
  X(init, "cuInit", (unsigned))                                                                \
  X(driver_version, "cuDriverGetVersion", (int*))                                              \
  X(error_name, "cuGetErrorName", (Result, const char**))                                      \
  X(error_string, "cuGetErrorString", (Result, const char**))                                  \
  X(device_count, "cuDeviceGetCount", (int*))                                                  \
  X(device_get, "cuDeviceGet", (DeviceId*, int))                                               \
  X(device_name, "cuDeviceGetName", (char*, int, DeviceId))                                    \
  X(device_uuid, "cuDeviceGetUuid", (void*, DeviceId))                                         \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, DeviceId))                           \
  X(device_total_memory, "cuDeviceTotalMem_v2", (size_t*, DeviceId))                           \
  X(device_can_access_peer, "cuDeviceCanAccessPeer", (int*, DeviceId, DeviceId))               \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (Context*, DeviceId))                          \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", (DeviceId))                               \
  X(set_current, "cuCtxSetCurrent", (Context))                                                 \
  X(enable_peer_access, "cuCtxEnablePeerAccess", (Context, unsigned))                          \
  X(memory_info, "cuMemGetInfo_v2", (size_t*, size_t*))                                        \
  X(memory_allocate, "cuMemAlloc_v2", (Address*, size_t))                                      \
  X(memory_free, "cuMemFree_v2", (Address))                                                    \
  X(host_allocate, "cuMemHostAlloc", (void**, size_t, unsigned))                               \
  X(host_free, "cuMemFreeHost", (void*))                                                       \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", (Address, const void*, size_t, Stream))            \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2", (void*, Address, size_t, Stream))                    \
  X(copy_on_device, "cuMemcpyDtoDAsync_v2", (Address, Address, size_t, Stream))                \
  X(copy_peer, "cuMemcpyPeerAsync", (Address, Context, Address, Context, size_t, Stream))      \
  X(fill_bytes, "cuMemsetD8Async", (Address, unsigned char, size_t, Stream))                   \
  X(stream_create, "cuStreamCreateWithPriority", (Stream*, unsigned, int))                     \
  X(stream_destroy, "cuStreamDestroy_v2", (Stream))                                            \
  X(stream_wait, "cuStreamWaitEvent", (Stream, EventHandle, unsigned))                         \
  X(event_create, "cuEventCreate", (EventHandle*, unsigned))                                   \
  X(event_destroy, "cuEventDestroy_v2", (EventHandle))                                         \
  X(event_record, "cuEventRecord", (EventHandle, Stream))                                      \
  X(event_query, "cuEventQuery", (EventHandle))                                                \
  X(event_elapsed, "cuEventElapsedTime", (float*, EventHandle, EventHandle))                   \
  X(module_load, "cuModuleLoadDataEx", (Module*, const void*, unsigned, int*, void**))         \
  X(module_unload, "cuModuleUnload", (Module))                                                 \
  X(module_function, "cuModuleGetFunction", (Function*, Module, const char*))                  \
  X(function_set, "cuFuncSetAttribute", (Function, int, int))                                  \
  X(function_get, "cuFuncGetAttribute", (int*, int, Function))                                 \
  X(launch, "cuLaunchKernel",                                                                  \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,   \
     void**, void**))                                                                          \
  X(link_create, "cuLinkCreate_v2", (unsigned, int*, void**, LinkState*))                      \
  X(link_add, "cuLinkAddData_v2",                                                              \
    (LinkState, int, void*, size_t, const char*, unsigned, int*, void**))                      \
  X(link_complete, "cuLinkComplete", (LinkState, void**, size_t*))                             \
  X(link_destroy, "cuLinkDestroy", (LinkState))                                                \
  X(begin_capture, "cuStreamBeginCapture_v2", (Stream, int))                                   \
  X(end_capture, "cuStreamEndCapture", (Stream, Graph*))                                       \
  X(capture_info, "cuStreamGetCaptureInfo_v3",                                                 \
    (Stream, int*, uint64_t*, Graph*, const GraphNode**, const GraphEdge**, size_t*))          \
  X(capture_set, "cuStreamUpdateCaptureDependencies_v2",                                       \
    (Stream, GraphNode*, const GraphEdge*, size_t, unsigned))                                  \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", (GraphExec*, Graph, unsigned long long)) \
  X(graph_upload, "cuGraphUpload", (GraphExec, Stream))                                        \
  X(graph_launch, "cuGraphLaunch", (GraphExec, Stream))                                        \
  X(graph_destroy, "cuGraphDestroy", (Graph))                                                  \
  X(graph_exec_destroy, "cuGraphExecDestroy", (GraphExec))                                     \
  X(node_type, "cuGraphNodeGetType", (GraphNode, NodeType*))                                   \
  X(node_dependencies, "cuGraphNodeGetDependencies_v2",                                        \
    (GraphNode, GraphNode*, GraphEdge*, size_t*))                                              \
  X(kernel_node_get, "cuGraphKernelNodeGetParams_v2", (GraphNode, KernelNodeParams*))          \
  X(kernel_node_set, "cuGraphExecKernelNodeSetParams_v2",                                      \
    (GraphExec, GraphNode, const KernelNodeParams*))                                           \
  X(kernel_node_attribute, "cuGraphKernelNodeSetAttribute",                                    \
    (GraphNode, int, const LaunchAttribute*))                                                  \
  X(memset_node_get, "cuGraphMemsetNodeGetParams", (GraphNode, MemsetNodeParams*))             \
  X(memset_node_set, "cuGraphExecMemsetNodeSetParams",                                         \
    (GraphExec, GraphNode, const MemsetNodeParams*, Context))

// The functions, or why there are none.
class Driver : public VendorLibrary {
 public:
  // Opened and initialised at the first call; later calls return the same.
  static const Driver& get();

  int devices() const { return devices_; }  // 0 where the driver or a GPU is missing
  int version() const { return version_; }  // 13000 for CUDA 13.0

  // Throws DeviceError unless the result is success: who asked what, the code's name and meaning.
  void check(Result result, std::string_view device, std::string_view asked) const {
    if (result != kSuccess) fail(result, device, asked);
  }
  std::string describe(Result result) const;  // "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"

#define TINYSHARD_CUDA_MEMBER(name, symbol, parameters) Result(*name) parameters = nullptr;
  TINYSHARD_CUDA_FUNCTIONS(TINYSHARD_CUDA_MEMBER)
#undef TINYSHARD_CUDA_MEMBER

 private:
  Driver();
  [[noreturn]] void fail(Result result, std::string_view device, std::string_view asked) const;

  int devices_ = 0, version_ = 0;
};

}  // namespace tinyshard::cuda
