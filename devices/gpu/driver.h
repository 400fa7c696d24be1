// A maker's driver API, as far as we use it: our own declarations of its types and functions, which
// a folder for this maker finds in its library at run time (devices/cuda/driver.h). CUDA's driver and
// HIP share names of types and codes of results. Where a function of a maker takes something else,
// the pointer of the table is to a function of ours that calls it. Functions that a maker may lack
// are in a second table; without one of them, what it is for is left out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/runtime/vendor_library.h"

namespace tinyshard::gpu {

using Result = int;
using DeviceId = int;
using Address = unsigned long long;  // in device memory
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using EventHandle = struct EventTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
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

// Name and parameters. All return a Result. These are there.
#define TINYSHARD_GPU_FUNCTIONS(X)                                                           \
  X(init, (unsigned))                                                                        \
  X(driver_version, (int*))                                                                  \
  X(error_name, (Result, const char**))                                                      \
  X(error_string, (Result, const char**))                                                    \
  X(device_count, (int*))                                                                    \
  X(device_get, (DeviceId*, int))                                                            \
  X(device_name, (char*, int, DeviceId))                                                     \
  X(device_uuid, (void*, DeviceId))                                                          \
  X(device_attribute, (int*, int, DeviceId))                                                 \
  X(device_total_memory, (size_t*, DeviceId))                                                \
  X(device_can_access_peer, (int*, DeviceId, DeviceId))                                      \
  X(primary_retain, (Context*, DeviceId))                                                    \
  X(primary_release, (DeviceId))                                                             \
  X(set_current, (Context))                                                                  \
  X(enable_peer_access, (Context, unsigned))                                                 \
  X(memory_info, (size_t*, size_t*))                                                         \
  X(memory_allocate, (Address*, size_t))                                                     \
  X(memory_free, (Address))                                                                  \
  X(host_allocate, (void**, size_t, unsigned))                                               \
  X(host_free, (void*))                                                                      \
  X(host_register, (void*, size_t, unsigned))                                                \
  X(host_unregister, (void*))                                                                \
  X(copy_to_device, (Address, const void*, size_t, Stream))                                  \
  X(copy_to_host, (void*, Address, size_t, Stream))                                          \
  X(copy_on_device, (Address, Address, size_t, Stream))                                      \
  X(copy_peer, (Address, Context, Address, Context, size_t, Stream))                         \
  X(fill_bytes, (Address, unsigned char, size_t, Stream))                                    \
  X(stream_create, (Stream*, unsigned, int))                                                 \
  X(stream_destroy, (Stream))                                                                \
  X(stream_wait, (Stream, EventHandle, unsigned))                                            \
  X(event_create, (EventHandle*, unsigned))                                                  \
  X(event_destroy, (EventHandle))                                                            \
  X(event_record, (EventHandle, Stream))                                                     \
  X(event_query, (EventHandle))                                                              \
  X(event_elapsed, (float*, EventHandle, EventHandle))                                       \
  X(module_load, (Module*, const void*, unsigned, int*, void**))                             \
  X(module_unload, (Module))                                                                 \
  X(module_function, (Function*, Module, const char*))                                       \
  X(function_get, (int*, int, Function))                                                     \
  X(launch, (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
             Stream, void**, void**))                                                        \
  X(begin_capture, (Stream, int))                                                            \
  X(end_capture, (Stream, Graph*))                                                           \
  X(capture_info,                                                                            \
    (Stream, int*, uint64_t*, Graph*, const GraphNode**, const GraphEdge**, size_t*))        \
  X(capture_set, (Stream, GraphNode*, const GraphEdge*, size_t, unsigned))                   \
  X(graph_instantiate, (GraphExec*, Graph, unsigned long long))                              \
  X(graph_launch, (GraphExec, Stream))                                                       \
  X(graph_destroy, (Graph))                                                                  \
  X(graph_exec_destroy, (GraphExec))                                                         \
  X(node_dependencies, (GraphNode, GraphNode*, GraphEdge*, size_t*))                         \
  X(kernel_node_set, (GraphExec, GraphNode, const KernelNodeParams*))

// Functions that a maker may lack: null then.
//   function_set           more shared memory for a kernel than blocks have without asking
//   graph_upload           a recording is on the GPU before it is launched first
//   kernel_node_attribute  priorities in a recording
//   others                 new operands for a library's launches in a recording
#define TINYSHARD_GPU_OPTIONAL_FUNCTIONS(X)                          \
  X(function_set, (Function, int, int))                              \
  X(graph_upload, (GraphExec, Stream))                               \
  X(node_type, (GraphNode, NodeType*))                               \
  X(kernel_node_get, (GraphNode, KernelNodeParams*))                 \
  X(kernel_node_attribute, (GraphNode, int, const LaunchAttribute*)) \
  X(memset_node_get, (GraphNode, MemsetNodeParams*))                 \
  X(memset_node_set, (GraphExec, GraphNode, const MemsetNodeParams*, Context))

// The functions, or why there are none.
class Driver : public VendorLibrary {
 public:
  // The maker's name for its devices, and numbers that differ from maker to maker.
  struct Maker {
    std::string_view kind;  // "CUDA": devices are CUDA:0, CUDA:1...
    // Attributes of a device.
    int shared_per_block, multiprocessors;
    // Edges of a recording may say that a kernel begins before another has ended.
    bool early_launches = false;
    // With which a recording is made ready to launch.
    unsigned long long graph_flags = 0;
  };

  const Maker& maker() const { return maker_; }
  int devices() const { return devices_; }  // 0 where the driver or a GPU is missing
  int version() const { return version_; }  // as the maker counts, 13000 for CUDA 13.0

  // Throws DeviceError unless the result is success: who asked what, the code's name and meaning.
  void check(Result result, std::string_view device, std::string_view asked) const {
    if (result != kSuccess) fail(result, device, asked);
  }
  std::string describe(Result result) const;  // "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"

#define TINYSHARD_GPU_MEMBER(name, parameters) Result(*name) parameters = nullptr;
  TINYSHARD_GPU_FUNCTIONS(TINYSHARD_GPU_MEMBER)
  TINYSHARD_GPU_OPTIONAL_FUNCTIONS(TINYSHARD_GPU_MEMBER)
#undef TINYSHARD_GPU_MEMBER

 protected:
  Driver(const Maker& maker, std::string_view folders,
         std::initializer_list<std::string_view> files)
      : VendorLibrary(folders, files), maker_(maker) {}
  ~Driver() = default;
  // Once all functions are resolved: asks the driver for its version and devices.
  void start();

 private:
  [[noreturn]] void fail(Result result, std::string_view device, std::string_view asked) const;

  Maker maker_;
  int devices_ = 0, version_ = 0;
};

}  // namespace tinyshard::gpu
