// Chooses the traced step of a call. A lane holds those of one thread. When a thread has ended, another
// one takes its lane over, once nobody holds a result of it; so a program that starts a thread for
// each request captures once.
#include "core/exec/captured_step.h"

#include <algorithm>
#include <mutex>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/base/jit_mode.h"
#include "core/exec/context.h"
#include "core/exec/explain.h"
#include "core/exec/schedule_of.h"
#include "core/exec/state.h"
#include "core/exec/traced_step.h"

namespace tinyshard {
namespace {

// Traced steps of a lane, and lanes of threads that have ended, of which the oldest go.
constexpr size_t kMostTraced = 8, kMostEnded = 8;

// Expires when the calling thread ends.
std::weak_ptr<const void> this_thread() {
  thread_local const std::shared_ptr<const void> token = std::make_shared<char>();
  return token;
}

bool same(const std::weak_ptr<const void>& a, const std::weak_ptr<const void>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

std::string numbered(size_t i) { return "input " + std::to_string(i); }

void check_defined(const CapturedStep::States& inputs, const TracedStep::Names& name) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]) fail(name(i) + " is a tensor that was never given a value");
  }
}

}  // namespace

class CapturedStep::Impl {
 public:
  const States& call(const States& inputs, const Trace& trace, Site* site);
  // The latest of this thread, or else of another.
  const TracedStep* latest() const;

 private:
  struct Lane {
    std::weak_ptr<const void> thread;
    std::vector<std::shared_ptr<TracedStep>> traced;  // the one used last at the end
  };
  Lane& lane_here();
  TracedStep* fitting(Lane& lane);
  TracedStep& capture(Lane& lane, const States& inputs, const Trace& trace, const Site* site,
                      const TracedStep::Names& name);

  mutable std::mutex mutex_;  // of the lists of lanes and, where others look, of traced
  std::mutex tracing_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::shared_ptr<const TracedStep> known_;  // whose inputs all others have
};

static void tell(CapturedStep::Site* site, const TracedStep& step) {
  if (!site) return;
  site->form = step.form;
  site->assigned = step.assigned_inputs();
}

const CapturedStep::States& CapturedStep::Impl::call(const States& inputs, const Trace& trace,
                                                     Site* site) {
  const std::source_location caller = site ? site->caller : std::source_location();
  if (current_capture()) {
    const Call call("captured step", caller);
    fail("it cannot be called while another one is recorded");
  }
  const TracedStep::Names names =
      site && site->name_of_input ? std::ref(site->name_of_input) : TracedStep::Names(numbered);
  Lane& lane = lane_here();
  TracedStep* step = nullptr;
  std::shared_ptr<const TracedStep> known;
  {
    std::lock_guard lock(mutex_);
    known = known_;
  }
  {
    const Call call("captured step", caller);
    check_defined(inputs, names);
    if (known) known->executable().check_usable();
    realize(inputs);
    if (!lane.traced.empty())
      lane.traced.back()->check_inputs(inputs, names, true);
    else if (known)
      known->check_inputs(inputs, names, false);
    step = fitting(lane);
  }
  if (!step) {
    TracedStep& made = capture(lane, inputs, trace, site, names);
    tell(site, made);
    return made.outputs();
  }
  const Context::Turn turn;
  tell(site, *step);
  step->caller = caller;
  return step->replay(inputs, names);
}

CapturedStep::Impl::Lane& CapturedStep::Impl::lane_here() {
  const std::weak_ptr<const void> here = this_thread();
  std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (same(lane->thread, here)) return *lane;
  }
  size_t ended = 0;
  for (const auto& lane : lanes_) {
    if (!lane->thread.expired()) continue;
    ++ended;
    if (std::ranges::any_of(lane->traced, &TracedStep::results_are_held)) continue;
    lane->thread = here;
    return *lane;
  }
  while (ended-- >= kMostEnded)
    lanes_.erase(std::ranges::find_if(lanes_, [](const auto& l) { return l->thread.expired(); }));
  return *lanes_.emplace_back(new Lane{here, {}});
}

TracedStep* CapturedStep::Impl::fitting(Lane& lane) {
  for (size_t i = lane.traced.size(); i-- > 0;) {
    if (!lane.traced[i]->fits()) continue;
    if (i + 1 < lane.traced.size()) {
      std::lock_guard lock(mutex_);
      std::rotate(lane.traced.begin() + long(i), lane.traced.begin() + long(i) + 1,
                  lane.traced.end());
    }
    return lane.traced.back().get();
  }
  return nullptr;
}

TracedStep& CapturedStep::Impl::capture(Lane& lane, const States& inputs, const Trace& trace,
                                        const Site* site, const TracedStep::Names& name) {
  auto step = std::make_shared<TracedStep>();
  if (site) step->caller = site->caller;
  auto one_at_a_time = [&](const States& arguments) {
    std::lock_guard lock(tracing_);
    States results = trace(arguments);
    if (site) step->form = site->form;
    return results;
  };
  step->capture(inputs, one_at_a_time, name);
  std::lock_guard lock(mutex_);
  if (!known_) known_ = step;
  if (lane.traced.size() == kMostTraced) lane.traced.erase(lane.traced.begin());
  return *lane.traced.emplace_back(std::move(step));
}

const TracedStep* CapturedStep::Impl::latest() const {
  const std::weak_ptr<const void> here = this_thread();
  std::lock_guard lock(mutex_);
  const TracedStep* found = nullptr;
  for (const auto& lane : lanes_) {
    if (lane->traced.empty() || (found && !same(lane->thread, here))) continue;
    found = lane->traced.back().get();
  }
  return found;
}

CapturedStep::CapturedStep() : impl_(std::make_unique<Impl>()) {}
CapturedStep::~CapturedStep() = default;
CapturedStep::CapturedStep(CapturedStep&& other) noexcept = default;
CapturedStep& CapturedStep::operator=(CapturedStep&& other) noexcept {
  impl_.swap(other.impl_);
  return *this;
}

const CapturedStep::States& CapturedStep::call(const States& inputs, const Trace& trace,
                                               Site* site) {
  if (!impl_) impl_ = std::make_unique<Impl>();
  return impl_->call(inputs, trace, site);
}
bool CapturedStep::captured() const { return impl_ && impl_->latest(); }
void CapturedStep::reset() { impl_ = std::make_unique<Impl>(); }
bool CapturedStep::is_wanted() { return jit_mode() != JitMode::Off; }
PlanSummary CapturedStep::summary() const { return summarize(schedule_of(*this)); }
std::string CapturedStep::explanation(bool items) const {
  return explain(schedule_of(*this), items);
}

const Schedule& schedule_of(const CapturedStep& step) {
  const TracedStep* latest = step.impl() ? step.impl()->latest() : nullptr;
  if (!latest) throw UserError("a step has no schedule before its first call");
  return latest->executable().schedule();
}

}  // namespace tinyshard
