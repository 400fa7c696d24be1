// The way in: connects this process with the rest of its job.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/runtime/communicator.h"
#include "transport/comm_options.h"

namespace tinyshard {

// The communicator of the whole job. Every process of the job calls it, with the number of devices
// that it brings; participants are numbered rank by rank. Several ranks talk by MPI where mpirun or
// PMIx started them, by TCP where another launcher did, or by what TS_TRANSPORT says; one alone has
// its own devices. Waits for all ranks, at most the
// timeout. Throws UserError when the launch environment contradicts itself or asks for a transport
// that this build lacks, CommError when a rank does not come.
std::unique_ptr<Communicator> connect_world(int local_participants,
                                            const CommOptions& options = {});

// `ranks` ranks in one process, one for each of as many threads, with `local_participants` each:
// for tests, and to rehearse a job without a launcher. Call connect on the thread of the rank: it
// waits for the others.
class InprocWorld {
 public:
  explicit InprocWorld(int ranks);
  ~InprocWorld();
  std::unique_ptr<Communicator> connect(int rank, int local_participants = 1,
                                        const CommOptions& options = {});

 private:
  std::vector<std::unique_ptr<class Channel>> channels_;  // of the ranks that have not connected
};

// Returns whether the job's ranks can go on as fewer, or as others: not where MPI connects them.
struct LaunchEnvironment;
bool can_reform(const LaunchEnvironment& launch);

struct TransportInfo {
  std::string name;
  bool available = false;
  std::string detail;  // what was found, or why it is missing
};
std::vector<TransportInfo> transports();

}  // namespace tinyshard
