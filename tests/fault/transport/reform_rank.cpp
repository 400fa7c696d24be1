// A rank of a job that goes on without those that are killed:
//   reform_rank <launched ranks that kill themselves, in this order>...
// Each step adds the number of ranks to a value on all of them. The n-th victim kills itself at the
// sixth step of the n-th world. Lines:
//   <launched rank> formed <rank> of <ranks>      at the start, and after each re-forming
//   <launched rank> blames <rank>                 whom the CommError names
//   <launched rank> done <sum of all steps since the last re-forming>
//   <launched rank> wrong <text>                  what should not be
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "launch/environment.h"
#include "tests/fault/transport/rank.h"
#include "tinyshard/tinyshard.h"

using namespace tinyshard;
using namespace tinyshard::test;

namespace {

constexpr int kSteps = 10, kLastStep = 5;

struct Training {
  Mesh mesh = Mesh::world({{"data", -1}});
  Tensor sum = Tensor::zeros({64}).shard(mesh).contiguous().realize();
  Tensor ones = Tensor::ones({mesh.size(), 64}).shard(mesh, {{"data", Shard(0)}}).contiguous();
  Jit<std::function<Tensor(Tensor)>> step{[this](Tensor x) {
    sum.assign(sum + x.sum(0));
    return sum.max();
  }};
};

class Rank {
 public:
  Rank(int launched, std::vector<int> victims)
      : prefix_(std::to_string(launched) + " "),
        launched_(launched),
        victims_(std::move(victims)) {}

  int run() {
    for (size_t worlds = 0;; ++worlds) {
      say("formed " + std::to_string(Runtime::get().rank()) + " of " +
          std::to_string(Runtime::get().ranks()));
      Training training;
      try {
        train(training, worlds < victims_.size() && victims_[worlds] == launched_);
        return status_;
      } catch (const CommError& error) {
        say("blames " + std::to_string(error.info().peer));
      }
      Runtime::reform();
      expect_lost("a value of the old world", [&] { training.sum.max().item<float>(); });
      expect_lost("a captured step of the old world", [&] { training.step(training.ones); });
      expect_lost("a mesh of the old world", [&] {
        const Tensor rows = Tensor(std::vector<float>(64, 1), {8, 8});
        rows.shard(training.mesh, {{"data", Shard(0)}}).sum().item<float>();
      });
    }
  }

 private:
  void say(const std::string& text) const { print_line(prefix_ + text); }

  void train(Training& training, bool dies) const {
    float sum = 0;
    for (int i = 0; i < kSteps; ++i) {
      if (dies && i == kLastStep) {
        std::raise(SIGKILL);
      }
      sum = training.step(training.ones).item<float>();
    }
    say("done " + std::to_string(int(sum)));
  }

  template <class Use>
  void expect_lost(const std::string& what, Use&& use) {
    try {
      use();
      say("wrong " + what + " can be used");
    } catch (const UserError&) {
      return;
    } catch (const std::exception& error) {
      say("wrong " + what + ": " + error.what());
    }
    status_ = 1;
  }

  std::string prefix_;
  int launched_, status_ = 0;
  std::vector<int> victims_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<int> victims;
    for (int i = 1; i < argc; ++i) victims.push_back(std::atoi(argv[i]));
    return Rank(read_launch_environment().rank, victims).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "reform_rank: %s\n", error.what());
    return 5;
  }
}
