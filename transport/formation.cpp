#include "transport/formation.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

constexpr std::chrono::milliseconds kAskEvery{5}, kLookEvery{100};

class Formation {
 public:
  Formation(const LaunchEnvironment& last, Store& store, FormationHost& host,
            std::chrono::nanoseconds patience)
      : last_(last),
        store_(store),
        host_(host),
        deadline_(host.now() + patience),
        own_(last.launched_as(last.rank)),
        prefix_(fmt::format("formation/{}/", last.formation + 1)),
        states_(size_t(last.size)) {}

  std::vector<int> members() {
    store_.set(prefix_ + fmt::format("here/{}", own_), "1");
    std::string agreed;
    while (!store_.get(prefix_ + "members", agreed)) {
      if (all_known() || host_.now() >= deadline_) propose();
      host_.sleep(kAskEvery);
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
    const bool look = host_.now() >= next_look_ && last_.local_size >= last_.size;
    std::vector<int> processes;
    if (look) {
      next_look_ = host_.now() + kLookEvery;
      processes = host_.processes();
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
        const bool found = std::ranges::find(processes, launched) != processes.end();
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
  FormationHost& host_;
  const Deadline deadline_;
  const int own_;  // as the launcher knows it
  const std::string prefix_;
  std::vector<State> states_;  // by rank
  Deadline next_look_ = host_.now();
};

}  // namespace

std::vector<int> agree_on_members(const LaunchEnvironment& last, Store& store, FormationHost& host,
                                  std::chrono::nanoseconds patience) {
  return Formation(last, store, host, patience).members();
}

LaunchEnvironment next_formation(LaunchEnvironment last, std::vector<int> members) {
  const auto self = std::ranges::find(members, last.launched_as(last.rank));
  if (self == members.end())
    throw CommError(
        {.rank = last.rank,
         .operation = "reform",
         .detail = fmt::format("the job went on without this rank, as ranks {} of those "
                               "that were launched: it was gone for too long",
                               fmt::join(members, ", "))});
  last.rank = int(self - members.begin());
  last.size = int(members.size());
  last.members = std::move(members);
  ++last.formation;
  return last;
}

}  // namespace tinyshard
