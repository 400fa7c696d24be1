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
//
// Newcomers: the launcher starts rank 4 in the place of rank 2. It sets "newcomer/4" and asks for
// "joins/4". Who proposes the next members asks for newcomers in their order, and takes rank 4 in:
// "0,1,3,4". Each member sets "joins/4" to the formation and its members, "2:0,1,3,4".
#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "launch/environment.h"
#include "transport/rendezvous/store.h"

namespace tinyshard {

// The process that an agreement runs in, as far as the agreement needs it.
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
// StoreError where the store is gone. Newcomers are among them, and are told.
std::vector<int> agree_on_members(const LaunchEnvironment& last, Store& store, FormationHost& host,
                                  std::chrono::nanoseconds patience);

// The place of this rank among those members. CommError where it is not one of them.
LaunchEnvironment next_formation(LaunchEnvironment last, std::vector<int> members);

// The key that says which formation has taken a newcomer in.
std::string joins_key(int rank);

// Set when the first rank has ended well: nobody joins any more.
constexpr std::string_view kJobIsOver = "over";

// The ranks that the launcher started later, are there, and are in no formation yet.
std::vector<int> waiting_newcomers(const LaunchEnvironment& launch, Store& store);

// For a newcomer: waits until a formation takes it in, and returns its place there. CommError where
// the job ends first, or the deadline passes; StoreError where the store is gone.
LaunchEnvironment join_formation(LaunchEnvironment own, Store& store, FormationHost& host,
                                 Deadline deadline);

}  // namespace tinyshard
