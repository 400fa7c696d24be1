// The border between the library and its MPI plug-in (libtinyshard_mpi.so, loaded beside
// libtinyshard.so by the first connect_mpi or mpi_info). Only the plug-in is linked to MPI: the
// library runs, and is copied to machines, without it.
#pragma once
#include <chrono>
#include <memory>

#include "launch/environment.h"
#include "transport/channel.h"
#include "transport/world.h"

namespace tinyshard {

// Both sides come from one build; the functions behind connect_mpi and mpi_info of mpi_channel.h.
struct MpiPlugin {
  std::unique_ptr<Channel> (*connect)(const LaunchEnvironment& launch,
                                      std::chrono::nanoseconds timeout);
  TransportInfo (*info)();
};

}  // namespace tinyshard

extern "C" const tinyshard::MpiPlugin* tinyshard_mpi_plugin();
