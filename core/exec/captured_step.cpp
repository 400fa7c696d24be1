// Traces, puts inputs in place and runs. See captured_step.h.
#include "core/exec/captured_step.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/exec/capture.h"
#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "core/exec/explain.h"
#include "core/exec/make_executable.h"
#include "core/exec/schedule_of.h"
#include "core/exec/state.h"
#include "core/exec/transfer.h"
#include "core/uop/sizes.h"
#include "multi/mesh_names.h"

namespace tinyshard {
namespace {

std::string signature_of(const TensorState& state) {
  return fmt::format("{}{} on {}", name(state.value.dtype()), to_string(state.value.shape()),
                     Storage::of(**stored_node(state.value))->sharding.to_string());
}

void check_defined(const CapturedStep::States& states, const char* what) {
  for (size_t i = 0; i < states.size(); ++i) {
    if (!states[i])
      throw UserError(
          fmt::format("captured step: {} {} is a tensor that was never given a value", what, i));
  }
}

void check_plain(const CapturedStep::States& states) {
  for (size_t i = 0; i < states.size(); ++i) {
    const SymbolicShape* sizes = symbolic_shape(states[i]->value);
    if (!sizes) continue;
    for (const auto& size : sizes->dims) {
      if (!size) continue;
      throw UserError(fmt::format(
          "captured step: result {} has a dim of size {}, from {} to {}; results are of one size: "
          "give it its largest with to_bound(), or reduce it",
          i, size->text, size->low, size->high));
    }
  }
}

}  // namespace

class CapturedStep::Impl {
 public:
  const States& call(const States& inputs, const Trace& trace);
  bool captured() const { return executable_ != nullptr; }
  const Executable* executable() const { return executable_.get(); }

 private:
  void capture(const States& inputs, const Trace& trace);
  const States& run(const States& inputs, bool first);  // that were checked, and in a turn
  void check_inputs(const States& inputs) const;
  void check_not_replaced() const;
  void check_gradients() const;
  void check_alone(const States& inputs, size_t assigned, const Storage& storage) const;
  bool is_result(const Storage& storage) const;
  // The returned tensors that are results and nothing else, as the step left them.
  std::vector<const TensorState*> untouched_results() const;
  // Everything that has to happen before this call's run can write where it writes. Whether any
  // state was given a value since the latest call.
  bool settle_states(const States& inputs);
  // A result is what the step will make of it, whatever it was given since.
  void take_back_results();
  // The parameters whose gradients the trace asked for or gave.
  void know_gradients(const Capture& capture);
  // A copy of what input i holds, in memory that is the same at every call.
  const std::shared_ptr<Storage>& copied(size_t i, Storage& original);

  std::unique_ptr<Executable> executable_;
  std::vector<std::string> signature_;
  std::vector<std::shared_ptr<Storage>> placeholders_, bound_;
  std::vector<std::shared_ptr<Storage>> given_;   // by input, while a call begins; see capture()
  std::vector<std::shared_ptr<Storage>> copies_;  // by input, of what the step writes over
  StorageUse use_;                                // without inputs
  std::vector<size_t> assigned_inputs_;
  struct Gradient {
    StatePtr parameter;
    StatePtr read;  // from before the trace, which each call reads; or null
    StatePtr left;  // what the trace left the parameter with
  };
  std::vector<Gradient> gradients_;
  uint64_t settled_ = 0;  // newest_value() at the latest call
  uint64_t captured_at_ = 0;
  States outputs_;
  std::vector<UOp> results_;  // by output: its node; null for what existed before
};

const CapturedStep::States& CapturedStep::Impl::call(const States& inputs, const Trace& trace) {
  if (current_capture())
    throw UserError("a captured step cannot be called while another one is recorded");
  check_defined(inputs, "input");
  if (!executable_) {
    realize(inputs);
    capture(inputs, trace);
    const Context::Turn turn;
    return run(inputs, true);
  }
  const Context::Turn turn;
  executable_->check_usable();
  check_gradients();
  realize(inputs);
  check_inputs(inputs);
  return run(inputs, false);
}

const CapturedStep::States& CapturedStep::Impl::run(const States& inputs, bool first) {
  const bool changed = settle_states(inputs);
  auto storage_of = [&](size_t i) { return shared_storage(*stored_node(inputs[i]->value)); };
  if (changed) {  // results are taken back, and inputs may be among them
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!first || !given_[i]) given_[i] = storage_of(i);
    }
    take_back_results();
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Storage* bound = bound_[i].get();
    const bool same = !changed && bound == Storage::of(**stored_node(inputs[i]->value));
    if (same && !use_.writes(bound)) continue;
    std::shared_ptr<Storage> actual = changed ? std::move(given_[i]) : storage_of(i);
    if (use_.writes(actual.get())) actual = copied(i, *actual);
    if (bound_[i] == actual) continue;
    executable_->rebind(*placeholders_[i], *actual);
    bound_[i] = std::move(actual);
  }
  executable_->run();
  for (const Gradient& g : gradients_) {
    if (g.parameter->gradient() != g.left) g.parameter->set_gradient(g.left);
  }
  return outputs_;
}

// A step knows tensors by their storages.
void CapturedStep::Impl::check_not_replaced() const {
  for (const auto* storages : {&use_.read, &use_.written}) {
    for (const Storage* s : *storages) {
      if (s->replaced_at <= captured_at_) continue;
      if (is_result(*s)) continue;  // they are given back their values below
      throw UserError(fmt::format(
          "captured step: {}{}{}{} on {} is used by the step, but replace() has given its tensor "
          "another value since, which the step does not know: assign() writes where it looks; or "
          "call reset() to capture it again",
          s->label, s->label.empty() ? "" : ", ", name(s->dtype()), to_string(s->shape()),
          s->sharding.to_string()));
    }
  }
}

// It knows gradients by their storages, too. What the function would do with another one, or without
// one, was not traced.
void CapturedStep::Impl::check_gradients() const {
  for (const Gradient& g : gradients_) {
    if (!g.read || g.parameter->gradient() == g.read) continue;
    const TensorState& p = *g.parameter;
    const char* now = g.parameter->gradient() ? "another" : "no";
    throw UserError(
        fmt::format("captured step: {}{}{}{} has {} gradient now, but the step reads the one from "
                    "before its first call: call zero_grad() and backward() in the step, or give "
                    "it the gradient as an argument; or call reset() to capture it again",
                    p.label, p.label.empty() ? "" : ", ", name(p.value.dtype()),
                    to_string(p.value.shape()), now));
  }
}

bool CapturedStep::Impl::is_result(const Storage& storage) const {
  return std::ranges::any_of(
      results_, [&](const UOp& x) { return x && Storage::of(*storage_node(x)) == &storage; });
}

std::vector<const TensorState*> CapturedStep::Impl::untouched_results() const {
  std::vector<const TensorState*> all;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (results_[i] && outputs_[i]->value == results_[i]) all.push_back(outputs_[i].get());
  }
  return all;
}

// The step reads each of its inputs as the call gave it, also after it has assigned to another one.
void CapturedStep::Impl::check_alone(const States& inputs, size_t assigned,
                                     const Storage& storage) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i == assigned || inputs[i] != inputs[assigned]) continue;
    throw UserError(
        fmt::format("captured step: inputs {} and {} are one tensor, and the step "
                    "assigns to input {}: give it a clone() as the other",
                    std::min(i, assigned), std::max(i, assigned), assigned));
  }
  if ((use_.reads(&storage) || use_.writes(&storage)) && !is_result(storage)) {
    throw UserError(
        fmt::format("captured step: input {}, to which the step assigns, is a tensor "
                    "that the step also uses by itself: use the argument instead",
                    assigned));
  }
}

bool CapturedStep::Impl::settle_states(const States& inputs) {
  if (newest_value() == settled_ && assigned_inputs_.empty()) return false;
  check_not_replaced();
  if (assigned_inputs_.empty()) {
    settle(use_, settled_, untouched_results());
  } else {  // values of any age may need what the step has not written so far
    StorageUse use = use_;
    for (size_t i : assigned_inputs_) {
      separate(*inputs[i]);
      const Storage* written = Storage::of(*inputs[i]->value);
      check_alone(inputs, i, *written);
      use.written.push_back(written);
    }
    std::ranges::sort(use.written);
    settle(use, 0, untouched_results());
  }
  return true;
}

void CapturedStep::Impl::take_back_results() {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (results_[i] && !(outputs_[i]->value == results_[i])) outputs_[i]->set(results_[i]);
  }
  settled_ = newest_value();
}

const std::shared_ptr<Storage>& CapturedStep::Impl::copied(size_t i, Storage& original) {
  std::shared_ptr<Storage>& copy = copies_[i];
  if (!copy)
    copy = std::make_shared<Storage>(original.shape(), original.dtype(), original.sharding);
  const Dims& shape = original.local_shape();
  const Box whole{shape, Dims(shape.size()), shape, itemsize(original.dtype())};
  for (size_t d = 0; d < original.devices().size(); ++d) {
    Device& device = *original.devices()[d];
    copy_box(whole, device, original.memory()[d], device, copy->memory()[d]);
  }
  return copy;
}

void CapturedStep::Impl::check_inputs(const States& inputs) const {
  if (inputs.size() != signature_.size()) {
    throw UserError(fmt::format("captured step: called with {} tensors, captured with {}",
                                inputs.size(), signature_.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Storage* now = Storage::of(**stored_node(inputs[i]->value));
    if (bound_[i].get() == now) continue;
    const Storage* then = placeholders_[i].get();
    if (now->shape() != then->shape() || now->dtype() != then->dtype() ||
        !(now->sharding == then->sharding)) {
      std::string got = signature_of(*inputs[i]), known = signature_[i];
      if (got == known) {
        const auto [one, other] = told_apart(now->sharding.mesh, then->sharding.mesh);
        got += ", " + one;
        known += ", " + other;
      }
      throw UserError(
          fmt::format("captured step: input {} is {}, but the step was captured with {}; "
                      "make another Jit for other shapes, or call reset()",
                      i, got, known));
    }
  }
}

void CapturedStep::Impl::know_gradients(const Capture& capture) {
  gradients_.clear();
  for (const auto& [parameter, before] : capture.gradients()) {
    const Storage* storage =
        before && has_storage(before->value) ? Storage::of(*storage_node(before->value)) : nullptr;
    const bool used = storage && (use_.reads(storage) || use_.writes(storage));
    const StatePtr& left = parameter->gradient();
    if (used || left != before) gradients_.push_back({parameter, used ? before : nullptr, left});
  }
}

void CapturedStep::Impl::capture(const States& inputs, const Trace& trace) {
  signature_.clear();
  placeholders_.clear();
  States arguments;
  for (const StatePtr& input : inputs) {
    signature_.push_back(signature_of(*input));
    Storage* like = Storage::of(**stored_node(input->value));
    placeholders_.push_back(
        std::make_shared<Storage>(like->shape(), like->dtype(), like->sharding));
    placeholders_.back()->set_placeholder();
    arguments.push_back(make_state(buffer_node(placeholders_.back())));
  }
  bound_.assign(inputs.size(), nullptr);
  copies_.assign(inputs.size(), nullptr);
  given_.assign(inputs.size(), nullptr);
  results_.clear();
  assigned_inputs_.clear();
  settled_ = 0;
  // Parameters and optimizer state get their values in one run. After it, what the trace touches is
  // computed without writing over anything that the trace has seen.
  realize_assignments();
  Capture capture;
  try {
    {
      CaptureScope scope(&capture);
      outputs_ = trace(arguments);
      check_defined(outputs_, "result");
      check_plain(outputs_);
      // A returned tensor from before the trace is realized, as an operand is: the step leaves it where
      // it is.
      for (const StatePtr& s : outputs_) touch(*s);
    }
    const Context::Turn turn;
    // The trace may have replaced what an input holds: the first call reads what it held before.
    for (size_t i = 0; i < inputs.size(); ++i) {
      const UOp* before = capture.value_before(*inputs[i]);
      if (before) given_[i] = shared_storage(*stored_node(*before));
    }
    std::vector<UOp> roots;
    States owners;  // each once, however often it is returned
    std::unordered_map<const TensorState*, size_t> places;
    auto add = [&](const StatePtr& s) {
      const auto [place, added] = places.try_emplace(s.get(), owners.size());
      if (added) {
        owners.push_back(s);
        roots.push_back(s->value);
      }
      return place->second;
    };
    // What the caller may write over without the step: an argument, assigned to or not, is the
    // caller's, and the data that the trace gave to a new tensor are the step's.
    auto is_shared = [&](const StatePtr& s) {
      if (!has_storage(s->value)) return false;
      return Storage::of(*storage_node(s->value))->is_placeholder() ||
             (s->value.op() == Op::Buffer && !capture.is_from_before(*s));
    };
    for (const StatePtr& s : outputs_) {
      const size_t place = add(s);
      if (is_shared(s)) roots[place] = UOp::make(Op::Contiguous, s->value.dtype(), {s->value});
    }
    for (const LiveValue& s : capture.values()) {
      if (s.value.op() == Op::Assign && !capture.is_from_before(*s.state)) add(s.state);
    }
    // States that are equal to what another one assigns are copies of it.
    for (size_t i = 0; i < owners.size(); ++i) {
      if (roots[i].op() == Op::Assign && !holds_storage(*owners[i]))
        roots[i] = UOp::make(Op::Contiguous, roots[i].dtype(), {roots[i]});
    }
    auto executable = make_executable(roots, true, placeholders_);
    std::vector<UOp> results(owners.size());
    std::unordered_map<const Storage*, UOp> made;  // states with one value share one storage
    for (size_t i = 0; i < owners.size(); ++i) {
      const std::shared_ptr<Storage>& storage = executable->roots()[i];
      bool own = has_storage(roots[i]) && Storage::of(*storage_node(roots[i])) == storage.get();
      UOp& node = made[storage.get()];
      if (node)
        owners[i]->set(share_stored(node));
      else
        owners[i]->set(node = own ? storage_node(roots[i]) : buffer_node(storage));
      if (!own) results[i] = owners[i]->value;
    }
    for (const StatePtr& s : outputs_) results_.push_back(results[places.at(s.get())]);
    use_ = executable->storage_use();
    captured_at_ = newest_value();
    for (size_t i = 0; i < placeholders_.size(); ++i) {
      if (!use_.writes(placeholders_[i].get())) continue;
      assigned_inputs_.push_back(i);
      given_[i] = nullptr;
    }
    know_gradients(capture);
    for (const LiveValue& s : capture.values()) {
      if (s.value.op() == Op::Buffer || capture.is_from_before(*s.state)) continue;
      if (!places.contains(s.state.get())) s.state->traced = true;
    }
    executable_ = std::move(executable);
  } catch (...) {
    capture.undo();
    outputs_.clear();
    throw;
  }
}

CapturedStep::CapturedStep() = default;
CapturedStep::~CapturedStep() = default;
CapturedStep::CapturedStep(CapturedStep&& other) noexcept = default;
CapturedStep& CapturedStep::operator=(CapturedStep&& other) noexcept {
  impl_.swap(other.impl_);
  return *this;
}

const CapturedStep::States& CapturedStep::call(const States& inputs, const Trace& trace) {
  if (!impl_) impl_ = std::make_unique<Impl>();
  return impl_->call(inputs, trace);
}
bool CapturedStep::captured() const { return impl_ && impl_->captured(); }
void CapturedStep::reset() { impl_.reset(); }
PlanSummary CapturedStep::summary() const { return summarize(schedule_of(*this)); }
std::string CapturedStep::explanation(bool items) const {
  return explain(schedule_of(*this), items);
}

const Schedule& schedule_of(const CapturedStep& step) {
  const CapturedStep::Impl* impl = step.impl();
  if (!impl || !impl->executable()) throw UserError("a step has no schedule before its first call");
  return impl->executable()->schedule();
}

}  // namespace tinyshard
