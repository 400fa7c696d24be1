#include "transport/world.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "launch/environment.h"
#include "transport/group.h"
#include "transport/inproc/mailbox.h"
#include "transport/mpi/mpi_channel.h"
#include "transport/nccl/nccl_group.h"

namespace tinyshard {

std::unique_ptr<Communicator> connect_world(int local_participants, const CommOptions& options) {
  const LaunchEnvironment launch = read_launch_environment();
  std::unique_ptr<Channel> channel;
  if (launch.size == 1) {
    channel = std::move(make_mailboxes(1).front());
  } else {
    channel = connect_mpi(launch, options.timeout);
  }
  return Group::world(std::make_shared<Endpoint>(std::move(channel), options), local_participants);
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
  auto endpoint =
      std::make_shared<Endpoint>(std::move(channels_[static_cast<size_t>(rank)]), options);
  return Group::world(std::move(endpoint), local_participants);
}

std::vector<TransportInfo> transports() {
  return {{"inproc", true, "the devices of one process"}, mpi_info(), nccl_info()};
}

}  // namespace tinyshard
