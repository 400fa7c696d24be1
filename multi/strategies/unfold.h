// Windows of a split dim (Op::Unfold) and their sum back.
#pragma once
#include <optional>

#include "multi/strategies/local_values.h"
#include "multi/strategies/rows.h"

namespace tinyshard {

// A chain of pads and shrinks x down to `source`, which is a sum of windows, perhaps permuted: the
// sum is made where its rows end up. Nothing where the source is something else, or no device's
// part of it.
std::optional<LocalValue> cut_of_windows_summed(const UOp& x, const UOp& source,
                                                const std::vector<Rows>& rows, LocalValues& values);

}  // namespace tinyshard
