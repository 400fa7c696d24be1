// The state of a trace: while a Jit records its function, nothing runs and nothing may be read.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/exec/live_values.h"

namespace tinyshard {

// At most one per thread; set by Jit for the time of the trace. It knows the values that its thread
// gives to states meanwhile. Those of other threads are none of its own, nor are those that its
// thread gives while it is suspended.
class Capture {
 public:
  Capture();
  ~Capture();  // from here on its values are ordinary ones
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // A value that the trace did not make: realized when the trace touches it. The nodes' age does
  // not tell, as a second trace may build nodes that an earlier one left behind.
  bool is_from_before(const TensorState& state) const;
  // The value that the state held before the trace gave it another one; null where the trace gave none.
  const UOp* value_before(const TensorState& state) const;
  // The states that it gave values, with these, in the order in which they were created.
  std::vector<LiveValue> values() const;
  // The states whose gradients it asked for or gave, with those that they had before.
  struct GradientBefore {
    StatePtr state, gradient;
  };
  std::vector<GradientBefore> gradients() const;
  // Puts the values and gradients back that it replaced, after a trace that failed half-way.
  void undo() const;

 private:
  // The value, name and mark that a state had. The maps hold the states, so that no new state takes
  // the address of one that was dropped.
  struct Before {
    StatePtr state;
    UOp value;
    int64_t name;
    uint64_t replaced_at;  // of the storage that the value lay in
  };
  friend class LiveValues;
  friend class TensorState;
  void note(TensorState& state);           // before the trace gives it its first value
  void note_gradient(TensorState& state);  // before it first asks for its gradient or gives it one

  uint64_t begun_;
  std::unordered_map<const TensorState*, Before> before_;
  std::unordered_map<const TensorState*, GradientBefore> gradients_;
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
