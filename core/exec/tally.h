// The work of each device so far: the counters behind GlobalCounters (counters.h).
#pragma once
#include <vector>

#include "core/exec/counters.h"
#include "core/exec/executable.h"

namespace tinyshard {

// Says if somebody has asked: what items do is not looked at before.
bool work_is_counted();
// Counts of a device of this process, for as long as the process lives.
DeviceCounters& tally_of(const DeviceRef& device);
void add(DeviceCounters& so_far, const DeviceCounters& more);  // from any thread

// Runs that a program did not ask for, within the scope, are not counted. In a turn.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  Counters before_;
  std::vector<DeviceCounters> devices_before_;
};

}  // namespace tinyshard
