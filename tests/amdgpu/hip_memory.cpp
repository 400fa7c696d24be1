// HIP calls about memory: allocations, copies and fills.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/amdgpu/hip.h"

using namespace amdgpu_emulator;

namespace {

// Where a pointer's bytes lie: in a device's memory, in registered memory of the host, or in other memory of the host.
struct Place {
  std::uint8_t* bytes = nullptr;
  bool pageable = false;
};

Place place_of(const Runtime& state, const void* pointer, std::size_t size, bool host) {
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  if (std::uint8_t* found = state.memory->find(address, size)) {
    return {found, false};
  }
  return host ? Place{static_cast<std::uint8_t*>(const_cast<void*>(pointer)), true} : Place{};
}

int copy(void* to, bool to_host, const void* from, bool from_host, std::size_t size, void* stream) {
  return guarded([&](Runtime& state) {
    if (size == 0) {
      return static_cast<int>(kSuccess);
    }
    const Place target = place_of(state, to, size, to_host);
    const Place source = place_of(state, from, size, from_host);
    Stream& queue = state.stream_of(stream);
    if (target.bytes == nullptr || source.bytes == nullptr) {
      std::fprintf(
          stderr,
          "amdgpu emulator: a copy of %zu bytes from %p to %p lies outside of all allocations\n",
          size, from, to);
      return static_cast<int>(kInvalidValue);
    }
    if (queue.capture != nullptr && (target.pageable || source.pageable)) {
      return static_cast<int>(kCaptureUnsupported);
    }
    Node node;
    if (source.pageable) {  // staged before the call returns
      node.work = [target, staged = std::vector<std::uint8_t>(source.bytes, source.bytes + size)] {
        std::memcpy(target.bytes, staged.data(), staged.size());
      };
    } else {
      node.work = [&state, to, from, size, target, source] {
        // An allocation may have gone since; pageable memory is the host's business.
        const Place now_to = place_of(state, to, size, target.pageable);
        const Place now_from = place_of(state, from, size, source.pageable);
        if (now_to.bytes == nullptr || now_from.bytes == nullptr) {
          throw Fault("a wild address: a copy reaches memory that was freed before it ran");
        }
        std::memmove(now_to.bytes, now_from.bytes, size);
      };
    }
    const int status = state.submit(queue, std::move(node));
    if (status == kSuccess && target.pageable) {
      return state.progress(queue.last.get(), ~0ULL);
    }
    return status;
  });
}

int fill(void* to, unsigned char value, std::size_t size, void* stream) {
  return guarded([&](Runtime& state) {
    if (size == 0) {
      return static_cast<int>(kSuccess);
    }
    const auto address = reinterpret_cast<std::uint64_t>(to);
    if (state.memory->find(address, size) == nullptr) {
      return static_cast<int>(kInvalidValue);
    }
    Node node;
    node.work = [&state, address, value, size] {
      std::uint8_t* bytes = state.memory->find(address, size);
      if (bytes == nullptr) {
        throw Fault("a wild address: a fill reaches memory that was freed before it ran");
      }
      std::memset(bytes, value, size);
    };
    return state.submit(state.stream_of(stream), std::move(node));
  });
}

}  // namespace

AMDGPU_EMULATOR_EXPORT int hipMalloc(void** pointer, std::size_t size) {
  return guarded([&](Runtime& state) {
    const std::uint64_t address = state.memory->allocate(current_device(), size);
    *pointer = reinterpret_cast<void*>(address);
    return address == 0 ? kOutOfMemory : kSuccess;
  });
}

// Waits for all work first, as the real one does.
AMDGPU_EMULATOR_EXPORT int hipFree(void* pointer) {
  return guarded([&](Runtime& state) {
    if (pointer == nullptr) {
      return static_cast<int>(kSuccess);
    }
    const int fault = state.progress(nullptr, ~0ULL);
    const bool known = state.memory->release(reinterpret_cast<std::uint64_t>(pointer));
    return known ? fault : static_cast<int>(kInvalidValue);
  });
}

AMDGPU_EMULATOR_EXPORT int hipMallocAsync(void** pointer, std::size_t size, void*) {
  return hipMalloc(pointer, size);
}

AMDGPU_EMULATOR_EXPORT int hipFreeAsync(void* pointer, void* stream) {
  return guarded([&](Runtime& state) {
    Node node;
    node.work = [&state, pointer] {
      state.memory->release(reinterpret_cast<std::uint64_t>(pointer));
    };
    return state.submit(state.stream_of(stream), std::move(node));
  });
}

AMDGPU_EMULATOR_EXPORT int hipMemGetInfo(std::size_t* left, std::size_t* total) {
  return guarded([&](Runtime& state) {
    *left = state.memory->left(current_device());
    *total = state.memory->total();
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipHostMalloc(void** pointer, std::size_t size, unsigned) {
  return guarded([&](Runtime& state) {
    *pointer = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (*pointer == nullptr) {
      return kOutOfMemory;
    }
    state.memory->add_host(*pointer, size);
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipHostFree(void* pointer) {
  return guarded([&](Runtime& state) {
    const int fault = state.progress(nullptr, ~0ULL);
    if (!state.memory->remove_host(pointer)) {
      return static_cast<int>(kInvalidValue);
    }
    std::free(pointer);
    return fault;
  });
}

AMDGPU_EMULATOR_EXPORT int hipHostRegister(void* pointer, std::size_t size, unsigned) {
  return guarded([&](Runtime& state) {
    return state.memory->add_host(pointer, size) ? kSuccess : kHostAlreadyRegistered;
  });
}

AMDGPU_EMULATOR_EXPORT int hipHostUnregister(void* pointer) {
  return guarded([&](Runtime& state) {
    const int fault = state.progress(nullptr, ~0ULL);
    return state.memory->remove_host(pointer) ? fault : static_cast<int>(kHostNotRegistered);
  });
}

AMDGPU_EMULATOR_EXPORT int hipMemcpyHtoDAsync(void* to, void* from, std::size_t size,
                                              void* stream) {
  return copy(to, false, from, true, size, stream);
}
AMDGPU_EMULATOR_EXPORT int hipMemcpyDtoHAsync(void* to, void* from, std::size_t size,
                                              void* stream) {
  return copy(to, true, from, false, size, stream);
}
AMDGPU_EMULATOR_EXPORT int hipMemcpyDtoDAsync(void* to, void* from, std::size_t size,
                                              void* stream) {
  return copy(to, false, from, false, size, stream);
}
AMDGPU_EMULATOR_EXPORT int hipMemcpyPeerAsync(void* to, int, const void* from, int,
                                              std::size_t size, void* stream) {
  return copy(to, false, from, false, size, stream);
}
AMDGPU_EMULATOR_EXPORT int hipMemsetD8Async(void* to, unsigned char value, std::size_t size,
                                            void* stream) {
  return fill(to, value, size, stream);
}
