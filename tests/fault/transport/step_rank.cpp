// One rank of a job that runs a captured data-parallel step again and again until a call fails, and
// prints what it was told; the devices are those of TS_DEVICES. Lines are those of fault_rank.cpp.
//   step_rank
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <unistd.h>

#include "tests/fault/transport/rank.h"
#include "tinyshard/tinyshard.h"

using namespace tinyshard;
using namespace tinyshard::testing;

namespace {

int run() {
  constexpr int64_t kWidth = 1 << 20;
  const Mesh mesh = Mesh::world({{"data", -1}});
  Tensor weight = Tensor::ones({kWidth}).shard(mesh).contiguous().realize();
  Tensor rows =
      Tensor::ones({mesh.size(), kWidth}).shard(mesh, {{"data", Shard(0)}}).contiguous().realize();
  Jit step = [&](Tensor x) {
    Tensor sum = (x * weight).sum(0);
    weight.assign(weight * 0.5 + sum * 0.25);
    return sum.mean();
  };
  Clock::time_point begun;
  auto one_step = [&] {
    begun = Clock::now();
    return step(rows).item<float>();
  };
  try {
    for (int i = 0; i < 3; ++i) one_step();
    print_line(std::to_string(world().rank) + " ready " + std::to_string(getpid()));
    for (;;) one_step();
  } catch (const CommError& error) {
    const double elapsed = milliseconds_since(begun);
    const auto at = Clock::now();
    double again = -1;
    try {
      one_step();
    } catch (const CommError&) {
      again = milliseconds_since(begun);
    }
    print_report(world().rank, error, elapsed, at, again);
    return 3;
  }
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_rank: %s\n", error.what());
    return 5;
  }
}
