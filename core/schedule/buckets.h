// Many small collectives become few large ones, and nothing is copied for it.
#pragma once

namespace tinyshard {

struct ScheduleState;

// Collectives of one kind over one mesh axis that become ready one after the other share a bucket
// of at most ScheduleOptions::bucket_bytes (a larger one has a bucket of its own), which is closed
// when more bytes than that of other kinds have become ready since. All-reduces share a buffer:
// operands are computed straight into it and results read from it. Reduce-scatters and all-gathers,
// whose parts would lie apart in such a buffer, keep their own and run as the pieces of one call.
void bucket_collectives(ScheduleState& state);

}  // namespace tinyshard
