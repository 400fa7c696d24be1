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

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

Endpoint::Endpoint(std::unique_ptr<Channel> channel, const CommOptions& options,
                   std::shared_ptr<Recorder> recorder)
    : channel_(std::move(channel)), options_(options), recorder_(std::move(recorder)) {
  options_.timeout = std::min(options_.timeout, kLongestTimeout);
}

detector::Doing Endpoint::doing() {
  const std::lock_guard lock(mutex);
  detector::Doing oldest;
  for (const Group* group : groups_) {
    const detector::Doing doing = group->doing(channel_->now());
    if (doing.waits != 0 && (oldest.waits == 0 || doing.waited_ms > oldest.waited_ms))
      oldest = doing;
  }
  return oldest;
}

PeerState Endpoint::peer_state(int rank) {
  PeerState state = channel_->peer_state(rank);
  if (!detector_ || state.gone || state.left) return state;
  const Detector::Sight sight = detector_->sight(rank);
  if (sight.gone) {
    state.gone = true;
    state.text = fmt::format("{} has ended: its connection was closed", sight.who);
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
  };
  // The buffers are our own: after a failure a late message may still arrive in them.
  auto buffers = std::make_shared<std::vector<std::byte>>((ranks.size() + 1) * bytes);
  std::byte* const outgoing = buffers->data() + ranks.size() * bytes;
  if (out != nullptr) std::memcpy(outgoing, out, bytes);
  std::vector<Pending> pending;
  {
    std::lock_guard lock(mutex);
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (in != nullptr)
        pending.push_back(
            {channel_->receive(ranks[i], 0, buffers->data() + i * bytes, bytes), ranks[i]});
      if (out != nullptr)
        pending.push_back({channel_->send(ranks[i], 0, outgoing, bytes), ranks[i]});
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
      const PeerState state = channel_->peer_state(waits_for);
      looks = state.gone || state.left ? looks + 1 : 0;
      if (looks > kLooksAtGone) {
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
