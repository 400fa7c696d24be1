// Capture and replay beneath Jit (core/tensor/jit.h): states in, states out. The first call traces
// the function, compiles what it asked for as one program and runs it; later calls put the new
// inputs in place and run it again, which touches no UOp and allocates nothing.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/exec/executable.h"
#include "core/exec/state.h"

namespace tinyshard {

class CapturedStep {
 public:
  using States = std::vector<StatePtr>;
  using Trace = std::function<States(const States& inputs)>;

  // Results are the same states at every call, with new contents. What still needs the old ones, or
  // those of what the step assigns, is computed first: values made from them, and inputs that lie
  // there, which are copied. What is to be assigned to something that the step reads is assigned
  // before. UserError when shapes, types or placements of the inputs differ from those of the first
  // call.
  const States& call(const States& inputs, const Trace& trace);
  bool captured() const { return executable_ != nullptr; }
  void reset();

  // What one call does. UserError before the first call.
  const Schedule& schedule() const;

 private:
  void capture(const States& inputs, const Trace& trace);
  void check_inputs(const States& inputs) const;
  // Everything that has to happen before this call's run can write where it writes.
  void settle_states(const States& inputs);
  // A copy of what input i holds, in memory that is the same at every call.
  const std::shared_ptr<Storage>& copied(size_t i, Storage& original);

  std::unique_ptr<Executable> executable_;
  std::vector<std::string> signature_;
  std::vector<std::shared_ptr<Storage>> placeholders_, bound_;
  std::vector<std::shared_ptr<Storage>> copies_;  // by input, of what the step writes over
  StorageUse use_;                                // without inputs
  std::vector<size_t> assigned_inputs_;
  uint64_t settled_ = 0;  // newest_value() at the latest call
  States outputs_;
  std::vector<UOp> results_;  // by output: its node; null for what existed before
};

}  // namespace tinyshard
