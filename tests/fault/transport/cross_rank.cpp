// A rank of a job on a mesh of several axes, whose steps sum over one axis after the other, so that
// ranks that leave the path of the others wait for each other in different groups. Lines are those of
// rank.h, and "<rank> done" where all steps are.
//   cross_rank <sizes of the axes, "2,2"> <rank that leaves the path> <step> <how>
// How: "extra", it runs a step once more; "missing", it leaves one out; "program", it runs another one
// in its place; "order", it runs that step and the next one the other way round; "late:<ms>", it
// computes for so long, which is no fault.
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/fault/transport/rank.h"
#include "tinyshard/tinyshard.h"

using namespace tinyshard;
using namespace tinyshard::test;

namespace {

struct Sum {
  Mesh mesh;
  Tensor operator()(const Tensor& part) const { return (part * 2).sum(0).shard(mesh, {}); }
};

struct Steps {
  explicit Steps(const Mesh& of) : mesh(of) {
    for (const MeshAxis& axis : mesh.axes()) {
      x.push_back(
          Tensor::arange(64).cast(DType::F32).shard(mesh, {{axis.name, Shard(0)}}).realize());
      sums.emplace_back(Sum{mesh});
    }
  }
  void run(int step) {
    const size_t axis = size_t(step) % x.size();
    read(sums[axis](x[axis]));
  }
  // Ranks compare it before they run it.
  void run_another(int number) { read((x[0] + number).sum().shard(mesh, {})); }
  static void read(const Tensor& value) { value.local()[0].item<float>(); }

  Mesh mesh;
  std::vector<Tensor> x;
  std::vector<Jit<Sum>> sums;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  std::vector<MeshAxis> axes;
  std::stringstream sizes(argv[1]);
  for (std::string size; std::getline(sizes, size, ',');)
    axes.push_back({std::string(1, char('a' + axes.size())), std::stoi(size)});
  const Mesh mesh = Mesh::world(axes);
  const int rank = world().rank, at = std::atoi(argv[3]);
  const std::string_view how = argv[4];
  const bool leaves = rank == std::atoi(argv[2]);
  auto begun = Clock::now();
  try {
    Steps steps(mesh);
    for (int step = 0; step < 4 * int(axes.size()); ++step) steps.run(step);
    print_line(std::to_string(rank) + " ready " + std::to_string(getpid()));
    for (int step = 0; step < 40; ++step) {
      begun = Clock::now();
      const bool here = leaves && step == at;
      if (here && how.starts_with("late:"))
        std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(how.data() + 5)));
      if (here && how == "extra") steps.run(step);
      if (here && how == "missing") continue;
      if (here && how == "program") {
        steps.run_another(-1);
        continue;
      }
      const bool swaps = leaves && how == "order" && (step == at || step == at + 1);
      steps.run(!swaps ? step : step == at ? step + 1 : step - 1);
      if (step % 5 == 4) steps.run_another(step);
    }
    print_line(std::to_string(rank) + " done");
    return 0;
  } catch (const CommError& error) {
    print_report(rank, error, milliseconds_since(begun), Clock::now(), 0);
  } catch (const Error& error) {
    print_line(std::to_string(rank) + " report -1 " +
               std::to_string(Clock::now().time_since_epoch().count()) + " " +
               std::to_string(milliseconds_since(begun)) + " 0 " + error.what());
  }
  return 3;
}
