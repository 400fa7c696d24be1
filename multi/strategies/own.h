// Ops on values that each device has for itself (multi/per_device.h). They run on each device as
// they are written. Along an axis for which a value is own its placement reads Replicate, although
// the devices hold different values; no rule here relies on equal ones.
#pragma once
#include "multi/per_device.h"
#include "multi/strategies/local_values.h"

namespace tinyshard {

// The value of a node that is own, or that makes an ordinary value of an own one. UserError for
// what a device cannot do for itself: write to a tensor of all, or move a value by placement.
LocalValue own_value(const UOp& x, LocalValues& values, OwnAxesOf& own);

}  // namespace tinyshard
