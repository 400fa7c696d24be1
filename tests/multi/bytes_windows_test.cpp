// Slices, pads, flips, rolls and concatenations along a split dim send the rows that are not
// where they belong, and no others.
#include "tests/multi/bytes.h"

namespace tinyshard::bytes_windows_test {
namespace {

class WindowBytes : public test::Planned, public testing::WithParamInterface<int> {
 protected:
  static constexpr int64_t kWidth = 96, kRow = kWidth * 4;
};

// The first half lies on the first half of the devices, and is spread over all of them: the last
// device of the half keeps nothing and sends all it has.
TEST_P(WindowBytes, AHalfIsSpread) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({8 * n, kWidth}, 0);
  EXPECT_LE(sent(x.shrink({{0, 4 * n}, {0, kWidth}})), bound(8.0 * kRow));
  EXPECT_LE(sent(x.chunk(2, 0)[1]), bound(8.0 * kRow));
}

TEST_P(WindowBytes, APartIsSpreadByItsOwner) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({2 * n * n, kWidth}, 0);
  const Tensor part = x.shrink({{2 * n, 4 * n}, {0, kWidth}});
  EXPECT_LE(sent(part), bound(2.0 * (n - 1) * kRow));
  EXPECT_TRUE(part.sharding().placements[0].is_shard());
}

// Each device adds up what it has of the rows: sums travel, as they do of all of x.
TEST_P(WindowBytes, SumsOfAPartSendNoRows) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({8 * n, kWidth}, 0), part = x[{Slice(0, 4 * n)}];
  EXPECT_EQ(sent(part.sum(0)), sent(x.sum(0)));
  EXPECT_EQ(sent(part.sum()), sent(x.sum()));
  EXPECT_EQ(sent(part.max(0)), sent(x.max(0)));
  const Tensor narrow = split({8 * n, kWidth}, 0, DType::BF16);
  EXPECT_EQ(sent(narrow[{Slice(3, 7 * n)}].mean(0)), sent(narrow.mean(0)));
  // Where others read the rows as well, they travel once.
  EXPECT_LE(sent({part.sum(0), part * 2}), bound(8.0 * kRow + double(sent(x.sum(0)))));
  EXPECT_LE(sent(x.shrink({{n, n + 1}, {0, kWidth}}).sum(0)), bound(double(kRow)));
}

// Reading all that a device has, for a few rows of it, takes longer than sending these.
TEST_P(WindowBytes, FewRowsOfManyAreSent) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({n << 16, kWidth}, 0);
  EXPECT_GT(sent(x[{Slice(0, 4 * n)}].sum(0)), sent(x.sum(0)));
  EXPECT_EQ(sent(x[{Slice(0, n << 15)}].sum(0)), sent(x.sum(0)));
}

TEST_P(WindowBytes, ARowIsBroadcast) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({8 * n, kWidth}, 0);
  EXPECT_LE(sent(x[0]), bound(double(kRow)));
  EXPECT_LE(sent(x[-1] * 2), bound(double(kRow)));
  EXPECT_LE(sent(x.shrink({{7, 9}, {0, kWidth}})), bound(2.0 * kRow));
}

TEST_P(WindowBytes, ARollSendsWhatCrosses) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({8 * n, kWidth}, 0);
  EXPECT_LE(sent(x.roll(1, 0)), bound(double(kRow)));
  EXPECT_LE(sent(x.roll(-3, 0)), bound(3.0 * kRow));
  EXPECT_LE(sent(x.roll(8, 0)), bound(8.0 * kRow));
  EXPECT_TRUE(x.roll(1, 0).sharding().placements[0].is_shard());
}

TEST_P(WindowBytes, AFlipSendsEachPartOnce) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({8 * n, kWidth}, 0);
  EXPECT_LE(sent(x.flip({0})), bound(8.0 * kRow));
  EXPECT_TRUE(x.flip({0}).sharding().placements[0].is_shard());
}

TEST_P(WindowBytes, APadMovesRowsToTheirNewParts) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({8 * n, kWidth}, 0);
  // Parts grow to 9 rows: each device gets up to 8 rows from the one before or behind.
  EXPECT_LE(sent(x.pad({{0, n}, {0, 0}})), bound(8.0 * kRow));
  EXPECT_LE(sent(x.pad({{0, 8 * n}, {0, 0}})), bound(8.0 * kRow));
  EXPECT_TRUE(x.pad({{0, n}, {0, 0}}).sharding().placements[0].is_shard());
}

TEST_P(WindowBytes, EachOperandOfACatMovesOnce) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({8 * n, kWidth}, 0), y = split({8 * n, kWidth}, 0) + 1;
  EXPECT_LE(sent(x.cat({y}, 0)), bound(16.0 * kRow));
}

// Whichever row the steps begin with, where parts are multiples of the step: read, written to and differentiated.
TEST_P(WindowBytes, EverySecondRowOfAPartStays) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({8 * n, kWidth}, 0), w = split({8 * n, kWidth}, 0).is_param_();
  for (const Slice& s : {Slice{0, {}, 2}, Slice{1, {}, 2}, Slice{3, {}, 4}}) {
    EXPECT_EQ(sent(x[{s}]), 0);
    EXPECT_EQ(sent((w[{s}] * 2).square().sum(1).gradient({w}, split({8 * n / s.step}, 0))), 0);
    Tensor y = x.clone();
    y.setitem({s}, 3);
    EXPECT_EQ(sent(y), 0);
  }
  EXPECT_LE(sent(x[{Slice{2, {}, 2}}]), bound(double(kRow)));
}

// [2, n * 8, 96] split along the second dim, flat: half of each part goes to a device of its half.
TEST_P(WindowBytes, AReshapeSendsWhatItsRunsLack) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({2, 8 * n, kWidth}, 1);
  const Tensor flat = x.reshape({16 * n * kWidth});
  EXPECT_LE(sent(flat), bound(16.0 * kRow));
  EXPECT_TRUE(flat.sharding().placements[0].is_shard());
  // The way back: a line that is split becomes a value that is split along an inner dim.
  const Tensor line = split({16 * n * kWidth}, 0);
  EXPECT_LE(sent(line.reshape({2, 8 * n, kWidth})), bound(16.0 * kRow));
  EXPECT_TRUE(line.reshape({2, 8 * n, kWidth}).sharding().placements[0].is_shard());
  // Rows of one and a half: parts differ by less than a part.
  EXPECT_LE(sent(split({3 * n * 4, 8}, 0).reshape({2 * n * 4, 12})), bound(12.0 * 8 * 4));
}

// The plan names what travels, and why.
TEST_F(WindowBytes, AreExplained) {
  devices(4);
  const PlanSummary s = summarize(split({32, kWidth}, 0).flip({0}));
  ASSERT_EQ(s.collective_items.size(), 1u);
  EXPECT_EQ(s.collective_items[0].op, "all_to_all");
  EXPECT_EQ(s.collective_items[0].bytes, 8 * kRow);
  EXPECT_NE(s.collective_items[0].purpose.find("flip"), std::string::npos)
      << s.collective_items[0].purpose;
}

// Between meshes each part travels once, and what is there already does not.
TEST_P(WindowBytes, OtherMeshesGetWhatTheyLack) {
  const int n = GetParam();
  devices(n);
  const Tensor x = split({8 * n, kWidth}, 0);
  const std::vector<DeviceRef> all = mesh().devices();
  const Mesh reversed({{"e", n}}, {all.rbegin(), all.rend()}), renamed({{"f", n}}, all);
  const Mesh half({{"h", n / 2}}, {all.begin(), all.begin() + n / 2});
  const Mesh block({{"r", 2}, {"c", n / 2}}, all);
  EXPECT_LE(sent(x.shard(reversed, {{"e", Shard(0)}})), bound(8.0 * kRow));
  EXPECT_EQ(sent(x.shard(renamed, {{"f", Shard(0)}})), 0);
  EXPECT_EQ(sent(x.shard(block, {{"r", Shard(0)}, {"c", Shard(0)}})), 0);
  EXPECT_LE(sent(x.shard(half, {{"h", Shard(0)}})), bound(8.0 * kRow));
  EXPECT_LE(sent(x.shard(half, {{"h", Shard(0)}}).realize().shard(mesh(), {{"d", Shard(0)}})),
            bound(16.0 * kRow));
  EXPECT_EQ(sent(x.shard(mesh()).realize().shard(reversed)), 0);
  EXPECT_LE(sent((x > 0).cast(DType::I64).shard(half, {{"h", Shard(0)}})), bound(2.0 * kRow));
  EXPECT_LE(sent(x.cast(DType::F64).shard(reversed, {{"e", Shard(0)}})), bound(8.0 * kRow));
}

INSTANTIATE_TEST_SUITE_P(Devices, WindowBytes, testing::Values(4, 8, 64));

// Plans for many devices name few pairs of them.
TEST_F(WindowBytes, OnAThousandDevices) {
  devices(1024);
  const Tensor x = split({8192, kWidth}, 0);
  EXPECT_LE(sent(x.roll(1, 0)), bound(double(kRow)));
  EXPECT_LE(sent(x.flip({0})), bound(8.0 * kRow));
  EXPECT_LE(sent(x[77]), bound(double(kRow)));
}

}  // namespace
}  // namespace tinyshard::bytes_windows_test
