// Traces, compiles, puts inputs in place and runs. See traced_step.h.
#include "core/exec/traced_step.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/exec/make_executable.h"
#include "core/exec/state.h"
#include "core/exec/transfer.h"
#include "core/passes/program_pass.h"
#include "core/uop/graph.h"
#include "core/uop/sizes.h"
#include "multi/mesh_names.h"
#include "multi/rewrite.h"

namespace tinyshard {
namespace {

Storage* storage_of(const TensorState& state) { return Storage::of(**stored_node(state.value)); }

std::string signature_of(const TensorState& state) {
  return fmt::format("{}{} on {}", name(state.value.dtype()), to_string(state.value.shape()),
                     storage_of(state)->sharding.to_string());
}

bool alike(const Storage& a, const Storage& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && a.sharding == b.sharding;
}

bool is_of_an_input(const TensorState& state) {
  return has_storage(state.value) && Storage::of(*storage_node(state.value))->is_placeholder();
}

[[noreturn]] void refuse(const std::source_location& caller, const std::string& text) {
  const Call call("captured step", caller);
  fail(text);
}

void check_results(const CapturedStep::States& states, const std::source_location& caller) {
  for (size_t i = 0; i < states.size(); ++i) {
    if (!states[i])
      refuse(caller, fmt::format("result {} is a tensor that was never given a value", i));
    const SymbolicShape* sizes = symbolic_shape(states[i]->value);
    if (!sizes) continue;
    for (const auto& size : sizes->dims) {
      if (!size) continue;
      refuse(caller,
             fmt::format("result {} has a dim of size {}, from {} to {}; results are of one size: "
                         "give it its largest with to_bound(), or reduce it",
                         i, size->text, size->low, size->high));
    }
  }
}

}  // namespace

// --- the trace -----------------------------------------------------------------------------------

TracedStep::States TracedStep::trace_inputs(const States& inputs) {
  States arguments;
  for (const StatePtr& input : inputs) {
    signature_.push_back(signature_of(*input));
    const Storage* like = storage_of(*input);
    placeholders_.push_back(
        std::make_shared<Storage>(like->shape(), like->dtype(), like->sharding));
    placeholders_.back()->set_placeholder();
    arguments.push_back(make_state(buffer_node(placeholders_.back())));
  }
  arguments_ = inputs.size();
  return arguments;
}

void TracedStep::capture(const States& inputs, const CapturedStep::Trace& trace,
                         const Names& name) {
  const States arguments = trace_inputs(inputs);
  passes_ = program_passes();
  // Parameters and optimizer state get their values in one run. After it, what the trace touches is
  // computed without writing over anything that the trace has seen.
  realize_assignments();
  Capture capture;
  try {
    {
      CaptureScope scope(&capture);
      const uint64_t opened = pass_scopes_opened();
      outputs_ = trace(arguments);
      if (pass_scopes_opened() != opened) {
        refuse(
            caller,
            "a PassScope was opened within it, where nothing is planned: open it around the call");
      }
      check_results(outputs_, caller);
      // A returned tensor from before the trace is realized, as an operand is: the step leaves it where
      // it is.
      for (const StatePtr& s : outputs_) touch(*s);
    }
    const Context::Turn turn;
    know_gradients(capture);
    compile(capture, inputs);
    run(inputs, true, name);
    for (Gradient& g : gradients_) g.before.reset();
  } catch (...) {
    capture.undo();
    for (const Result& r : results_) r.state->traced = r.state->traced || r.is_new;
    throw;
  }
}

// Gradients that the trace found become inputs.
void TracedStep::know_gradients(const Capture& capture) {
  scopes_ = capture.scopes();
  for (const Capture::Gradient& seen : capture.gradients()) {
    Gradient g{.parameter = seen.parameter, .before = seen.before, .given = seen.given};
    if (seen.asked && !seen.before) g.found = Gradient::Found::None;
    if (seen.stand_in) g.found_node = storage_node(seen.stand_in->value);
    if (seen.stand_in && seen.before->traced) {
      g.found = Gradient::Found::Lost;
      lost_.push_back(seen.placeholder);
    } else if (seen.stand_in) {
      g.found = Gradient::Found::Value;
      g.input = placeholders_.size();
      placeholders_.push_back(seen.placeholder);
      found_.push_back(gradients_.size());
    }
    if (g.given) g.left = seen.parameter->gradient_now();
    if (g.left && g.left == seen.stand_in) g.given = false;
    gradients_.push_back(std::move(g));
  }
  bound_.assign(placeholders_.size(), nullptr);
  copies_.assign(placeholders_.size(), nullptr);
  given_.assign(placeholders_.size(), nullptr);
}

bool TracedStep::is_lost(const UOp& value) const {
  if (lost_.empty()) return false;
  return std::ranges::any_of(toposort(std::span(&value, 1)), [&](const UOp& x) {
    if (x.op() != Op::Buffer) return false;
    return std::ranges::any_of(lost_, [&](const auto& s) { return s.get() == Storage::of(*x); });
  });
}

// A program that needs a gradient which has no value is none.
void TracedStep::check_lost(std::span<const UOp> roots) const {
  if (std::ranges::none_of(roots, [&](const UOp& r) { return is_lost(r); })) return;
  for (const Gradient& g : gradients_) {
    if (g.found == Gradient::Found::Lost) fail_without_value(*g.before);
  }
}

// The values that are computed, and whose they become.
struct TracedStep::Roots {
  std::vector<UOp> values;
  States owners;  // each once, however often it is returned
  std::unordered_map<const TensorState*, size_t> places;

  size_t add(const StatePtr& s) {
    const auto [place, added] = places.try_emplace(s.get(), owners.size());
    if (added) {
      owners.push_back(s);
      values.push_back(s->value);
    }
    return place->second;
  }
};

// Computes the gradients that the trace leaves, so that others find them behind the step: over the
// ones that it found, or where their parameters lie. Left out are those that an optimizer of the
// step has taken, unless the next call adds to them, and what was made of lost ones.
void TracedStep::add_gradients(Capture& capture, Roots& roots) {
  std::vector<size_t> placed;
  for (size_t i = 0; i < gradients_.size(); ++i) {
    Gradient& g = gradients_[i];
    const Capture::Gradient& seen = capture.gradients()[i];
    if (!g.given || !g.left) continue;
    if (capture.is_from_before(*g.left) && !is_of_an_input(*g.left)) continue;
    if ((seen.used_up && !seen.asked) || is_lost(g.left->value)) {
      if (roots.places.contains(g.left.get())) continue;
      mark_lost_gradient(*g.left, *g.parameter);
    } else if (g.found == Gradient::Found::Value && !roots.places.contains(seen.stand_in.get()) &&
               g.left->value.dtype() == g.found_node.dtype()) {
      g.in_place = true;
      const CaptureScope within(&capture);
      seen.stand_in->set(
          UOp::make(Op::Assign, g.found_node.dtype(), {g.found_node, g.left->value}));
      roots.add(seen.stand_in);
    } else {
      if (!roots.places.contains(g.left.get())) placed.push_back(i);
      share_out(capture, roots, roots.add(g.left));
      g.left->left = true;
    }
  }
  lay_as_parameters(placed, roots);
}

// Brings gradients to the placements of their parameters, by one walk of the sharding rules for all
// of them.
void TracedStep::lay_as_parameters(std::span<const size_t> gradients, Roots& roots) const {
  std::vector<UOp> values;
  bool several = false;  // devices
  for (size_t i : gradients) {
    values.push_back(without_waits(roots.values[roots.places.at(gradients_[i].left.get())]));
    several = several || sharding_of(gradients_[i].parameter->value).mesh.size() > 1;
  }
  if (!several) return;
  const std::vector<Sharding> lie = to_local(values).shardings;
  for (size_t k = 0; k < gradients.size(); ++k) {
    const Gradient& g = gradients_[gradients[k]];
    const Sharding home = sharding_of(g.parameter->value);
    UOp& root = roots.values[roots.places.at(g.left.get())];
    if (home.mesh == lie[k].mesh && !(home == lie[k])) root = place(root, home);
  }
}

// Copies what the caller may write over without the step: an argument, assigned to or not, is the
// caller's, and the data that the trace gave to a new tensor are the step's.
void TracedStep::share_out(const Capture& capture, Roots& roots, size_t place) {
  const TensorState& s = *roots.owners[place];
  if (is_of_an_input(s) || (s.value.op() == Op::Buffer && !capture.is_from_before(s)))
    roots.values[place] = UOp::make(Op::Contiguous, s.value.dtype(), {s.value});
}

void TracedStep::compile(Capture& capture, const States& inputs) {
  // The trace may have replaced what an input holds: the first call reads what it held before.
  for (size_t i = 0; i < inputs.size(); ++i) {
    const UOp* before = capture.value_before(*inputs[i]);
    if (before) given_[i] = shared_storage(*stored_node(*before));
  }
  Roots roots;
  for (const StatePtr& s : outputs_) share_out(capture, roots, roots.add(s));
  for (const LiveValue& s : capture.values()) {
    if (s.value.op() == Op::Assign && !capture.is_from_before(*s.state)) roots.add(s.state);
  }
  check_lost(roots.values);
  // States that are equal to what another one assigns are copies of it.
  for (size_t i = 0; i < roots.owners.size(); ++i) {
    UOp& root = roots.values[i];
    if (root.op() == Op::Assign && !holds_storage(*roots.owners[i]))
      root = UOp::make(Op::Contiguous, root.dtype(), {root});
  }
  add_gradients(capture, roots);
  executable_ = make_executable(roots.values, true, placeholders_);
  use_ = executable_->storage_use();
  std::vector<LiveValue> traced = capture.values();
  take_results(capture, roots);
  for (size_t i = 0; i < placeholders_.size(); ++i) {
    if (!use_.writes(placeholders_[i].get())) continue;
    assigned_inputs_.push_back(i);
    given_[i] = nullptr;
  }
  know_parameters(capture);
  auto changes = [&](const Storage& s) { return use_.writes(&s); };
  std::erase_if(traced, [&](const LiveValue& s) {
    return s.value.op() == Op::Buffer || capture.is_from_before(*s.state) ||
           roots.places.contains(s.state.get());
  });
  for (const StatePtr& s : exist_in_step_alone(traced, changes)) s->traced = true;
}

void TracedStep::take_results(const Capture& capture, const Roots& roots) {
  std::unordered_map<const Storage*, UOp> made;  // states with one value share one storage
  for (size_t i = 0; i < roots.owners.size(); ++i) {
    TensorState& owner = *roots.owners[i];
    const bool is_new = !capture.is_from_before(owner) && !capture.value_before(owner);
    const UOp& root = roots.values[i];
    const std::shared_ptr<Storage>& storage = executable_->roots()[i];
    const bool own = has_storage(root) && Storage::of(*storage_node(root)) == storage.get();
    UOp& node = made[storage.get()];
    if (node)
      owner.set(share_stored(node));
    else
      owner.set(node = own ? storage_node(root) : buffer_node(storage));
    const bool left = std::ranges::any_of(
        gradients_, [&](const Gradient& g) { return g.left == roots.owners[i]; });
    if (!own && (left || std::ranges::count(outputs_, roots.owners[i]) > 0))
      results_.push_back({roots.owners[i], owner.value, is_new});
  }
  captured_at_ = newest_value();
  for (const Gradient& g : gradients_) {
    if (g.found == Gradient::Found::Value)
      g.parameter->set_gradient(g.before);  // for the first run
  }
}

// Writes down which of the tensors that the program reads are parameters, if the trace has asked.
void TracedStep::know_parameters(const Capture& capture) {
  if (!capture.asked_for_parameters) return;
  parameters_at_ = parameter_changes();
  for (const Storage* s : use_.read) {
    if (const auto owner = s->owner.lock()) parameters_.emplace_back(owner, owner->is_param);
  }
}

// --- before a call -------------------------------------------------------------------------------

bool TracedStep::fits() {
  if (!scopes_.hold() || passes_ != program_passes()) return false;
  if (!parameters_.empty() && parameters_at_ != parameter_changes()) {
    for (const auto& [state, is_param] : parameters_) {
      const auto now = state.lock();
      if (now && now->is_param != is_param) return false;
    }
    parameters_at_ = parameter_changes();
  }
  std::vector<StatePtr> waiting;
  for (const Gradient& g : gradients_) {
    const StatePtr& now = g.parameter->gradient_now();
    const bool lost = now && now->traced;
    if (g.found == Gradient::Found::None && now) return false;
    if (g.found == Gradient::Found::Lost && !lost) return false;
    if (g.found != Gradient::Found::Value) continue;
    if (!now || lost) return false;
    if (!stored_node(now->value)) waiting.push_back(now);
  }
  realize(waiting);
  return std::ranges::all_of(gradients_, [&](const Gradient& g) {
    return g.found != Gradient::Found::Value ||
           alike(*storage_of(*g.parameter->gradient_now()), *placeholders_[g.input]);
  });
}

void TracedStep::check_inputs(const States& inputs, const Names& name, bool own) const {
  if (inputs.size() != arguments_)
    fail(fmt::format("called with {} tensors, captured with {}", inputs.size(), arguments_));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Storage* now = storage_of(*inputs[i]);
    const Storage* then = placeholders_[i].get();
    if ((own && bound_[i].get() == now) || alike(*now, *then)) continue;
    std::string got = signature_of(*inputs[i]), known = signature_[i];
    if (got == known) {
      const auto [one, other] = told_apart(now->sharding.mesh, then->sharding.mesh);
      got += ", " + one;
      known += ", " + other;
    }
    fail(
        fmt::format("{} is {}, but the step was captured with {}; make another Jit for other "
                    "shapes, or call reset()",
                    name(i), got, known));
  }
}

bool TracedStep::results_are_held() const {
  return std::ranges::any_of(results_, [&](const Result& r) {
    long mine = 1 + (form.value ? 2 : 1) * std::ranges::count(outputs_, r.state);
    for (const Gradient& g : gradients_)
      mine += (g.left == r.state) + (g.parameter->gradient_now() == r.state);
    return r.state.use_count() > mine;
  });
}

// --- a call --------------------------------------------------------------------------------------

TensorState& TracedStep::input(const States& inputs, size_t i) const {
  if (i < arguments_) return *inputs[i];
  return *gradients_[found_[i - arguments_]].parameter->gradient_now();
}

const TracedStep::States& TracedStep::replay(const States& inputs, const Names& name) {
  executable_->check_usable();
  run(inputs, false, name);
  return outputs_;
}

void TracedStep::run(const States& inputs, bool first, const Names& name) {
  separate_gradients(inputs);
  const bool changed = settle_states(inputs, name);
  auto stored = [&](size_t i) { return shared_storage(*stored_node(input(inputs, i).value)); };
  if (changed) {  // results are taken back, and inputs may be among them
    for (size_t i = 0; i < placeholders_.size(); ++i) {
      if (!first || !given_[i]) given_[i] = stored(i);
    }
    take_back_results();
  }
  for (size_t i = 0; i < placeholders_.size(); ++i) {
    const Storage* bound = bound_[i].get();
    const bool same = !changed && bound == storage_of(input(inputs, i));
    if (same && !use_.writes(bound)) continue;
    std::shared_ptr<Storage> actual = changed ? std::move(given_[i]) : stored(i);
    if (use_.writes(actual.get())) actual = copied(i, *actual);
    if (bound_[i] == actual) continue;
    executable_->rebind(*placeholders_[i], *actual);
    bound_[i] = std::move(actual);
  }
  executable_->run();
  leave_gradients();
}

void TracedStep::leave_gradients() {
  for (const Gradient& g : gradients_) {
    if (!g.given || g.in_place || g.parameter->gradient_now() == g.left) continue;
    g.parameter->set_gradient(g.left);
  }
}

// A step knows tensors by their storages.
void TracedStep::check_not_replaced() const {
  for (const auto* storages : {&use_.read, &use_.written}) {
    for (const Storage* s : *storages) {
      if (s->replaced_at <= captured_at_) continue;
      if (is_result(*s)) continue;  // they are given back their values below
      refuse(caller,
             fmt::format("{}{}{}{} on {} is used by the step, but replace() has given its "
                         "tensor another value since, which the step does not know: "
                         "assign() writes where it looks; or call reset() to capture it "
                         "again",
                         s->label, s->label.empty() ? "" : ", ", tinyshard::name(s->dtype()),
                         to_string(s->shape()), s->sharding.to_string()));
    }
  }
}

bool TracedStep::is_result(const Storage& storage) const {
  return std::ranges::any_of(
      results_, [&](const Result& r) { return Storage::of(*storage_node(r.node)) == &storage; });
}

std::vector<const TensorState*> TracedStep::untouched_results() const {
  std::vector<const TensorState*> all;
  for (const Result& r : results_) {
    if (r.state->value == r.node) all.push_back(r.state.get());
  }
  return all;
}

// The step reads each of its inputs as the call gave it, also after it has assigned to another one.
void TracedStep::check_alone(const States& inputs, size_t assigned, const Storage& storage,
                             const Names& name) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i == assigned || inputs[i] != inputs[assigned]) continue;
    refuse(caller, fmt::format("inputs {} and {} are one tensor, and the step assigns to input {}: "
                               "give it a clone() as the other",
                               std::min(i, assigned), std::max(i, assigned), assigned));
  }
  if ((use_.reads(&storage) || use_.writes(&storage)) && !is_result(storage)) {
    refuse(caller, fmt::format("{}, to which the step assigns, is a tensor that the step also uses "
                               "by itself: use the argument instead",
                               name(assigned)));
  }
}

// The next call may write over what a step leaves. A gradient that somebody else made, or
// that is known otherwise, may not be: the parameter gets a copy, as if its values were added anew.
void TracedStep::separate_gradients(const States& inputs) {
  std::unordered_map<const Storage*, int> users;  // among the inputs
  for (const Gradient& g : gradients_) {
    if (!g.in_place) continue;
    if (users.empty()) {
      for (size_t i = 0; i < placeholders_.size(); ++i) ++users[storage_of(input(inputs, i))];
    }
    const StatePtr now = g.parameter->gradient_now();
    const Storage* storage = storage_of(*now);
    const bool known = use_.reads(storage) || use_.writes(storage) || users[storage] > 1;
    if (now->left && !known && holds_storage(*now)) continue;
    const StatePtr copy = make_state(with_own_storage(*stored_node(now->value)));
    copy->left = true;
    realize(std::span(&copy, 1));
    g.parameter->set_gradient(copy);
    --users[storage];
  }
}

bool TracedStep::settle_states(const States& inputs, const Names& name) {
  if (newest_value() == settled_ && assigned_inputs_.empty()) return false;
  check_not_replaced();
  if (assigned_inputs_.empty()) {
    settle(use_, settled_, untouched_results());
  } else {  // values of any age may need what the step has not written so far
    StorageUse use = use_;
    for (size_t i : assigned_inputs_) {
      TensorState& state = input(inputs, i);
      separate(state);
      const Storage* written = Storage::of(*state.value);
      if (i < arguments_) check_alone(inputs, i, *written, name);
      use.written.push_back(written);
    }
    std::ranges::sort(use.written);
    settle(use, 0, untouched_results());
  }
  return true;
}

void TracedStep::take_back_results() {
  for (const Result& r : results_) {
    if (!(r.state->value == r.node)) r.state->set(r.node);
  }
  settled_ = newest_value();
}

const std::shared_ptr<Storage>& TracedStep::copied(size_t i, Storage& original) {
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

}  // namespace tinyshard
