// Code per device where devices belong to ranks: the values of one process.
#include <numeric>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

namespace tinyshard::shard_map_ranks_test {
namespace {

TEST(ShardMapOfRanks, HasTheValuesOfOneProcess) {
  const Mesh mesh = Mesh::world({{"d", -1}});
  ASSERT_GT(world().ranks, 1);
  const int64_t n = mesh.size(), rows = 4 * n;
  std::vector<double> numbers(size_t(rows * n));
  std::iota(numbers.begin(), numbers.end(), 0.0);
  const std::vector<AxisPlacement> by_rows{{"d", Shard(0)}};
  Jit step = [&](Tensor whole) {
    auto f = shard_map(mesh,
                       [](Tensor x) {
                         return std::vector<Tensor>{shift(x, "d") + axis_index("d"),
                                                    all_to_all(x, "d", 1, 0),
                                                    all_reduce(x, "d"),
                                                    all_gather(x * 2, "d"),
                                                    reduce_scatter(x, "d"),
                                                    collective_permute(x, "d", {{0, 1}})};
                       },
                       {.in = {by_rows}, .out = {by_rows, by_rows, {}, {}, by_rows, by_rows}});
    std::vector<Tensor> out = f(whole);
    Tensor loss;
    for (const Tensor& y : out) {
      const Tensor term = (y.square() * 0.5).sum();
      loss = loss.defined() ? loss + term : term;
    }
    out.push_back(loss.gradient({whole})[0]);
    for (Tensor& y : out) y = y.shard(mesh);
    return out;
  };
  // As plain vectors: row r of device r / 4.
  auto at = [&](int64_t r, int64_t c) { return double(r * n + c); };
  std::vector<std::vector<double>> want(7);
  std::vector<double> slope(numbers.size(), 0);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t part = r / 4;
    for (int64_t c = 0; c < n; ++c) want[0].push_back(at((r + rows - 4) % rows, c) + double(part));
  }
  for (int64_t device = 0; device < n; ++device) {
    for (int64_t r = 0; r < rows; ++r) want[1].push_back(at(r, device));
  }
  std::vector<double> sums(size_t(4 * n), 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) sums[size_t(r % 4 * n + c)] += at(r, c);
  }
  want[2] = sums;
  for (double v : numbers) want[3].push_back(2 * v);
  want[5].assign(numbers.size(), 0);
  for (int64_t i = 0; i < 4 * n; ++i) want[5][size_t(4 * n + i)] = numbers[size_t(i)];
  if (4 % n == 0) want[4] = sums;
  // d/dx of half the sum of squares: what each place was multiplied by, times its value there.
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      const double x = at(r, c), sum = sums[size_t(r % 4 * n + c)];
      const double shifted = x + double((r / 4 + 1) % n);
      slope[size_t(r * n + c)] =
          shifted + x + sum + 4 * x + (4 % n == 0 ? sum : 0) + (r < 4 ? x : 0);
    }
  }
  want[6] = slope;
  ASSERT_EQ(4 % n, 0) << "the test is for 2 or 4 devices";
  const Tensor x(numbers, {rows, n});
  for (int i = 0; i < 3; ++i) {  // the later ones are replayed
    const std::vector<Tensor> got = step(x);
    for (size_t j = 0; j < want.size(); ++j)
      EXPECT_EQ(got[j].to_vector<double>(), want[j]) << "result " << j << ", call " << i;
  }
}

}  // namespace
}  // namespace tinyshard::shard_map_ranks_test
