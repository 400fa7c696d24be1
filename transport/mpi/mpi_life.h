// The MPI library's one life in this process, from MPI_Init to MPI_Finalize: what all channels of
// the process share. Part of the plug-in.
//
// A process that exits with status 0 first tells all others that it leaves, then waits until they
// leave, too, and finalizes MPI. So a rank that waits for one that returned from main hears of it
// at once, and one that merely saves something after its last step is waited for. A process that
// ends otherwise tells nobody: its peers see that it has ended, and so does the launcher.
#pragma once
#include <chrono>
#include <string>

#include <mpi.h>

#include "core/runtime/communicator.h"
#include "launch/environment.h"
#include "transport/channel.h"

namespace tinyshard::mpi {

void check(int code, int peer, const char* call);  // throws ChannelError

// Starts MPI, unless the program has, and meets the other ranks, at most for `timeout`. Once per
// process; later calls return. Throws CommError, naming the ranks that did not come where the
// process table shows them, and UserError where MPI cannot be used.
void begin(const LaunchEnvironment& launch, std::chrono::nanoseconds timeout);

// Waits for `request` without blocking in MPI. CommError named `operation` at the deadline.
void await(MPI_Request& request, Deadline deadline, const char* operation);

// Tells what is known of a rank: its process has ended or is stopped, or it has left. May be called
// at any time after begin, with calls of other threads.
PeerState state_of(int rank);

std::string process_of(int rank);  // "process 812 on node02"

// A group has failed: this process will not wait for the others when it exits.
void set_unhealthy();

}  // namespace tinyshard::mpi
