#include "core/passes/operands.h"

#include <algorithm>
#include <array>

#include "core/rewrite/pattern.h"

namespace tinyshard {
namespace {

StridedView turned(StridedView view) {
  size_t last = view.shape.size() - 1;
  std::swap(view.shape[last], view.shape[last - 1]);
  std::swap(view.strides[last], view.strides[last - 1]);
  return view;
}

}  // namespace

bool runs_along_last(const UOp& x) {
  // Dims of size 1 are nowhere.
  auto last_of = [](DimSpan shape) {
    size_t last = shape.size();
    while (last > 0 && shape[last - 1] == 1) --last;
    return last;
  };
  for (const UOp* at = &x; is_movement(at->op()) || at->op() == Op::Cast; at = &at->src(0)) {
    if (at->op() != Op::Permute) continue;
    size_t last = last_of(at->shape()), before = last_of(at->src(0).shape());
    if (last > 0 && (*at)->arg()[last - 1] != int64_t(before) - 1) return false;
  }
  return true;
}

std::vector<UOp> lay_along_sums(std::span<const UOp> roots, const WorthCopying& worth_copying) {
  return rewrite_once(roots, [&](const UOp& x) {
    if (x.op() != Op::Dot) return UOp();
    std::vector<UOp> src(x->src().begin(), x->src().end());
    LibraryCall call{x, {}, {}};
    for (const UOp& s : src) call.operands.push_back(row_major(s.shape()));
    // Each operand with the sum as its last dim.
    std::array<UOp, 2> along{src[0], swap_last_two(src[1])};
    auto lies = [&](size_t operand, bool along_sum) {
      StridedView view = row_major(along[operand].shape());
      if (!along_sum) view = turned(row_major(swap_last_two(along[operand]).shape()));
      call.operands[operand] = operand == 0 ? view : turned(view);
    };
    std::vector<size_t> order;
    for (size_t operand : {0, 1}) {
      bool right = runs_along_last(along[operand]);
      lies(operand, right);
      if (!right) order.push_back(operand);
    }
    std::ranges::sort(order, {}, [&](size_t i) {
      UOp made = src[i];
      while (is_movement(made.op())) made = made.src(0);
      return std::pair(src[i]->numel(), made->id);
    });
    bool changed = false;
    for (size_t operand : order) {
      if (src[operand]->numel() > worth_copying(call, int(operand))) continue;
      UOp copy = UOp::make(Op::Contiguous, src[operand].dtype(), {along[operand]});
      src[operand] = operand == 0 ? copy : swap_last_two(copy);
      lies(operand, true);
      changed = true;
    }
    return changed ? x.with_src(src) : UOp();
  });
}

}  // namespace tinyshard
