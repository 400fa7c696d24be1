// The strongest evidence counts:
//   1. Two ranks recorded different calls under one number of one group: they diverged, and the
//      first of the smaller party is to blame.
//   2. What the ranks themselves saw when they failed: whom most of them blame.
//   3. A process that is there no more, though its ring never ended.
//   4. Nobody failed: the rank that others wait for, and that has not come to their call.
// Example, 3 ranks: rank 1 was killed between calls 14 and 15. Rings 0 and 2 have call 15 under way
// and blame rank 1 as gone; ring 1 ends with call 14. Had ranks 0 and 2 been killed as well before
// they said anything, ring 1 would still lack call 15 and have the oldest last sign.
#include "transport/recorder/blame.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tinyshard::recorder {
namespace {

constexpr double kSilent = 3;  // seconds without a sign, of a process that nobody here can see

double seconds_between(int64_t from, int64_t to) { return double(to - from) * 1e-9; }

std::string list(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

const RankRing* ring_of(std::span<const RankRing> rings, int rank) {
  const auto found = std::ranges::find(rings, rank, &RankRing::rank);
  return found == rings.end() ? nullptr : &*found;
}

// The oldest call that is under way: what this rank waits in.
const RecordedCall* awaits(const RankRing& ring) {
  const auto found = std::ranges::find_if(ring.calls, &RecordedCall::under_way);
  return found == ring.calls.end() ? nullptr : &*found;
}

const RecordedCall* call_of(const RankRing& ring, uint64_t group, uint64_t sequence) {
  const auto found = std::ranges::find_if(ring.calls, [&](const RecordedCall& call) {
    return call.kind == RecordKind::Call && call.group == group && call.sequence == sequence &&
           !is_pair(call.call.op);
  });
  return found == ring.calls.end() ? nullptr : &*found;
}

auto signature(const RecordedCall& c) {
  return std::tuple(c.call.op, c.call.reduce, c.call.dtype, c.call.count, c.counts_hash,
                    c.call.from, c.call.ticket.schedule, c.call.ticket.item);
}

// "in all_reduce ...", "after all_reduce ...".
std::string where(const RankRing& ring) {
  if (const RecordedCall* call = awaits(ring)) return "in " + describe(*call);
  if (ring.calls.empty()) return "before its first collective";
  const RecordedCall& last = ring.calls.back();
  return (last.kind == RecordKind::Run ? "in or after " : "after ") + describe(last);
}

// "; ranks 0, 2 wait for it in all_reduce ...": those whose call has the culprit as a member.
std::string waiters(std::span<const RankRing> rings, int culprit) {
  std::map<std::string, std::vector<int>> by_call;
  for (const RankRing& ring : rings) {
    const RecordedCall* call = awaits(ring);
    if (ring.rank() == culprit || call == nullptr) continue;
    if (std::ranges::find(call->ranks, culprit) == call->ranks.end()) continue;
    by_call[describe(*call)].push_back(ring.rank());
  }
  std::string text;
  for (const auto& [call, ranks] : by_call)
    text += fmt::format("; {} {} for it in {}", list(ranks), ranks.size() == 1 ? "waits" : "wait",
                        call);
  return text;
}

// The first call of some group that ranks recorded differently.
std::optional<Verdict> divergence(std::span<const RankRing> rings) {
  std::map<std::pair<uint64_t, uint64_t>, std::vector<std::pair<int, const RecordedCall*>>> calls;
  for (const RankRing& ring : rings) {
    for (const RecordedCall& call : ring.calls) {
      if (call.kind == RecordKind::Call && !is_pair(call.call.op))
        calls[{call.group, call.sequence}].emplace_back(ring.rank(), &call);
    }
  }
  // Among several groups, takes the one that saw it first.
  const std::vector<std::pair<int, const RecordedCall*>>* first = nullptr;
  int64_t first_ns = 0;
  for (const auto& [place, members] : calls) {
    const bool same = std::ranges::all_of(members, [&](const auto& member) {
      return signature(*member.second) == signature(*members[0].second);
    });
    if (same) continue;
    if (first == nullptr || members[0].second->started_ns < first_ns) {
      first = &members;
      first_ns = members[0].second->started_ns;
    }
  }
  if (first == nullptr) return std::nullopt;

  std::vector<std::vector<std::pair<int, const RecordedCall*>>> parties;
  for (const auto& member : *first) {
    auto party = std::ranges::find_if(parties, [&](const auto& p) {
      return signature(*p[0].second) == signature(*member.second);
    });
    if (party == parties.end()) {
      parties.emplace_back();
      party = parties.end() - 1;
    }
    party->push_back(member);
  }
  // The largest party is right; of two of a size the one with the lower rank.
  std::ranges::stable_sort(parties, std::ranges::greater(), [](const auto& p) { return p.size(); });
  const auto ranks_of = [](const auto& party) {
    std::vector<int> ranks;
    for (const auto& member : party) ranks.push_back(member.first);
    return ranks;
  };
  Verdict verdict{.culprit = parties[1][0].first, .cause = FailureCause::Diverged, .sentence = {}};
  verdict.sentence = fmt::format("{} diverged: it runs {}", ring_of(rings, verdict.culprit)->who(),
                                 describe(*parties[1][0].second));
  for (size_t p = 0; p < parties.size(); ++p) {
    if (p == 1) continue;
    verdict.sentence +=
        fmt::format(", {} {} {}", list(ranks_of(parties[p])),
                    parties[p].size() == 1 ? "runs" : "run", describe(*parties[p][0].second));
  }
  return verdict;
}

// Returns the rank that most failed ranks blame, and the evidence. Ranks that saw a cause vote
// first. Ranks that only heard that others gave them up, or that the launcher ends the job, vote if
// no rank saw a cause.
std::optional<std::pair<int, const RankRing::Failure*>> blamed(std::span<const RankRing> rings) {
  for (const bool with_cause : {true, false}) {
    std::map<int, int> votes;
    std::map<int, const RankRing::Failure*> evidence;
    for (const RankRing& ring : rings) {
      if (!ring.failure || (ring.failure->cause != FailureCause::Unknown) != with_cause) continue;
      const int culprit = ring.failure->culprit < 0 ? ring.rank() : ring.failure->culprit;
      ++votes[culprit];
      const RankRing::Failure*& first = evidence[culprit];
      if (first == nullptr || ring.failure->at_ns < first->at_ns) first = &*ring.failure;
    }
    if (votes.empty()) continue;
    const auto most =
        std::ranges::max_element(votes, {}, [](const auto& vote) { return vote.second; });
    return std::pair(most->first, evidence[most->first]);
  }
  return std::nullopt;
}

// A process that is there no more without having said so; of several the one that was silent
// first.
const RankRing* vanished(std::span<const RankRing> rings) {
  const RankRing* first = nullptr;
  for (const RankRing& ring : rings) {
    if (ring.ending != Ending::Running || ring.process != ProcessState::Ended) continue;
    if (first == nullptr || ring.last_sign_ns() < first->last_sign_ns()) first = &ring;
  }
  return first;
}

// Finds the rank that has not come to a call in which others wait. If it waits for another rank
// itself, goes on to that one.
const RankRing* missing(std::span<const RankRing> rings) {
  const RankRing* culprit = nullptr;
  for (const RankRing& ring : rings) {
    const RankRing* at = &ring;
    for (size_t steps = 0; steps < rings.size() && at != nullptr; ++steps) {
      const RecordedCall* call = awaits(*at);
      if (call == nullptr || is_pair(call->call.op)) break;
      const RankRing* next = nullptr;
      for (int rank : call->ranks) {
        const RankRing* other = ring_of(rings, rank);
        if (other != nullptr && call_of(*other, call->group, call->sequence) == nullptr) {
          // A stopped one before one that runs.
          if (next == nullptr || other->process == ProcessState::Stopped) next = other;
        }
      }
      if (next == nullptr) break;
      at = culprit = next;
    }
  }
  return culprit;
}

std::string name_of(std::span<const RankRing> rings, int rank) {
  const RankRing* ring = ring_of(rings, rank);
  return ring != nullptr ? ring->who() : fmt::format("rank {}", rank);
}

// "killed or crashed", "with status 3".
std::string end_of(const RankRing& ring) {
  if (ring.ending == Ending::Running) return "its process ended without a word";
  if (ring.exit_status != 0) return fmt::format("it ended with status {}", ring.exit_status);
  return "its program gave up";
}

std::string predicate(FailureCause cause, const RankRing* ring) {
  switch (cause) {
    case FailureCause::Gone:
      return ring != nullptr ? fmt::format("is gone: {} {}", end_of(*ring), where(*ring))
                             : "is gone, and left no ring";
    case FailureCause::Left:
      return "has left: its main returned, or it called exit(0)";
    case FailureCause::Stopped:
      return "is stopped";
    case FailureCause::Late:
      return "is late";
    case FailureCause::Diverged:
      return "diverged";
    default:
      return "gave up";
  }
}

Verdict verdict_on(std::span<const RankRing> rings, int culprit, FailureCause cause,
                   std::string_view detail) {
  const RankRing* ring = ring_of(rings, culprit);
  std::string sentence = fmt::format("{} {}", name_of(rings, culprit), predicate(cause, ring));
  if (cause != FailureCause::Gone && ring != nullptr) sentence += ", " + where(*ring);
  if (!detail.empty()) sentence += fmt::format(": {}", detail);
  return {culprit, cause, sentence + waiters(rings, culprit)};
}

FailureCause cause_now(const RankRing& ring, int64_t now_ns) {
  if (ring.ending == Ending::Well) return FailureCause::Left;
  if (ring.ending == Ending::Badly || ring.process == ProcessState::Ended)
    return FailureCause::Gone;
  if (ring.process == ProcessState::Stopped) return FailureCause::Stopped;
  const bool silent = seconds_between(ring.last_sign_ns(), now_ns) > kSilent;
  return ring.process == ProcessState::OutOfSight && silent ? FailureCause::Stopped
                                                            : FailureCause::Late;
}

}  // namespace

Verdict blame(std::span<const RankRing> rings, int64_t now_ns) {
  if (const auto found = divergence(rings)) return *found;
  if (const auto found = blamed(rings)) {
    auto [culprit, failure] = *found;
    FailureCause cause = failure->cause;
    const RankRing* ring = ring_of(rings, culprit);
    // Who was given up at the deadline and has never been seen since.
    if (cause == FailureCause::Unknown && ring != nullptr) cause = cause_now(*ring, now_ns);
    const bool says_more = cause == FailureCause::Aborted || cause == FailureCause::Diverged;
    return verdict_on(rings, culprit, cause, says_more ? failure->text : "");
  }
  if (const RankRing* ring = vanished(rings))
    return verdict_on(rings, ring->rank(), FailureCause::Gone, "");
  for (const RankRing& ring : rings) {
    const RecordedCall* call = awaits(ring);
    if (call == nullptr) continue;
    for (int rank : call->ranks) {
      if (ring_of(rings, rank) == nullptr)
        return {rank, FailureCause::Unknown,
                fmt::format("rank {} left no ring here{}", rank, waiters(rings, rank))};
    }
  }
  if (const RankRing* ring = missing(rings)) {
    return verdict_on(rings, ring->rank(), cause_now(*ring, now_ns),
                      fmt::format("its last sign is {:.1f} s old",
                                  seconds_between(ring->last_sign_ns(), now_ns)));
  }
  const auto ended = std::ranges::count(rings, Ending::Well, &RankRing::ending);
  if (size_t(ended) == rings.size())
    return {-1, FailureCause::Unknown, fmt::format("all {} ranks ended well", ended)};
  return {-1, FailureCause::Unknown, "no rank waits for one that has not come"};
}

std::string tell(const JobRings& job, int64_t now_ns) {
  if (job.earlier.empty()) return blame(job.rings, now_ns).sentence + "\n";
  const auto of = [](const std::vector<RankRing>& rings) {
    std::vector<int> launched;
    for (const RankRing& ring : rings) launched.push_back(ring.origin.launched);
    std::ranges::sort(launched);
    return fmt::format("formation {} of {}", rings[0].formation(), list(launched));
  };
  std::string text;
  for (const std::vector<RankRing>& rings : job.earlier) {
    // A formation also ends, without a failure, so that newcomers can join.
    const bool well = std::ranges::all_of(
        rings, [](const RankRing& ring) { return ring.ending == Ending::Well; });
    text +=
        fmt::format("{}: {}\n", of(rings),
                    well ? "it ended so that others could join" : blame(rings, now_ns).sentence);
  }
  return text + fmt::format("{}: {}\n", of(job.rings), blame(job.rings, now_ns).sentence);
}

std::string state_of(const RankRing& ring, int64_t now_ns) {
  return ring.ending == Ending::Well                        ? "ended"
         : ring.ending == Ending::Badly                     ? "failed"
         : ring.process == ProcessState::Ended              ? "gone"
         : ring.process == ProcessState::Stopped            ? "stopped"
         : cause_now(ring, now_ns) == FailureCause::Stopped ? "silent"
                                                            : "runs";
}

std::string what_rank_does(const RankRing& ring, int64_t now_ns) {
  std::string does;
  if (const RecordedCall* call = awaits(ring)) {
    does = fmt::format("waits for {:.1f} s in {}", seconds_between(call->started_ns, now_ns),
                       describe(*call));
  } else if (ring.calls.empty()) {
    does = "has made no collective";
  } else {
    const RecordedCall& last = ring.calls.back();
    does = fmt::format("computes for {:.1f} s after {}",
                       seconds_between(last.completed_ns.value_or(last.started_ns), now_ns),
                       describe(last));
  }
  if (ring.failure) does += "; failed: " + ring.failure->text;
  return does;
}

std::string what_ranks_do(std::span<const RankRing> rings, int64_t now_ns) {
  std::string text = fmt::format("{:>4}  {:>8}  {:<16}  {:<8}  {:>6}  {}\n", "rank", "process",
                                 "host", "state", "runs", "does");
  for (const RankRing& ring : rings) {
    uint64_t run = 0;
    for (const RecordedCall& call : ring.calls) run = std::max(run, call.call.ticket.run);
    text += fmt::format("{:>4}  {:>8}  {:<16}  {:<8}  {:>6}  {}\n", ring.rank(), ring.origin.pid,
                        ring.origin.host.data(), state_of(ring, now_ns), run,
                        what_rank_does(ring, now_ns));
  }
  return text;
}

}  // namespace tinyshard::recorder
