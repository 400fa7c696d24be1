// A training that goes on when ranks are killed, and takes in those that are started in their places:
//
//   tinyshard run -n 4 --elastic 2:4 -- ./elastic                 then, elsewhere: kill -9 <process of a rank>
//   tinyshard run -n 4 --elastic 2 -- ./elastic --shard --every 5
//
// Learns a function of 64 numbers that it makes up. Samples are counted and not kept: which ones a step
// takes follows from how far the training is, so that each is taken once, whoever dies.
#include <chrono>
#include <cmath>
#include <iostream>
#include <random>
#include <string>
#include <tinyshard/tinyshard.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/run_main.h"

using namespace tinyshard;

namespace {

constexpr int64_t kInputs = 64;

struct Flags {
  int64_t steps = 2000, batch = 32, width = 256, every = 1;
  double lr = 1e-3;
  bool shard = false;
};

struct Net {
  explicit Net(int64_t width) : up(kInputs, width), middle(width, width), down(width, 1) {}
  nn::Linear up, middle, down;
  TS_FIELDS(up, middle, down)
  Tensor operator()(const Tensor& x) const { return down(middle(up(x).gelu()).gelu()); }
};

// Samples [begin, end), and what is to be learned from them.
std::pair<Tensor, Tensor> samples(int64_t begin, int64_t end, const Mesh& mesh) {
  std::vector<float> x, y;
  for (int64_t i = begin; i < end; ++i) {
    std::mt19937_64 random{uint64_t(i)};
    std::uniform_real_distribution<float> uniform(-1, 1);
    float sum = 0;
    for (int64_t k = 0; k < kInputs; ++k) {
      x.push_back(uniform(random));
      sum += (k % 2 == 0 ? 1.0F : -1.0F) * x.back();
    }
    y.push_back(std::sin(sum / 4));
  }
  const int64_t n = end - begin;
  return {Tensor(x, {n, kInputs}).shard(mesh, {{"data", Shard(0)}}),
          Tensor(y, {n, 1}).shard(mesh, {{"data", Shard(0)}})};
}

// Trains with the ranks that there are now. Throws CommError when one is lost, or waits to join.
void train(const Flags& f, nn::Elastic& elastic) {
  Tensor::manual_seed(1);  // the same weights in each world
  const Mesh mesh = Mesh::world({{"data", -1}});
  Net net(f.width);
  if (f.shard) {
    nn::fully_shard(net, mesh, "data");
  } else {
    nn::data_parallel(net, mesh, "data");
  }
  nn::optim::AdamW optim(nn::parameters(net), {.lr = f.lr});
  nn::StateDict state = nn::state_dict(net, "net");
  state.merge(nn::state_dict(optim, "optim"));
  nn::Progress at = elastic.restore(state);

  Jit step = [&](const Tensor& x, const Tensor& y) {
    TrainingMode on;
    optim.zero_grad();
    const Tensor loss = (net(x) - y).square().mean().backward();
    optim.step();
    return loss;
  };
  const bool first = world().rank == 0;
  std::cout << fmt::format("rank {} of {} is process {}, from step {}\n", world().rank,
                           Runtime::get().ranks(), getpid(), at.step)
            << std::flush;
  auto told = std::chrono::steady_clock::now();
  while (at.step < f.steps) {
    const int64_t end = at.samples + f.batch * mesh.size();
    const auto [x, y] = samples(at.samples, end, mesh);
    const auto loss = step(x, y).item<double>();
    at = {at.step + 1, end};
    elastic.commit(state, at);
    const auto now = std::chrono::steady_clock::now();
    if (!first || (now - told < std::chrono::seconds(1) && at.step < f.steps)) continue;
    told = now;
    std::cout << fmt::format("step {} on {} ranks, {} samples, loss {:.4f}\n", at.step,
                             Runtime::get().ranks(), at.samples, loss)
              << std::flush;
  }
}

void run(const Flags& f) {
  nn::Elastic elastic({.every = f.every});
  for (;;) {
    try {
      return train(f, elastic);
    } catch (const nn::StateLost&) {
      throw;  // a longer training would load its last checkpoint here, and commit it
    } catch (const CommError& error) {
      std::cout << fmt::format("rank {}: {}\n", world().rank, error.what()) << std::flush;
      Runtime::reform();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Flags f;
  CLI::App app("Trains with the ranks that are left");
  app.add_option("--steps", f.steps, "Steps")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--batch", f.batch, "Samples of a rank")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--width", f.width, "Features of a layer")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--lr", f.lr, "Learning rate")->capture_default_str();
  app.add_option("--every", f.every, "Commit each so many steps, where a commit copies")
      ->capture_default_str();
  app.add_flag("--shard", f.shard, "Divide the weights over the ranks");
  return training::run_main("elastic", app, argc, argv, [&] { run(f); });
}
