// When a wait has no hope: what channel and detector know of the ranks of a group, looked at every
// 10 ms of a wait. Example: rank 0 waits for rank 1, which computes, and rank 2 is killed. Rank 0
// does not wait for rank 2, but it is a member, and its heartbeats have ended: after 200 ms in which
// nothing moved, which is time for what rank 2 sent last, the group fails and names rank 2.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/hash.h"
#include "transport/group.h"

namespace tinyshard {
namespace {

constexpr Channel::Duration kInspectAfter = std::chrono::milliseconds(5);
constexpr Channel::Duration kInspectEvery = std::chrono::milliseconds(10);
// A process that was itself stopped finds its deadlines passed: it hears the news of the others
// before it blames them.
constexpr Channel::Duration kTellGrace = std::chrono::milliseconds(20);
constexpr Channel::Duration kNewsTurn = std::chrono::milliseconds(150);
// Inspections after which a rank is given up, if nothing has come in between: what it sent last may
// still be on its way. One that has left may have sent its last megabytes just before; and one that
// ended while another one is silent, or at the deadline, may have given up another one, and its news
// is slower than its end.
constexpr int kLooksAtEnded = 2, kLooksAtLeft = 20;

// Heartbeats tell of calls that have just changed: only waits of some length are compared.
constexpr uint32_t kDivergedAfterMs = 400;
// Where as many wait in the one call as in the other, the rest is given so long to say more.
constexpr uint32_t kUndecidedMs = 1200;

FailureCause cause_of(const PeerState& state) {
  return state.left      ? FailureCause::Left
         : state.gone    ? FailureCause::Gone
         : state.suspect ? FailureCause::Stopped
                         : FailureCause::Late;
}

bool same_call(const detector::Doing& a, const detector::Doing& b) {
  return a.op == b.op && a.reduce == b.reduce && a.dtype == b.dtype && a.count == b.count &&
         a.counts_hash == b.counts_hash;
}

std::string activity(const detector::Doing& doing) {
  if (doing.waits == 0) return "it is in no collective";
  return fmt::format("it waits for {:.1f} s in {}", doing.waited_ms * 1e-3,
                     detector::describe(doing));
}

bool is_sane(const detector::Doing& doing) {
  return doing.op <= static_cast<uint8_t>(CollectiveOp::Barrier) &&
         doing.dtype <= static_cast<uint8_t>(DType::Index);
}

void describe_call(const Collective& call, detector::Doing& doing) {
  doing.waits = 1;
  doing.count = call.count;
  for (size_t count : call.counts) doing.counts_hash = combine(doing.counts_hash, count);
  doing.op = static_cast<uint8_t>(call.op);
  doing.reduce = static_cast<uint8_t>(call.reduce);
  doing.dtype = static_cast<uint8_t>(call.dtype);
  if (call.site) call.site->source.copy(doing.source.data(), doing.source.size() - 1);
}

uint32_t milliseconds_of(Channel::Duration waited) {
  return static_cast<uint32_t>(std::clamp<int64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(waited).count(), 0, UINT32_MAX));
}

}  // namespace

// Decides whether to give up a rank, found ended or left (-1: none is) at this inspection.
bool Group::given_up(int rank, Deadline now) {
  Channel& channel = endpoint_->channel();
  if (rank < 0 || rank != suspicion_.rank || suspicion_.completed != channel.completed())
    suspicion_ = {rank, 0, channel.completed(), now};
  if (rank < 0) return false;
  const bool ended =
      endpoint_->peer_state(rank).gone && std::ranges::find(awaited_, rank) != awaited_.end();
  // A wait that is late is inspected at each poll, which brings no news faster.
  if (now >= suspicion_.next_look) {
    ++suspicion_.looks;
    suspicion_.next_look = now + kInspectEvery;
  }
  const bool alone = !overdue_ && silent_member() < 0;
  return suspicion_.looks >= (ended && alone ? kLooksAtEnded : kLooksAtLeft);
}

detector::Doing Group::doing(Deadline now) const {
  detector::Doing doing;
  for (uint32_t place : active_) {
    const Request& request = *pool_[place];
    if (request.announces() || is_pair(request.call().op)) continue;
    describe_call(request.call(), doing);
    doing.group = id_;
    doing.sequence = request.sequence();
    doing.waited_ms = milliseconds_of(now - request.started());
    name().copy(doing.group_name.data(), doing.group_name.size() - 1);
    request.label().copy(doing.label.data(), doing.label.size() - 1);
    break;
  }
  return doing;
}

// Among which calls of this rank this one counts.
uint64_t Group::place_of(const Collective& call, CollectiveOp side) const {
  return combine(
      combine(combine(id_, static_cast<uint64_t>(side)), static_cast<uint64_t>(call.from)),
      static_cast<uint64_t>(call.to));
}

// The call of others without which this one is not done.
detector::CallNumber Group::awaited_call(const Request& request) const {
  const Collective& call = request.call();
  if (!is_pair(call.op)) return {id_, request.sequence()};
  const CollectiveOp other =
      call.op == CollectiveOp::Send ? CollectiveOp::Recv : CollectiveOp::Send;
  return {place_of(call, other), request.number};
}

// Ranks that wait for each other, each in a call that the other will never come to: the ranks of one
// group alone cannot see it.
std::optional<Group::Failure> Group::seen_in_circle() const {
  Detector* detector = endpoint_->detector();
  const auto circle = detector == nullptr ? std::nullopt : detector->circle();
  if (!circle || circle->calls != endpoint_->calls()) return std::nullopt;
  return Failure{circle->culprit, circle->text, FailureCause::Diverged};
}

// Looks at what heartbeats tell of this group's members, though this call may wait for others: if
// one waits in another call under the same number, it has diverged, and both would wait for ever.
std::optional<Group::Failure> Group::seen_by_detector(const Request& request) {
  const Detector* detector = endpoint_->detector();
  if (detector == nullptr || is_pair(request.call().op)) return std::nullopt;
  detector::Doing own = doing(endpoint_->channel().now());
  if (own.waits == 0 || own.sequence != request.sequence() || own.waited_ms < kDivergedAfterMs)
    return std::nullopt;
  const auto waits_in = [&](const detector::Doing& other) {
    return other.waits != 0 && other.group == id_ && other.sequence == own.sequence &&
           other.waited_ms >= kDivergedAfterMs && is_sane(other);
  };
  for (const auto& member : layout_.members) {
    if (member.rank == rank()) continue;
    const Detector::Sight sight = detector->sight(member.rank);
    const detector::Doing& other = sight.doing;
    if (!waits_in(other) || same_call(own, other)) continue;
    // As where headers are compared, the one to blame is in the minority.
    size_t with_own = 1, with_other = 0, known = 1;
    for (const int rank : layout_.ranks) {
      if (rank == this->rank()) continue;
      const detector::Doing third = detector->sight(rank).doing;
      if (!waits_in(third)) continue;
      ++known;
      with_own += same_call(third, own);
      with_other += same_call(third, other);
    }
    if (with_own == with_other && known < layout_.ranks.size() && own.waited_ms < kUndecidedMs)
      return std::nullopt;
    if (with_own < with_other)
      return Failure{rank(),
                     fmt::format("the ranks diverged: rank {}, this one: {}; rank {} ({}) and {} "
                                 "others: {}",
                                 rank(), activity(own), member.rank, sight.who, with_other - 1,
                                 activity(other)),
                     FailureCause::Diverged};
    return Failure{member.rank,
                   fmt::format("the ranks diverged: rank {} ({}): {}", member.rank, sight.who,
                               activity(other)),
                   FailureCause::Diverged};
  }
  return std::nullopt;
}

// The first member from which nothing is heard, -1: none.
int Group::silent_member() const {
  const Detector* detector = endpoint_->detector();
  const auto silent = [&](int rank) {
    return rank != this->rank() && detector->sight(rank).silent;
  };
  if (detector == nullptr) return -1;
  const auto found = std::ranges::find_if(layout_.ranks, silent);
  return found == layout_.ranks.end() ? -1 : *found;
}

// The rank that this late call waits for in the end; -1: nobody. Those that it waits for may wait
// themselves: for a member from which nothing is heard, or else for the one that came last.
int Group::latest() const {
  if (awaited_.empty()) return -1;
  const Detector* detector = endpoint_->detector();
  if (detector == nullptr) return awaited_.front();
  if (const int silent = silent_member(); silent >= 0) return silent;
  const auto waited = [&](int rank) {
    const detector::Doing doing = detector->sight(rank).doing;
    return doing.waits != 0 && doing.group == id_ ? doing.waited_ms : 0;
  };
  return *std::ranges::min_element(awaited_, {}, waited);
}

// Fails the group when this call has no hope: late, its peer ended, or this process is being ended.
void Group::inspect(Request& request, Deadline limit, Deadline now, bool holds) {
  if (now < limit) overdue_.reset();
  if (now >= limit && !overdue_) overdue_ = now;
  const bool late = overdue_ && now - *overdue_ >= kTellGrace;
  if (!late && (now < next_inspection_ || now - request.started() < kInspectAfter)) return;
  next_inspection_ = now + kInspectEvery;

  Channel& channel = endpoint_->channel();
  awaited_.clear();
  try {
    request.awaited(awaited_);
  } catch (const ChannelError& error) {
    return met(error, false);
  }
  if (holds && now - request.started() >= detector::kAskAfter) {
    detector::Doing pair;
    if (is_pair(request.call().op)) {
      describe_call(request.call(), pair);
      pair.waited_ms = milliseconds_of(now - request.started());
      name().copy(pair.group_name.data(), pair.group_name.size() - 1);
    }
    endpoint_->hold(awaited_, awaited_call(request), now, pair);
  }
  int culprit = -1, worst = 0;
  FailureCause cause = FailureCause::Unknown;
  std::string detail;
  for (int rank : awaited_) {
    const PeerState state = endpoint_->peer_state(rank);
    const int bad = state.left || state.gone ? 2 : state.suspect ? 1 : 0;
    if (bad == 0) continue;
    if (bad > worst) {
      culprit = rank;
      cause = cause_of(state);
    }
    worst = std::max(worst, bad);
    detail += state.left ? fmt::format("; rank {} has left: {}", rank, state.text)
                         : fmt::format("; {} (rank {})", state.text, rank);
  }
  // A rank that this call does not wait for: who it does wait for may wait for that one.
  for (size_t m = 0; m < layout_.members.size() && endpoint_->detector() && worst < 2; ++m) {
    const int rank = layout_.ranks[m];
    if (rank == this->rank() || !endpoint_->detector()->sight(rank).gone) continue;
    culprit = rank;
    worst = 2;
    cause = FailureCause::Gone;
    detail += fmt::format("; {} (rank {})", endpoint_->peer_state(rank).text, rank);
  }
  // Ranks that go after it close their connections, too: the first that was found ended stays the
  // one to blame.
  const int first = suspicion_.rank;
  if (worst == 2 && first >= 0 && first != culprit && suspicion_.completed == channel.completed()) {
    const PeerState state = endpoint_->peer_state(first);
    if (state.gone || state.left) {
      culprit = first;
      cause = cause_of(state);
    }
  }
  const std::string interrupted = channel.interrupted();
  if (!interrupted.empty()) return fail({culprit, interrupted + detail, cause}, true);
  if (const auto failure = seen_in_circle(); failure && holds) return fail(*failure, true);
  // A rank that has ended may have said why: its connections are read by now, its news may lie here still.
  if (worst == 2) endpoint_->deliver_notices();
  if (failed()) return;
  if (given_up(worst == 2 ? culprit : -1, now))
    return fail({culprit, detail.substr(2), cause}, true);
  if (const auto failure = seen_by_detector(request)) return fail(*failure, true);
  if (overdue_) endpoint_->deliver_notices();
  if (!late || failed()) return;
  // If this rank knows no more than that the deadline has passed, it waits a moment: ranks that
  // miss somebody's heartbeats speak first. A rank that ended just now had the same deadline, and
  // its news may say why it ended.
  if ((culprit < 0 || worst == 2) && endpoint_->detector() != nullptr && silent_member() < 0 &&
      now - *overdue_ < kNewsTurn)
    return;
  // A rank that ended just now had the same deadline as this one, and did not wait for its error.
  if (worst == 2 && silent_member() >= 0) culprit = -1;
  if (culprit < 0) {
    cause = FailureCause::Late;
    culprit = latest();
    if (culprit >= 0 && endpoint_->detector() != nullptr) {
      const Detector::Sight sight = endpoint_->detector()->sight(culprit);
      if (sight.silent) {
        cause = FailureCause::Stopped;
        detail += fmt::format("; no heartbeat of {} for {:.1f} s (rank {})", sight.who,
                              sight.silent_s, culprit);
      } else if (is_sane(sight.doing))
        detail += fmt::format("; {} runs, {}", sight.who, activity(sight.doing));
    }
  }
  fail({culprit,
        fmt::format("the deadline passed while waiting for rank {}{}", fmt::join(awaited_, ", "),
                    detail),
        cause},
       true);
}

void Group::check_alive_during(const Collective& call, std::chrono::nanoseconds waited) {
  if (waited >= detector::kAskAfter) {
    std::lock_guard lock(endpoint_->mutex);
    endpoint_->progress(true);
    const auto announced =
        std::ranges::find_if(active_, [&](uint32_t place) { return pool_[place]->announces(); });
    if (announced != active_.end() && !failed()) {
      Request& request = *pool_[*announced];
      awaited_.clear();
      try {
        request.awaited(awaited_);
        detector::Doing doing;
        describe_call(call, doing);
        doing.sequence = request.sequence();
        doing.waited_ms = milliseconds_of(waited);
        name().copy(doing.group_name.data(), doing.group_name.size() - 1);
        endpoint_->hold(awaited_, awaited_call(request), endpoint_->channel().now(), doing);
        if (const auto failure = seen_in_circle()) fail(*failure, true);
      } catch (const ChannelError& error) {
        met(error, false);
      }
    }
  }
  check_alive();
}

void Group::check_alive() {
  std::lock_guard lock(endpoint_->mutex);
  endpoint_->progress(true);
  for (const auto& member : layout_.members) {
    if (failed()) break;
    if (member.rank == rank()) continue;
    const PeerState state = endpoint_->peer_state(member.rank);
    if (state.gone) endpoint_->deliver_notices();  // as above
    if (state.gone && !failed()) fail({member.rank, state.text, FailureCause::Gone}, true);
  }
  if (failed()) throw_failure({}, sequence(), 0);
}

}  // namespace tinyshard
