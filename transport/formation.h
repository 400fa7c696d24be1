// How those that are left of a job agree on who they are: through a store that takes a value once.
// The clock and the process table are the caller's, so that the simulator (tests/simulator) runs
// this, too; reform.cpp brings those of the process.
//
// Example: of ranks 0 to 3, rank 2 is killed. Ranks 0, 1 and 3 set "formation/1/here/<rank>" and ask
// for those of the others. The store says that rank 2 will set nothing (its launcher saw it end), or
// the process table shows it no more. Rank 0 is the first to know of all four; it sets
// "formation/1/members" to "0,1,3". What rank 3 proposes later does not count, it reads what stands.
// Rank 3 is now rank 2 of 3; the store goes on to know it as 3. If rank 1 dies while the three meet,
// ranks 0 and 3 come back with "formation/2/here/...".
#pragma once
#include <chrono>
#include <vector>

#include "launch/environment.h"
#include "transport/rendezvous/store.h"

namespace tinyshard {

// What the agreement asks of the process that it runs in.
class FormationHost {
 public:
  virtual ~FormationHost() = default;
  virtual Deadline now() = 0;
  virtual void sleep(std::chrono::milliseconds time) = 0;
  // The ranks, as launched, whose processes this host shows. Empty: it shows none at all, and says
  // nothing of any.
  virtual std::vector<int> processes() = 0;
};

// The ranks that go on, as launched, ascending: the same on all of them, whether this one is among
// them or not. Leaves out those that have ended, and those that do not come within `patience`.
// StoreError where the store is gone.
std::vector<int> agree_on_members(const LaunchEnvironment& last, Store& store, FormationHost& host,
                                  std::chrono::nanoseconds patience);

// The place of this rank among those members. CommError where it is not one of them.
LaunchEnvironment next_formation(LaunchEnvironment last, std::vector<int> members);

}  // namespace tinyshard
