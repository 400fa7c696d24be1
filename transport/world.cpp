#include "transport/world.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "launch/environment.h"
#include "transport/group.h"
#include "transport/inproc/mailbox.h"
#include "transport/mpi/mpi_channel.h"
#include "transport/nccl/nccl_group.h"
#include "transport/reform.h"
#include "transport/tcp/tcp_channel.h"

namespace tinyshard {

bool uses_tcp(const LaunchEnvironment& launch) {
  const std::string& wanted = tinyshard::options().transport;
  if (!wanted.empty()) return wanted != "mpi";
  return launch.launcher != Launcher::OpenMpi && launch.launcher != Launcher::Pmix;
}

std::unique_ptr<Communicator> connect_world(int local_participants, const CommOptions& options) {
  const LaunchEnvironment launch = current_launch();
  std::unique_ptr<Channel> channel;
  if (launch.size == 1) {
    channel = std::move(make_mailboxes(1).front());
  } else if (uses_tcp(launch)) {
    channel = connect_tcp(launch, tinyshard::options().transport != "sockets", options.timeout);
  } else {
    channel = connect_mpi(launch, options.timeout);
  }
  auto recorder = Recorder::open({.rank = launch.rank,
                                  .ranks = launch.size,
                                  .job = launch.meeting.job,
                                  .epoch = launch.wire_epoch()});
  auto endpoint = std::make_shared<Endpoint>(std::move(channel), options, std::move(recorder));
  if (launch.size > 1) {
    std::string why_not;
    endpoint->set_detector(meet_detectors(launch, *endpoint, why_not));
    if (!why_not.empty() && launch.rank == 0)
      log_line("ranks send each other no heartbeats: " + why_not);
  }
  return Group::world(std::move(endpoint), local_participants);
}

InprocWorld::InprocWorld(int ranks) : channels_(make_mailboxes(ranks)) {}
InprocWorld::~InprocWorld() = default;

std::unique_ptr<Communicator> InprocWorld::connect(int rank, int local_participants,
                                                   const CommOptions& options) {
  if (rank < 0 || static_cast<size_t>(rank) >= channels_.size() ||
      !channels_[static_cast<size_t>(rank)]) {
    throw UserError(fmt::format("rank {} of {} connects out of range or a second time", rank,
                                channels_.size()));
  }
  auto recorder = Recorder::open(
      {.rank = rank, .ranks = static_cast<int>(channels_.size()), .job = "threads", .epoch = 0});
  auto endpoint = std::make_shared<Endpoint>(std::move(channels_[static_cast<size_t>(rank)]),
                                             options, std::move(recorder));
  return Group::world(std::move(endpoint), local_participants);
}

std::vector<TransportInfo> transports() {
  return {{"inproc", true, "the devices of one process"}, tcp_info(), mpi_info(), nccl_info()};
}

}  // namespace tinyshard
