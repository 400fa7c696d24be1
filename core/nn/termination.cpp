// A rank that was told to end votes against going on; agreement by
// minimum makes it the decision of all.
#include "core/nn/termination.h"

#include "core/base/termination.h"
#include "core/nn/agreement.h"

namespace tinyshard::nn {

bool any_rank_is_to_end() { return !agree(!termination_requested()); }

}  // namespace tinyshard::nn
