// Asks the devices of a plan: workspaces of its library calls (core/runtime/workspaces.h), and their speeds.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "core/schedule/schedule.h"

namespace tinyshard {

// Bytes that the item keeps beside its buffers; 0 where its device does not tell.
int64_t workspace_bytes(const Item& item);
// The speeds of the devices that compute the plan, those of their profiles; null where all are of other ranks.
const Speeds* speeds_of(const Schedule& schedule);
// Bytes on each device of each mesh whose items keep some.
std::vector<std::pair<Mesh, int64_t>> workspaces_of(const Schedule& schedule);

}  // namespace tinyshard
