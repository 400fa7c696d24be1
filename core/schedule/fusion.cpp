// The choice has two parts. Forced: roots, operands and results of opaque ops, assigned storages.
// Chosen: a value that several kernels would compute gets memory unless recomputing it costs no
// more than reading it back, that is, unless it reads at most one buffer of its own size, does
// little arithmetic and contains no reduction. A reduced value that several kernels spread out
// again (a mean, a maximum) gets memory itself, being small, so that what is computed from it stays
// cheap. Of a value that is only widened, the narrow one gets memory.
#include "core/schedule/fusion.h"

#include <algorithm>

namespace tinyshard {
namespace {

constexpr double kCheapOps = 100;              // arithmetic per element that hides behind one load
constexpr double kCheapReads = 1.3;            // elements read per element made
constexpr int kLargeKernel = 400;              // nodes in one kernel before its value is cut off
constexpr int64_t kMuch = 1 << 20, kFew = 16;  // elements; of which one is taken

// What it takes to compute a value inside another kernel, each part counted once.
struct Cost {
  double ops = 0;       // arithmetic per element
  double elements = 0;  // read from memory for the whole value
  int nodes = 0;
};

// At most two of the materialized values that use a node: one or several is all that matters.
struct Users {
  const Node* first = nullptr;
  bool several = false;
  void add(const Node* user) {
    if (!first) first = user;
    if (first != user) several = true;
  }
  void add(const Users& other) {
    if (other.first) add(other.first);
    several = several || other.several;
  }
};

// What a value is widened from: the same in less memory.
UOp narrower(const UOp& x) {
  bool widened = x.op() == Op::Cast && is_float(x.dtype()) && is_float(x.src(0).dtype()) &&
                 itemsize(x.src(0).dtype()) < itemsize(x.dtype());
  return widened ? x.src(0) : x;
}

}  // namespace

bool is_library_op(Op op) {
  switch (op) {
    case Op::Dot:
    case Op::Conv:
    case Op::ConvBackwardData:
    case Op::ConvBackwardWeight:
    case Op::Attention:
    case Op::AttentionBackward:
    case Op::ScatterAdd:
    case Op::Sort:
      return true;
    default:
      return false;
  }
}

bool is_opaque(Op op) {
  return is_library_op(op) || op == Op::After || op == Op::Collective || op == Op::CopyIn;
}

Fusion::Fusion(std::span<const UOp> order, std::span<const UOp> roots)
    : materialized_(order.size()), consumers_(order.size()) {
  force(order, roots);
  choose(order);
}

void Fusion::force(std::span<const UOp> order, std::span<const UOp> roots) {
  for (const UOp& root : roots) materialize(root);
  for (const UOp& x : order) {
    if (x.op() == Op::Buffer || x.op() == Op::Contiguous || x.op() == Op::Assign) materialize(x);
    if (x.op() == Op::Gather && !is_const(x.src(0))) {
      // A data-dependent index cannot be pushed through arithmetic at a reasonable price.
      UOp base = under_views(x.src(0));
      if (base.op() != Op::Iota && !is_const(base)) {
        materialize(base);
        // A few elements of much are taken at once: the rest may go.
        if (base->numel() >= kMuch && x->numel() * kFew <= base->numel()) materialize(x);
      }
    }
    if (!is_opaque(x.op())) continue;
    materialize(x);
    for (const UOp& operand : x->src()) {
      UOp base = under_views(operand);
      if (base.op() == Op::Iota || is_const(base))
        materialize(operand);
      else
        materialize(base);
    }
  }
}

void Fusion::choose(std::span<const UOp> order) {
  NodeMap<Users> users(order.size());
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& x = order[i];
    Users mine = materialized(x) ? Users{x.get(), false} : users[x];
    uint32_t count = is_movement(x.op()) ? consumers_[x] : 1;
    for (const UOp& s : x->src()) {
      users[s].add(mine);
      consumers_[s] += count;
    }
  }
  NodeMap<bool> reduces(order.size());  // holds a reduction that would be computed along with it
  NodeMap<int> sizes(order.size());  // nodes below, those with several users counted several times
  auto cost_of = [&](const UOp& root) {
    Cost cost;
    NodeMap<bool> seen;
    std::vector<UOp> todo{root};
    while (!todo.empty() && cost.nodes <= kLargeKernel) {
      UOp x = std::move(todo.back());
      todo.pop_back();
      if (seen.contains(x)) continue;
      seen[x] = true;
      if (materialized(x) && !(x == root)) {
        cost.elements += double(x->numel());
        continue;
      }
      ++cost.nodes;
      if (is_elementwise(x.op())) cost.ops += info(x.op()).element.cost.inlined;
      if (x.op() == Op::Gather) cost.elements += double(x->numel());
      for (const UOp& s : x->src()) todo.push_back(s);
    }
    return cost;
  };
  for (const UOp& x : order) {
    if (x.op() == Op::Expand && reduces[x.src(0)] && users[x].several &&
        4 * x.src(0)->numel() <= x->numel()) {
      UOp small = under_views(x.src(0));
      materialize(small);
      for (UOp view = x.src(0);; view = view.src(0)) {
        reduces[view] = false;
        if (view == small) break;
      }
    }
    bool reduction = x.op() == Op::Reduce;
    int size = 1;
    for (const UOp& s : x->src()) {
      reduction = reduction || reduces[s];
      size += std::min(sizes[s], kLargeKernel);
    }
    if (!materialized(x) && !is_movement(x.op()) && !x->src().empty()) {
      bool shared = consumers_[x] > 1 && users[x].several;
      bool dear = !shared && size > kLargeKernel && cost_of(x).nodes > kLargeKernel;
      if (shared) {
        Cost cost = cost_of(x);
        double elements = double(std::max<int64_t>(x->numel(), 1));
        dear = reduction || cost.ops > kCheapOps || cost.elements > kCheapReads * elements;
      }
      if (dear) {
        UOp narrow = narrower(x);
        materialize(narrow);
        reduces[narrow] = false;
        sizes[narrow] = 1;
        reduction = reduction && narrow == x;
      }
    }
    bool own = materialized(x);
    reduces[x] = reduction && !own;
    sizes[x] = own ? 1 : size;
  }
}

}  // namespace tinyshard
