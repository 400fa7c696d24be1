// Where the temporary buffers of a schedule lie in the arena that each device holds for it.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "core/schedule/schedule.h"

namespace tinyshard {

// Returns what `buffer` is a version of, through any number of versions between.
int earliest_version(const std::vector<VirtualBuffer>& buffers, int buffer);

// The buffer in whose memory a version, a member of a bucket or a further name lies.
int memory_holder(const std::vector<VirtualBuffer>& buffers, int buffer);

// The life of a buffer that exists only inside the schedule: from its first to its last item.
struct Life {
  int buffer;
  int64_t bytes;
  int first, last;
};
std::vector<Life> arena_lives(const Schedule& schedule);

// Returns where the planned buffers of each mesh end.
std::vector<std::pair<Mesh, int64_t>> arena_ends(const Schedule& schedule);

// Returns what one device needs: schedule.arena_bytes, or less where it is not on all meshes. A
// device of "this process" is that of each rank.
int64_t arena_bytes_on(const Schedule& schedule, const DeviceRef& device);

// Reuse distance: a freed block is not given to the next items, so that they may run concurrently.
inline constexpr int kBeside = 8;

// Gives every buffer that lives only inside the schedule an offset, so that buffers whose lives
// overlap do not, unless no device has both; sets arena_bytes. The order of the items must be
// final. Up to `spare` bytes more are taken so that memory is not used again, or else not by the
// kBeside items after those that are done with it: they may then run beside them.
void plan_memory(Schedule& schedule, int64_t spare = 0);

}  // namespace tinyshard
