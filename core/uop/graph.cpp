// Questions about whole graphs: order, text, structure.
#include "core/uop/graph.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/hash.h"
#include "core/uop/args.h"
#include "core/uop/composite.h"
#include "core/uop/node_map.h"
#include "core/uop/node_set.h"
#include "core/uop/product_region.h"
#include "core/uop/uop.h"

namespace tinyshard {

NodeOrder toposort(std::span<const UOp> roots) {
  NodeOrder order;
  NodeSet met;
  // A node that the walk comes back to is not read again: it may have left the cache since.
  struct Frame {
    const UOp *node, *next, *end;  // and its sources
  };
  std::vector<Frame> stack;
  auto push = [&](const UOp& x) {
    if (met.add(x)) stack.push_back({&x, x->src().data(), x->src().data() + x->sources});
  };
  for (const UOp& root : roots) {
    push(root);
    while (!stack.empty()) {
      Frame& frame = stack.back();
      if (frame.next == frame.end) {
        order.push_back(*frame.node);
        stack.pop_back();
        continue;
      }
      push(*frame.next++);
    }
  }
  return order;
}

UOp without_waits(const UOp& x) {
  NodeMap<UOp> alone;
  std::vector<UOp> left{x};
  while (!left.empty()) {
    const UOp at = left.back();
    const std::span<const UOp> sources = at->src().first(at.op() == Op::After ? 1 : at->sources);
    const size_t waiting = left.size();
    for (const UOp& s : sources) {
      if (!alone.contains(s)) left.push_back(s);
    }
    if (left.size() > waiting) continue;
    left.pop_back();
    std::vector<UOp> src;
    for (const UOp& s : sources) src.push_back(alone.at(s));
    const bool same = std::ranges::equal(src, sources);
    alone[at] = at.op() == Op::After ? src[0] : same ? at : at.with_src(src);
  }
  return alone.at(x);
}

std::string describe(const Node& node) {
  const std::string_view op =
      node.op == Op::Composite ? composite_row(node).name : info(node.op).name;
  std::string text = fmt::format("{} {}", op, name(node.dtype));
  if (info(node.op).op_class != OpClass::Kernel) text += to_string(node.shape());
  switch (node.op) {
    case Op::Const: {
      const auto value = std::bit_cast<double>(const_bits(node));
      text += !is_float(node.dtype)      ? fmt::format(" {}", const_bits(node))
              : node.dtype == DType::F64 ? fmt::format(" {}", value)
                                         : fmt::format(" {}", static_cast<float>(value));
      break;
    }
    case Op::Buffer:
      text += fmt::format(" #{}", buffer_number(node));
      break;
    case Op::Reduce: {
      text +=
          fmt::format(" {} over {}", name(reduce_arg(node).op), to_string(reduce_arg(node).axes));
      break;
    }
    case Op::Fold:
      text += fmt::format(" {}", name(fold_arg(node).op));
      break;
    case Op::Reshape:
    case Op::Expand:
    case Op::Composite:
      break;
    default:
      if (!node.arg().empty()) text += " " + to_string(node.arg());
  }
  return text;
}

std::string print(std::span<const UOp> roots) {
  std::string text;
  NodeMap<size_t> number;
  for (const UOp& x : toposort(roots)) {
    size_t n = number.size();
    number[x] = n;
    text += fmt::format("%{} = {}", n, describe(*x));
    for (const UOp& s : x->src()) text += fmt::format(" %{}", number.at(s));
    if (const ProductRegion* region = region_of(x)) text += fmt::format(" ({})", region->name);
    text += '\n';
  }
  return text;
}

uint64_t structural_hash(std::span<const UOp> roots) {
  NodeMap<uint64_t> hashes(256);
  uint64_t buffers = 0, result = roots.size();
  for (const UOp& x : toposort(roots)) {
    uint64_t h = combine(uint64_t(x.op()) << 8 | uint64_t(x.dtype()), x->src().size());
    auto arg = x->arg();
    if (x.op() == Op::Buffer || x.op() == Op::Redistribute ||
        x.op() == Op::Identity) {  // numbers differ between processes
      if (x.op() == Op::Buffer) h = combine(h, buffers++);
      arg = arg.subspan(1);
    }
    for (int64_t a : arg) h = combine(h, uint64_t(a));
    for (const UOp& s : x->src()) h = combine(h, hashes.at(s));
    hashes[x] = h;
  }
  for (const UOp& root : roots) result = combine(result, hashes.at(root));
  return result;
}

}  // namespace tinyshard
