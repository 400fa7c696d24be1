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
#include "core/base/options.h"
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
  std::unique_ptr<Store> store;  // for ranks_wait_to_join
  Clock::time_point next_look{};
  std::string not_joined;  // why this rank is in no formation, and will be in none
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

// Returns a store that outlives each of the ranks.
std::unique_ptr<Store> lasting_store(const LaunchEnvironment& launch, Deadline deadline,
                                     std::chrono::milliseconds answer_time = kAnswerTime) {
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
    return open_file_store({meeting.store.substr(kFile.size()), meeting.job, meeting.epoch},
                           FolderRole::Reforms, false);
  return connect_store(meeting.store, job_secret(meeting.job), meeting.epoch,
                       launch.launched_as(launch.rank), deadline, answer_time);
}

}  // namespace

LaunchEnvironment current_launch() {
  const std::lock_guard lock(now().mutex);
  if (now().launch) return *now().launch;
  LaunchEnvironment launch = read_launch_environment();
  if (!launch.is_to_join()) return launch;
  if (!now().not_joined.empty()) throw UserError(now().not_joined);
  try {
    constexpr double kForEver = 1e9;  // seconds; more nanoseconds than these fit no clock
    const Deadline deadline =
        Clock::now() +
        std::chrono::nanoseconds(int64_t(std::min(options().timeout_s, kForEver) * 1e9));
    const auto store = lasting_store(launch, deadline);
    ThisProcess process;
    now().launch = join_formation(launch, *store, process, deadline);
  } catch (const StoreError& error) {
    now().not_joined = fmt::format("rank {} did not join: {}", launch.rank, error.what());
    throw CommError({.rank = launch.rank, .operation = "join", .detail = error.what()});
  } catch (const CommError& error) {
    now().not_joined = error.what();
    throw;
  }
  return *now().launch;
}

bool joined_later() {
  const LaunchEnvironment launch = read_launch_environment();
  return launch.is_to_join();
}

// A launcher that does not answer must not keep the training: it is asked again after a time.
bool ranks_wait_to_join() {
  constexpr std::chrono::milliseconds kLookEvery{100}, kAnswers{200};
  constexpr std::chrono::seconds kAskAgain{30};
  const LaunchEnvironment launch = current_launch();
  if (launch.newcomers_from == 0) return false;
  const std::lock_guard lock(now().mutex);
  Now& own = now();
  if (Clock::now() < own.next_look) return false;
  own.next_look = Clock::now() + kLookEvery;
  try {
    if (!own.store) own.store = lasting_store(launch, Clock::now() + kAnswers, kAnswers);
    return !waiting_newcomers(launch, *own.store).empty();
  } catch (const StoreError&) {
    own.store.reset();
    own.next_look = Clock::now() + kAskAgain;
    return false;
  }
}

void reform_job(std::chrono::nanoseconds patience) {
  constexpr std::chrono::seconds kStoreAnswers{10};
  LaunchEnvironment launch = current_launch();
  const Deadline begun = Clock::now();
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
                     .elapsed_s = std::chrono::duration<double>(Clock::now() - begun).count(),
                     .detail = error.what()});
  }
  launch = next_formation(std::move(launch), std::move(members));
  const std::lock_guard lock(now().mutex);
  now().launch = std::move(launch);
}

}  // namespace tinyshard
