// A traced step is one trace of a step and the program that came of it. It holds for as long as a call
// finds what the trace looked at as it was: scopes (scopes.h), which passes of the program are open
// (program_pass.h), which tensors are parameters, and which parameters have a gradient from before. Such gradients are inputs of the program beside those that
// the call is given, so that they may be others at each call:
//
//   (p * x).sum().backward();   p has no gradient: a program that makes one
//                               p has one: another program, which adds to the one of each call
#pragma once
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/exec/capture.h"
#include "core/exec/captured_step.h"
#include "core/exec/executable.h"

namespace tinyshard {

class TracedStep {
 public:
  using States = CapturedStep::States;
  using Names = std::function<std::string(size_t)>;  // of inputs, for messages

  // Traces, compiles and runs. When it throws, all states and gradients are as they were.
  void capture(const States& inputs, const CapturedStep::Trace& trace, const Names& name);
  // Tells whether the trace would go the same way now. Computes gradients that wait.
  bool fits();
  // UserError where they are not like those of the capture. `own`: of the thread that replays this.
  void check_inputs(const States& inputs, const Names& name, bool own) const;
  // Runs once more, with inputs that were checked, in a turn.
  const States& replay(const States& inputs, const Names& name);

  const Executable& executable() const { return *executable_; }
  const States& outputs() const { return outputs_; }
  std::span<const size_t> assigned_inputs() const { return assigned_inputs_; }
  // Tells whether somebody else holds a result, or what is made of one.
  bool results_are_held() const;
  CapturedStep::Form form;
  std::source_location caller;  // of the newest call, for messages

 private:
  struct Gradient {
    // How the trace found it. Lost: left by a step without a value.
    enum class Found : uint8_t { NotAsked, None, Lost, Value };
    StatePtr parameter, before;  // its gradient when the trace began
    Found found = Found::NotAsked;
    size_t input = 0;       // of the one that was found
    UOp found_node = {};    // which stands for it
    bool given = false;     // another one, or none
    bool in_place = false;  // the other one is written over the one that was found
    StatePtr left = {};     // the other one
  };
  struct Result {
    StatePtr state;
    UOp node;
    bool is_new;  // made by the trace
  };

  struct Roots;
  States trace_inputs(const States& inputs);
  void know_gradients(const Capture& capture);
  void know_parameters(const Capture& capture);
  void compile(Capture& capture, const States& inputs);
  void add_gradients(Capture& capture, Roots& roots);
  void lay_as_parameters(std::span<const size_t> gradients, Roots& roots) const;
  static void share_out(const Capture& capture, Roots& roots, size_t place);
  void take_results(const Capture& capture, const Roots& roots);
  void check_lost(std::span<const UOp> roots) const;
  bool is_lost(const UOp& value) const;
  void run(const States& inputs, bool first, const Names& name);
  TensorState& input(const States& inputs, size_t i) const;
  void check_not_replaced() const;
  void check_alone(const States& inputs, size_t assigned, const Storage& storage,
                   const Names& name) const;
  bool is_result(const Storage& storage) const;
  // The results that are nothing else, as the step left them.
  std::vector<const TensorState*> untouched_results() const;
  // Gives gradients that the program writes over memory that nobody else knows.
  void separate_gradients(const States& inputs);
  // Everything that has to happen before this call's run can write where it writes. Whether any
  // state was given a value since the latest call.
  bool settle_states(const States& inputs, const Names& name);
  // A result is what the step will make of it, whatever it was given since.
  void take_back_results();
  void leave_gradients();
  // A copy of what input i holds, in memory that is the same at every call.
  const std::shared_ptr<Storage>& copied(size_t i, Storage& original);

  std::unique_ptr<Executable> executable_;
  size_t arguments_ = 0;  // the first inputs; the others are gradients
  std::vector<std::string> signature_;
  std::vector<std::shared_ptr<Storage>> placeholders_, bound_;
  std::vector<std::shared_ptr<Storage>> given_;   // by input, while a call begins; see compile()
  std::vector<std::shared_ptr<Storage>> copies_;  // by input, of what the step writes over
  StorageUse use_;                                // without inputs
  std::vector<size_t> assigned_inputs_;
  scopes::Seen scopes_;
  std::vector<uint64_t> passes_;  // the program's own, with which the step was planned
  std::vector<Gradient> gradients_;
  std::vector<size_t> found_;  // numbers of those that are inputs, behind the arguments
  std::vector<std::shared_ptr<Storage>> lost_;  // placeholders of lost gradients
  std::vector<std::pair<std::weak_ptr<const TensorState>, bool>> parameters_;  // or not
  uint64_t parameters_at_ = 0;  // parameter_changes() when these were looked at
  uint64_t settled_ = 0;        // newest_value() at the latest call
  uint64_t captured_at_ = 0;
  States outputs_;
  std::vector<Result> results_;  // each once: outputs and gradients that were not there before
};

}  // namespace tinyshard
