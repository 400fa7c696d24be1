// A trace notes what each state held when it was first changed, so that undo() can give it back:
//
//   w.assign(w + 1)    note: w, with the value of before; only for the first change
//   an error           undo: w holds that value again
#include "core/exec/capture.h"

#include <algorithm>
#include <span>

#include "core/base/thread_local.h"
#include "core/exec/context.h"
#include "core/exec/state.h"
#include "core/exec/storage.h"
#include "core/uop/graph.h"
#include "core/uop/node_set.h"

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

Capture::Gradient& Capture::gradient_of(TensorState& parameter) {
  const auto [place, added] = places_.try_emplace(&parameter, gradients_.size());
  if (added) gradients_.push_back({parameter.shared_from_this(), parameter.gradient_});
  return gradients_[place->second];
}

// The stand-in is no value of the trace: it was there before, as an argument was.
StatePtr Capture::ask_for_gradient(TensorState& parameter) {
  Gradient& g = gradient_of(parameter);
  if (g.given) return parameter.gradient_;
  g.asked = true;
  if (!g.before || g.stand_in) return g.stand_in;
  const CaptureScope outside(nullptr);
  if (!g.before->traced) realize(std::span(&g.before, 1));
  const UOp& value = g.before->value;
  g.placeholder =
      std::make_shared<Storage>(Dims(value.shape().begin(), value.shape().end()), value.dtype(),
                                sharding_of(g.before->traced ? parameter.value : value));
  g.placeholder->set_placeholder();
  return g.stand_in = make_state(buffer_node(g.placeholder));
}

void Capture::give_gradient(TensorState& parameter) {
  Gradient& g = gradient_of(parameter);
  g.given = true;
  g.used_up = false;
}

void Capture::use_up_gradient(TensorState& parameter) { gradient_of(parameter).used_up = true; }

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
  for (const auto& [raw, before] : before_) {
    Context::values().replace(*before.state, before.value, before.name);
    if (Storage* storage = storage_of(before.value)) storage->replaced_at = before.replaced_at;
  }
  for (const Gradient& g : gradients_) g.parameter->set_gradient(g.before);
  for (const StatePtr& s : exist_in_step_alone(values())) s->traced = true;
}

// A value that waits to be written to a fresh storage is a value like any other. One walk serves all values: each
// may hang on all that the step computes.
std::vector<StatePtr> exist_in_step_alone(const std::vector<LiveValue>& values,
                                          const std::function<bool(const Storage&)>& changes) {
  const auto belongs = [&](const UOp& x) {
    if (!has_storage(x)) return false;
    const Storage& storage = *Storage::of(*storage_node(x));
    return storage.is_placeholder() || (x.op() == Op::Assign && storage.allocated()) ||
           (changes && changes(storage));
  };
  std::vector<UOp> roots;
  for (const LiveValue& v : values) roots.push_back(v.value);
  NodeSet found;
  for (const UOp& x : toposort(roots)) {
    if (belongs(x) ||
        std::ranges::any_of(x->src(), [&](const UOp& s) { return found.contains(s); }))
      found.add(x);
  }
  std::vector<StatePtr> states;
  for (const LiveValue& v : values) {
    if (found.contains(v.value)) states.push_back(v.state);
  }
  return states;
}

}  // namespace tinyshard
