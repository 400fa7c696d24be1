#include "transport/detector/sights.h"

namespace tinyshard::detector {
namespace {

constexpr std::chrono::milliseconds kPeriod{100};
constexpr int kSilentPeriods = 10;
constexpr int kHeldUpPeriods = 3;
constexpr int kRanksPerPeriod = 64;  // more ranks: fewer heartbeats of each

}  // namespace

std::chrono::milliseconds period_of(size_t ranks) {
  return kPeriod * (1 + int(ranks) / kRanksPerPeriod);
}

Sights::Sights(int self, size_t ranks, Deadline now)
    : self_(self), period_(period_of(ranks)), looked_(now), peers_(ranks, Peer{{}, now}) {}

void Sights::look(Deadline now) {
  if (now - looked_ > kHeldUpPeriods * period_) {
    for (Peer& peer : peers_) peer.heard = now;
  }
  looked_ = now;
}

bool Sights::hear(int from, const Beat& beat, Deadline now) {
  if (beat.magic != Beat().magic) return false;
  Peer& peer = peers_[size_t(from)];
  if (beat.kind == BeatKind::Farewell) peer.sight.left = true;
  peer.sight.doing = beat.doing;
  peer.sight.doing.group_name.back() = peer.sight.doing.source.back() = '\0';
  peer.heard = now;
  return true;
}

bool Sights::lose(int from) {
  Sight& sight = peers_[size_t(from)].sight;
  if (!sight.left) sight.gone = true;
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

}  // namespace tinyshard::detector
