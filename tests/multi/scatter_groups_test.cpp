// Entries of scatters that meet in groups of devices (multi/strategies/groups.h) make what one device
// makes of them, bit by bit: where sizes do not divide, where all entries name few places or places
// beyond the end, for rows, in several types, and along one axis of a mesh of two.
#include <random>
#include <span>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/multi/one_device.h"

namespace tinyshard::scatter_groups_test {
namespace {

struct Entries {
  Tensor to, index, said;
};

// Small integers, so that sums are exact in every order.
Tensor integers(std::mt19937& random, const Dims& shape, int low, int high, DType type) {
  std::uniform_int_distribution<int> any(low, high);
  std::vector<int> values(size_t(product(shape)));
  for (int& v : values) v = any(random);
  return Tensor(std::span<const int>(values), shape).cast(type).realize();
}

class ScatterGroups : public OnDevices<8, testing::Test> {
 protected:
  static std::vector<Mesh> meshes() {
    return {Mesh({{"d", 8}}), Mesh({{"other", 2}, {"d", 4}}), Mesh({{"d", 4}, {"other", 2}})};
  }
  static Entries on(const Entries& e, const Mesh& mesh) {
    auto lying = [&](const Tensor& x) { return x.shard(mesh, {{"d", Shard(0)}}).realize(); };
    return {lying(e.to), lying(e.index), lying(e.said)};
  }
  static bool in_groups(const Tensor& x) {
    for (const CollectiveItem& c : summarize(x).collective_items) {
      if (c.axis.find('%') != std::string::npos) return true;
    }
    return false;
  }
};

TEST_F(ScatterGroups, MakeWhatOneDeviceMakes) {
  struct Shape {
    int64_t places, entries, columns;
  };
  std::mt19937 random(7);
  int grouped = 0;
  for (const Shape& s : {Shape{65536, 65536, 0}, Shape{70001, 69993, 0}, Shape{30011, 30011, 3}}) {
    for (DType type : {DType::F32, DType::BF16, DType::I64, DType::I16}) {
      for (int64_t named : {s.places + 9, int64_t{5}}) {
        Dims to{s.places}, of{s.entries};
        if (s.columns > 0) to.push_back(s.columns), of.push_back(s.columns);
        const Entries one{integers(random, to, -2, 2, type),
                          integers(random, of, 0, int(named) - 1, DType::I32),
                          integers(random, of, -3, 3, type)};
        for (const Mesh& mesh : meshes()) {
          const Entries many = on(one, mesh);
          const std::string what = fmt::format("{} of {} places, {} named, on {}", name(type),
                                               s.places, named, mesh.to_string());
          for (ScatterReduce reduce : {ScatterReduce::Sum, ScatterReduce::Amax, ScatterReduce::Amin,
                                       ScatterReduce::Mean}) {
            for (bool self : {true, false}) {
              auto run = [&](const Entries& e) {
                return e.to.scatter_reduce(0, e.index, e.said, reduce, self);
              };
              grouped += in_groups(run(many));
              expect_same(run(many), run(one), 0, fmt::format("{} {}", what, int(reduce)));
            }
          }
          auto written = [](const Entries& e) { return e.to.scatter(0, e.index, e.said); };
          grouped += in_groups(written(many));
          expect_same(written(many), written(one), 0, what + ", scatter");
          auto set = [](const Entries& e) {
            const Tensor x = e.to.clone();
            x.setitem({e.index.ndim() > 1 ? e.index[{Slice(), 0}] : e.index}, e.said);
            return x;
          };
          expect_same(set(many), set(one), 0, what + ", setitem");
        }
      }
    }
  }
  EXPECT_GT(grouped, 200) << "or nothing is tested here";
}

// The last entry that names a place counts, whichever device and group has it.
TEST_F(ScatterGroups, LastEntriesAreWritten) {
  constexpr int64_t kEntries = 65536;
  for (const Mesh& mesh : meshes()) {
    const Tensor number = Tensor::arange(kEntries).realize();
    for (int64_t period : {int64_t{1}, int64_t{7}, kEntries / 16, kEntries / 3}) {
      const Entries many =
          on({Tensor::full({kEntries}, -1), (number % period).realize(), number}, mesh);
      const Tensor x = many.to.scatter(0, many.index, many.said);
      const std::vector<int64_t> got = x.to_vector<int64_t>();
      for (int64_t place = 0; place < kEntries; ++place) {
        const int64_t last = kEntries - 1 - (kEntries - 1 - place) % period;
        ASSERT_EQ(got[size_t(place)], place < period ? last : -1) << place << " of " << period;
      }
    }
  }
}

}  // namespace
}  // namespace tinyshard::scatter_groups_test
