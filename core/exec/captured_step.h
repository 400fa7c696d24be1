// Capture and replay beneath Jit (core/tensor/jit.h): states in, states out. The first call traces
// the function, compiles what it asked for as one program and runs it; later calls put the new
// inputs in place and run it again, which touches no UOp and allocates nothing.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/exec/plan_summary.h"
#include "core/exec/tensor_state.h"

namespace tinyshard {

class CapturedStep {
 public:
  using States = std::vector<StatePtr>;
  using Trace = std::function<States(const States& inputs)>;

  CapturedStep();
  ~CapturedStep();
  CapturedStep(CapturedStep&& other) noexcept;  // leaves a step that has not been called
  CapturedStep& operator=(CapturedStep&& other) noexcept;

  // Results are the same states at every call, with new contents. What still needs the old ones, or
  // those of what the step assigns, is computed first: values made from them, and inputs that lie
  // there, which are copied. What is to be assigned to something that the step reads is assigned
  // before. UserError when shapes, types or placements of the inputs differ from those of the first
  // call.
  const States& call(const States& inputs, const Trace& trace);
  bool captured() const;
  void reset();
  // The inputs to which the step assigns, by their places.
  std::span<const size_t> assigned_inputs() const;

  // What one call does: as a value, and as text with a line per item or without. UserError before
  // the first call.
  PlanSummary summary() const;
  std::string explanation(bool items) const;

  // For the engine: see schedule_of.h.
  class Impl;
  const Impl* impl() const { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;  // from the first call on
};

}  // namespace tinyshard
