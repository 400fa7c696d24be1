// Example: of ranks 0 to 3, rank 2 is killed. Ranks 0, 1 and 3 set "formation/1/here/<rank>" and ask
// for those of the others. The store says that rank 2 will set nothing (its launcher saw it end), or
// the process table shows it no more. Rank 0 is the first to know of all four; it sets
// "formation/1/members" to "0,1,3". What rank 3 proposes later does not count, it reads what stands.
// Rank 3 is now rank 2 of 3; the store goes on to know it as 3. If rank 1 dies while the three meet,
// ranks 0 and 3 come back with "formation/2/here/...".
#include "transport/reform.h"

#include <algorithm>
#include <charconv>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "launch/job_processes.h"
#include "launch/secret.h"
#include "transport/rendezvous/file_store.h"
#include "transport/rendezvous/store.h"
#include "transport/rendezvous/tcp_store.h"
#include "transport/world.h"

namespace tinyshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kAskEvery{5}, kLookEvery{100};

struct Now {
  std::mutex mutex;
  std::optional<LaunchEnvironment> launch;
};
Now& now() {
  static auto& instance = *new Now;
  return instance;
}

class Reforming {
 public:
  Reforming(const LaunchEnvironment& last, Store& store, std::chrono::nanoseconds patience)
      : last_(last),
        store_(store),
        deadline_(Clock::now() + patience),
        own_(last.launched_as(last.rank)),
        prefix_(fmt::format("formation/{}/", last.formation + 1)),
        states_(size_t(last.size)) {}

  std::vector<int> members() {
    store_.set(prefix_ + fmt::format("here/{}", own_), "1");
    std::string agreed;
    while (!store_.get(prefix_ + "members", agreed)) {
      if (all_known() || Clock::now() >= deadline_) propose();
      std::this_thread::sleep_for(kAskEvery);
    }
    return parse(agreed);
  }

 private:
  struct State {
    bool here = false, gone = false;
    int missed = 0;  // looks at the process table in a row that did not find it
  };

  // Whether each rank is here or gone.
  bool all_known() {
    const bool look = Clock::now() >= next_look_ && last_.local_size >= last_.size;
    std::vector<JobProcess> processes;
    if (look) {
      next_look_ = Clock::now() + kLookEvery;
      processes = job_processes();
    }
    bool all = true;
    for (int rank = 0; rank < last_.size; ++rank) {
      State& state = states_[size_t(rank)];
      const int launched = last_.launched_as(rank);
      std::string ignored;
      try {
        if (!state.here)
          state.here = store_.get(prefix_ + fmt::format("here/{}", launched), ignored);
      } catch (const StoreError& error) {
        if (error.culprit != launched) throw;
        state.gone = true;
      }
      // Where the table shows nothing at all it says nothing of this rank.
      if (look && !processes.empty()) {
        const bool found =
            std::ranges::find(processes, launched, &JobProcess::rank) != processes.end();
        state.missed = found ? 0 : state.missed + 1;
        state.gone = state.gone || state.missed > 1;
      }
      all = all && (state.here || state.gone);
    }
    return all;
  }

  void propose() {
    std::vector<int> left;
    for (int rank = 0; rank < last_.size; ++rank) {
      const State& state = states_[size_t(rank)];
      if (state.here && !state.gone) left.push_back(last_.launched_as(rank));
    }
    const std::string text = fmt::format("{}", fmt::join(left, ","));
    std::string other;
    try {
      store_.set(prefix_ + "members", text);
    } catch (const StoreError&) {
      if (!store_.get(prefix_ + "members", other)) throw;  // another rank was quicker
    }
  }

  static std::vector<int> parse(const std::string& text) {
    std::vector<int> members;
    const char *at = text.data(), *end = at + text.size();
    while (at < end) {
      int member = -1;
      const auto [next, error] = std::from_chars(at, end, member);
      if (error != std::errc()) throw StoreError(fmt::format("the store holds no ranks: {}", text));
      members.push_back(member);
      at = next + (next < end ? 1 : 0);
    }
    return members;
  }

  const LaunchEnvironment& last_;
  Store& store_;
  const Clock::time_point deadline_;
  const int own_;  // as the launcher knows it
  const std::string prefix_;
  std::vector<State> states_;  // by rank
  Clock::time_point next_look_ = Clock::now();
};

// One that outlives each of the ranks.
std::unique_ptr<Store> lasting_store(const LaunchEnvironment& launch, Deadline deadline) {
  constexpr std::string_view kFile = "file:";
  const Meeting& meeting = launch.meeting;
  if (launch.size == 1 && launch.formation == 0)
    throw UserError("Runtime::reform: this process is alone, it has lost nobody");
  if (!uses_tcp(launch))
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
  const int own = launch.launched_as(launch.rank);
  std::vector<int> members;
  try {
    const auto store = lasting_store(
        launch, Clock::now() + std::min<std::chrono::nanoseconds>(patience, kStoreAnswers));
    members = Reforming(launch, *store, patience).members();
  } catch (const StoreError& error) {
    throw CommError({.rank = launch.rank,
                     .peer = launch.rank_now(error.culprit),
                     .operation = "reform",
                     .detail = error.what()});
  }
  const auto self = std::ranges::find(members, own);
  if (self == members.end())
    throw CommError(
        {.rank = launch.rank,
         .operation = "reform",
         .detail = fmt::format("the job went on without this rank, as ranks {} of those "
                               "that were launched: it was gone for too long",
                               fmt::join(members, ", "))});
  launch.rank = int(self - members.begin());
  launch.size = int(members.size());
  launch.members = std::move(members);
  ++launch.formation;
  const std::lock_guard lock(now().mutex);
  now().launch = std::move(launch);
}

}  // namespace tinyshard
