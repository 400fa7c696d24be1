// A look finds whom this rank waits for in vain, a beat carries that to the
// others, and a walk in depth over what all have said finds circles. A name counts
// only while the rank that it names has made no call since, which the number of
// its calls shows: what is old never closes a circle. A process that was itself
// held up takes all others as heard just now, as it could not have heard them.
#include "transport/detector/sights.h"

#include <algorithm>

#include <fmt/format.h>

namespace tinyshard::detector {
namespace {

constexpr std::chrono::milliseconds kPeriod{100};
constexpr int kSilentPeriods = 10;
constexpr int kHeldUpPeriods = 3;
constexpr int kRanksPerPeriod = 64;  // more ranks: fewer heartbeats of each
constexpr size_t kMostTold = 4;      // ranks of a circle
constexpr int kTellPeriods = 2;      // until a circle is told

bool is_same_call(const Doing& a, const Doing& b) {
  return a.waits == b.waits && a.op == b.op && a.reduce == b.reduce && a.dtype == b.dtype &&
         a.count == b.count && a.counts_hash == b.counts_hash && a.source == b.source &&
         a.label == b.label;
}

bool is_sane(const Doing& doing) {
  return doing.op <= uint8_t(CollectiveOp::Barrier) && doing.dtype <= uint8_t(DType::Index);
}

}  // namespace

std::string describe(const Doing& doing) {
  const std::string source = doing.source.data(), label = doing.label.data();
  const std::string place = source.empty() ? "" : " (" + source + ")";
  if (doing.waits == 0 || !is_sane(doing)) return "a call that it does not tell";
  if (doing.group_name[0] == '\0') return label + place;
  return fmt::format("{} {} x {}, call {} of group \"{}\"{}",
                     label.empty() ? name(CollectiveOp(doing.op)) : label + ",",
                     name(DType(doing.dtype)), doing.count, doing.sequence, doing.group_name.data(),
                     place);
}

std::chrono::milliseconds period_of(size_t ranks) {
  return kPeriod * (1 + int(ranks) / kRanksPerPeriod);
}

Sights::Sights(int self, size_t ranks, Deadline now)
    : self_(self), period_(period_of(ranks)), looked_(now) {
  for (size_t rank = 0; rank < ranks; ++rank) peers_.push_back({.sight = {}, .heard = now});
}

std::vector<uint64_t> Sights::places() const {
  std::vector<uint64_t> places;
  for (const Peer& peer : peers_) places.push_back(peer.asks.place);
  return places;
}

void Sights::look(const Standing& own, Deadline now) {
  if (now - looked_ > kHeldUpPeriods * period_) {
    for (Peer& peer : peers_) peer.heard = now;
  }
  looked_ = now;
  ++number_;
  own_ = own;
  peers_[size_t(self_)].sight.doing = own.doing;
  find_missed();
}

// Finds, among the ranks that this one waits for, those that wait themselves and have not come to
// its call. If there are more than it can tell, those come first that name somebody, too.
void Sights::find_missed() {
  Held& own = peers_[size_t(self_)].held;
  own = {.calls = own_.calls, .waits = own_.awaited.empty() ? 0u : 1u};
  size_t told = 0;
  for (const bool names_somebody : {true, false}) {
    for (const Standing::Awaited& awaited : own_.awaited) {
      const Peer& peer = peers_[size_t(awaited.rank)];
      const bool missed = peer.held.waits != 0 && peer.answers.place == awaited.call.place &&
                          peer.answers.number != kUnknown &&
                          peer.answers.number <= awaited.call.number;
      if (!missed || (peer.held.missed[0].rank >= 0) != names_somebody) continue;
      if (told == own.missed.size()) return;
      own.missed[told++] = {.rank = awaited.rank, .calls = peer.held.calls};
    }
  }
}

Beat Sights::beat_for(int rank) const {
  Beat beat{.number = number_, .doing = own_.doing, .held = peers_[size_t(self_)].held};
  const auto awaited = std::ranges::find(own_.awaited, rank, &Standing::Awaited::rank);
  if (awaited != own_.awaited.end()) beat.asks = awaited->call;
  if (size_t(rank) < own_.answers.size())
    beat.answers = {peers_[size_t(rank)].asks.place, own_.answers[size_t(rank)]};
  return beat;
}

bool Sights::hear(int from, const Beat& beat, Deadline now) {
  if (beat.magic != Beat().magic) return false;
  Peer& peer = peers_[size_t(from)];
  if (beat.kind == BeatKind::Farewell) peer.sight.left = true;
  Doing& doing = peer.sight.doing;
  doing = beat.doing;
  doing.group_name.back() = doing.source.back() = doing.label.back() = '\0';
  peer.held = beat.held;
  peer.asks = beat.asks;
  peer.answers = beat.answers;
  peer.heard = now;
  return true;
}

bool Sights::lose(int from, bool reset) {
  Sight& sight = peers_[size_t(from)].sight;
  if (!sight.left) sight.gone = true;
  sight.reset = sight.gone && reset;
  return sight.gone;
}

Sight Sights::sight(int rank) const {
  const Peer& peer = peers_[size_t(rank)];
  Sight sight = peer.sight;
  if (rank == self_) return sight;
  sight.silent_s = std::chrono::duration<double>(looked_ - peer.heard).count();
  sight.silent = !sight.left && looked_ - peer.heard > kSilentPeriods * period_;
  return sight;
}

// The i-th rank that `rank` waits for and that has made no call since it was found to be missing;
// null where there are no more, `rank` -1 of one that has moved.
const Missed* Sights::missed_from(int rank, size_t i) const {
  static constexpr Missed kMoved;
  const Held& held = peers_[size_t(rank)].held;
  if (held.waits == 0 || i >= held.missed.size() || held.missed[i].rank < 0) return nullptr;
  const Missed& missed = held.missed[i];
  if (size_t(missed.rank) >= peers_.size()) return &kMoved;
  const Peer& peer = peers_[size_t(missed.rank)];
  // A rank that ends because it was told of a circle still counts as waiting: it has not made its
  // call.
  const bool ended = (peer.sight.gone || peer.sight.left) && !found_;
  const bool stands = peer.held.waits != 0 && peer.held.calls == missed.calls && !ended;
  return stands ? &missed : &kMoved;
}

std::optional<Circle> Sights::circle(Deadline now) {
  const std::vector<int> ranks = find_circle();
  if (ranks.empty() || (found_ && found_->calls != own_.calls)) found_.reset();
  if (ranks.empty()) return std::nullopt;
  if (!found_) {
    found_ = Circle{culprit_of(ranks), own_.calls, tell(ranks)};
    found_at_ = now;
  }
  const bool one_has_ended = std::ranges::any_of(ranks, [&](int rank) {
    return peers_[size_t(rank)].sight.gone || peers_[size_t(rank)].sight.left;
  });
  return one_has_ended || now - found_at_ >= kTellPeriods * period_ ? found_ : std::nullopt;
}

// Walks from rank to rank, to each once. A rank that is met again while it is on the way closes a
// circle. Empty: there is none.
std::vector<int> Sights::find_circle() const {
  enum class Seen : uint8_t { No, OnTheWay, Done };
  struct Stop {
    int rank;
    size_t next = 0;
  };
  std::vector<Seen> seen(peers_.size(), Seen::No);
  std::vector<Stop> way{{self_}};
  seen[size_t(self_)] = Seen::OnTheWay;
  while (!way.empty()) {
    const Missed* missed = missed_from(way.back().rank, way.back().next++);
    if (missed == nullptr) {
      seen[size_t(way.back().rank)] = Seen::Done;
      way.pop_back();
      continue;
    }
    if (missed->rank < 0 || seen[size_t(missed->rank)] == Seen::Done) continue;
    if (seen[size_t(missed->rank)] == Seen::No) {
      seen[size_t(missed->rank)] = Seen::OnTheWay;
      way.push_back({missed->rank});
      continue;
    }
    std::vector<int> found;
    for (auto stop = std::ranges::find(way, missed->rank, &Stop::rank); stop != way.end(); ++stop)
      found.push_back(stop->rank);
    return found;
  }
  return {};
}

// The first rank of the circle whose call the fewest ranks wait in. Where all are as many, the first
// that waits in another one than this rank.
int Sights::culprit_of(const std::vector<int>& circle) const {
  const auto with = [&](int rank) {
    const Doing& doing = peers_[size_t(rank)].sight.doing;
    return std::ranges::count_if(peers_, [&](const Peer& peer) {
      return peer.held.waits != 0 && is_same_call(peer.sight.doing, doing);
    });
  };
  std::vector<std::pair<int64_t, int>> counted;
  for (const int rank : circle) counted.emplace_back(with(rank), rank);
  std::ranges::sort(counted);
  if (counted.front().first != counted.back().first) return counted.front().second;
  for (const auto& [count, rank] : counted) {
    if (!is_same_call(peers_[size_t(rank)].sight.doing, peers_[size_t(self_)].sight.doing))
      return rank;
  }
  return counted.front().second;
}

std::string Sights::tell(const std::vector<int>& circle) const {
  // It is told from its culprit on.
  std::vector<int> ranks = circle;
  std::ranges::rotate(ranks, std::ranges::find(ranks, culprit_of(circle)));
  std::string text = fmt::format("the ranks diverged and wait for each other: rank {}", ranks[0]);
  for (size_t i = 0; i < std::min(ranks.size(), kMostTold); ++i) {
    if (i > 0) text += ", which";
    text += fmt::format(" waits in {} for rank {}", describe(peers_[size_t(ranks[i])].sight.doing),
                        ranks[(i + 1) % ranks.size()]);
  }
  return text + (ranks.size() > kMostTold ? ", and so on" : "");
}

}  // namespace tinyshard::detector
