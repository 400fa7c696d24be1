// The agreement itself is in formation.cpp; here are its store, its clock and what it changes.
#include "transport/reform.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "launch/job_processes.h"
#include "launch/secret.h"
#include "transport/formation.h"
#include "transport/rendezvous/file_store.h"
#include "transport/rendezvous/store.h"
#include "transport/rendezvous/tcp_store.h"
#include "transport/world.h"

namespace tinyshard {
namespace {

using Clock = std::chrono::steady_clock;

struct Now {
  std::mutex mutex;
  std::optional<LaunchEnvironment> launch;
};
Now& now() {
  static auto& instance = *new Now;
  return instance;
}

class ThisProcess final : public FormationHost {
 public:
  Deadline now() override { return Clock::now(); }
  void sleep(std::chrono::milliseconds time) override { std::this_thread::sleep_for(time); }
  std::vector<int> processes() override {
    std::vector<int> ranks;
    for (const JobProcess& process : job_processes()) ranks.push_back(process.rank);
    return ranks;
  }
};

// One that outlives each of the ranks.
std::unique_ptr<Store> lasting_store(const LaunchEnvironment& launch, Deadline deadline) {
  constexpr std::string_view kFile = "file:";
  const Meeting& meeting = launch.meeting;
  if (launch.size == 1 && launch.formation == 0)
    throw UserError("Runtime::reform: this process is alone, it has lost nobody");
  if (!can_reform(launch))
    throw UserError(fmt::format(
        "Runtime::reform: ranks that talk by MPI end with the first of them ({} started them); use "
        "tinyshard run --elastic",
        name(launch.launcher)));
  check_meeting(launch);
  if (meeting.at_first_rank)
    throw UserError(
        fmt::format("Runtime::reform: the ranks of {} meet at rank 0, which no longer listens; use "
                    "tinyshard run "
                    "--elastic",
                    name(launch.launcher)));
  if (meeting.store.starts_with(kFile))
    return open_file_store(meeting.store.substr(kFile.size()), false);
  return connect_store(meeting.store, job_secret(meeting.job), meeting.epoch,
                       launch.launched_as(launch.rank), deadline);
}

}  // namespace

LaunchEnvironment current_launch() {
  {
    const std::lock_guard lock(now().mutex);
    if (now().launch) return *now().launch;
  }
  return read_launch_environment();
}

void reform_job(std::chrono::nanoseconds patience) {
  constexpr std::chrono::seconds kStoreAnswers{10};
  LaunchEnvironment launch = current_launch();
  std::vector<int> members;
  try {
    const auto store = lasting_store(
        launch, Clock::now() + std::min<std::chrono::nanoseconds>(patience, kStoreAnswers));
    ThisProcess process;
    members = agree_on_members(launch, *store, process, patience);
  } catch (const StoreError& error) {
    throw CommError({.rank = launch.rank,
                     .peer = launch.rank_now(error.culprit),
                     .operation = "reform",
                     .detail = error.what()});
  }
  launch = next_formation(std::move(launch), std::move(members));
  const std::lock_guard lock(now().mutex);
  now().launch = std::move(launch);
}

}  // namespace tinyshard
