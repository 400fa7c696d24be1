// The end of a job that all ranks see at the same step.
#pragma once

namespace tinyshard::nn {

// Whether any rank was told to end (core/base/termination.h): the same answer on all of them. A
// collective of a few bytes; call it between steps, on every rank.
bool any_rank_is_to_end();

}  // namespace tinyshard::nn
