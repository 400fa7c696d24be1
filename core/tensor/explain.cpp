// The plan of tensors comes from the same function that plans their realization.
#include "core/tensor/explain.h"

#include "core/base/call.h"
#include "core/exec/explain.h"
#include "core/exec/state.h"

namespace tinyshard {
namespace {

Schedule plan_of_tensors(const std::vector<Tensor>& tensors) {
  std::vector<StatePtr> states;
  for (const Tensor& t : tensors) {
    if (!t.defined()) fail("a tensor that was never given a value");
    states.push_back(t.state());
  }
  return plan_of(states);
}

}  // namespace

PlanSummary summarize(const std::vector<Tensor>& tensors, Caller caller) {
  Call call("summarize", caller);
  return summarize(plan_of_tensors(tensors));
}

std::string explain(const std::vector<Tensor>& tensors, bool items, Caller caller) {
  Call call("explain", caller);
  return explain(plan_of_tensors(tensors), items);
}

}  // namespace tinyshard
