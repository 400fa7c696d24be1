// Found on the graph as it is; then one walk rebuilds it with products in place of what they store:
//
//   %2 = dot f32[4, 6] %0 %1
//   %3 = cast bf16[4, 6] %2          %3 = dot bf16[4, 6] %0 %1
//   %4 = reshape bf16[2, 2, 6] %3    %4 = reshape bf16[2, 2, 6] %3
//   %5 = contiguous %4
//   %6 = collective %5               %6 = collective %4
#include "core/passes/narrow.h"

#include "core/dtype/half.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

bool narrows(DType from, DType to) { return from == DType::F32 && is_half(to); }

class Narrowing {
 public:
  Narrowing(const Graph& graph, const std::function<bool(const LibraryCall&)>& supports)
      : roots_(graph.roots()),
        order_(graph.order()),
        supports_(supports),
        uses_(count_uses(order_, roots_)) {}

  std::vector<UOp> run() {
    for (const UOp& x : order_) {
      if (x.op() == Op::Cast && narrows(x.src(0).dtype(), x.dtype())) note(x, x.src(0));
      if (x.op() == Op::Collective && x.src(0).op() == Op::Contiguous) sent(x.src(0));
    }
    return stored_.size() == 0 ? std::vector<UOp>(roots_.begin(), roots_.end()) : rebuilt();
  }

 private:
  // How many sources of other nodes, or roots, x is.
  int uses(const UOp& x) const { return uses_.at(x); }

  // That x becomes the product, if it is one that nobody else reads.
  void note(const UOp& x, const UOp& product) {
    if (product.op() != Op::Dot || product->sources != 2 || uses(product) != 1) return;
    const UOp stored = UOp::make(Op::Dot, x.dtype(), product->src(), product->arg());
    if (supports_(row_major_call(stored))) stored_[x] = product;
  }

  // What a collective sends is stored for it: by the product, where it is one's result in the type
  // that it has anyway. Wider stores take longer than to widen the result afterwards.
  void sent(const UOp& copy) {
    UOp x = copy.src(0);
    const int64_t columns = x.shape().empty() ? 0 : x.shape().back();
    while (uses(x) == 1 &&
           (x.op() == Op::Reshape || (x.op() == Op::Cast && x.dtype() == copy.dtype()))) {
      x = x.src(0);
    }
    const bool as_asked = x.dtype() == copy.dtype() || narrows(x.dtype(), copy.dtype());
    if (as_asked && x.op() == Op::Dot && dot_batch(*x) == 0 && x.shape().back() == columns)
      note(copy, x);
  }

  std::vector<UOp> rebuilt() {
    NodeMap<UOp> made(order_.size());
    std::vector<UOp> src;
    for (const UOp& x : order_) {
      src.clear();
      if (const UOp* product = stored_.find(x)) {
        for (const UOp& s : (*product)->src()) src.push_back(made.at(s));
        made[x] = reshape(UOp::make(Op::Dot, x.dtype(), src, (*product)->arg()), x.shape());
        continue;
      }
      for (const UOp& s : x->src()) src.push_back(made.at(s));
      made[x] = x.op() == Op::Reshape ? reshape(src[0], x.shape()) : x.with_src(src);
    }
    std::vector<UOp> roots;
    for (const UOp& root : roots_) roots.push_back(made.at(root));
    return roots;
  }

  std::span<const UOp> roots_, order_;
  const std::function<bool(const LibraryCall&)>& supports_;
  NodeMap<int> uses_;
  NodeMap<UOp> stored_;  // the product that a node becomes, as the graph has it
};

}  // namespace

std::vector<UOp> narrow_products(const Graph& graph,
                                 const std::function<bool(const LibraryCall&)>& library_supports) {
  return Narrowing(graph, library_supports).run();
}

}  // namespace tinyshard
