#include "core/exec/capture.h"

#include "core/exec/context.h"

namespace tinyshard {
namespace {

thread_local Capture* active_capture = nullptr;

}  // namespace

Capture* current_capture() { return active_capture; }
CaptureScope::CaptureScope(Capture* capture) : previous_(active_capture) {
  active_capture = capture;
}
CaptureScope::~CaptureScope() { active_capture = previous_; }

Capture::Capture() : begun_(Context::values().newest()) {}
Capture::~Capture() { Context::values().end_trace(*this, begun_); }

void Capture::note(TensorState& state) {
  before_.try_emplace(&state, LiveValue{state.shared_from_this(), state.value});
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

void Capture::undo() const {
  for (const auto& [raw, before] : before_) before.state->set(before.value);
}

}  // namespace tinyshard
