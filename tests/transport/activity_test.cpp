// Rates and lateness from rings that are written here by hand: ten runs of 100 ms, of which one rank comes
// late to the collective.
#include "transport/recorder/activity.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tinyshard::recorder {
namespace {

constexpr int64_t kMs = 1'000'000;

// A rank that begins the collective of run r at 100 r + `begins` ms; all end at 100 r + 100.
RankRing ring_of(int rank, int64_t begins, int runs = 12) {
  RankRing ring;
  ring.origin.rank = rank;
  ring.origin.ranks = 3;
  for (int r = 1; r <= runs; ++r) {
    RecordedCall& call = ring.calls.emplace_back();
    call.call.ticket = {.epoch = 1, .schedule = 7, .item = 1, .run = uint64_t(r)};
    call.group = 9;
    call.sequence = uint64_t(r);
    call.ranks = {0, 1, 2};
    call.started_ns = (100 * r + begins) * kMs;
    call.completed_ns = (100 * r + 100) * kMs;
  }
  return ring;
}

TEST(Activity, TheLateRankIsFound) {
  const std::vector<RankRing> rings = {ring_of(0, 60), ring_of(1, 60), ring_of(2, 85)};
  const auto ranks = activities(rings, 1300 * kMs);
  ASSERT_EQ(ranks.size(), 3u);
  for (const RankActivity& r : ranks) {
    EXPECT_EQ(r.run, 12u);
    EXPECT_NEAR(r.runs_per_s, 10, 1e-9);
    EXPECT_EQ(r.calls, 11);
  }
  EXPECT_NEAR(ranks[2].late_per_run, .025, 1e-9);
  EXPECT_EQ(ranks[0].late_per_run, 0);
  EXPECT_NEAR(ranks[0].in_calls, 11 * 40. / 1040, 1e-9);
  EXPECT_NEAR(ranks[2].in_calls, 11 * 15. / 1015, 1e-9);
  EXPECT_EQ(slowest(ranks), 2);
}

// A rank that is late to two calls of a run was late once.
TEST(Activity, LatenessIsNotAddedUp) {
  std::vector<RankRing> rings = {ring_of(0, 60), ring_of(1, 85)};
  for (RankRing& ring : rings) {
    for (int i = 11; i >= 0; --i) {
      RecordedCall second = ring.calls[size_t(i)];
      second.group = 10;
      second.started_ns += 5 * kMs;
      ring.calls.insert(ring.calls.begin() + i + 1, second);
    }
  }
  EXPECT_NEAR(activities(rings, 1300 * kMs)[1].late_per_run, .025, 1e-9);
}

// On a mesh of 2 x 2 ranks {0, 2} and {1, 3} meet first, then {0, 1} and {2, 3}. Rank 1 is late to the first
// call, so that rank 3 waits there and comes late to the second, for which it is not to blame.
TEST(Activity, WhoWaitedIsNotLate) {
  std::vector<RankRing> rings;
  for (int rank = 0; rank < 4; ++rank) {
    const bool odd = rank % 2 != 0;
    RankRing& ring = rings.emplace_back(ring_of(rank, rank == 1 ? 85 : 60));
    for (int i = 11; i >= 0; --i) {
      RecordedCall& first = ring.calls[size_t(i)];
      const int64_t begin = (i + 1) * 100 * kMs;
      first.group = odd ? 21 : 20;
      first.completed_ns = begin + (odd ? 86 : 61) * kMs;
      RecordedCall second = first;
      second.group = rank < 2 ? 30 : 31;
      second.started_ns = *first.completed_ns;
      second.completed_ns = begin + 87 * kMs;
      ring.calls.insert(ring.calls.begin() + i + 1, second);
    }
  }
  const auto ranks = activities(rings, 1300 * kMs);
  EXPECT_NEAR(ranks[1].late_per_run, .025, 1e-9);
  EXPECT_NEAR(ranks[3].late_per_run, 0, 1e-9);
  EXPECT_EQ(slowest(ranks), 1);
}

TEST(Activity, NobodyIsLate) {
  const std::vector<RankRing> rings = {ring_of(0, 60), ring_of(1, 61), ring_of(2, 62)};
  EXPECT_EQ(slowest(activities(rings, 1300 * kMs)), -1);
  EXPECT_EQ(slowest({}), -1);
  EXPECT_EQ(slowest(activities(std::vector{ring_of(0, 1)}, 1300 * kMs)), -1);
}

// A job that stands still does not go on with the rate that it had.
TEST(Activity, ARunThatTakesLongLowersTheRate) {
  std::vector<RankRing> rings = {ring_of(0, 60)};
  rings[0].calls.back().completed_ns.reset();
  EXPECT_NEAR(activities(rings, 6260 * kMs)[0].runs_per_s, .2, 1e-9);
}

TEST(Activity, RingsWithLittleInThem) {
  RankRing replays = ring_of(1, 10, 2);
  for (RecordedCall& call : replays.calls) {
    call.kind = RecordKind::Run;
    call.completed_ns.reset();
  }
  const std::vector<RankRing> rings = {RankRing{}, replays, ring_of(2, 10, 1)};
  const auto ranks = activities(rings, 1000 * kMs);
  EXPECT_EQ(ranks[0].run, 0u);
  EXPECT_EQ(ranks[0].runs_per_s, 0);
  EXPECT_EQ(ranks[1].run, 2u);
  EXPECT_EQ(ranks[1].calls, 0);
  EXPECT_EQ(ranks[1].in_calls, 0);
  EXPECT_EQ(ranks[2].runs_per_s, 0);
}

TEST(Activity, CallsOutsideOfRunsAreNoRuns) {
  std::vector<RankRing> rings = {ring_of(0, 60), ring_of(1, 60), ring_of(2, 85)};
  for (RankRing& ring : rings) {
    for (size_t at : {12, 7, 0}) {
      RecordedCall other = ring.calls[0];
      other.call.ticket = {};
      other.group = 1;
      other.started_ns = ring.calls[at == 12 ? 11 : at].started_ns;
      other.completed_ns = other.started_ns;
      ring.calls.insert(ring.calls.begin() + int(at), other);
    }
  }
  const auto ranks = activities(rings, 1300 * kMs);
  EXPECT_EQ(ranks[0].run, 12u);
  EXPECT_NEAR(ranks[0].runs_per_s, 10, 1e-9);
  EXPECT_EQ(slowest(ranks), 2);
}

// A context that was made anew counts its runs from one again.
TEST(Activity, AnotherContextBeginsAnew) {
  RankRing ring = ring_of(0, 60);
  for (size_t i = 0; i < 8; ++i) {
    ring.calls[i].call.ticket.epoch = 0;
    ring.calls[i].call.ticket.run += 100;
  }
  const auto ranks = activities(std::vector{ring}, 1300 * kMs);
  EXPECT_EQ(ranks[0].run, 12u);
  EXPECT_NEAR(ranks[0].runs_per_s, 10, 1e-9);
}

}  // namespace
}  // namespace tinyshard::recorder
