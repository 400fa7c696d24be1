// Times a commit of nn::Elastic beside the step that it belongs to:
//   tinyshard run -n 4 -- elastic_bench --width 2048 --layers 4 [--shard]
// A step is forward, backward and AdamW of linear layers on a batch that is small beside them, so that
// it costs little more than its sums and the update.
#include <algorithm>
#include <chrono>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/run_main.h"

using namespace tinyshard;

namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  int64_t width = 1024, layers = 4, steps = 12, batch = 4;
  bool shard = false;
};

struct Net {
  explicit Net(const Arguments& a) {
    for (int64_t i = 0; i < a.layers; ++i) layers.emplace_back(a.width, a.width);
  }
  std::vector<nn::Linear> layers;
  TS_FIELDS(layers)
};

double since_ms(Clock::time_point begun) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
}

double median(std::vector<double> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

void measure(const Arguments& arguments) {
  nn::Elastic elastic;
  Tensor::manual_seed(1);
  const Mesh mesh = Mesh::world({{"data", -1}});
  Net net(arguments);
  if (arguments.shard) {
    nn::fully_shard(net, mesh, "data");
  } else {
    nn::data_parallel(net, mesh, "data");
  }
  nn::optim::AdamW optim(nn::parameters(net), {.lr = 1e-5});
  nn::StateDict state = nn::state_dict(net, "net");
  state.merge(nn::state_dict(optim, "optim"));
  int64_t bytes = 0;
  for (const auto& [name, tensor] : state)
    bytes += tensor.numel() * int64_t(itemsize(tensor.dtype()));
  nn::Progress at = elastic.restore(state);
  const int64_t rows = arguments.batch * mesh.size();
  Jit step = [&](const Tensor& x) {
    TrainingMode on;
    optim.zero_grad();
    Tensor y = x;
    for (const nn::Linear& layer : net.layers) y = layer(y).tanh();
    const Tensor loss = (y - x).square().mean().backward();
    optim.step();
    return loss;
  };
  std::vector<double> steps, commits;
  for (int64_t i = 0; i < arguments.steps; ++i) {
    const Tensor x = Tensor::rand({rows, arguments.width}).shard(mesh, {{"data", Shard(0)}});
    const Clock::time_point begun = Clock::now();
    step(x).item<float>();
    steps.push_back(since_ms(begun));
    const Clock::time_point stepped = Clock::now();
    at = {at.step + 1, at.samples + rows};
    elastic.commit(state, at);
    commits.push_back(since_ms(stepped));
  }
  constexpr int64_t kFirst = 4;  // capture, and memory that is met for the first time
  const auto later = [first =
                          std::min(kFirst, arguments.steps - 1)](const std::vector<double>& times) {
    return std::vector<double>(times.begin() + first, times.end());
  };
  if (Runtime::get().rank() != 0) return;
  fmt::print("{} ranks, {}, {:.2f} GB of state: step {:.1f} ms, commit {:.2f} ms (first {:.1f})\n",
             Runtime::get().ranks(), arguments.shard ? "fully sharded" : "data parallel",
             double(bytes) * 1e-9, median(later(steps)), median(later(commits)), commits[0]);
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Arguments arguments;
  CLI::App app("Times commits of elastic training");
  app.add_option("--width", arguments.width, "Features of a layer")->capture_default_str();
  app.add_option("--layers", arguments.layers, "Layers")->capture_default_str();
  app.add_option("--steps", arguments.steps, "Steps")->capture_default_str();
  app.add_option("--batch", arguments.batch, "Samples of a rank")->capture_default_str();
  app.add_flag("--shard", arguments.shard, "Divide the state over the ranks");
  return training::run_main("elastic_bench", app, argc, argv, [&] { measure(arguments); });
}
