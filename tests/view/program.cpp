// A training of a few layers over all devices that there are, for the page's test: weights split over
// "model", batches over "data", a dim that no number of devices divides, and names that HTML would like to run.
//   program [steps [rank that is slow, -1: none [anything: a line that takes time is planted in the step]]]
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tinyshard/tinyshard.h"

using namespace tinyshard;

namespace {

struct Net {
  nn::Linear in{30, 64}, out{64, 10};
  TS_FIELDS(in, out)

  Tensor operator()(const Tensor& x) const { return out(in(x).relu()); }
};

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 5;
  const int slow = argc > 2 ? std::atoi(argv[2]) : -1;
  const Mesh mesh = Mesh::world({{"data", -1}, {"model", 2}});
  Net net;
  nn::tensor_parallel(net, mesh, "model",
                      {{"in", nn::TensorSplit::Column}, {"out", nn::TensorSplit::Row}});
  nn::fully_shard(net, mesh, "data");
  auto optim = nn::optim::AdamW(nn::parameters(net), {.lr = 1e-3});
  const bool planted = argc > 3;
  Tensor heavy = Tensor::rand({600, 600}).realize();
  Tensor strange = Tensor::rand({7, 5}).shard(mesh, {{"data", Shard(0)}}).realize();
  Jit step = [&](const Tensor& x) {
    const TrainingMode on;
    optim.zero_grad();
    Tensor loss = (net(x).square().mean() + (strange * 2).sum() * 1e-6).backward();
    optim.step();
    if (planted) loss = loss + heavy.matmul(heavy).mean();
    return loss;
  };
  const int rank = Runtime::get().rank();
  for (int i = 0; i < steps; ++i) {
    if (rank == slow) std::this_thread::sleep_for(std::chrono::milliseconds(40));
    Tensor x = Tensor::rand({24, 30}).shard(mesh, {{"data", Shard(0)}});
    step(x);
  }
  return 0;
}
