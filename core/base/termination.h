// The wish that this process ends: SIGTERM, as launchers and batch systems send it, SIGINT (Ctrl-C)
// and SIGHUP. They end a process at once, unless it asks for time:
//
//   expect_termination();                     // at the start of main: three seconds to save in
//   for (int64_t i = start; i < steps; ++i) {
//     step(batch(i));
//     if (nn::any_rank_is_to_end()) {         // the same answer on all ranks
//       nn::save_checkpoint(state, folder, i + 1);
//       return termination_status();          // from main: 143 after SIGTERM
//     }
//   }
//
// A signal that was ignored when the process began (nohup, jobs in the background) stays ignored, and
// a handler of the program's own stays in place. Threads: any.
#pragma once
#include <chrono>

namespace tinyshard {

// From now on the first of these signals is news. It ends the process when `grace` has passed, if
// it is there still; another one ends it at once, if it comes more than a second later: batch systems
// send one wish to every process of a job, from where it comes again. tinyshard run waits so long before it kills.
void expect_termination(std::chrono::milliseconds grace = std::chrono::seconds(3));

// Tells whether such a signal has come to this process. Ranks get theirs at different steps: see
// nn::any_rank_is_to_end.
bool termination_requested();

// Returns the status for exit(): 128 + the signal that came, 0 if none has.
int termination_status();

// Called by transports. From now on the first SIGTERM ends the process only after 0.3 s, so that a
// rank that waits can say for whom. Does nothing if the program has a handler of its own.
void watch_for_termination();

// Tells whether a wait is to give up: a signal has come, and the program has asked for no time.
bool terminated();

// Takes a pipe of tinyshard run, which gets a line when a signal comes ("T <signal> <process>") and
// when time is asked for ("G <milliseconds>").
void report_termination_to(int pipe);

}  // namespace tinyshard
