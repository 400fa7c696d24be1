// The life of a process. One that forks: the child has the memory of its parent, but none of its
// threads, and no claim on its devices and its place in a job. One that exits: libraries tear
// themselves down while destructors of the program's global objects are still to run.
#pragma once

namespace tinyshard {

// Returns how often this process and those before it were forked since the first call. Cheap.
int times_forked();

// Tells whether this is the thread that main() runs in.
bool is_main_thread();

// is_exiting() tells whether this process is exiting: what was made later than the first call of
// watch_for_exit() is gone then.
void watch_for_exit();
bool is_exiting();
// UserError where it is; `what` begins a sentence: "a kernel cannot be compiled".
void check_not_exiting(const char* what);

}  // namespace tinyshard
