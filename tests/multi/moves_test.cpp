// A redistribution's plan sends as many bytes as strategies expect it to.
#include "multi/moves.h"

#include <random>

#include "tests/multi/bytes.h"

namespace tinyshard::test::moves_test {
namespace {

class Moves : public Planned {};

// Any placement of a value of two dims but the pending ones, which no storage has.
std::vector<Placement> drawn(std::mt19937& random, size_t axes) {
  std::vector<Placement> place(axes);
  for (Placement& p : place) {
    if (random() % 3 != 0) p = Shard(int(random() % 2));
  }
  return place;
}

TEST_F(Moves, AreCountedAsTheyAreSent) {
  std::mt19937 random(5);
  for (int columns : {1, 2, 3, 4}) {
    devices(2, columns);
    for (int i = 0; i < 60; ++i) {
      Dims shape{int64_t(random() % 20 + 1), int64_t(random() % 20 + 1)};
      const auto from = drawn(random, 2), to = drawn(random, 2);
      const std::vector<AxisPlacement> named{{"r", to[0]}, {"c", to[1]}};
      Tensor moved = stored(shape, from).shard(mesh(), named);
      EXPECT_NEAR(bytes_moved(DType::F32, shape, mesh(), from, to), double(sent(moved)), 2)
          << to_string(shape) << " " << Sharding{mesh(), from}.to_string() << " -> "
          << Sharding{mesh(), to}.to_string();
    }
  }
}

// Each device gives its part away once, and gets another.
TEST_F(Moves, AxesOfOneSizeChangePlaces) {
  devices(4, 4);
  auto moved = [&](const std::vector<Placement>& from, const std::vector<Placement>& to) {
    const std::vector<AxisPlacement> named{{"r", to[0]}, {"c", to[1]}};
    return sent(stored({64, 64}, from).shard(mesh(), named));
  };
  EXPECT_EQ(moved({Shard(0), Shard(1)}, {Shard(1), Shard(0)}), 16 * 16 * 4);
  EXPECT_EQ(moved({Shard(0), Replicate}, {Replicate, Shard(0)}), 16 * 64 * 4);
  EXPECT_EQ(moved({Replicate, Shard(1)}, {Shard(1), Replicate}), 16 * 64 * 4);
  // Sizes differ: parts are joined along one axis, and change along the other.
  devices(2, 4);
  EXPECT_LE(moved({Shard(0), Shard(1)}, {Shard(1), Shard(0)}), bound(32 * 16 * 4 * (3 + 2)));
}

TEST_F(Moves, OfPendingSumsToo) {
  for (int count : {2, 3, 4, 8}) {
    devices(count);
    Tensor sum = split({24, 10, 6}, 0).sum(0);
    const std::vector<Placement> pending{Partial()};
    auto expect = [&](const std::vector<Placement>& to) {
      const Tensor moved = sum.shard(mesh(), {{"d", to[0]}});
      EXPECT_NEAR(bytes_moved(DType::F32, Dims{10, 6}, mesh(), pending, to), double(sent(moved)), 2)
          << count << " " << to[0].to_string();
    };
    expect({Replicate});
    expect({Shard(0)});
    expect({Shard(1)});
  }
}

// A value of all devices is a term of the first one, and parts are terms with zeros around them.
TEST_F(Moves, ToPendingSums) {
  devices(2, 3);
  auto expect = [&](const std::vector<Placement>& from, const std::vector<Placement>& to,
                    double bytes) {
    EXPECT_EQ(bytes_moved(DType::F32, Dims{24, 32}, mesh(), from, to), bytes);
    const Tensor term(place(stored({24, 32}, from).uop(), {mesh(), to}));
    const Tensor completed(place(term.uop(), replicated(mesh())));
    const double there = bytes_moved(DType::F32, Dims{24, 32}, mesh(), to, {Replicate, Replicate});
    EXPECT_NEAR(double(sent(completed)), bytes + there, 2);
    EXPECT_EQ(term.sharding().placements, to);
  };
  expect({Replicate, Replicate}, {Partial(), Replicate}, 0);
  expect({Replicate, Shard(0)}, {Partial(), Shard(0)}, 0);
  expect({Replicate, Replicate}, {Partial(), Shard(1)}, 0);
  expect({Shard(0), Replicate}, {Partial(), Shard(0)}, 0);
  expect({Replicate, Shard(0)}, {Replicate, Partial()}, 0);
  expect({Shard(1), Shard(0)}, {Partial(), Partial()}, 0);
  expect({Shard(0), Shard(0)}, {Shard(0), Partial()}, 0);
  // The parts by which the inner axis splits an outer part are put together for that.
  expect({Shard(0), Shard(0)}, {Partial(), Shard(0)}, 2 * 4 * 32 * 4);
}

}  // namespace
}  // namespace tinyshard::test::moves_test
