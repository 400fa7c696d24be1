// A process that `tinyshard run` started as a rank, or one below it: a pipe leads to the agent of its
// host (rank_group.h). When the library is loaded into such a process, it sees to it that lines are
// written at once, and that the process ends when the agent is killed.
#pragma once
#include <string>

#include "launch/environment.h"

namespace tinyshard {

// Sends the agent a line; does nothing where there is no agent.
void report_to_agent(const std::string& line);

// This process takes the place of its rank. UserError where a process that started this one has it:
// a program that a rank starts inherits the rank's environment, and with it a place that is taken.
void claim_rank(const LaunchEnvironment& launch);

}  // namespace tinyshard
