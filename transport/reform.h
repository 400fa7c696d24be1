// How a job goes on without the ranks that it has lost: those that are left agree, through the store
// where they once met, on who they are. They keep their order and are numbered anew.
//
// The store takes a value once. So of several proposals one stands, on whichever side of a broken
// network its authors are, and two halves of a job never both go on.
#pragma once
#include <chrono>

#include "launch/environment.h"

namespace tinyshard {

// The place of this process in its job: as the launcher said, or as the ranks that are left agreed.
// A rank that was started later waits here until they take it in; CommError where they do not. Any
// thread.
LaunchEnvironment current_launch();

// Leaves out the ranks that have ended, and those that do not call this within `patience`. Waits for
// the others. UserError where the ranks do not talk by TCP or the store goes with a rank; CommError
// where this rank is left out, or the store is gone.
void reform_job(std::chrono::nanoseconds patience);

// Returns whether ranks that were started later wait to be taken in, which reform_job does. Asks
// the store, and looks again after a while only. Any thread.
bool ranks_wait_to_join();
// This process was started later than the job.
bool joined_later();

}  // namespace tinyshard
