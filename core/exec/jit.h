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

  // Results are the same states at every call, with new contents. One that is an input of the next
  // call is copied first, as the call writes over it. UserError when shapes, types or placements of
  // the inputs differ from those of the first call.
  const States& call(const States& inputs, const Trace& trace);
  bool captured() const { return executable_ != nullptr; }
  void reset();

  // What one call does. UserError before the first call.
  const Schedule& schedule() const;

 private:
  void capture(const States& inputs, const Trace& trace);
  void check_inputs(const States& inputs) const;
  // A copy of `result` for input i, in memory that is the same at every call.
  const std::shared_ptr<Storage>& copied(size_t i, Storage& result);

  std::unique_ptr<Executable> executable_;
  std::vector<std::string> signature_;
  std::vector<std::shared_ptr<Storage>> placeholders_, bound_;
  std::vector<std::shared_ptr<Storage>> copies_;   // by input, of results
  std::vector<std::shared_ptr<Storage>> results_;  // made by the step
  States outputs_;
};

}  // namespace tinyshard
