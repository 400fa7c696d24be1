// Capture and replay beneath Jit (core/tensor/jit.h): states in, states out. A call traces the
// function, compiles what it asked for as one program and runs it, or replays such a program, which
// touches no UOp and allocates nothing. Each program is a TracedStep (traced_step.h), good for what its
// trace looked at: a call that finds it otherwise, such as the mode of training, makes another one.
//
// Threads: any. Each has programs of its own, with results of their own, so that a call writes over
// no result that another thread has not read yet. Traces of one step run one after the other.
#pragma once
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <typeinfo>
#include <vector>

#include "core/exec/plan_summary.h"
#include "core/exec/tensor_state.h"

namespace tinyshard {

class CapturedStep {
 public:
  using States = std::vector<StatePtr>;
  using Trace = std::function<States(const States& inputs)>;
  // The value that the function returned in a trace, with its type. The caller (Jit) builds it
  // around the results.
  struct Form {
    std::shared_ptr<const void> value;
    const std::type_info* type = nullptr;
  };
  // The facts that a caller tells of its call; what it gives to a trace and gets from each replay.
  struct Site {
    std::source_location caller;
    std::function<std::string(size_t)> name_of_input;  // "input 0.tokens[1]"
    Form form = {};
    std::span<const size_t> assigned = {};  // the inputs to which the step assigns, by their places
  };

  CapturedStep();
  ~CapturedStep();
  CapturedStep(CapturedStep&& other) noexcept;  // leaves a step that has not been called
  CapturedStep& operator=(CapturedStep&& other) noexcept;

  // Results are the same states at every call by a thread that replays, with new contents. What still
  // needs the old ones, or those of what the step assigns, is computed first: values made from them, and
  // inputs that lie there, which are copied. What is to be assigned to something that the step reads is
  // assigned before. UserError when shapes, types or placements of the inputs differ from those of the
  // first call.
  const States& call(const States& inputs, const Trace& trace, Site* site = nullptr);
  bool captured() const;
  void reset();
  // Not under JIT=0: who calls a step calls its function instead.
  static bool is_wanted();

  // Tells what one call does, of this thread's latest if it has called: as a value, and as text with
  // a line per item or without. UserError before the first call.
  PlanSummary summary() const;
  std::string explanation(bool items) const;

  // For the engine: see schedule_of.h.
  class Impl;
  const Impl* impl() const { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tinyshard
