// Knows of every rank whether it is gone (its connection closed), stopped (no heartbeat comes) or
// at work, and what it waits for; and whether ranks wait for each other. It finds out; the groups
// decide (group_health.cpp). Any thread.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "transport/detector/sights.h"

namespace tinyshard {

class Endpoint;
struct LaunchEnvironment;

class Detector {
 public:
  using Sight = detector::Sight;
  virtual ~Detector() = default;
  virtual Sight sight(int rank) const = 0;
  // Ranks that wait for each other, of which this one is one or waits for one.
  virtual std::optional<detector::Circle> circle() = 0;
};

// Meets the detectors of the other ranks by way of the endpoint's channel. All ranks get one, or
// none does: then `why_not` says what hindered.
std::unique_ptr<Detector> meet_detectors(const LaunchEnvironment& launch, Endpoint& endpoint,
                                         std::string& why_not);

}  // namespace tinyshard
