// A program that uses the public header and has types of its own that are called as the engine's
// are: it compiles because the header shows none of those. CMakeLists.txt looks at which headers it
// includes. The program trains, and its plan is asked for as a user would.
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

using namespace tinyshard;

namespace io {
struct Reader {};
}  // namespace io
// The library has a namespace of that name: a program's own is meant by ::io.
[[maybe_unused]] const ::io::Reader reader_of_a_program;

struct Schedule {};
struct Item {};
struct Executable {};
struct Device {};
struct Program {};
struct Storage {};
struct Communicator {};
struct Collective {};
struct Context {};
struct Work {};
struct Target {};

struct Net {
  nn::Linear a{4, 8}, b{8, 2};
  TS_FIELDS(a, b)
  Tensor operator()(const Tensor& x) const { return b(a(x).relu()); }
};

namespace {

TEST(PublicFace, AStepThatTrainsHasNamesOfTheEngineForItsOwn) {
  [[maybe_unused]] std::tuple<Schedule, Item, Executable, Device, Program, Storage, Communicator,
                              Collective, Context, Work, Target> mine;
  Runtime::shutdown();
  Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 2});
  Mesh mesh = Mesh::world({{"data", -1}});
  Net net;
  nn::data_parallel(net, mesh, "data");
  auto optim = nn::optim::SGD(nn::parameters(net), {.lr = 0.1});
  Jit step = [&](Tensor x) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = net(x).square().mean().backward();
    optim.step();
    return loss;
  };
  Tensor x = Tensor::rand({8, 4}).shard(mesh, {{"data", Shard(0)}});
  EXPECT_GE(step(x).item<float>(), 0);

  // Each collective says whose gradient it completes, and from which line.
  const PlanSummary s = summarize(step);
  EXPECT_EQ(s.devices, 2);
  EXPECT_GE(s.collectives, 1);
  std::string all;
  for (const CollectiveItem& c : s.collective_items) {
    all += c.op + " over " + c.axis + ": " + c.purpose + "\n";
    EXPECT_GT(c.bytes, 0) << all;
    EXPECT_TRUE(c.source.starts_with("public_face_test.cpp:")) << c.source;
  }
  EXPECT_NE(all.find("all_reduce over data: gradient of "), std::string::npos) << all;
  EXPECT_NE(all.find("b.bias"), std::string::npos) << all;
  EXPECT_NE(explain(step, true).find("gradient of "), std::string::npos);

  EXPECT_EQ(summarize({net(x), x}).devices, 2);
  for (const DeviceInfo& d : Runtime::get().devices()) EXPECT_FALSE(d.processor.empty());
  EXPECT_EQ(Runtime::get().rank(), 0);
  Runtime::shutdown();
}

}  // namespace
