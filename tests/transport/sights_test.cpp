// The judgement of heartbeats by a rank that looks every 100 ms.
#include "transport/detector/sights.h"

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tinyshard::detector::sights_test {
namespace {

using namespace std::chrono_literals;

constexpr Beat kBeat;
constexpr Beat kFarewell = [] {
  Beat beat;
  beat.kind = BeatKind::Farewell;
  return beat;
}();

// Rank 0 of three, which has looked until then.
void look_until(Sights& sights, std::chrono::milliseconds end) {
  for (auto now = 0ms; now <= end; now += 100ms) sights.look({}, Deadline(now));
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
  sights.look({}, Deadline(9000ms));
  EXPECT_FALSE(sights.sight(1).silent);
}

TEST(Sights, WhatIsNoHeartbeatIsNotHeard) {
  Sights sights(0, 3, Deadline(0ms));
  Beat other = kFarewell;
  other.magic = 0;
  EXPECT_FALSE(sights.hear(1, other, Deadline(50ms)));
  EXPECT_FALSE(sights.sight(1).left);
}

// Ranks that beat by turns, each of which waits for others, or for nobody.
class Waits {
 public:
  explicit Waits(size_t ranks) : standings_(ranks) {
    for (size_t r = 0; r < ranks; ++r) sights_.emplace_back(int(r), ranks, Deadline(0ms));
  }
  // Rank `r`, which has made `made` calls of each place, waits in that call for `others`.
  void waits(int r, CallNumber call, std::vector<int> others, const char* source) {
    Standing& own = standings_[size_t(r)];
    own.awaited.clear();
    for (const int other : others) own.awaited.push_back({other, call});
    own.doing.waits = 1;
    own.doing.group_name[0] = 'g';
    std::string_view(source).copy(own.doing.source.data(), 31);
  }
  void works(int r) { standings_[size_t(r)] = {.doing = {}, .calls = standings_[size_t(r)].calls}; }
  void made(int r, uint64_t place, uint64_t number) {
    ++standings_[size_t(r)].calls;
    made_[{r, place}] = number;
  }
  void beat(int from) {
    Sights& own = sights_[size_t(from)];
    Standing& standing = standings_[size_t(from)];
    standing.answers.clear();
    for (const uint64_t place : own.places())
      standing.answers.push_back(place == kNoPlace ? kUnknown : made_[{from, place}]);
    own.look(standing, Deadline(now_ += 10ms));
    for (size_t to = 0; to < sights_.size(); ++to) {
      if (int(to) != from) sights_[to].hear(from, own.beat_for(int(to)), Deadline(now_));
    }
  }
  void beat_all(int times) {
    for (int t = 0; t < times; ++t) {
      for (size_t r = 0; r < sights_.size(); ++r) beat(int(r));
    }
  }
  // Looks for a circle twice: it is not told at once, but after a while in which nothing is heard.
  std::optional<Circle> circle(int r) {
    EXPECT_FALSE(sights_[size_t(r)].circle(Deadline(now_)));
    return sights_[size_t(r)].circle(Deadline(now_ + 300ms));
  }
  // Rank `r` has ended, for all others.
  void end(int r) {
    for (size_t other = 0; other < sights_.size(); ++other) {
      if (int(other) != r) sights_[other].lose(r);
    }
  }
  std::optional<Circle> circle_at_once(int r) { return sights_[size_t(r)].circle(Deadline(now_)); }

 private:
  std::vector<Sights> sights_;
  std::vector<Standing> standings_;
  std::map<std::pair<int, uint64_t>, uint64_t> made_;
  std::chrono::milliseconds now_ = 0ms;
};

// Rank 1 waits in its row (place 7) for rank 0; all others in the world (place 1) for rank 1.
Waits one_call_more() {
  Waits job(4);
  job.made(1, 7, 6);
  job.made(0, 7, 5);
  for (const int r : {0, 2, 3}) job.made(r, 1, 3);
  job.made(1, 1, 2);
  job.waits(1, {7, 5}, {0}, "row.cpp:1");
  for (const int r : {0, 2, 3}) job.waits(r, {1, 2}, {1}, "world.cpp:2");
  return job;
}

TEST(Circles, RanksOfTwoGroupsThatWaitForEachOtherAreFoundByAll) {
  Waits job = one_call_more();
  job.beat_all(3);
  for (const int r : {0, 1, 2, 3}) {
    SCOPED_TRACE(r);
    const auto circle = job.circle(r);
    ASSERT_TRUE(circle);
    EXPECT_EQ(circle->culprit, 1);  // the others all wait in the same call
    EXPECT_NE(circle->text.find("rank 1 waits in all_reduce"), std::string::npos) << circle->text;
    EXPECT_NE(circle->text.find("(row.cpp:1) for rank 0, which waits in"), std::string::npos)
        << circle->text;
    EXPECT_NE(circle->text.find("(world.cpp:2) for rank 1"), std::string::npos) << circle->text;
  }
}

TEST(Circles, ARankThatWorksBreaksThem) {
  Waits job = one_call_more();
  job.works(0);
  job.beat_all(5);
  for (const int r : {0, 1, 2, 3}) EXPECT_FALSE(job.circle(r)) << r;
}

TEST(Circles, WhoHasComeMeanwhileIsNotWaitedFor) {
  Waits job = one_call_more();
  job.beat_all(1);
  // Rank 0 has come to the row after all, and its heartbeat is on its way.
  job.made(0, 7, 6);
  job.waits(0, {1, 2}, {1}, "world.cpp:2");
  job.beat_all(5);
  for (const int r : {0, 1, 2, 3}) EXPECT_FALSE(job.circle(r)) << r;
}

// Rank 0 is seen to wait for rank 1, then gets on and is waited for by it: each heartbeat is true, and
// they never waited for each other.
TEST(Circles, HeartbeatsOfDifferentTimesMakeNone) {
  Waits job(2);
  job.waits(0, {7, 0}, {1}, "a.cpp:1");
  job.waits(1, {8, 0}, {0}, "b.cpp:2");
  job.made(0, 8, 0);
  job.made(1, 7, 0);
  job.beat(0);
  job.beat(1);
  job.beat(0);  // names rank 1, which had not come by then
  job.made(1, 7, 1);
  job.works(1);
  job.made(0, 9, 1);
  job.waits(1, {8, 0}, {0}, "b.cpp:2");
  job.beat(1);
  EXPECT_FALSE(job.circle(1));
  EXPECT_FALSE(job.circle(0));
}

// The first that is told ends, and the others hear of that before they tell.
TEST(Circles, OneOfWhichARankEndsIsStillTold) {
  Waits job = one_call_more();
  job.beat_all(3);
  EXPECT_FALSE(job.circle_at_once(1));
  job.end(0);
  EXPECT_TRUE(job.circle_at_once(1));
  // Rank 2 had not seen the circle before rank 0 ended: it sees that a rank is gone.
  EXPECT_FALSE(job.circle_at_once(2));
}

TEST(Circles, ALongOneIsFound) {
  Waits job(6);
  for (int r = 0; r < 6; ++r) job.waits(r, {uint64_t(10 + r), 0}, {(r + 1) % 6}, "x.cpp:1");
  job.beat_all(4);
  for (int r = 0; r < 6; ++r) EXPECT_TRUE(job.circle(r)) << r;
}

}  // namespace
}  // namespace tinyshard::detector::sights_test
