// A plan takes long to make, so each has a slot with a lock of its own: threads
// make different plans side by side, and whoever needs one that is being made
// waits for it. A handle serves one thread at a time: plans are made with
// borrowed ones, and the GPU's own handle, on its compute stream, runs them.
#include "devices/cuda/cudnn_state.h"

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/observer.h"

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
  ~State() {
    plans.clear();
    for (DnnHandle other : idle) Cudnn::get().destroy(other);
    Cudnn::get().destroy(handle);
  }
};

State& state(const Gpu& gpu) {
  auto lock = gpu.in_order();
  gpu.make_current();
  if (!gpu.dnn_state) gpu.dnn_state = std::make_shared<State>(gpu.stream(Queue::Compute));
  return *std::static_pointer_cast<State>(gpu.dnn_state);
}

// Reports as an event what the library does before the first run.
template <class Work>
auto observed(const char* what, const std::string& key, const Work& work) {
  ObservedScope event([&] {
    return ObservedEvent{.kind = EventKind::Load, .name = fmt::format("cuDNN, {}", what)};
  });
  auto result = work();
  event.finish([&] { return fmt::format("cuDNN, {}: {}", what, key); });
  return result;
}

// An idle handle, or a new one, for as long as this lives.
class Borrowed {
 public:
  explicit Borrowed(State& state) : state_(state) {
    std::lock_guard lock(state.mutex);
    if (state.idle.empty()) {
      Cudnn::get().check(Cudnn::get().create(&handle_), "a handle");
    } else {
      handle_ = state.idle.back();
      state.idle.pop_back();
    }
  }
  Borrowed(const Borrowed&) = delete;
  ~Borrowed() {
    std::lock_guard lock(state_.mutex);
    state_.idle.push_back(handle_);
  }
  DnnHandle handle() const { return handle_; }

 private:
  State& state_;
  DnnHandle handle_ = nullptr;
};

}  // namespace

// A handle serves one thread at a time; what is queued uses it under the same lock.

DnnHandle dnn_handle(const Gpu& gpu) { return state(gpu).handle; }

bool dnn_supports(const Gpu& gpu, const std::string& key,
                  const std::function<bool(const DnnTarget&)>& has_engine) {
  auto lock = gpu.in_order();
  State& s = state(gpu);
  auto found = s.supported.find(key);
  if (found != s.supported.end()) return found->second;
  return s.supported[key] =
             observed("engines asked for", key, [&] { return has_engine({s.handle, {}}); });
}

std::shared_ptr<const DnnPlanned> dnn_plan(Gpu& gpu, const std::string& key,
                                           const DnnPlanner& make) {
  State& s = state(gpu);
  std::shared_ptr<Slot> slot = s.slot(key).first;
  std::lock_guard lock(slot->making);
  if (slot->plan) return slot->plan;
  return slot->plan = observed("a plan", key, [&] {
           Borrowed borrowed(s);
           return make({borrowed.handle(), {}});
         });
}

void dnn_prepare(Gpu& gpu, const std::string& key, const DnnPlanner& make) {
  if (state(gpu).slot(key).second) dnn_plan(gpu, key, make);
}

}  // namespace tinyshard::cuda
