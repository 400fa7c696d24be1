// A softmax over rows stores y[i][j] = exp2(x[i][j]) / sum_k exp2(x[i][k]). The fold over k depends
// on i alone, so i comes first and the fold is computed once a row, before the loop over j:
//
//   for i: { s = fold over k; for j: store y[i][j] }
//
// Were there a second fold that depends on j alone (a column's maximum), no order of i and j would
// have both computed once, and it is returned: it gets memory, made by a kernel of its own.
#include "core/schedule/loops.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/rewrite/pattern.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

constexpr int64_t kParallelWork = 8;      // rows that keep the threads of a device busy
constexpr int64_t kSerialWork = 1 << 14;  // elements that one thread may do alone

bool contains_all(std::span<const UOp> list, std::span<const UOp> part) {
  return std::ranges::all_of(part, [&](const UOp& x) { return contains(list, x); });
}

}  // namespace

int64_t size_of(std::span<const UOp> ranges) {
  int64_t n = 1;
  for (const UOp& r : ranges) n *= range_arg(*r).size;
  return n;
}

bool contains(std::span<const UOp> list, const UOp& x) {
  return std::ranges::find(list, x) != list.end();
}

UOp arrange_loops(KernelDraft& draft, std::span<const UOp> nodes, FreeRanges& free_ranges,
                  bool serial) {
  std::vector<std::pair<UOp, std::vector<UOp>>>
      needs;  // (fold or null for a store, loops that must come first)
  for (const UOp& x : nodes) {
    if (x.op() != Op::Fold) continue;
    std::vector<UOp> loops, outer_folds;
    for (const UOp& r : free_ranges(x)) {
      (range_arg(*r).kind == RangeKind::Loop ? loops : outer_folds).push_back(r);
    }
    if (!outer_folds.empty()) {
      // Inside another fold: it is computed anew for every range the outer fold depends on.
      for (const UOp& outer : nodes) {
        if (outer.op() != Op::Fold || outer == x) continue;
        bool binds = std::ranges::any_of(outer->src().subspan(1),
                                         [&](const UOp& r) { return contains(outer_folds, r); });
        if (binds && !contains_all(free_ranges(x), free_ranges(outer)) &&
            size_of(x->src().subspan(1)) > 16)
          return x;
      }
      continue;
    }
    needs.push_back({x, std::move(loops)});
  }
  for (const auto& out : draft.outputs) needs.push_back({UOp(), free_ranges(out.index)});
  std::ranges::stable_sort(needs, {}, [](const auto& need) { return need.second.size(); });
  std::vector<UOp> order;
  for (const auto& [fold, loops] : needs) {
    if (!contains_all(loops, order)) return fold ? fold : draft.outputs.front().value;
    for (const UOp& r : draft.loops) {
      if (contains(loops, r) && !contains(order, r)) order.push_back(r);
    }
  }
  for (const auto& [fold, loops] : needs) {
    if (serial || !fold || loops.size() == draft.loops.size()) continue;
    int64_t rows = size_of(loops), work = rows * size_of(fold->src().subspan(1));
    if (rows < kParallelWork && std::max(work, size_of(draft.loops)) > kSerialWork) return fold;
  }
  for (const UOp& r : draft.loops) {
    if (!contains(order, r)) order.push_back(r);
  }
  draft.loops = std::move(order);
  return UOp();
}

}  // namespace tinyshard
