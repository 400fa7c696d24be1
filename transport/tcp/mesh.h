// All ranks of a job connected with each other: what a TCP channel begins with.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/environment.h"
#include "launch/secret.h"
#include "transport/process_watch.h"
#include "transport/rendezvous/store.h"
#include "transport/tcp/pipe.h"
#include "transport/tcp/socket.h"

namespace tinyshard::tcp {

struct Peer {
  std::vector<Socket> streams;   // none for this rank itself
  std::unique_ptr<Pipe> memory;  // where the two share some: the socket then only shows its end
  ProcessAddress process;
  std::string host;  // its name, for messages
};

struct MeshOptions {
  int far_streams = 4;  // sockets to each rank on another host; on this one a second gains nothing
  bool share_memory = true;  // with ranks of this host, as far as both see each other in /proc
  // A rank whose meeting fails says so in the store, and others that wait for it ask there: it may
  // live on, and not come. The store must answer without the other ranks.
  bool store_tells_failures = false;
  // Called every 100 ms of a wait for others, where it is set. It throws the CommError of a rank that
  // is known to be lost: another one may have given up because of it, and come no more.
  std::function<void()> check_peers = {};
};

// A number for the next meeting of one `kind`, the same on all ranks that meet in this epoch of the
// job: it counts anew in each, as ranks may have failed to meet at different points of the last.
uint64_t next_meeting(uint32_t epoch, uint32_t kind);

// Every rank publishes where it listens, connects to all lower ranks, and is connected to by all
// higher ones; afterwards it listens no more. `meeting` counts the meshes of this process. Throws
// CommError, with the rank that did not come where one is known, and UserError where this host
// cannot listen where it was told to.
std::vector<Peer> form_mesh(const LaunchEnvironment& launch, const Secret& secret, Store& store,
                            uint64_t meeting, const MeshOptions& options, Deadline deadline);

}  // namespace tinyshard::tcp
