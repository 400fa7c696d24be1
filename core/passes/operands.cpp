// The sum of a product runs along the last dim of the first operand and along the one before in the
// second. Of dot(a [m, k], b [k, n]) with both as they come from memory, a lies along the sum and b
// across it:
//
//   b [k, n]     ->     swap(contiguous(swap(b)))     the same elements, of which those of one column
//                                                      are neighbours now
//
// Whether a copy pays is asked of the device anew after each copy, since it depends on how the other
// operand lies.
#include "core/passes/operands.h"

#include <algorithm>

#include "core/rewrite/pattern.h"

namespace tinyshard {
namespace {

// x with neighbours along its last dim, or along the one before.
StridedView lying(const UOp& x, bool along_last) {
  if (along_last) return row_major(x.shape());
  StridedView view = row_major(swap_last_two(x).shape());
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

std::vector<UOp> lay_along_sums(const Graph& graph, const WorthCopying& worth_copying) {
  return rewrite_once(graph, [&](const UOp& x) {
    if (x.op() != Op::Dot) return UOp();
    std::vector<UOp> src(x->src().begin(), x->src().end());
    // The sum is over the last dim of the first operand and the one before in the second.
    auto sum_last = [&](size_t operand) {
      return operand == 0 ? src[operand] : swap_last_two(src[operand]);
    };
    LibraryCall call = row_major_call(x);
    std::vector<size_t> across;
    for (size_t operand : {0, 1}) {
      bool along = runs_along_last(sum_last(operand));
      call.operands[operand] = lying(src[operand], along == (operand == 0));
      if (!along) across.push_back(operand);
    }
    std::ranges::sort(
        across, {}, [&](size_t i) { return std::pair(src[i]->numel(), under_views(src[i])->id); });
    for (size_t operand : across) {
      if (src[operand]->numel() > worth_copying(call, int(operand))) continue;
      UOp copy = UOp::make(Op::Contiguous, src[operand].dtype(), {sum_last(operand)});
      src[operand] = operand == 0 ? copy : swap_last_two(copy);
      call.operands[operand] = lying(src[operand], operand == 0);
    }
    return x.with_src(src);
  });
}

}  // namespace tinyshard
