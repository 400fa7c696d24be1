// The state behind the HIP calls of the stand-in: devices, streams, events, modules and graphs.
//   AMDGPU_EMULATOR_DEVICES=N     emulated devices (default 1)
//   AMDGPU_EMULATOR_TARGET=NAME   gfx942 (default) or gfx1100
//   AMDGPU_EMULATOR_SEED=N        the order of work that nothing orders
//   AMDGPU_EMULATOR_THREADS=N     threads of the host that a kernel runs on (default: all cores)
//   AMDGPU_EMULATOR_MEMORY=BYTES  of each device (default 4 GiB)
//   AMDGPU_EMULATOR_ABORT=1       a fault ends the process where it happens
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/amdgpu/code_object.h"
#include "tests/amdgpu/device_memory.h"
#include "tests/amdgpu/launch.h"
#include "tests/amdgpu/scheduler.h"

namespace amdgpu_emulator {

// Values of hipError_t.
enum Status : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerAlreadyEnabled = 704,
  kHostAlreadyRegistered = 712,
  kHostNotRegistered = 713,
  kLaunchFailure = 719,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901
};

struct Function {
  std::shared_ptr<CodeObject> module;
  const Kernel* kernel = nullptr;
};

struct Module {
  std::shared_ptr<CodeObject> object;
  std::map<std::string, std::unique_ptr<Function>> functions;
};

// A node of a graph. Its launch is set when it is a kernel's, so that it can be changed later.
struct Node {
  std::vector<Node*> dependencies;
  std::function<void()> work;
  std::shared_ptr<CodeObject> module;
  Launch launch;
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
};

struct GraphExec {
  // Copies of the graph's nodes, by the node each was made from; their order is the graph's.
  std::vector<Node*> order;
  std::map<Node*, Node> nodes;
};

struct Capture {
  Graph* graph = nullptr;
  unsigned long long id = 0;
};

struct Stream {
  int device = 0;
  std::shared_ptr<Signal> last;
  std::shared_ptr<Capture> capture;
  std::vector<Node*> dependencies;  // of the next node that is captured
  bool origin = false;
};

struct Event {
  std::shared_ptr<Signal> signal;
  std::shared_ptr<Capture> capture;
  std::vector<Node*> nodes;
};

struct Runtime {
  Runtime();

  int devices = 1;
  std::string target = "gfx942";
  int threads = 1;
  bool abort_on_fault = false;
  std::recursive_mutex mutex;
  std::unique_ptr<DeviceMemory> memory;
  std::unique_ptr<Scheduler> scheduler;
  int fault = kSuccess;  // the first one stays, as on a GPU
  unsigned long long captures = 0;
  std::vector<Stream> null_streams;  // by device
  LaunchCounts counts;

  [[nodiscard]] bool gfx9() const { return target.starts_with("gfx9"); }
  Stream& stream_of(void* handle);
  // Queues work behind what the stream has, or captures it. Returns a HIP error.
  int submit(Stream& stream, Node node);
  // Runs up to `most` pieces of work, or until `signal` is done. Returns the fault, if there is one.
  int progress(const Signal* signal, std::uint64_t most);
};

// The one of the process; never destroyed, since threads may outlive main.
Runtime& runtime();

// The device of the calling thread.
int& current_device();

}  // namespace amdgpu_emulator
