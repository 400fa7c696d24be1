// The state of a trace: while a Jit records its function, nothing runs and nothing may be read.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/exec/live_values.h"
#include "core/exec/scopes.h"
#include "core/exec/storage.h"

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

  // A parameter whose gradient the trace asked for or gave another one.
  struct Gradient {
    StatePtr parameter;
    StatePtr before;       // null where it had none
    bool asked = false;    // for the one from before
    bool given = false;    // another one, or none
    bool used_up = false;  // by a step of an optimizer
    // Stands, in the trace, for the gradient that the parameter has at a call, whichever it is. Null
    // where the trace asked for none, or there was none.
    StatePtr stand_in = {};
    std::shared_ptr<Storage> placeholder = {};
  };
  // In the order in which the trace met them.
  const std::vector<Gradient>& gradients() const { return gradients_; }
  // A step of an optimizer within the trace has taken the gradient of this parameter.
  void use_up_gradient(TensorState& parameter);

  scopes::Seen& scopes() { return scopes_; }
  const scopes::Seen& scopes() const { return scopes_; }
  // Set once the trace has looked for parameters.
  bool asked_for_parameters = false;

  // After a trace, or what follows it, has failed: puts the values and gradients back that it
  // replaced. What it has made of its inputs, or was to write somewhere, has no value from then on.
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
  void note(TensorState& state);  // before the trace gives it its first value
  Gradient& gradient_of(TensorState& parameter);
  StatePtr ask_for_gradient(TensorState& parameter);
  void give_gradient(TensorState& parameter);

  uint64_t begun_;
  scopes::Seen scopes_;
  std::unordered_map<const TensorState*, Before> before_;
  std::unordered_map<const TensorState*, size_t> places_;  // in gradients_
  std::vector<Gradient> gradients_;
};
Capture* current_capture();

// Returns the states whose values hang on what exists within a captured step alone: on the step's inputs, on
// storages that it is to write, or on those for which `changes` holds.
std::vector<StatePtr> exist_in_step_alone(const std::vector<LiveValue>& values,
                                          const std::function<bool(const Storage&)>& changes = {});

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
