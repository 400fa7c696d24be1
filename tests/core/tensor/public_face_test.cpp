// A program that uses the public header and has types of its own that are called as the engine's
// are: it compiles because the header shows none of those. CMakeLists.txt compiles it, and looks at
// which headers it includes.
#include <tinyshard/tinyshard.h>

using namespace tinyshard;

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

int main() {
  [[maybe_unused]] std::tuple<Schedule, Item, Executable, Device, Program, Storage, Communicator,
                              Collective, Context, Work, Target> mine;
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
  std::cout << explain(net(x)) << step(x).item<float>() << explain(step);
  PlanSummary s = summarize(step), t = summarize({net(x), x});
  for (const CollectiveItem& c : s.collective_items) std::cout << c.op << c.axis << c.bytes;
  for (const DeviceInfo& d : Runtime::get().devices()) std::cout << d.processor << d.peak;
  return s.collectives > 0 && t.devices == 2 && Runtime::get().rank() == 0 ? 0 : 1;
}
