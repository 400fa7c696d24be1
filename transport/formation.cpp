// A rank asks for the others until each is known to be here or gone, or patience
// ends, then proposes those that are here. Any rank may propose; the store keeps
// the first proposal, so all read the same. The process table counts only if all
// ranks are on this host, and a rank is gone when two looks in a row miss it.
#include "transport/formation.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

constexpr std::chrono::milliseconds kAskEvery{5}, kLookAtPeersEvery{100}, kJoinEvery{10};

std::string newcomer_key(int rank) { return fmt::format("newcomer/{}", rank); }

std::vector<int> parse_members(std::string_view text) {
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
    const std::vector<int> members = parse_members(agreed);
    for (int member : members) {
      const bool is_new = last_.members.empty() ? member >= last_.size : last_.rank_now(member) < 0;
      if (is_new) store_.set(joins_key(member), fmt::format("{}:{}", last_.formation + 1, agreed));
    }
    return members;
  }

 private:
  struct State {
    bool here = false, gone = false;
    int missed = 0;  // looks at the process table in a row that did not find it
  };

  // Returns whether each rank is known to be here or gone.
  bool all_known() {
    const bool look = host_.now() >= next_look_ && last_.local_size >= last_.size;
    std::vector<int> processes;
    if (look) {
      next_look_ = host_.now() + kLookAtPeersEvery;
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
      // An empty table of processes says nothing about this rank.
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
    for (int newcomer : waiting_newcomers(last_, store_)) left.push_back(newcomer);
    const std::string text = fmt::format("{}", fmt::join(left, ","));
    std::string other;
    try {
      store_.set(prefix_ + "members", text);
    } catch (const StoreError&) {
      if (!store_.get(prefix_ + "members", other)) throw;  // another rank was quicker
    }
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

std::string joins_key(int rank) { return fmt::format("joins/{}", rank); }

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

std::vector<int> waiting_newcomers(const LaunchEnvironment& launch, Store& store) {
  std::vector<int> waiting;
  for (int rank = launch.newcomers_from; rank > 0; ++rank) {
    std::string ignored;
    try {
      if (!store.get(newcomer_key(rank), ignored)) break;
      // The store tells of a newcomer that has ended when it is asked for a key that nobody sets.
      store.get(fmt::format("here/{}", rank), ignored);
      if (!store.get(joins_key(rank), ignored)) waiting.push_back(rank);
    } catch (const StoreError& error) {
      if (error.culprit != rank) throw;
    }
  }
  return waiting;
}

LaunchEnvironment join_formation(LaunchEnvironment own, Store& store, FormationHost& host,
                                 Deadline deadline) {
  const auto fails = [&](const std::string& why) {
    return CommError({.rank = own.rank, .operation = "join", .detail = why});
  };
  store.set(newcomer_key(own.rank), "1");
  std::string text, ignored;
  while (!store.get(joins_key(own.rank), text)) {
    if (store.get(std::string(kJobIsOver), ignored))
      throw fails("the job ended before its ranks came to a commit, where they take others in");
    if (host.now() >= deadline)
      throw fails(
          "the deadline passed before the ranks of the job came to a commit, where they take "
          "others in");
    host.sleep(kJoinEvery);
  }
  uint32_t formation = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, formation);
  if (parsed.ec != std::errc() || parsed.ptr == end || formation == 0)
    throw StoreError(fmt::format("the store holds no formation: {}", text));
  own.formation = formation - 1;
  return next_formation(std::move(own), parse_members(std::string_view(parsed.ptr + 1, end)));
}

}  // namespace tinyshard
