// HIP has CUDA's functions with other parameters here and there: a device is its number and has one
// context, an address is a pointer (in the same register), edges of recordings have no kinds. Where
// they differ a function of ours stands in the table. Only properties that have kept their place in
// all versions are read: attributes, and the name of the instruction set in the one structure that
// holds it, whose layout changed with version 6 and has a symbol of its own since.
#include "devices/hip/driver.h"

#include <array>
#include <string_view>

#include <fmt/format.h>

#include "core/base/options.h"

// Functions that the table takes as they are, with their names in libamdhip64.so.
#define TINYSHARD_HIP_SYMBOLS(X)                       \
  X(init, "hipInit")                                   \
  X(driver_version, "hipDriverGetVersion")             \
  X(device_count, "hipGetDeviceCount")                 \
  X(device_get, "hipDeviceGet")                        \
  X(device_name, "hipDeviceGetName")                   \
  X(device_uuid, "hipDeviceGetUuid")                   \
  X(device_attribute, "hipDeviceGetAttribute")         \
  X(device_total_memory, "hipDeviceTotalMem")          \
  X(device_can_access_peer, "hipDeviceCanAccessPeer")  \
  X(memory_info, "hipMemGetInfo")                      \
  X(memory_allocate, "hipMalloc")                      \
  X(memory_free, "hipFree")                            \
  X(host_allocate, "hipHostMalloc")                    \
  X(host_free, "hipHostFree")                          \
  X(host_register, "hipHostRegister")                  \
  X(host_unregister, "hipHostUnregister")              \
  X(copy_to_device, "hipMemcpyHtoDAsync")              \
  X(copy_to_host, "hipMemcpyDtoHAsync")                \
  X(copy_on_device, "hipMemcpyDtoDAsync")              \
  X(fill_bytes, "hipMemsetD8Async")                    \
  X(stream_create, "hipStreamCreateWithPriority")      \
  X(stream_destroy, "hipStreamDestroy")                \
  X(stream_wait, "hipStreamWaitEvent")                 \
  X(event_create, "hipEventCreateWithFlags")           \
  X(event_destroy, "hipEventDestroy")                  \
  X(event_record, "hipEventRecord")                    \
  X(event_query, "hipEventQuery")                      \
  X(event_elapsed, "hipEventElapsedTime")              \
  X(module_unload, "hipModuleUnload")                  \
  X(module_function, "hipModuleGetFunction")           \
  X(function_get, "hipFuncGetAttribute")               \
  X(launch, "hipModuleLaunchKernel")                   \
  X(begin_capture, "hipStreamBeginCapture")            \
  X(end_capture, "hipStreamEndCapture")                \
  X(graph_instantiate, "hipGraphInstantiateWithFlags") \
  X(graph_launch, "hipGraphLaunch")                    \
  X(graph_destroy, "hipGraphDestroy")                  \
  X(graph_exec_destroy, "hipGraphExecDestroy")

namespace tinyshard::hip {
namespace {

using gpu::Address;
using gpu::Context;
using gpu::DeviceId;
using gpu::Function;
using gpu::Graph;
using gpu::GraphEdge;
using gpu::GraphExec;
using gpu::GraphNode;
using gpu::KernelNodeParams;
using gpu::Module;
using gpu::Result;
using gpu::Stream;

struct KernelParams {
  unsigned block[3];
  void** extra;
  void* function;
  unsigned grid[3];
  void** params;
  unsigned shared_bytes;
};
static_assert(sizeof(KernelParams) == 64);

// Name, exported symbol, parameters, of those that functions of ours call.
#define TINYSHARD_HIP_CALLS(X)                                                                 \
  X(set_device, "hipSetDevice", (DeviceId))                                                    \
  X(enable_peer, "hipDeviceEnablePeerAccess", (DeviceId, unsigned))                            \
  X(copy_peer, "hipMemcpyPeerAsync", (Address, DeviceId, Address, DeviceId, size_t, Stream))   \
  X(load, "hipModuleLoadData", (Module*, const void*))                                         \
  X(capture_info, "hipStreamGetCaptureInfo_v2",                                                \
    (Stream, int*, uint64_t*, Graph*, const GraphNode**, size_t*))                             \
  X(capture_set, "hipStreamUpdateCaptureDependencies", (Stream, GraphNode*, size_t, unsigned)) \
  X(dependencies, "hipGraphNodeGetDependencies", (GraphNode, GraphNode*, size_t*))             \
  X(kernel_set, "hipGraphExecKernelNodeSetParams", (GraphExec, GraphNode, const KernelParams*))

struct Calls {
#define TINYSHARD_HIP_MEMBER(name, symbol, parameters) Result(*name) parameters = nullptr;
  TINYSHARD_HIP_CALLS(TINYSHARD_HIP_MEMBER)
#undef TINYSHARD_HIP_MEMBER
  const char* (*error_name)(Result) = nullptr;
  const char* (*error_string)(Result) = nullptr;
};
Calls& calls() {
  static Calls calls;
  return calls;
}

// A device's one context is its number, and not null.
Context context_of(DeviceId id) {
  return reinterpret_cast<Context>(uintptr_t(id) + 1);  // NOLINT(performance-no-int-to-ptr)
}
DeviceId device_of(Context context) { return DeviceId(reinterpret_cast<uintptr_t>(context)) - 1; }

Result error_name(Result result, const char** name) {
  *name = calls().error_name(result);
  return gpu::kSuccess;
}
Result error_string(Result result, const char** text) {
  *text = calls().error_string(result);
  return gpu::kSuccess;
}
Result primary_retain(Context* context, DeviceId id) {
  *context = context_of(id);
  return gpu::kSuccess;
}
Result primary_release(DeviceId) { return gpu::kSuccess; }
Result set_current(Context context) { return calls().set_device(device_of(context)); }
Result enable_peer_access(Context peer, unsigned flags) {
  return calls().enable_peer(device_of(peer), flags);
}
Result copy_peer(Address to, Context to_context, Address from, Context from_context, size_t bytes,
                 Stream stream) {
  return calls().copy_peer(to, device_of(to_context), from, device_of(from_context), bytes, stream);
}
Result module_load(Module* module, const void* code, unsigned, int*, void**) {
  return calls().load(module, code);
}
Result capture_info(Stream stream, int* status, uint64_t* id, Graph* graph, const GraphNode** nodes,
                    const GraphEdge** edges, size_t* count) {
  *edges = nullptr;
  return calls().capture_info(stream, status, id, graph, nodes, count);
}
Result capture_set(Stream stream, GraphNode* nodes, const GraphEdge* edges, size_t count,
                   unsigned flags) {
  for (size_t i = 0; edges && i < count; ++i) {
    if (!edges[i].is_plain()) return gpu::kInvalidValue;
  }
  return calls().capture_set(stream, nodes, count, flags);
}
Result node_dependencies(GraphNode node, GraphNode* sources, GraphEdge* edges, size_t* count) {
  const Result result = calls().dependencies(node, sources, count);
  for (size_t i = 0; edges && i < *count; ++i) edges[i] = {};
  return result;
}
Result kernel_node_set(GraphExec exec, GraphNode node, const KernelNodeParams* p) {
  const KernelParams params{.block = {p->block[0], p->block[1], p->block[2]},
                            .extra = p->extra,
                            .function = p->function,
                            .grid = {p->grid[0], p->grid[1], p->grid[2]},
                            .params = p->params,
                            .shared_bytes = p->shared_bytes};
  return calls().kernel_set(exec, node, &params);
}

// hipDeviceAttributeMaxSharedMemoryPerBlock, ...MultiprocessorCount, as of version 5
constexpr gpu::Driver::Maker kMaker{.kind = "HIP", .shared_per_block = 74, .multiprocessors = 63};

using Properties = Result (*)(void*, DeviceId);
struct PropertiesCall {
  Properties call = nullptr;
  size_t architecture_at = 0;  // gcnArchName in the structure
};
PropertiesCall& properties() {
  static PropertiesCall call;
  return call;
}

}  // namespace

const HipDriver& HipDriver::get() {
  static const HipDriver* driver = new HipDriver;  // outlives every static tensor
  return *driver;
}

HipDriver::HipDriver()
    : Driver(kMaker, options().hip_path,
             {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"}) {
#define TINYSHARD_RESOLVE(name, symbol) resolve(name, symbol);
  TINYSHARD_HIP_SYMBOLS(TINYSHARD_RESOLVE)
#undef TINYSHARD_RESOLVE
#define TINYSHARD_RESOLVE(name, symbol, parameters) resolve(calls().name, symbol);
  TINYSHARD_HIP_CALLS(TINYSHARD_RESOLVE)
#undef TINYSHARD_RESOLVE
  resolve(calls().error_name, "hipGetErrorName");
  resolve(calls().error_string, "hipGetErrorString");
  resolve_if_there(graph_upload, "hipGraphUpload");
  PropertiesCall& p = properties();
  resolve_if_there(p.call, "hipGetDevicePropertiesR0600");
  p.architecture_at = 1160;
  if (!p.call) {
    resolve(p.call, "hipGetDeviceProperties");
    p.architecture_at = 396;
  }
  Driver& table = *this;
  table.error_name = hip::error_name;
  table.error_string = hip::error_string;
  table.primary_retain = hip::primary_retain;
  table.primary_release = hip::primary_release;
  table.set_current = hip::set_current;
  table.enable_peer_access = hip::enable_peer_access;
  table.copy_peer = hip::copy_peer;
  table.module_load = hip::module_load;
  table.capture_info = hip::capture_info;
  table.capture_set = hip::capture_set;
  table.node_dependencies = hip::node_dependencies;
  table.kernel_node_set = hip::kernel_node_set;
  start();
}

std::string HipDriver::architecture(gpu::DeviceId id) const {
  std::array<char, 4096> all{};  // more than any version's structure
  check(properties().call(all.data(), id), fmt::format("HIP:{}", id), "its instruction set");
  const std::string_view name = all.data() + properties().architecture_at;
  return std::string(name.substr(0, name.find(':')));  // "gfx942:sramecc+:xnack-"
}

std::string HipDriver::version_text() const {
  return fmt::format("{}.{}.{}", version() / 10'000'000, version() / 100'000 % 100,
                     version() % 100'000);
}

}  // namespace tinyshard::hip
