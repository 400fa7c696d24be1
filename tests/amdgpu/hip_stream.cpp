// HIP calls about streams, events and captures.
#include <algorithm>
#include <chrono>

#include "tests/amdgpu/hip.h"

using namespace amdgpu_emulator;

AMDGPU_EMULATOR_EXPORT int hipStreamCreateWithPriority(void** stream, unsigned, int) {
  return guarded([&](Runtime&) {
    auto* made = new Stream;
    made->device = current_device();
    *stream = made;
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipStreamCreateWithFlags(void** stream, unsigned flags) {
  return hipStreamCreateWithPriority(stream, flags, 0);
}

// Work that is queued still runs.
AMDGPU_EMULATOR_EXPORT int hipStreamDestroy(void* stream) {
  return guarded([&](Runtime&) {
    delete static_cast<Stream*>(stream);
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipStreamSynchronize(void* stream) {
  return guarded([&](Runtime& state) {
    const auto last = state.stream_of(stream).last;
    return last == nullptr ? state.fault : state.progress(last.get(), ~0ULL);
  });
}

AMDGPU_EMULATOR_EXPORT int hipDeviceSynchronize() {
  return guarded([&](Runtime& state) { return state.progress(nullptr, ~0ULL); });
}

// A wait joins the stream to the capture that the event belongs to.
AMDGPU_EMULATOR_EXPORT int hipStreamWaitEvent(void* stream, void* event, unsigned) {
  return guarded([&](Runtime& state) {
    Stream& queue = state.stream_of(stream);
    const Event& awaited = *static_cast<Event*>(event);
    if (awaited.capture != nullptr && awaited.capture->graph != nullptr) {
      if (queue.capture == nullptr) {
        queue.capture = awaited.capture;
        queue.dependencies.clear();
      }
      for (Node* node : awaited.nodes) {
        if (std::find(queue.dependencies.begin(), queue.dependencies.end(), node) ==
            queue.dependencies.end()) {
          queue.dependencies.push_back(node);
        }
      }
      return static_cast<int>(kSuccess);
    }
    if (queue.capture != nullptr) {
      return static_cast<int>(kCaptureUnsupported);
    }
    if (state.fault == kSuccess && awaited.signal != nullptr && !awaited.signal->done) {
      queue.last = state.scheduler->add([] {}, {queue.last, awaited.signal});
    }
    return state.fault;
  });
}

AMDGPU_EMULATOR_EXPORT int hipEventCreateWithFlags(void** event, unsigned) {
  *event = new Event;
  return kSuccess;
}

AMDGPU_EMULATOR_EXPORT int hipEventDestroy(void* event) {
  return guarded([&](Runtime&) {
    delete static_cast<Event*>(event);
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipEventRecord(void* event, void* stream) {
  return guarded([&](Runtime& state) {
    Stream& queue = state.stream_of(stream);
    Event& recorded = *static_cast<Event*>(event);
    recorded.capture = queue.capture;
    if (queue.capture != nullptr) {
      recorded.nodes = queue.dependencies;
      return static_cast<int>(kSuccess);
    }
    if (state.fault == kSuccess) {
      queue.last = recorded.signal = state.scheduler->add([] {}, {queue.last});
    }
    return state.fault;
  });
}

// Asking makes work go on: nothing else does, unless somebody waits.
AMDGPU_EMULATOR_EXPORT int hipEventQuery(void* event) {
  return guarded([&](Runtime& state) {
    const auto signal = static_cast<Event*>(event)->signal;
    const int fault = signal == nullptr ? state.fault : state.progress(signal.get(), 64);
    if (fault != kSuccess) {
      return fault;
    }
    return static_cast<int>(signal == nullptr || signal->done ? kSuccess : kNotReady);
  });
}

AMDGPU_EMULATOR_EXPORT int hipEventSynchronize(void* event) {
  return guarded([&](Runtime& state) {
    const auto signal = static_cast<Event*>(event)->signal;
    return signal == nullptr ? state.fault : state.progress(signal.get(), ~0ULL);
  });
}

AMDGPU_EMULATOR_EXPORT int hipEventElapsedTime(float* milliseconds, void* from, void* to) {
  return guarded([&](Runtime&) {
    const auto begin = static_cast<Event*>(from)->signal;
    const auto end = static_cast<Event*>(to)->signal;
    if (begin == nullptr || end == nullptr) {
      return kInvalidHandle;
    }
    if (!begin->done || !end->done) {
      return kNotReady;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(end->when - begin->when).count();
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipStreamBeginCapture(void* stream, int) {
  return guarded([&](Runtime& state) {
    Stream& queue = state.stream_of(stream);
    if (stream == nullptr || queue.capture != nullptr) {
      return kCaptureUnsupported;
    }
    queue.capture = std::make_shared<Capture>();
    queue.capture->graph = new Graph;
    queue.capture->id = ++state.captures;
    queue.dependencies.clear();
    queue.origin = true;
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipStreamGetCaptureInfo_v2(void* stream, int* status,
                                                      unsigned long long* id, void** graph,
                                                      Node* const** nodes, std::size_t* count) {
  return guarded([&](Runtime& state) {
    Stream& queue = state.stream_of(stream);
    const bool active = queue.capture != nullptr;
    *status = active ? 1 : 0;
    const auto put = [&](auto* to, auto value) {
      if (to != nullptr && active) {
        *to = value;
      }
    };
    put(id, active ? queue.capture->id : 0);
    put(graph, active ? static_cast<void*>(queue.capture->graph) : nullptr);
    put(nodes, static_cast<Node* const*>(queue.dependencies.data()));
    put(count, queue.dependencies.size());
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipStreamUpdateCaptureDependencies(void* stream, Node** nodes,
                                                              std::size_t count, unsigned flags) {
  return guarded([&](Runtime& state) {
    Stream& queue = state.stream_of(stream);
    if (queue.capture == nullptr) {
      return kCaptureUnsupported;
    }
    const std::vector<Node*> given(nodes, nodes + count);  // may be the stream's own list
    if (flags == 1) {
      queue.dependencies.clear();
    }
    queue.dependencies.insert(queue.dependencies.end(), given.begin(), given.end());
    return kSuccess;
  });
}
