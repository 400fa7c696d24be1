// Devices, streams and the order of work of the stand-in.
#include "tests/amdgpu/runtime.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/amdgpu/wave.h"

namespace amdgpu_emulator {
namespace {

std::uint64_t number_of(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == 0 ? otherwise : std::strtoull(text, nullptr, 0);
}

}  // namespace

Runtime::Runtime() {
  devices = static_cast<int>(number_of("AMDGPU_EMULATOR_DEVICES", 1));
  if (const char* name = std::getenv("AMDGPU_EMULATOR_TARGET")) {
    target = name;
  }
  threads = static_cast<int>(
      number_of("AMDGPU_EMULATOR_THREADS", std::max(std::thread::hardware_concurrency(), 1U)));
  abort_on_fault = number_of("AMDGPU_EMULATOR_ABORT", 0) != 0;
  memory = std::make_unique<DeviceMemory>(devices, number_of("AMDGPU_EMULATOR_MEMORY", 4ULL << 30));
  scheduler = std::make_unique<Scheduler>(number_of("AMDGPU_EMULATOR_SEED", 1));
  null_streams.resize(static_cast<std::size_t>(devices));
  for (int d = 0; d < devices; ++d) {
    null_streams[static_cast<std::size_t>(d)].device = d;
  }
}

Stream& Runtime::stream_of(void* handle) {
  Stream& stream = handle == nullptr ? null_streams[static_cast<std::size_t>(current_device())]
                                     : *static_cast<Stream*>(handle);
  if (stream.capture != nullptr && stream.capture->graph == nullptr) {
    stream.capture.reset();  // the capture that it had joined has ended
    stream.dependencies.clear();
  }
  return stream;
}

int Runtime::submit(Stream& stream, Node node) {
  if (fault != kSuccess) {
    return fault;
  }
  if (stream.capture != nullptr) {
    node.dependencies = stream.dependencies;
    auto& nodes = stream.capture->graph->nodes;
    nodes.push_back(std::make_unique<Node>(std::move(node)));
    stream.dependencies = {nodes.back().get()};
    return kSuccess;
  }
  std::function<void()> work = std::move(node.work);
  if (node.module != nullptr) {
    work = [this, module = std::move(node.module), launch = std::move(node.launch)] {
      const LaunchCounts more = run(launch, *memory, threads);
      counts.instructions += more.instructions;
      counts.lanes += more.lanes;
    };
  }
  stream.last = scheduler->add(std::move(work), {stream.last});
  return kSuccess;
}

int Runtime::progress(const Signal* signal, std::uint64_t most) {
  try {
    for (std::uint64_t i = 0; i < most && fault == kSuccess && (signal == nullptr || !signal->done);
         ++i) {
      if (!scheduler->run_one()) {
        break;
      }
    }
  } catch (const Fault& found) {
    std::fprintf(stderr, "amdgpu emulator: %s\n", found.what());
    if (abort_on_fault) {
      std::abort();
    }
    const bool wild = std::string(found.what()).find("wild address") != std::string::npos;
    fault = wild ? kIllegalAddress : kLaunchFailure;
    scheduler->drop();
  }
  return fault;
}

Runtime& runtime() {
  static auto* const instance = new Runtime;
  return *instance;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

}  // namespace amdgpu_emulator
