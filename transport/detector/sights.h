// What heartbeats say of each rank: whether it is gone, has left, or is silent. No sockets and no
// clock of its own: mesh_detector.cpp brings both, and the simulator (tests/simulator) brings others.
//
// Example: rank 2 of 4 is killed. Its connections close, lose(2) is called, and it is gone. Had it
// said farewell before, it would have left. Had it been stopped, its connections would be there, and
// after ten periods without a heartbeat it would count as silent.
#pragma once
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "transport/channel.h"
#include "transport/detector/beat.h"

namespace tinyshard::detector {

struct Sight {
  bool gone = false, left = false;
  bool silent = false;  // no heartbeat for a second or more, though it has not left
  double silent_s = 0;
  Doing doing;      // as its last heartbeat told
  std::string who;  // "process 812 on node02"
};

// Of how many ranks each sends heartbeats how often.
std::chrono::milliseconds period_of(size_t ranks);

// Threads: the owner makes one call at a time.
class Sights {
 public:
  Sights(int self, size_t ranks, Deadline now);

  std::chrono::milliseconds period() const { return period_; }
  void name(int rank, std::string who) { peers_[size_t(rank)].sight.who = std::move(who); }
  const std::string& who(int rank) const { return peers_[size_t(rank)].sight.who; }

  // This rank sends a heartbeat now, as it does in each period. One that was held up itself does not
  // count that against the others.
  void look(Deadline now);
  // False where this is no heartbeat.
  bool hear(int from, const Beat& beat, Deadline now);
  // The connection has closed. True where that says that the rank is gone.
  bool lose(int from);

  Sight sight(int rank) const;

 private:
  struct Peer {
    Sight sight;
    Deadline heard;
  };
  int self_;
  std::chrono::milliseconds period_;
  Deadline looked_;
  std::vector<Peer> peers_;  // by rank
};

}  // namespace tinyshard::detector
