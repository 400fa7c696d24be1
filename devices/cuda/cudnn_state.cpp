#include "devices/cuda/cudnn_state.h"

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/log.h"
#include "core/base/options.h"
#include "core/base/stopwatch.h"

namespace tinyshard::cuda {
namespace {

struct Slot {
  std::mutex making;
  std::shared_ptr<const DnnPlanned> plan;
};

struct State {
  DnnHandle handle = nullptr;
  std::unordered_map<std::string, bool> supported;
  std::mutex mutex;  // of what follows
  std::unordered_map<std::string, std::shared_ptr<Slot>> plans;
  std::vector<DnnHandle> idle;  // to make plans with

  explicit State(Stream stream) {
    const Cudnn& dnn = Cudnn::get();
    dnn.check(dnn.create(&handle), "a handle");
    dnn.check(dnn.set_stream(handle, stream), "the stream of a handle");
  }
  State(const State&) = delete;

  // And whether it is new.
  std::pair<std::shared_ptr<Slot>, bool> slot(const std::string& key) {
    std::lock_guard lock(mutex);
    auto [found, added] = plans.try_emplace(key);
    if (added) found->second = std::make_shared<Slot>();
    return {found->second, added};
  }
  DnnHandle take() {
    std::lock_guard lock(mutex);
    if (idle.empty()) {
      DnnHandle made = nullptr;
      Cudnn::get().check(Cudnn::get().create(&made), "a handle");
      return made;
    }
    DnnHandle taken = idle.back();
    idle.pop_back();
    return taken;
  }
  void give_back(DnnHandle taken) {
    std::lock_guard lock(mutex);
    idle.push_back(taken);
  }

  ~State() {
    plans.clear();
    for (DnnHandle other : idle) Cudnn::get().destroy(other);
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

State& opened(const Gpu& gpu) {
  auto lock = gpu.in_order();
  gpu.make_current();
  return state(gpu);
}

// With a handle of its own meanwhile.
std::unique_ptr<DnnPlanned> planned(State& s, const std::string& key, const DnnPlanner& make) {
  Watch watch("a plan", key);
  const DnnHandle handle = s.take();
  try {
    auto plan = make({handle, {}});
    s.give_back(handle);
    return plan;
  } catch (...) {
    s.give_back(handle);
    throw;
  }
}

}  // namespace

// A handle serves one thread at a time; what is queued uses it under the same lock.

DnnHandle dnn_handle(const Gpu& gpu) { return opened(gpu).handle; }

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

std::shared_ptr<const DnnPlanned> dnn_plan(Gpu& gpu, const std::string& key,
                                           const DnnPlanner& make) {
  State& s = opened(gpu);
  std::shared_ptr<Slot> slot = s.slot(key).first;
  std::lock_guard lock(slot->making);
  if (!slot->plan) slot->plan = planned(s, key, make);
  return slot->plan;
}

void dnn_prepare(Gpu& gpu, const std::string& key, const DnnPlanner& make) {
  if (opened(gpu).slot(key).second) dnn_plan(gpu, key, make);
}

}  // namespace tinyshard::cuda
