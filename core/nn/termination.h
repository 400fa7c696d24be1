// The end of a job that all ranks see at the same step.
#pragma once

namespace tinyshard::nn {

// Tells whether any rank was told to end (core/base/termination.h): the same answer on all of them. It
// is a collective of a few bytes, to be called between steps on every rank.
bool any_rank_is_to_end();

}  // namespace tinyshard::nn
