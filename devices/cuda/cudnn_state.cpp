#include "devices/cuda/cudnn_state.h"

#include <chrono>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/options.h"

namespace tinyshard::cuda {
namespace {

struct State {
  DnnHandle handle = nullptr;
  struct Entry {
    std::shared_ptr<const DnnPlanned> plan;
    std::string why_not;
  };
  std::unordered_map<std::string, Entry> plans;

  explicit State(Stream stream) {
    const Cudnn& dnn = Cudnn::get();
    dnn.check(dnn.create(&handle), "a handle");
    dnn.check(dnn.set_stream(handle, stream), "the stream of a handle");
  }
  State(const State&) = delete;
  ~State() {
    plans.clear();
    Cudnn::get().destroy(handle);
  }
};

State& state(const Gpu& gpu) {
  if (!gpu.dnn_state) gpu.dnn_state = std::make_shared<State>(gpu.stream(Queue::Compute));
  return *std::static_pointer_cast<State>(gpu.dnn_state);
}

}  // namespace

DnnHandle dnn_handle(const Gpu& gpu) { return state(gpu).handle; }

std::shared_ptr<const DnnPlanned> dnn_plan(
    const Gpu& gpu, const std::string& key,
    const std::function<std::unique_ptr<DnnPlanned>(const DnnTarget&)>& make) {
  // A handle serves one thread at a time, and what is queued uses it under this lock.
  auto lock = gpu.in_order();
  gpu.make_current();
  State& s = state(gpu);
  auto [found, added] = s.plans.try_emplace(key);
  State::Entry& entry = found->second;
  if (added) {
    auto start = std::chrono::steady_clock::now();
    try {
      entry.plan = make({s.handle, {}});
    } catch (const DeviceError& error) {
      entry.why_not = error.what();
    }
    if (options().debug >= 1) {
      std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
      log_line(fmt::format(
          "cuDNN plan in {:.1f} ms, {}: {}", ms.count(),
          entry.plan ? fmt::format("{} bytes", entry.plan->workspace_bytes()) : entry.why_not,
          key));
    }
  }
  if (!entry.plan) throw DeviceError(fmt::format("{}: {}", gpu.name(), entry.why_not));
  return entry.plan;
}

}  // namespace tinyshard::cuda
