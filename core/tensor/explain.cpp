// The plan of tensors comes from the same function that plans their realization.
#include "core/tensor/explain.h"

#include <utility>

#include "core/base/call.h"
#include "core/exec/explain.h"
#include "core/exec/plan_dot.h"
#include "core/exec/plan_html.h"
#include "core/exec/plan_record.h"
#include "core/exec/schedule_of.h"
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

// The record of the plan of tensors; empty where there is nothing to do.
std::string record_of_tensors(const std::vector<Tensor>& tensors) {
  CaughtRecord record;
  plan_of_tensors(tensors);
  return std::move(record.text);
}

std::string record_of(const CapturedStep& step) {
  CaughtRecord record;
  tell_plan(schedule_of(step));
  return std::move(record.text);
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

std::string explain(const std::vector<Tensor>& tensors, HtmlForm, Caller caller) {
  Call call("explain", caller);
  return plan_html(record_of_tensors(tensors));
}

std::string explain(const CapturedStep& step, HtmlForm) { return plan_html(record_of(step)); }
std::string to_dot(const CapturedStep& step) { return items_dot(record_of(step)); }

std::string to_dot(const std::vector<Tensor>& tensors, Caller caller) {
  Call call("to_dot", caller);
  return plan_dot(record_of_tensors(tensors));
}

}  // namespace tinyshard
