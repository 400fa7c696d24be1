// Counts what programs would send over meshes of devices that only plan: for bounds on bytes.
//
//   class Slices : public test::Planned {};
//   TEST_F(Slices, OneShard) {
//     devices(4);
//     EXPECT_LE(sent(split({64, 64}, 0).shrink({{0, 16}, {0, 64}})), bound(16 * 64 * 4));
//   }
#pragma once
#include <cstdint>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

namespace tinyshard::test {

class Planned : public ::testing::Test {
 protected:
  // A world of so many NULL devices, on one axis "d" or on a mesh of `rows` x count / rows.
  void devices(int count) {
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL"}, .devices_per_rank = count});
    mesh_ = Mesh({{"d", count}});
  }
  void devices(int rows, int columns) {
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL"}, .devices_per_rank = rows * columns});
    mesh_ = Mesh({{"r", rows}, {"c", columns}});
  }
  void TearDown() override { Runtime::shutdown(); }

  const Mesh& mesh() const { return *mesh_; }

  // A stored value of that shape, divided along `dim` over the (first) axis; -1: replicated.
  Tensor split(Dims shape, int dim, DType type = DType::F32) const {
    std::vector<Placement> place(mesh().axes().size());
    if (dim >= 0) place[0] = Shard(dim);
    return stored(std::move(shape), place, type);
  }
  Tensor stored(Dims shape, const std::vector<Placement>& place, DType type = DType::F32) const {
    std::vector<AxisPlacement> named;
    for (size_t a = 0; a < place.size(); ++a) named.push_back({mesh().axes()[a].name, place[a]});
    return Tensor::zeros(std::move(shape), type).contiguous().shard(mesh(), named).realize();
  }

  // Bytes that each device sends for these values, and what the plan holds beside its inputs.
  static int64_t sent(const std::vector<Tensor>& values) {
    return summarize(values).collective_bytes;
  }
  static int64_t sent(const Tensor& value) { return summarize(value).collective_bytes; }
  static int64_t temporaries(const Tensor& value) { return summarize(value).arena_bytes; }
  // The bytes that theory asks for, and a tenth.
  static int64_t bound(double bytes) { return int64_t(bytes * 1.1); }

 private:
  std::optional<Mesh> mesh_;
};

}  // namespace tinyshard::test
