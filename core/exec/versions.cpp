// The first walk finds who writes over each version; where all is one chain, and no root is within
// it, the graph stays as it is. Otherwise a second walk builds it again.
#include "core/exec/versions.h"

#include <algorithm>
#include <map>

#include "core/exec/state.h"
#include "core/exec/storage.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

// The version that an Assign writes over: a storage, whatever node names it, or another Assign.
const void* version(const UOp& target) {
  return target.op() == Op::Buffer ? static_cast<const void*>(Storage::of(*target)) : target.get();
}

}  // namespace

std::vector<UOp> separate_versions(const Graph& graph) {
  const NodeOrder& order = graph.order();
  std::vector<UOp> result = graph.roots();
  std::map<const void*, UOp> next;  // the Assign that keeps the storage; null where none may
  for (const UOp& x : order) {
    if (x.op() != Op::Assign) continue;
    auto [first, added] = next.try_emplace(version(x.src(0)), x);
    if (!added && x->id < first->second->id) first->second = x;
  }
  if (next.empty()) return result;
  NodeMap<bool> in_graph(order.size());
  for (const UOp& x : order) in_graph[x] = true;
  for (const UOp& x : order) {
    if (x.op() != Op::Assign || x.src(0).op() != Op::Buffer) continue;
    const TensorState* state = holder(*Storage::of(*x.src(0)));
    if (!state) continue;
    next[version(x.src(0))] = next[version(state->value)] = UOp();
    for (UOp y = state->value; y.op() == Op::Assign; y = y.src(0)) {
      if (in_graph.contains(y)) next[version(y.src(0))] = y;
    }
  }
  auto is_written_over = [&](const UOp& x) {
    auto found = has_storage(x) ? next.find(version(x)) : next.end();
    return found != next.end() && found->second;
  };
  auto branches = [&](const UOp& x) {
    return x.op() == Op::Assign && !(next.at(version(x.src(0))) == x);
  };
  if (std::ranges::none_of(order, branches) && std::ranges::none_of(result, is_written_over))
    return result;
  NodeMap<UOp> now(order.size());
  for (const UOp& x : order) {
    std::vector<UOp> src;
    for (const UOp& s : x->src()) src.push_back(now.at(s));
    if (branches(x)) src[0] = empty_buffer(x.shape(), x.dtype(), sharding_of(x));
    now[x] = x.with_src(src);
  }
  for (UOp& root : result) {
    const bool over = is_written_over(root);
    root = now.at(root);
    if (over) root = UOp::make(Op::Contiguous, root.dtype(), {root});
  }
  return result;
}

}  // namespace tinyshard
