// A wait polls, then yields, then naps, and in each round moves the calls of all groups along. The
// detector looks in from a thread of its own: it tries the lock for 10 ms and otherwise tells
// nothing. A peer that seems gone is believed after some looks only, as what it had sent before may
// still be on its way. A failed exchange leaves its buffers to messages that may come late.
#include "transport/endpoint.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "transport/group.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tinyshard {
namespace {

constexpr std::chrono::nanoseconds kLongestTimeout = std::chrono::hours(24 * 365);
constexpr Channel::Duration kShortestNap = std::chrono::microseconds(50),
                            kLongestNap = std::chrono::milliseconds(1);
// Before the core is offered to others: where ranks outnumber the cores the answer comes from one
// that waits for this core, and elsewhere to offer it costs little.
constexpr uint64_t kEagerPolls = 2;
constexpr size_t kEarlyNotices = 64;
constexpr Channel::Duration kLookEvery = std::chrono::milliseconds(20);
constexpr int kLooksAtGone = 10;
// A process that was itself stopped finds its deadlines passed: it reads what has come first.
constexpr Channel::Duration kGrace = std::chrono::milliseconds(20);
// News of a wait is old after so long: waits are looked at every 10 or 20 ms.
constexpr Channel::Duration kHolds = std::chrono::milliseconds(200);
// A wait that polls has the lock about half of the time.
constexpr int kTriesToLook = 100;
constexpr std::chrono::microseconds kBetweenTries{100};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Describes ranks that set something up, "connect" or "split".
detector::Doing doing_set_up(std::string_view operation, Channel::Duration waited) {
  detector::Doing doing;
  doing.waits = 1;
  doing.waited_ms =
      static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(waited).count());
  operation.copy(doing.label.data(), doing.label.size() - 1);
  return doing;
}

}  // namespace

Endpoint::Endpoint(std::unique_ptr<Channel> channel, const CommOptions& options,
                   std::shared_ptr<Recorder> recorder)
    : channel_(std::move(channel)), options_(options), recorder_(std::move(recorder)) {
  options_.timeout = std::min(options_.timeout, kLongestTimeout);
}

detector::Standing Endpoint::look(std::span<const uint64_t> places) {
  std::unique_lock lock(mutex, std::defer_lock);
  for (int tries = 0; !lock.try_lock(); ++tries) {
    if (tries == kTriesToLook) return {};
    std::this_thread::sleep_for(kBetweenTries);
  }
  const Deadline now = channel_->now();
  detector::Standing standing{.doing = {}, .calls = calls_};
  for (const Group* group : groups_) {
    const detector::Doing doing = group->doing(now);
    if (doing.waits != 0 &&
        (standing.doing.waits == 0 || doing.waited_ms > standing.doing.waited_ms))
      standing.doing = doing;
  }
  for (size_t rank = 0; rank < places.size(); ++rank)
    standing.answers.push_back(calls_made(static_cast<int>(rank), places[rank]));
  std::erase_if(holds_,
                [&](const Hold& hold) { return now - hold.at > kHolds || hold.calls != calls_; });
  for (const Hold& hold : holds_) {
    // Another thread makes calls, too: this one does not keep the rank from what it is waited for.
    if (hold.thread != caller_) continue;
    standing.awaited.insert(standing.awaited.end(), hold.awaited.begin(), hold.awaited.end());
    if (hold.doing.waits != 0) standing.doing = hold.doing;
  }
  return standing;
}

uint64_t Endpoint::calls_made(int rank, uint64_t place) const {
  if (place == detector::kNoPlace) return detector::kUnknown;
  if (place == detector::kSetUp)
    return set_up_sent_.empty() ? 0 : set_up_sent_[static_cast<size_t>(rank)];
  const auto group = std::ranges::find(groups_, place, &Group::id);
  if (group != groups_.end()) return (*group)->sequence();
  const auto known = place_calls_.find(place);
  return known == place_calls_.end() ? 0 : known->second;
}

uint64_t Endpoint::count_call(uint64_t place) {
  ++calls_;
  caller_ = std::this_thread::get_id();
  return place == detector::kNoPlace ? 0 : place_calls_[place]++;
}

void Endpoint::hold(std::span<const int> ranks, detector::CallNumber call, Deadline now,
                    const detector::Doing& doing) {
  auto hold = std::ranges::find_if(holds_, [&](const Hold& h) {
    return !h.awaited.empty() && h.awaited[0].call.place == call.place;
  });
  if (hold == holds_.end()) hold = holds_.insert(holds_.end(), Hold());
  hold->awaited.clear();
  for (const int rank : ranks) hold->awaited.push_back({rank, call});
  hold->at = now;
  hold->thread = std::this_thread::get_id();
  hold->calls = calls_;
  hold->doing = doing;
}

PeerState Endpoint::peer_state(int rank) {
  PeerState state = channel_->peer_state(rank);
  if (!detector_ || state.gone || state.left) return state;
  const Detector::Sight sight = detector_->sight(rank);
  if (sight.gone) {
    state.gone = true;
    state.text = sight.reset ? fmt::format(
                                   "the connection to {} was reset: it has ended, or "
                                   "the way to it is cut",
                                   sight.who)
                             : fmt::format("{} has ended: its connection was closed", sight.who);
  } else if (sight.silent && !state.suspect) {
    state.suspect = true;
    state.text = fmt::format("no heartbeat of {} for {:.1f} s", sight.who, sight.silent_s);
  }
  return state;
}

std::string Endpoint::process_of(int rank) const {
  return rank < 0 || rank == channel_->rank() ? "" : channel_->process_of(rank);
}

void Endpoint::progress(bool thorough) {
  for (Group* group : groups_) group->progress();
  if (thorough || ++polls_ % 16 == 0) deliver_notices();
}

void Endpoint::attach(Group* group) {
  groups_.push_back(group);
  contexts_[group->context() / 64] |= uint64_t{1} << group->context() % 64;
  for (const Notice& notice : early_) {
    if (notice.group == group->id()) group->receive(notice);
  }
}

void Endpoint::detach(Group* group, bool context_may_be_reused) {
  std::erase(groups_, group);
  if (channel_->ranks() > 1) place_calls_[group->id()] = group->sequence();
  if (context_may_be_reused)
    contexts_[group->context() / 64] &= ~(uint64_t{1} << group->context() % 64);
}

void Endpoint::deliver_notices() {
  for (Notice notice; channel_->next_notice(notice);) {
    notice.text[sizeof(notice.text) - 1] = '\0';
    auto group = std::find_if(groups_.begin(), groups_.end(),
                              [&](Group* g) { return g->id() == notice.group; });
    if (group != groups_.end()) {
      (*group)->receive(notice);
    } else {
      if (early_.size() == kEarlyNotices) early_.erase(early_.begin());
      early_.push_back(notice);
    }
  }
}

// Ranks may outnumber the cores, so polling gives way to whoever can run; a wait in which nothing
// moves turns into naps of a few percent of its length.
void Endpoint::pause(Idle& idle) {
  idle.napping = idle.duration >= options_.spin;
  if (idle.napping) {
    channel_->idle(std::clamp(idle.duration / 32, kShortestNap, kLongestNap));
  } else if (idle.polls < kEagerPolls) {
    relax();
  } else {
    std::this_thread::yield();
  }
}

void Endpoint::exchange(std::span<const int> ranks, const void* out, void* in, size_t bytes,
                        Deadline deadline, std::string_view operation) {
  struct Pending {
    Channel::Transfer transfer;
    int rank;
    detector::CallNumber awaits = {detector::kNoPlace, 0};
  };
  // The buffers are our own: after a failure a late message may still arrive in them.
  auto buffers = std::make_shared<std::vector<std::byte>>((ranks.size() + 1) * bytes);
  std::byte* const outgoing = buffers->data() + ranks.size() * bytes;
  if (out != nullptr) std::memcpy(outgoing, out, bytes);
  std::vector<Pending> pending;
  {
    std::lock_guard lock(mutex);
    count_call(detector::kNoPlace);
    set_up_sent_.resize(static_cast<size_t>(channel_->ranks()));
    set_up_received_.resize(set_up_sent_.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto rank = static_cast<size_t>(ranks[i]);
      if (in != nullptr)
        pending.push_back({channel_->receive(ranks[i], 0, buffers->data() + i * bytes, bytes),
                           ranks[i],
                           {detector::kSetUp, set_up_received_[rank]++}});
      if (out != nullptr) {
        pending.push_back({channel_->send(ranks[i], 0, outgoing, bytes), ranks[i]});
        ++set_up_sent_[rank];
      }
    }
  }

  std::optional<Deadline> begun, overdue;
  Deadline next_look{};
  int looks = 0;
  wait_until([&](Deadline now) {
    if (!begun) begun = now;
    int culprit = -1;
    std::string detail;
    while (!pending.empty() && detail.empty()) {
      try {
        if (!channel_->test(pending.back().transfer)) break;
      } catch (const ChannelError& error) {
        culprit = error.peer;
        detail = error.what();
      }
      pending.pop_back();
    }
    if (detail.empty()) {
      if (pending.empty()) return true;
      detail = channel_->interrupted();
    }
    // The first look shows a peer that has gone; what it had sent before has come by the last.
    if (detail.empty() && now >= next_look) {
      next_look = now + kLookEvery;
      const int waits_for = pending.back().rank;
      if (now - *begun >= detector::kAskAfter && pending.back().awaits.place == detector::kSetUp)
        hold({&waits_for, 1}, pending.back().awaits, now, doing_set_up(operation, now - *begun));
      const auto circle = detector_ ? detector_->circle() : std::nullopt;
      if (circle && circle->calls == calls_) {
        culprit = circle->culprit;
        detail = circle->text;
      }
      const PeerState state = channel_->peer_state(waits_for);
      looks = state.gone || state.left ? looks + 1 : 0;
      if (looks > kLooksAtGone && detail.empty()) {
        culprit = waits_for;
        detail = state.text;
      }
    }
    if (now >= deadline && !overdue) overdue = now;
    if (detail.empty() && overdue && now - *overdue >= kGrace) {
      culprit = pending.back().rank;
      detail = "the deadline passed";
      const PeerState state = channel_->peer_state(culprit);
      if (!state.text.empty()) detail += "; " + state.text;
    }
    if (detail.empty()) return false;
    for (const Pending& p : pending) {
      if (!channel_->abandon(p.transfer)) keep_for_good(buffers);
    }
    throw CommError({.rank = channel_->rank(),
                     .peer = culprit,
                     .process = process_of(culprit),
                     .operation = std::string(operation),
                     .elapsed_s = std::chrono::duration<double>(now - *begun).count(),
                     .detail = detail});
  });
  if (in != nullptr && bytes != 0) std::memcpy(in, buffers->data(), ranks.size() * bytes);
}

void keep_for_good(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;
  std::lock_guard lock(mutex);
  kept.push_back(std::move(memory));
}

}  // namespace tinyshard
