// Attention for a library, or as what it stands for. Heads may share k and v: dim -3 of these then
// divides that of q, and heads that share lie side by side. A causal one may have one more source,
// i64 [L], that says up to which column each row looks in place of its number: rows that are a part
// of a sequence begin further on (multi/strategies/attention.cpp).
#pragma once
#include <functional>
#include <vector>

#include "core/runtime/device.h"
#include "core/uop/graph.h"

namespace tinyshard {

// An Attention or AttentionBackward as products and a softmax: the softmax in f32, its result
// rounded to the operands' type, as is what the products give. The gradients are those of the
// spelled out result, so all nodes of one attention share its scores. It reads its sources through
// Detach: nothing looks behind them, and `tidy` removes it.
UOp spell_attention(const UOp& x);

// Spells out what `library_supports` refuses (asked with row-major operands). What it takes gives
// its results in the order in which the operands lie: with the heads inside of the rows where they
// are, as a projection to all heads makes them and wants them back.
std::vector<UOp> lower_attention(const Graph& graph,
                                 const std::function<bool(const LibraryCall&)>& library_supports);

}  // namespace tinyshard
