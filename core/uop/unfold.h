// Windows of the last dim, and their sum back. Both are ops so that a dim that is split over devices
// receives only what its windows reach (multi/strategies/unfold.cpp); after that they are spelled
// out as views.
//
//   unfold f32[7] in windows of 3, every 2    [[x0 x1 x2] [x2 x3 x4] [x4 x5 x6]]
//   unfold_backward of f32[3, 3] to 7         x2 is g[0, 2] + g[1, 0], x1 is g[0, 1]
#pragma once
#include "core/uop/args.h"
#include "core/uop/uop.h"

namespace tinyshard {

// [.., n] becomes [.., windows, kernel]: element [o, j] is x[o * stride + j * dilation].
UOp unfold(const UOp& x, const UnfoldArg& arg);
// [.., windows, kernel] becomes [.., arg.size]: each element is the sum of its copies in windows.
UOp unfold_backward(const UOp& windows, const UnfoldArg& arg);

// Return the same values spelled in smaller ops: views, and a sum of views.
UOp spelled_unfold(const UOp& x, const UnfoldArg& arg);
UOp spelled_unfold_backward(const UOp& windows, const UnfoldArg& arg);

}  // namespace tinyshard
