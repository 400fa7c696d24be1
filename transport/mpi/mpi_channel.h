// The channel over MPI, for ranks started by mpirun or by srun with PMIx. A plain MPI library never
// reports a dead peer, so nothing here waits inside it: messages are non-blocking and tested,
// set-up runs under a deadline.
//
// MPI is started by the first connect and ended at exit(0) once all ranks have come to theirs, of
// which each tells the others when it does (mpi_life.h): who waits for one that has left is freed.
// A process that exits otherwise leaves without MPI_Finalize, which makes the launcher end the job.
// Under a launcher the first SIGTERM is taken as news (mpirun sends it one second after a rank
// died, and kills one second later): the wait at hand turns it into a CommError; a second one ends
// the process.
#pragma once
#include <chrono>
#include <memory>

#include "launch/environment.h"
#include "transport/channel.h"
#include "transport/world.h"

namespace tinyshard {

// Throws UserError when this build or this launch has no MPI for it, CommError when the ranks do
// not meet in time.
std::unique_ptr<Channel> connect_mpi(const LaunchEnvironment& launch,
                                     std::chrono::nanoseconds timeout);

TransportInfo mpi_info();

}  // namespace tinyshard
