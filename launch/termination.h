// SIGTERM as news. A launcher sends it to what is left of a job, and kills a moment later: in
// between a rank can say why it ends.
#pragma once

namespace tinyshard {

// From now on the first SIGTERM is taken as news, unless the program has a handler of its own; a
// second one ends the process.
void watch_for_termination();

// The first one came.
bool terminated();

inline constexpr const char* kTerminated = "the launcher is ending the job (SIGTERM)";

}  // namespace tinyshard
