// Kernels that can share their loops become one kernel with several outputs.
#pragma once

namespace tinyshard {

struct ScheduleState;

// Fuses each producer into the first of its consumers that can compute it along, until nothing more
// fits.
void fuse_vertically(ScheduleState& state);
// Fuses kernels that read the same large buffer over the same loops: they read it once.
void fuse_siblings(ScheduleState& state);
// An output that nothing outside of its kernel reads needs no memory: its store is dropped.
void drop_unread(ScheduleState& state);

}  // namespace tinyshard
