#include "core/exec/jit.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/exec/capture.h"
#include "core/exec/pipeline.h"
#include "core/exec/transfer.h"

namespace tinyshard {
namespace {

std::shared_ptr<Storage> shared_storage(const UOp& buffer) {
  auto placed = std::static_pointer_cast<const Placed>(buffer->payload);
  return std::static_pointer_cast<Storage>(std::const_pointer_cast<Placed>(placed));
}

std::string signature_of(const TensorState& state) {
  return fmt::format("{}{} on {}", name(state.value.dtype()), to_string(state.value.shape()),
                     Storage::of(*state.value)->sharding.to_string());
}

const UOp& storage_node(const UOp& x) {
  const UOp* node = &x;
  while (node->op() == Op::Assign) node = &node->src(0);
  return *node;
}

}  // namespace

const CapturedStep::States& CapturedStep::call(const States& inputs, const Trace& trace) {
  if (current_capture())
    throw UserError("a captured step cannot be called while another one is recorded");
  realize(inputs);
  if (!executable_)
    capture(inputs, trace);
  else
    check_inputs(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::shared_ptr<Storage> actual = shared_storage(inputs[i]->value);
    if (std::ranges::find(results_, actual) != results_.end()) actual = copied(i, *actual);
    if (bound_[i] == actual) continue;
    executable_->rebind(*placeholders_[i], *actual);
    bound_[i] = std::move(actual);
  }
  executable_->run();
  return outputs_;
}

const std::shared_ptr<Storage>& CapturedStep::copied(size_t i, Storage& result) {
  std::shared_ptr<Storage>& copy = copies_[i];
  if (!copy) copy = std::make_shared<Storage>(result.shape(), result.dtype(), result.sharding);
  const Dims& shape = result.local_shape();
  const Box whole{shape, Dims(shape.size()), shape, itemsize(result.dtype())};
  for (size_t d = 0; d < result.devices().size(); ++d) {
    Device& device = *result.devices()[d];
    copy_box(whole, device, result.memory()[d], device, copy->memory()[d]);
  }
  return copy;
}

void CapturedStep::check_inputs(const States& inputs) const {
  if (inputs.size() != signature_.size()) {
    throw UserError(fmt::format("captured step: called with {} tensors, captured with {}",
                                inputs.size(), signature_.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (bound_[i].get() == Storage::of(*inputs[i]->value)) continue;
    const Storage *now = Storage::of(*inputs[i]->value), *then = placeholders_[i].get();
    if (now->shape() != then->shape() || now->dtype() != then->dtype() ||
        !(now->sharding == then->sharding)) {
      throw UserError(
          fmt::format("captured step: input {} is {}, but the step was captured with {}; "
                      "make another Jit for other shapes, or call reset()",
                      i, signature_of(*inputs[i]), signature_[i]));
    }
  }
}

void CapturedStep::capture(const States& inputs, const Trace& trace) {
  signature_.clear();
  placeholders_.clear();
  States arguments;
  for (const StatePtr& input : inputs) {
    signature_.push_back(signature_of(*input));
    Storage* like = Storage::of(*input->value);
    placeholders_.push_back(
        std::make_shared<Storage>(like->shape(), like->dtype(), like->sharding));
    placeholders_.back()->set_placeholder();
    arguments.push_back(make_state(buffer_node(placeholders_.back())));
  }
  bound_.assign(inputs.size(), nullptr);
  copies_.assign(inputs.size(), nullptr);
  results_.clear();
  Capture capture;
  try {
    {
      CaptureScope scope(&capture);
      outputs_ = trace(arguments);
    }
    std::vector<UOp> roots;
    States owners;
    auto add = [&](const StatePtr& s) {
      owners.push_back(s);
      roots.push_back(s->value);
    };
    for (const StatePtr& s : outputs_) {
      add(s);
      bool argument =
          std::ranges::any_of(arguments, [&](const StatePtr& a) { return a->value == s->value; });
      if (argument) roots.back() = UOp::make(Op::Contiguous, s->value.dtype(), {s->value});
    }
    for_each_live_state([&](const StatePtr& s) {
      bool pending = s->value.op() == Op::Assign && !capture.is_from_before(*s);
      if (pending && std::ranges::find(owners, s) == owners.end()) add(s);
    });
    auto executable = make_executable(roots, true, placeholders_);
    for (size_t i = 0; i < owners.size(); ++i) {
      bool own = roots[i].op() == Op::Assign || roots[i].op() == Op::Buffer;
      owners[i]->value = own ? storage_node(roots[i]) : buffer_node(executable->roots()[i]);
      // A storage of its own that the step writes is a result, too: a clone, a parameter.
      if (roots[i].op() != Op::Buffer) results_.push_back(shared_storage(owners[i]->value));
    }
    for_each_live_state([&](const StatePtr& s) {
      s->traced = s->traced || (s->value.op() != Op::Buffer && !capture.is_from_before(*s));
    });
    executable_ = std::move(executable);
  } catch (...) {
    capture.undo();
    outputs_.clear();
    throw;
  }
}

void CapturedStep::reset() { *this = CapturedStep(); }

const Schedule& CapturedStep::schedule() const {
  if (!executable_) throw UserError("a step has no schedule before its first call");
  return executable_->schedule();
}

}  // namespace tinyshard
