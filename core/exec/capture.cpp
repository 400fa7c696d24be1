// A trace notes what each state held when it was first changed, so that undo() can give it back:
//
//   w.assign(w + 1)    note: w, with the value of before; only for the first change
//   an error           undo: w holds that value again
#include "core/exec/capture.h"

#include "core/base/thread_local.h"
#include "core/exec/context.h"
#include "core/exec/state.h"
#include "core/exec/storage.h"

namespace tinyshard {
namespace {

TS_HOT_THREAD_LOCAL Capture* active_capture = nullptr;

Storage* storage_of(const UOp& value) {
  return has_storage(value) ? Storage::of(*storage_node(value)) : nullptr;
}

}  // namespace

Capture* current_capture() { return active_capture; }
CaptureScope::CaptureScope(Capture* capture) : previous_(active_capture) {
  active_capture = capture;
}
CaptureScope::~CaptureScope() { active_capture = previous_; }

Capture::Capture() : begun_(Context::values().newest()) {}
Capture::~Capture() { Context::values().end_trace(*this, begun_); }

void Capture::note(TensorState& state) {
  const Storage* storage = storage_of(state.value);
  before_.try_emplace(&state, Before{state.shared_from_this(), state.value, state.name,
                                     storage ? storage->replaced_at : 0});
}

void Capture::note_gradient(TensorState& state) {
  gradients_.try_emplace(&state, GradientBefore{state.shared_from_this(), state.gradient_});
}

bool Capture::is_from_before(const TensorState& state) const {
  if (state.trace_ != this) return true;
  auto found = before_.find(&state);
  return found != before_.end() && found->second.value == state.value;
}

const UOp* Capture::value_before(const TensorState& state) const {
  auto found = is_from_before(state) ? before_.end() : before_.find(&state);
  return found == before_.end() ? nullptr : &found->second.value;
}

std::vector<LiveValue> Capture::values() const { return Context::values().made_by(*this, begun_); }

std::vector<Capture::GradientBefore> Capture::gradients() const {
  std::vector<GradientBefore> all;
  for (const auto& [raw, before] : gradients_) all.push_back(before);
  return all;
}

void Capture::undo() const {
  for (const auto& [raw, before] : before_) {
    Context::values().replace(*before.state, before.value, before.name);
    if (Storage* storage = storage_of(before.value)) storage->replaced_at = before.replaced_at;
  }
  for (const auto& [raw, before] : gradients_) before.state->set_gradient(before.gradient);
}

}  // namespace tinyshard
