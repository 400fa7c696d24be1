// Tells what will happen, before it does: how many kernels, which collectives, how many bytes, how
// much memory. Nothing runs and nothing changes; on several ranks each may ask for itself.
//
//   Tensor c = a.matmul(b);
//   std::cout << explain(c);                                // the text
//   int64_t bytes = summarize(step).collective_bytes;       // the same as a plain value
#pragma once
#include <string>
#include <vector>

#include "core/exec/plan_summary.h"
#include "core/tensor/jit.h"
#include "core/tensor/tensor.h"

namespace tinyshard {

// Tells what computing these tensors in one run does; nothing where they are computed already.
// UserError inside of a captured step, and where they cannot be computed.
PlanSummary summarize(const std::vector<Tensor>& tensors, Caller caller = Caller::current());
inline PlanSummary summarize(const Tensor& tensor, Caller caller = Caller::current()) {
  return summarize(std::vector<Tensor>{tensor}, caller);
}
// The same as text; with `items`, one line for each of them as well, and the temporaries that are
// alive where they take most memory.
std::string explain(const std::vector<Tensor>& tensors, bool items = false,
                    Caller caller = Caller::current());
inline std::string explain(const Tensor& tensor, bool items = false,
                           Caller caller = Caller::current()) {
  return explain(std::vector<Tensor>{tensor}, items, caller);
}

// Tells what one call of a captured step does. UserError before its first call.
template <class F>
PlanSummary summarize(const Jit<F>& step) {
  return step.captured_step().summary();
}
template <class F>
std::string explain(const Jit<F>& step, bool items = false) {
  return step.captured_step().explanation(items);
}

}  // namespace tinyshard
