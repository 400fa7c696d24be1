// A rank of a job of 20 steps that may leave the path which all ranks have to go: prints a line
// for each step it has done, and what it was told. Lines are those of fault_rank.cpp, and
//   <rank> step <number>
//   <rank> user_error <text>
//   path_rank <scenario> <rank that leaves the path> <folder for checkpoints>
// Scenarios: "none"; "skip" a step; "skip_placed", where the batch is brought to the mesh before the call;
// "skip_own", where each rank has a batch of its own, and a checkpoint follows the step that was left
// out; "skip_eager", without a captured step; "constant", where that rank computes with another one;
// "seed", where it draws its weights from another one; "drift", where one of its weights changes by a
// bit in step 9; "read", where that rank alone reads a value of all before step 9.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/fault/transport/rank.h"
#include "tinyshard/tinyshard.h"

using namespace tinyshard;
using namespace tinyshard::test;

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string_view scenario = argv[1];
  const int who = std::atoi(argv[2]);
  const std::filesystem::path folder = argv[3];
  constexpr int kSteps = 20, kSkipped = 9, kRows = 12, kColumns = 8;
  const Mesh mesh = Mesh::world({{"data", -1}});
  const int rank = world().rank;
  const std::string prefix = std::to_string(rank) + " ";
  const bool leaves = rank == who, own = scenario == "skip_own";
  auto begun = Clock::now();
  try {
    Tensor::manual_seed(scenario == "seed" && leaves ? 2 : 1);
    Tensor w = Tensor::rand({kColumns}).realize().shard(mesh).contiguous().realize();
    const bool placed = own || scenario == "skip_placed";
    auto body = [&](const Tensor& batch) {
      Tensor x = placed ? batch : batch.shard(mesh, {{"data", Shard(0)}});
      if (scenario == "constant") x = x * (leaves ? 2.5 : 3.5);
      w.assign(w - x.sum(0) * 0.001);
      return ((x * w).sum(1) - 1).square().mean();
    };
    Jit step = body;
    print_line(prefix + "ready " + std::to_string(getpid()));
    for (int s = 0; s < kSteps; ++s) {
      if (s != kSkipped || !leaves || !scenario.starts_with("skip")) {
        const int rows = own ? kRows / world().ranks : kRows;
        std::vector<float> values(static_cast<size_t>(rows * kColumns));
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = std::sin(float(100 * s) + float(i) + float(own ? 7 * rank : 0));
        Tensor batch(values, {rows, kColumns});
        begun = Clock::now();
        if (own) batch = Tensor::from_local(mesh, {{"data", Shard(0)}}, {batch});
        if (scenario == "skip_placed") batch = batch.shard(mesh, {{"data", Shard(0)}});
        if (scenario == "read" && leaves && s == kSkipped)
          batch.shard(mesh, {{"data", Shard(0)}}).sum().item<float>();
        (scenario == "skip_eager" ? body(batch) : step(batch)).item<float>();
        print_line(prefix + "step " + std::to_string(s));
      }
      if (scenario == "drift" && s == kSkipped) {
        std::vector<float> weights = w.to_vector<float>();
        if (leaves) weights[5] = std::nextafter(weights[5], 100.0f);
        w.assign(Tensor(weights, {kColumns}).shard(mesh));
        w.realize();
      }
      if (own && s == kSkipped && !leaves) nn::save_checkpoint({{"w", w}}, folder, s);
    }
    return 0;
  } catch (const CommError& error) {
    print_report(rank, error, milliseconds_since(begun), Clock::now(), 0);
  } catch (const UserError& error) {
    print_line(prefix + "user_error " + error.what());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // for the reports of the others
  return 3;
}
