// Knows of every rank whether it is gone (its connection closed), stopped (no heartbeat comes) or
// at work, and what it waits for: a thread with a connection to each other rank, beside whatever
// channel moves the data. It finds out; the groups decide (group.cpp).
//
// A rank that ends well says so first, as its channel does. Any thread.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/channel.h"
#include "transport/detector/beat.h"
#include "transport/tcp/mesh.h"

namespace tinyshard {

class Endpoint;
class Recorder;
struct LaunchEnvironment;

class Detector {
 public:
  // What is known of a rank.
  struct Sight {
    bool gone = false, left = false;
    bool silent = false;  // no heartbeat for a second or more
    double silent_s = 0;
    detector::Doing doing;  // as its last heartbeat told
    std::string who;        // "process 812 on node02"
  };

  // `look` is asked by the detector's thread what this rank does.
  Detector(int rank, std::vector<tcp::Peer> peers, std::function<detector::Doing()> look,
           std::shared_ptr<Recorder> recorder);
  ~Detector();
  Detector(const Detector&) = delete;
  Detector& operator=(const Detector&) = delete;

  Sight sight(int rank) const;
  // Tells the others that this rank ends well. Once; the destructor does, and exit(0).
  void say_farewell();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Meets the detectors of the other ranks by way of the endpoint's channel. All ranks get one, or
// none does: then `why_not` says what hindered.
std::unique_ptr<Detector> meet_detectors(const LaunchEnvironment& launch, Endpoint& endpoint,
                                         std::string& why_not);

}  // namespace tinyshard
