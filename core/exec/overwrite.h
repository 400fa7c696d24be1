// States that are about to be written over in place, by something that is no part of the graph: a
// loader that fills the memory of each device.
#pragma once
#include <span>
#include <vector>

#include "core/exec/state.h"

namespace tinyshard {

// The storages to fill, one per state, where the states live now; their contents are undefined
// until they are filled. Values that were never computed are not computed for this. Whoever else
// needs what the states held until now gets it first. Not inside a capture.
std::vector<Storage*> open_to_overwrite(std::span<const StatePtr> states);

}  // namespace tinyshard
