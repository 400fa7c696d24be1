// From tensors to graphs and back.
#include "core/tensor/tensor_graph.h"

#include <ostream>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/uop/graph.h"

namespace tinyshard {

UOp graph_of(const Tensor& x, Caller caller) {
  const Call call("graph_of", caller);
  const UOp value = without_waits(x.uop());
  return without_names(std::span(&value, 1))[0];
}

Tensor graph_rewrite(const Tensor& x, const PatternMatcher& rules, Caller caller) {
  const Call call("graph_rewrite", caller);
  try {
    return Tensor(graph_rewrite(under_names(x.uop()), rules));
  } catch (const UserError& error) {
    fail(error.what());
  }
}

std::ostream& operator<<(std::ostream& out, const UOp& x) {
  if (!x) return out << "no node\n";
  return out << print(without_names(std::span(&x, 1)));
}

}  // namespace tinyshard
