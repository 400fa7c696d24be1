// A value of one mesh on another one: in another order or shape, of more or fewer devices, with
// common devices and without.
#include <functional>
#include <random>
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/message_of.h"
#include "tests/multi/one_device.h"

namespace tinyshard::meshes_test {
namespace {

struct Place {
  std::string name;
  std::vector<MeshAxis> axes;
  std::vector<int> devices;
  std::vector<AxisPlacement> place;

  Mesh mesh() const {
    std::vector<DeviceRef> refs;
    for (int d : devices) refs.push_back(world().devices[size_t(d)]);
    return Mesh(axes, refs);
  }
};

std::vector<Place> places() {
  using A = std::vector<MeshAxis>;
  const A line{{"d", 4}}, grid{{"r", 2}, {"c", 2}}, two{{"p", 2}}, three{{"t", 3}};
  return {
      {"rows", line, {0, 1, 2, 3}, {{"d", Shard(0)}}},
      {"columns", line, {0, 1, 2, 3}, {{"d", Shard(1)}}},
      {"reversed", line, {3, 2, 1, 0}, {{"d", Shard(0)}}},
      {"reversed and whole", line, {3, 2, 1, 0}, {}},
      {"renamed", A{{"other", 4}}, {0, 1, 2, 3}, {{"other", Shard(0)}}},
      {"other devices", line, {4, 5, 6, 7}, {{"d", Shard(0)}}},
      {"other devices, whole", line, {7, 5, 6, 4}, {}},
      {"grid", grid, {0, 1, 2, 3}, {{"r", Shard(0)}, {"c", Shard(1)}}},
      {"grid of rows", grid, {3, 1, 2, 5}, {{"r", Shard(0)}, {"c", Shard(0)}}},
      {"grid, whole along one axis", grid, {4, 1, 6, 2}, {{"c", Shard(0)}}},
      {"two of them", two, {1, 2}, {{"p", Shard(0)}}},
      {"two others", two, {6, 4}, {{"p", Shard(1)}}},
      {"two, whole", two, {3, 4}, {}},
      {"three", three, {0, 4, 2}, {{"t", Shard(0)}}},
      {"eight", A{{"e", 8}}, {7, 6, 5, 4, 3, 2, 1, 0}, {{"e", Shard(0)}}},
      {"eight as a block",
       A{{"a", 2}, {"b", 4}},
       {0, 1, 2, 3, 4, 5, 6, 7},
       {{"a", Shard(1)}, {"b", Shard(0)}}},
      {"one", A{{"o", 1}}, {5}, {}},
  };
}

using Meshes = OnDevices<8, testing::Test>;

TEST_F(Meshes, MoveToEachOther) {
  for (int64_t n : {8, 5}) {
    const Tensor x = (Tensor::arange(n * 8).reshape({n, 8}).cast(DType::F32) + 1).realize();
    const std::vector<float> want = x.to_vector<float>(), twice = (x * 2).to_vector<float>();
    for (const Place& from : places()) {
      const Tensor there = x.shard(from.mesh(), from.place).realize();
      for (const Place& to : places()) {
        const Tensor here = there.shard(to.mesh(), to.place);
        EXPECT_EQ(here.to_vector<float>(), want) << from.name << " to " << to.name << " of " << n;
        EXPECT_EQ((there + there).shard(to.mesh(), to.place).to_vector<float>(), twice)
            << from.name << " to " << to.name << " of " << n;
      }
    }
  }
}

// From any placement on a mesh to any other, of sizes that divide and that do not.
TEST_F(Meshes, PlacementsOnOneMeshChange) {
  using Axes = std::vector<MeshAxis>;
  std::mt19937 random(11);
  auto drawn = [&](const Axes& axes) {
    std::vector<AxisPlacement> place;
    for (const MeshAxis& a : axes)
      place.emplace_back(a.name, random() % 3 == 0 ? Replicate : Shard(int(random() % 2)));
    return place;
  };
  auto text = [](const std::vector<AxisPlacement>& place) {
    std::string out;
    for (const auto& [axis, p] : place) out += axis + " " + p.to_string() + ", ";
    return out;
  };
  for (const Axes& axes :
       {Axes{{"a", 2}, {"b", 2}}, Axes{{"a", 2}, {"b", 4}}, Axes{{"a", 2}, {"b", 2}, {"c", 2}},
        Axes{{"a", 2}, {"b", 1}, {"c", 2}}}) {
    Place place{"", axes, {}, {}};
    int64_t count = 1;
    for (const MeshAxis& a : axes) count *= a.size;
    for (int i = 0; i < count; ++i) place.devices.push_back(int(count) - 1 - i);
    const Mesh mesh = place.mesh();
    for (const Dims& shape : {Dims{8, 8}, Dims{5, 7}}) {
      const Tensor x = Tensor::arange(shape[0] * shape[1]).reshape(shape).realize();
      const std::vector<int> want = x.to_vector<int>();
      for (int i = 0; i < 30; ++i) {
        const std::vector<AxisPlacement> from = drawn(axes), to = drawn(axes);
        const Tensor there = x.shard(mesh, from).realize();
        EXPECT_EQ(there.shard(mesh, to).realize().to_vector<int>(), want)
            << text(from) << "to " << text(to);
        EXPECT_EQ((there.shard(mesh, to) * 2 - there.shard(mesh, to)).to_vector<int>(), want)
            << text(from) << "to " << text(to);
      }
    }
  }
}

// Values without a storage, sums that are not complete, and gradients, as in stages of a pipeline.
TEST_F(Meshes, ComputedValuesMoveForwardAndBackward) {
  const std::vector<Place> all = places();
  const Tensor x = (Tensor::arange(48).reshape({6, 8}).cast(DType::F64) / 16).sin().realize();
  const Tensor w = (Tensor::arange(64).reshape({8, 8}).cast(DType::F64) / 9).cos().realize();
  auto model = [](const Tensor& a, const Tensor& b, const std::function<Tensor(Tensor)>& move) {
    const Tensor h = move(a.matmul(b).tanh()), y = (h.matmul(h.T()) * 0.1).sum();
    return y;
  };
  const Tensor loss = model(x, w, [](Tensor t) { return t; });
  const std::vector<double> want = loss.gradient({w})[0].to_vector<double>();
  for (const Place& from : all) {
    if (from.name == "one") continue;
    const Tensor a = x.shard(from.mesh(), from.place).realize(), b = w.shard(from.mesh()).realize();
    for (const Place& to : all) {
      if (to.name == "one") continue;
      const Tensor y = model(a, b, [&](Tensor t) { return t.shard(to.mesh(), to.place); });
      const std::vector<double> got = y.gradient({b})[0].to_vector<double>();
      EXPECT_NEAR(y.item<double>(), loss.item<double>(), 1e-9) << from.name << " to " << to.name;
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-9) << from.name << " to " << to.name;
    }
  }
  const Mesh rows = all[0].mesh(), back = all[2].mesh();
  EXPECT_EQ(x.shard(rows, {{"d", Shard(0)}}).sum(0).shard(back).to_vector<double>().size(), 8u);
  EXPECT_EQ(Tensor::arange(6).shard(rows, {{"d", Shard(0)}}).shard(back).to_vector<int>(),
            (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST_F(Meshes, CapturedStepsMoveValues) {
  const std::vector<Place> all = places();
  Jit step = [&](Tensor x) { return (x * 3).shard(all[5].mesh(), all[5].place) + 1; };
  for (int i = 0; i < 4; ++i) {
    const Tensor x = Tensor::full({8, 8}, i).shard(all[2].mesh(), all[2].place).realize();
    EXPECT_EQ(step(x).to_vector<float>(), std::vector<float>(64, float(3 * i + 1)));
  }
}

// A part that a device got of a mesh may join another: the gradient lies there, and goes back.
TEST_F(Meshes, GradientsGoBackThroughOneDevice) {
  const std::vector<Place> all = places();
  const Tensor x = (Tensor::arange(12).reshape({6, 2}).cast(DType::F64) + 1).realize();
  const Mesh one({{"o", 1}}, {world().devices[5]});
  using Move = std::function<Tensor(const Tensor&)>;
  const std::vector<std::pair<std::string, Move>> ways = {
      {"to()", [](const Tensor& t) { return t.to("CPU:0"); }},
      {"a mesh of one", [&](const Tensor& t) { return t.shard(one); }}};
  for (const Place& from : all) {
    for (const Place& to : all) {
      if (from.name == "one" || to.name == "one") continue;
      const Tensor p = x.shard(from.mesh(), from.place).realize(),
                   q = x.shard(to.mesh(), to.place).realize();
      for (const auto& [name, way] : ways) {
        const std::string about = from.name + " by " + name + " to " + to.name;
        // It joins the other mesh as an operand, or is brought there.
        const std::vector<double> joined =
            (q * way((p * p).sum())).sum().gradient({p})[0].to_vector<double>();
        const Tensor brought = (way(p * p) * 1.5).shard(to.mesh(), to.place);
        const std::vector<double> moved = (brought * q).sum().gradient({p})[0].to_vector<double>();
        for (size_t i = 0; i < 12; ++i) {
          const double v = double(i) + 1;
          ASSERT_NEAR(joined[i], 2 * v * 78, 1e-9) << about;
          ASSERT_NEAR(moved[i], 3 * v * v, 1e-9) << about;
        }
      }
    }
  }
}

// A mesh at one place along an axis is the rest of it.
TEST_F(Meshes, HaveParts) {
  const Mesh mesh({{"a", 2}, {"b", 2}, {"c", 2}});
  auto numbers = [](const Mesh& part) {
    std::vector<int> list;
    for (const DeviceRef& d : part.devices()) list.push_back(d.index);
    return list;
  };
  EXPECT_EQ(mesh.at("a", 1).to_string(), "mesh(b=2, c=2)");
  EXPECT_EQ(numbers(mesh.at("a", 1)), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(numbers(mesh.at("b", 0)), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(numbers(mesh.at("c", 1)), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(mesh.at("a", 1).at("c", 0).at("b", 1), Mesh::single(world().devices[6]));
  for (int axis = 0; axis < 3; ++axis) {
    const std::string& name = mesh.axes()[size_t(axis)].name;
    for (int c : {0, 1}) EXPECT_EQ(mesh.axis_left_out(mesh.at(name, c)), axis);
  }
  EXPECT_EQ(mesh.axis_left_out(mesh), -1);
  EXPECT_EQ(mesh.axis_left_out(mesh.at("a", 1).at("b", 0)), -1);
  EXPECT_EQ(mesh.at("a", 0).axis_left_out(mesh), -1);
  auto message = [](const std::function<void()>& f) { return test::message_of<UserError>(f); };
  EXPECT_EQ(message([&] { mesh.at("c", 2); }),
            "mesh(a=2, b=2, c=2) has 2 places along \"c\": 2 is none of them");
  EXPECT_NE(message([&] { mesh.at("d", 0); }).find("no axis \"d\"; it has \"a\", \"b\", \"c\""),
            std::string::npos);
}

// A value that lies whole along an axis stays where it is on the rest of the mesh, divided or not.
TEST_F(Meshes, NothingTravelsToAPart) {
  const Mesh mesh({{"a", 2}, {"b", 4}});
  const Tensor x = Tensor::arange(48).reshape({8, 6}).cast(DType::F32).realize();
  for (const std::vector<AxisPlacement>& place :
       std::vector<std::vector<AxisPlacement>>{{}, {{"a", Shard(0)}}, {{"a", Shard(1)}}}) {
    const Tensor there = x.shard(mesh, place).realize();
    for (int b = 0; b < 4; ++b) {
      const Tensor part = there.shard(mesh.at("b", b), place);
      EXPECT_EQ(summarize(part).collective_bytes, 0);
      EXPECT_EQ(part.to_vector<float>(), x.to_vector<float>());
    }
  }
  // Divided along that axis, it has to come together.
  const Tensor rows = x.shard(mesh, {{"b", Shard(0)}}).realize();
  EXPECT_EQ(rows.shard(mesh.at("b", 2)).to_vector<float>(), x.to_vector<float>());
}

// A tensor that was placed nowhere, or on one device, is a place as any other.
TEST_F(Meshes, GoWhereAWholeTensorLies) {
  const Tensor x = Tensor::arange(8).realize();
  const Tensor there = x.shard(places()[5].mesh(), {{"d", Shard(0)}}).realize();
  for (const Tensor& here : {x.zeros_like().realize(), x.zeros_like().to("CPU:0").realize()}) {
    const Tensor back = there.shard_like(here);
    EXPECT_EQ(back.sharding().mesh, here.sharding().mesh) << back.sharding().to_string();
    EXPECT_EQ(back.to_vector<int32_t>(), x.to_vector<int32_t>());
  }
}

// A row of fewer elements than devices: its running maxima lie otherwise than it does.
TEST_F(Meshes, RunningMaximaOfShortRowsHavePlaces) {
  for (int64_t n : {1, 2, 3, 9}) {
    const Tensor x = (Tensor::arange(n).cast(DType::F32) * 2.5).sin().reshape({1, n}).realize();
    const Tensor there = x.shard(places()[0].mesh(), {{"d", Shard(1)}}).realize();
    EXPECT_EQ(there.cummax(1).second.to_vector<int32_t>(), x.cummax(1).second.to_vector<int32_t>());
    EXPECT_EQ(there.cummin(1).first.to_vector<float>(), x.cummin(1).first.to_vector<float>());
  }
}

// Operands of one op do not move by themselves.
TEST_F(Meshes, OperandsOnTwoMeshesAreAnError) {
  const std::vector<Place> all = places();
  const Tensor x = Tensor::ones({8, 8}).shard(all[0].mesh(), all[0].place).realize(),
               y = Tensor::ones({8, 8}).shard(all[5].mesh(), all[5].place).realize();
  const std::string text = test::message_of<UserError>([&] { (x + y).realize(); });
  EXPECT_NE(text.find("bring one of them over with shard()"), std::string::npos) << text;
}

}  // namespace
}  // namespace tinyshard::meshes_test
