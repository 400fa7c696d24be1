// The channel over sockets, for ranks that know where to meet (LaunchEnvironment::meeting): no
// library but the kernel's is needed. Ranks of one host also share memory.
//
// A peer whose connection closes without a word is gone, one that said so has left. This rank says
// so when its channel is destroyed, or at exit(0); it then waits until the others have what it
// sent, at most the timeout.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "launch/environment.h"
#include "transport/channel.h"
#include "transport/world.h"

namespace tinyshard {

// Meets the other ranks, and shares memory with those of this host if it may. Throws UserError
// where the environment does not say how, CommError when they do not come in time.
std::unique_ptr<Channel> connect_tcp(const LaunchEnvironment& launch, bool share_memory,
                                     std::chrono::nanoseconds timeout);

// The same with a key and a store at hand, for the `meeting`-th time.
class Secret;
class Store;
std::unique_ptr<Channel> meet_by_tcp(const LaunchEnvironment& launch, const Secret& secret,
                                     Store& store, uint64_t meeting, bool share_memory,
                                     std::chrono::nanoseconds timeout);

// The same over connections that are there, by rank; of this rank there is none.
namespace tcp {
struct Peer;
}
std::unique_ptr<Channel> join_by_tcp(const LaunchEnvironment& launch, std::vector<tcp::Peer> peers,
                                     std::chrono::nanoseconds timeout);

TransportInfo tcp_info();

}  // namespace tinyshard
