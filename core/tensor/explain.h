// Tells what will happen, before it does: how many kernels, which collectives, how many bytes, how
// much memory. Nothing runs and nothing changes; on several ranks each may ask for itself.
//
//   Tensor c = a.matmul(b);
//   std::cout << explain(c);                                // the text
//   report << explain(c, Html);                             // a piece of a page
//   std::ofstream("c.dot") << to_dot(c);                    // for Graphviz: dot -Tsvg c.dot
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

// Asks for a plan as HTML: explain(x, Html).
struct HtmlForm {};
inline constexpr HtmlForm Html{};

// Returns the plan as a piece of HTML that a report can have anywhere in its body: figures, values with
// their placements, movements with bytes and lines, items, memory. It has its own style and no script,
// refers to nothing outside, and names of the program are escaped. Errors as above.
std::string explain(const std::vector<Tensor>& tensors, HtmlForm form,
                    Caller caller = Caller::current());
inline std::string explain(const Tensor& tensor, HtmlForm form, Caller caller = Caller::current()) {
  return explain(std::vector<Tensor>{tensor}, form, caller);
}

// Returns the graph of these tensors as text for Graphviz: a node for each op with its shape, the
// placements of its value where that lies on several devices, and the line that it comes from. It is
// the graph that the sharding rewrite is given. An empty graph where all are computed already; errors
// as above.
std::string to_dot(const std::vector<Tensor>& tensors, Caller caller = Caller::current());
inline std::string to_dot(const Tensor& tensor, Caller caller = Caller::current()) {
  return to_dot(std::vector<Tensor>{tensor}, caller);
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
// The step's plan was made before: its items and memory are told, its values and movements are not.
std::string explain(const CapturedStep& step, HtmlForm form);
template <class F>
std::string explain(const Jit<F>& step, HtmlForm form) {
  return explain(step.captured_step(), form);
}
// Returns the items of the step's plan as text for Graphviz: kernels, library calls, collectives and
// copies with their lines, and which of them reads what another one wrote.
std::string to_dot(const CapturedStep& step);
template <class F>
std::string to_dot(const Jit<F>& step) {
  return to_dot(step.captured_step());
}

}  // namespace tinyshard
