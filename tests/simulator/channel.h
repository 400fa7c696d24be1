// Stand-ins for sockets in a simulated job: the channel that moves data and the detector's
// heartbeats, over the wires of a World. What they tell is told as the TCP channel and the mesh
// detector tell it; what follows from it is the library's own code.
#pragma once
#include <memory>
#include <vector>

#include "launch/environment.h"
#include "tests/simulator/world.h"
#include "transport/channel.h"
#include "transport/detector/detector.h"

namespace simulator {

// Meets the ranks of the launch's formation, by the store and by a greeting over each wire.
// CommError naming the first that does not come.
std::unique_ptr<tinyshard::Channel> meet(World& world, const tinyshard::LaunchEnvironment& launch,
                                         std::chrono::nanoseconds timeout);

// Beats from now on until it is destroyed. `look` says what this rank does.
std::unique_ptr<tinyshard::Detector> beat(World& world, const tinyshard::LaunchEnvironment& launch,
                                          tinyshard::detector::Look look);

}  // namespace simulator
