// HIP calls about modules, launches and graphs.
#include <algorithm>
#include <cstring>
#include <elf.h>
#include <span>

#include "tests/amdgpu/hip.h"

using namespace amdgpu_emulator;

namespace {

struct KernelNodeParams {
  std::uint32_t block[3];
  void** extra;
  void* function;
  std::uint32_t grid[3];
  void** params;
  unsigned dynamic_local_bytes;
};
static_assert(sizeof(KernelNodeParams) == 64);

// The size of an ELF file, which a caller does not tell: its section table lies at the end.
std::size_t size_of(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, 4) != 0) {
    throw Fault("a module is no ELF file");
  }
  std::size_t size = header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, static_cast<const char*>(image) + header.e_phoff + i * sizeof segment,
                sizeof segment);
    size = std::max<std::size_t>(size, segment.p_offset + segment.p_filesz);
  }
  return size;
}

// `extra` passes the argument block as a whole: pointer and size, each behind its number.
std::vector<std::uint8_t> block_of(void** extra) {
  const void* buffer = nullptr;
  std::size_t size = 0;
  for (std::size_t i = 0; extra[i] != reinterpret_cast<void*>(3); i += 2) {
    if (extra[i] == reinterpret_cast<void*>(1)) {
      buffer = extra[i + 1];
    } else if (extra[i] == reinterpret_cast<void*>(2)) {
      size = *static_cast<std::size_t*>(extra[i + 1]);
    }
  }
  const auto* bytes = static_cast<const std::uint8_t*>(buffer);
  return {bytes, bytes + size};
}

Launch launch_of(const Function& function, const std::uint32_t* grid, const std::uint32_t* block,
                 unsigned local, void** params, void** extra) {
  Launch launch;
  launch.kernel = function.kernel;
  std::copy_n(grid, 3, launch.blocks.begin());
  std::copy_n(block, 3, launch.threads.begin());
  launch.dynamic_local_bytes = local;
  if (extra != nullptr) {
    launch.kernarg = block_of(extra);
    launch.kernarg.resize(function.kernel->kernarg_bytes);
  } else {
    launch.kernarg = argument_block(*function.kernel, params, launch.blocks, launch.threads);
  }
  return launch;
}

}  // namespace

AMDGPU_EMULATOR_EXPORT int hipModuleLoadData(void** module, const void* image) {
  return guarded([&](Runtime& state) {
    const std::span<const std::uint8_t> file(static_cast<const std::uint8_t*>(image),
                                             size_of(image));
    auto made = std::make_unique<Module>();
    try {
      made->object =
          std::make_shared<CodeObject>(file, state.target, *state.memory, current_device());
    } catch (const Fault& fault) {
      std::fprintf(stderr, "amdgpu emulator: %s\n", fault.what());
      return kInvalidImage;
    }
    for (const auto& [name, kernel] : made->object->kernels()) {
      made->functions[name] = std::make_unique<Function>(Function{made->object, &kernel});
    }
    *module = made.release();
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipModuleUnload(void* module) {
  return guarded([&](Runtime&) {
    delete static_cast<Module*>(module);  // work that is queued keeps the code
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipModuleGetFunction(void** function, void* module, const char* name) {
  return guarded([&](Runtime&) {
    auto& functions = static_cast<Module*>(module)->functions;
    const auto found = functions.find(name);
    if (found == functions.end()) {
      return kNotFound;
    }
    *function = found->second.get();
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipFuncGetAttribute(int* value, int which, void* function) {
  return guarded([&](Runtime& state) {
    const Kernel& kernel = *static_cast<Function*>(function)->kernel;
    switch (which) {
      case 0:  // threads of a block
        *value = 1024;
        return kSuccess;
      case 1:
        *value = static_cast<int>(kernel.local_bytes);
        return kSuccess;
      case 3:
        *value = static_cast<int>(kernel.scratch_bytes);
        return kSuccess;
      case 4:
        *value = static_cast<int>(((kernel.rsrc1 & 63U) + 1) *
                                  (state.gfx9() || kernel.wave32() ? 8 : 4));
        return kSuccess;
      default:
        return kInvalidValue;
    }
  });
}

AMDGPU_EMULATOR_EXPORT int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy,
                                                 unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                                 unsigned local, void* stream, void** params,
                                                 void** extra) {
  return guarded([&](Runtime& state) {
    const Function& called = *static_cast<Function*>(function);
    Stream& queue = state.stream_of(stream);
    if (queue.device != called.kernel->device) {
      std::fprintf(stderr,
                   "amdgpu emulator: kernel %s of device %d is launched on a stream of device %d\n",
                   called.kernel->name.c_str(), called.kernel->device, queue.device);
      return static_cast<int>(kInvalidHandle);
    }
    const std::uint32_t grid[] = {gx, gy, gz};
    const std::uint32_t block[] = {bx, by, bz};
    Node node;
    node.module = called.module;
    node.launch = launch_of(called, grid, block, local, params, extra);
    return state.submit(queue, std::move(node));
  });
}

AMDGPU_EMULATOR_EXPORT int hipStreamEndCapture(void* stream, void** graph) {
  return guarded([&](Runtime& state) {
    Stream& queue = state.stream_of(stream);
    if (queue.capture == nullptr || !queue.origin) {
      return kCaptureUnsupported;
    }
    *graph = queue.capture->graph;
    queue.capture->graph = nullptr;
    queue.capture.reset();
    queue.dependencies.clear();
    queue.origin = false;
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipGraphInstantiateWithFlags(void** exec, void* graph,
                                                        unsigned long long) {
  return guarded([&](Runtime&) {
    auto made = std::make_unique<GraphExec>();
    for (const auto& node : static_cast<Graph*>(graph)->nodes) {
      made->order.push_back(node.get());
      made->nodes[node.get()] = *node;
    }
    *exec = made.release();
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipGraphUpload(void*, void*) { return kSuccess; }

// Each node becomes work of its own, that waits for its dependencies alone.
AMDGPU_EMULATOR_EXPORT int hipGraphLaunch(void* exec, void* stream) {
  return guarded([&](Runtime& state) {
    if (state.fault != kSuccess) {
      return state.fault;
    }
    auto& graph = *static_cast<GraphExec*>(exec);
    Stream& queue = state.stream_of(stream);
    std::map<Node*, std::shared_ptr<Signal>> signals;
    std::vector<std::shared_ptr<Signal>> all;
    for (Node* original : graph.order) {
      const Node& node = graph.nodes.at(original);
      Stream alone;
      alone.device = queue.device;
      std::vector<std::shared_ptr<Signal>> waits = {queue.last};
      for (Node* dependency : node.dependencies) {
        waits.push_back(signals.at(dependency));
      }
      alone.last = state.scheduler->add([] {}, waits);
      Node copy = node;
      state.submit(alone, std::move(copy));
      signals[original] = alone.last;
      all.push_back(alone.last);
    }
    all.push_back(queue.last);
    queue.last = state.scheduler->add([] {}, all);
    return static_cast<int>(kSuccess);
  });
}

AMDGPU_EMULATOR_EXPORT int hipGraphDestroy(void* graph) {
  return guarded([&](Runtime&) {
    delete static_cast<Graph*>(graph);
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipGraphExecDestroy(void* exec) {
  return guarded([&](Runtime&) {
    delete static_cast<GraphExec*>(exec);
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipGraphNodeGetDependencies(Node* node, Node** dependencies,
                                                       std::size_t* count) {
  return guarded([&](Runtime&) {
    if (dependencies != nullptr) {
      std::copy_n(node->dependencies.begin(), std::min(*count, node->dependencies.size()),
                  dependencies);
    }
    *count = node->dependencies.size();
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipGraphExecKernelNodeSetParams(void* exec, Node* node,
                                                           const KernelNodeParams* params) {
  return guarded([&](Runtime&) {
    auto& nodes = static_cast<GraphExec*>(exec)->nodes;
    const auto found = nodes.find(node);
    if (found == nodes.end() || found->second.module == nullptr) {
      return kInvalidValue;
    }
    const Function& function = *static_cast<Function*>(params->function);
    found->second.module = function.module;
    found->second.launch = launch_of(function, params->grid, params->block,
                                     params->dynamic_local_bytes, params->params, params->extra);
    return kSuccess;
  });
}
