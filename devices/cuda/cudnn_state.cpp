#include "devices/cuda/cudnn_state.h"

#include <unordered_map>

#include <fmt/format.h>

#include "core/base/log.h"
#include "core/base/options.h"
#include "core/base/stopwatch.h"

namespace tinyshard::cuda {
namespace {

struct State {
  DnnHandle handle = nullptr;
  std::unordered_map<std::string, bool> supported;
  std::unordered_map<std::string, std::shared_ptr<const DnnPlanned>> plans;

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

// How long what libraries do before the first run takes, for DEBUG.
class Watch {
 public:
  Watch(const char* what, const std::string& key) : what_(what), key_(key) {}
  ~Watch() {
    if (options().debug < 1) return;
    log_line(fmt::format("cuDNN, {} in {:.1f} ms: {}", what_, watch_.ms(), key_));
  }

 private:
  const char* what_;
  const std::string& key_;
  Stopwatch watch_;
};

}  // namespace

// A handle serves one thread at a time; what is queued uses it under the same lock.

DnnHandle dnn_handle(const Gpu& gpu) {
  auto lock = gpu.in_order();
  gpu.make_current();
  return state(gpu).handle;
}

bool dnn_supports(const Gpu& gpu, const std::string& key,
                  const std::function<bool(const DnnTarget&)>& has_engine) {
  auto lock = gpu.in_order();
  gpu.make_current();
  State& s = state(gpu);
  auto found = s.supported.find(key);
  if (found != s.supported.end()) return found->second;
  Watch watch("engines asked for", key);
  return s.supported[key] = has_engine({s.handle, {}});
}

std::shared_ptr<const DnnPlanned> dnn_plan(
    Gpu& gpu, const std::string& key,
    const std::function<std::unique_ptr<DnnPlanned>(const DnnTarget&)>& make) {
  auto lock = gpu.in_order();
  gpu.make_current();
  State& s = state(gpu);
  std::shared_ptr<const DnnPlanned>& plan = s.plans[key];
  if (plan) return plan;
  Watch watch("a plan", key);
  return plan = make({s.handle, {}});
}

}  // namespace tinyshard::cuda
