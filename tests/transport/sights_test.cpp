// The judgement of heartbeats by a rank that looks every 100 ms.
#include "transport/detector/sights.h"

#include <chrono>

#include <gtest/gtest.h>

namespace tinyshard::detector::sights_test {
namespace {

using namespace std::chrono_literals;

constexpr Beat kBeat{.number = 1, .doing = {}};
constexpr Beat kFarewell{.kind = BeatKind::Farewell, .number = 2, .doing = {}};

// Rank 0 of three, which has looked until then.
void look_until(Sights& sights, std::chrono::milliseconds end) {
  for (auto now = 0ms; now <= end; now += 100ms) sights.look(Deadline(now));
}

TEST(Sights, WhoIsNotHeardForTenPeriodsIsSilent) {
  Sights sights(0, 3, Deadline(0ms));
  look_until(sights, 900ms);
  EXPECT_FALSE(sights.sight(1).silent);
  look_until(sights, 1100ms);
  EXPECT_TRUE(sights.sight(1).silent);
  EXPECT_FALSE(sights.sight(0).silent);
  sights.hear(1, kBeat, Deadline(1100ms));
  EXPECT_FALSE(sights.sight(1).silent);
}

TEST(Sights, WhoHasLeftIsNotMissed) {
  Sights sights(0, 3, Deadline(0ms));
  sights.hear(1, kFarewell, Deadline(50ms));
  EXPECT_FALSE(sights.lose(1));
  look_until(sights, 5000ms);
  EXPECT_TRUE(sights.sight(1).left);
  EXPECT_FALSE(sights.sight(1).gone);
  EXPECT_FALSE(sights.sight(1).silent);
}

TEST(Sights, WhoseConnectionClosesWithoutAFarewellIsGone) {
  Sights sights(0, 3, Deadline(0ms));
  sights.hear(2, kBeat, Deadline(50ms));
  EXPECT_TRUE(sights.lose(2));
  EXPECT_TRUE(sights.sight(2).gone);
}

// A rank that was stopped itself has heard nobody, and does not hold that against them.
TEST(Sights, WhoWasHeldUpMissesNobody) {
  Sights sights(0, 3, Deadline(0ms));
  look_until(sights, 500ms);
  sights.look(Deadline(9000ms));
  EXPECT_FALSE(sights.sight(1).silent);
}

TEST(Sights, WhatIsNoHeartbeatIsNotHeard) {
  Sights sights(0, 3, Deadline(0ms));
  Beat other = kFarewell;
  other.magic = 0;
  EXPECT_FALSE(sights.hear(1, other, Deadline(50ms)));
  EXPECT_FALSE(sights.sight(1).left);
}

}  // namespace
}  // namespace tinyshard::detector::sights_test
