// The state of each rank, as heartbeats tell it: whether it is gone, has left, or is silent, and
// whether ranks wait for each other. No sockets and no clock of its own: mesh_detector.cpp brings
// both, and the simulator (tests/simulator) brings others.
//
// Example: rank 2 of 4 is killed. Its connections close, lose(2) is called, and it is gone. Had it
// said farewell before, it would have left. Had it been stopped, its connections would be there, and
// after ten periods without a heartbeat it would count as silent.
//
// Example of ranks that wait for each other: rank 1 made one call more in its row and waits there for
// rank 0, which came to a comparison of the whole world, where it waits for rank 1. Each asks the
// other how many calls it has made where it is waited for. Both answers say "not that one yet", and
// both come from ranks that wait: so each names the other as one that has missed its call, and the two
// names make a circle. Nobody in it, and nobody who waits for one in it, will ever get on. A rank that
// computes, loads or is paused waits for nobody, so that no circle goes through it.
#pragma once
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "transport/channel.h"
#include "transport/detector/beat.h"
#include "transport/detector/standing.h"

namespace tinyshard::detector {

// A rank asks others where they stand once it has waited for so long.
inline constexpr std::chrono::milliseconds kAskAfter{500};

struct Sight {
  bool gone = false, left = false;
  bool reset = false;   // gone: the connection was reset, perhaps by what lies between
  bool silent = false;  // no heartbeat for a second or more, though it has not left
  double silent_s = 0;
  Doing doing;      // as its last heartbeat told
  std::string who;  // "process 812 on node02"
};

// Ranks that wait for each other in different calls.
struct Circle {
  int culprit = -1;
  uint64_t calls = 0;  // that this rank had made when it was found to wait for them
  std::string text;
};

// "all_reduce f32 x 64, call 5 of group "world" (train.cpp:21)", or the label of what is none.
std::string describe(const Doing& doing);

// The time between heartbeats of a rank, for that many ranks.
std::chrono::milliseconds period_of(size_t ranks);

// Threads: the owner makes one call at a time.
class Sights {
 public:
  Sights(int self, size_t ranks, Deadline now);

  std::chrono::milliseconds period() const { return period_; }
  void name(int rank, std::string who) { peers_[size_t(rank)].sight.who = std::move(who); }
  const std::string& who(int rank) const { return peers_[size_t(rank)].sight.who; }

  // Returns what the others asked for last, by rank: for the next Standing.
  std::vector<uint64_t> places() const;
  // This rank sends a heartbeat now, as it does in each period. One that was held up itself does not
  // count that against the others.
  void look(const Standing& own, Deadline now);
  // The heartbeat that it then sends to this rank.
  Beat beat_for(int rank) const;
  // False where this is no heartbeat.
  bool hear(int from, const Beat& beat, Deadline now);
  // The connection has closed. True where that says that the rank is gone.
  bool lose(int from, bool reset = false);

  Sight sight(int rank) const;
  // The circle that this rank is in, or waits for. It is told once the others have had the time to see
  // it, too: the first that ends would otherwise be all that they are told of.
  std::optional<Circle> circle(Deadline now);

 private:
  struct Peer {
    Sight sight;
    Deadline heard;
    Held held = {};
    CallNumber asks = {kNoPlace, 0}, answers = {kNoPlace, kUnknown};
  };
  void find_missed();
  const Missed* missed_from(int rank, size_t i) const;
  std::vector<int> find_circle() const;
  std::string tell(const std::vector<int>& circle) const;
  int culprit_of(const std::vector<int>& circle) const;

  int self_;
  std::chrono::milliseconds period_;
  Deadline looked_;
  std::vector<Peer> peers_;  // by rank; of this one what it tells
  Standing own_;
  uint64_t number_ = 0;
  std::optional<Circle> found_;  // and since when
  Deadline found_at_{};
};

}  // namespace tinyshard::detector
