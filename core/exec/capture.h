// The state of a trace: while a Jit records its function, nothing runs and nothing may be read.
#pragma once
#include <unordered_map>
#include <utility>

#include "core/exec/state.h"

namespace tinyshard {

// At most one per thread; set by Jit for the time of the trace.
class Capture {
 public:
  Capture() {
    for_each_live_state(
        [this](const StatePtr& s) { before_.emplace(s.get(), std::pair(s, s->value)); });
  }
  // A value that the trace did not make: realized when the trace touches it. The nodes' age does
  // not tell, as a second trace may build nodes that an earlier one left behind.
  bool is_from_before(const TensorState& state) const {
    auto found = before_.find(&state);
    return found != before_.end() && found->second.second == state.value;
  }
  // Puts every value back, after a trace that failed half-way.
  void undo() const {
    for (const auto& [raw, entry] : before_) entry.first->set(entry.second);
  }

 private:
  // Holds the states, so that no new one takes the address of one that was dropped.
  std::unordered_map<const TensorState*, std::pair<StatePtr, UOp>> before_;
};
Capture* current_capture();

// RAII: installs a capture for this thread, or suspends the current one.
class CaptureScope {
 public:
  explicit CaptureScope(Capture* capture);
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;

 private:
  Capture* previous_;
};

}  // namespace tinyshard
