// Rows are tried in order, so MPI's launchers get MPI unless TS_TRANSPORT says otherwise, and all
// others TCP. A process alone has a mailbox and no heartbeats. Where heartbeats cannot be set up
// the job goes on without them, and rank 0 says so.
#include "transport/world.h"

#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "launch/environment.h"
#include "launch/rank_process.h"
#include "launch/secret.h"
#include "transport/group.h"
#include "transport/inproc/mailbox.h"
#include "transport/mpi/mpi_channel.h"
#include "transport/nccl/nccl_group.h"
#include "transport/reform.h"
#include "transport/tcp/tcp_channel.h"

namespace tinyshard {

namespace {

// How processes may talk. The first row counts that TS_TRANSPORT names or, where it names none, that
// is for the launcher.
struct ProcessTransport {
  std::string_view name;  // for TS_TRANSPORT
  bool (*is_for)(const LaunchEnvironment& launch);
  std::unique_ptr<Channel> (*connect)(const LaunchEnvironment& launch,
                                      std::chrono::nanoseconds timeout);
  bool reforms;                 // a job that lost ranks may go on: transport/reform.h
  bool encrypts;                // where TS_SECURE says so
  TransportInfo (*describe)();  // null: the row before says it
};

bool is_of_mpi(const LaunchEnvironment& launch) {
  return launch.launcher == Launcher::OpenMpi || launch.launcher == Launcher::Pmix;
}

const ProcessTransport kTransports[] = {
    {"mpi", is_of_mpi, connect_mpi, false, false, mpi_info},
    {"tcp", [](const LaunchEnvironment&) { return true; },
     [](const LaunchEnvironment& launch, std::chrono::nanoseconds timeout) {
       return connect_tcp(launch, true, timeout);
     },
     true, true, tcp_info},
    {"sockets", [](const LaunchEnvironment&) { return false; },
     [](const LaunchEnvironment& launch, std::chrono::nanoseconds timeout) {
       return connect_tcp(launch, false, timeout);
     },
     true, true, nullptr},
};

const ProcessTransport& transport_of(const LaunchEnvironment& launch) {
  const std::string& wanted = tinyshard::options().transport;
  std::vector<std::string_view> names;
  for (const ProcessTransport& t : kTransports) {
    if (wanted.empty() ? t.is_for(launch) : t.name == wanted) return t;
    names.push_back(t.name);
  }
  throw UserError(fmt::format("environment variable TS_TRANSPORT=\"{}\" must be one of {}", wanted,
                              fmt::join(names, ", ")));
}

}  // namespace

bool can_reform(const LaunchEnvironment& launch) { return transport_of(launch).reforms; }

std::unique_ptr<Communicator> connect_world(int local_participants, const CommOptions& options) {
  const LaunchEnvironment launch = current_launch();
  const ProcessTransport& transport = transport_of(launch);
  if (launch.size > 1 && !transport.encrypts && wants_encryption())
    throw UserError(
        fmt::format("TS_SECURE=1: what ranks send each other by {} is not encrypted; set "
                    "TS_TRANSPORT=tcp",
                    transport.name));
  claim_rank(launch);
  std::unique_ptr<Channel> channel = launch.size == 1 ? std::move(make_mailboxes(1).front())
                                                      : transport.connect(launch, options.timeout);
  auto recorder = Recorder::open({.rank = launch.rank,
                                  .ranks = launch.size,
                                  .job = launch.meeting.job,
                                  .epoch = launch.wire_epoch(),
                                  .launched = launch.launched_as(launch.rank)});
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
  std::vector<TransportInfo> all{{"inproc", true, "the devices of one process"}};
  for (const ProcessTransport& t : kTransports) {
    if (t.describe) all.push_back(t.describe());
  }
  all.push_back(nccl_info());
  all.push_back(rccl_info());
  return all;
}

}  // namespace tinyshard
