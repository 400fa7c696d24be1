// A rank of a small training that is drawn from a seed, in which one rank departs from the others in
// one thing, or nobody does. Prints, beside the lines of rank.h,
//   <rank> departs <steady clock, ns>        the one that does
//   <rank> told <steady clock, ns> <text>    what an error said
//   <rank> weights <hash>                    at the end of a training that nothing stopped
//   drift_rank <seed> <departure> <rank that departs>
// Departures: "none"; "skip" or "repeat" a batch; "sample", drawn before the weights, and "draw" between
// steps; another "seed"; another "rate"; other copies of a "part"; another "mode"; an "extra" step;
// values "assign"ed that differ by a bit; a loss that one alone "read"s. In the last steps, too, after
// which nothing but the end of the program compares: half of the programs shut the runtime down before.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/content_hash.h"
#include "tests/fault/transport/rank.h"
#include "tinyshard/tinyshard.h"

using namespace tinyshard;
using namespace tinyshard::test;

namespace {

constexpr int kSteps = 30, kRows = 12, kColumns = 16;

enum class Batch { BeforeCall, Realized, InStep, ByLoader, FromLocal };

// The choices of the seed, alike on all ranks.
struct Program {
  bool captured, two_axes, sharded, divided, dropout, draws, shuts_down;
  Batch batch;
  int departs_at;
  Program(int seed, int devices) {
    std::mt19937 random(static_cast<unsigned>(seed));
    auto one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    captured = one_of(2) != 0;
    two_axes = one_of(2) != 0 && devices % 2 == 0 && devices > 2;
    sharded = one_of(2) != 0;
    divided = one_of(3) != 0;
    dropout = one_of(2) != 0;
    draws = one_of(2) != 0;
    batch = static_cast<Batch>(one_of(5));
    departs_at = 4 + one_of(kSteps - 4);
    shuts_down = one_of(2) != 0;
  }
};

Tensor values(int number, int columns, double scale = 1) {
  std::vector<float> all(static_cast<size_t>(kRows * columns));
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<float>(scale * std::sin(100 * number + static_cast<double>(i)));
  return Tensor(all, {kRows, columns});
}

class Training {
 public:
  Training(int seed, std::string_view departure, bool departs)
      : program_(seed, static_cast<int>(world().devices.size())),
        departure_(departure),
        departs_(departs),
        mesh_(program_.two_axes ? Mesh::world({{"data", -1}, {"model", 2}})
                                : Mesh::world({{"data", -1}})) {}

  void run() {
    Tensor::manual_seed(departs_in("seed", 0) ? 8 : 7);
    if (departs_in("sample", 0)) Tensor::rand({5}).to_vector<float>();
    nn::Linear first(kColumns, 8), second(8, 4);
    if (program_.sharded) {
      nn::fully_shard(first, mesh_, "data");
      nn::fully_shard(second, mesh_, "data");
    } else {
      nn::data_parallel(first, mesh_, "data");
      nn::data_parallel(second, mesh_, "data");
    }
    std::vector<Tensor> parameters = nn::parameters(first);
    for (const Tensor& p : nn::parameters(second)) parameters.push_back(p);
    nn::optim::AdamW optimizer(parameters, {.lr = 0.01});
    auto forward = [&](const Tensor& x, const Tensor& y) {
      Tensor hidden = first(x).relu();
      if (program_.dropout) hidden = hidden.dropout(0.5);
      return (second(hidden) - y).square().mean();
    };
    bool trains = true;
    auto body = [&](Tensor x, Tensor y) {
      const TrainingMode mode(trains);
      optimizer.zero_grad();
      if (program_.batch == Batch::InStep) x = placed(x), y = placed(y);
      Tensor loss = forward(x, y).backward();
      optimizer.step();
      return loss;
    };
    Jit step = body;
    auto train = [&](int batch) {
      const Tensor x = given(batch, kColumns), y = given(batch + 1000, 4);
      Tensor loss = program_.captured ? step(x, y) : body(x, y);
      loss.realize();
    };
    for (int s = 0; s < kSteps; ++s) {
      const int at = program_.departs_at;
      int batch = s;
      if (departs_in("skip", s)) batch = s + 1;
      if (departs_in("repeat", s)) batch = s - 1;
      optimizer.set_lr(departs_in("rate", s) ? 0.02 : 0.01 + 0.0001 * std::floor(s / 3.0));
      trains = !departs_in("mode", s);
      if (departs_in("draw", s)) Tensor::rand({3}).to_vector<float>();
      if (program_.draws) noise_ = Tensor::rand({kColumns}).shard(mesh_).realize();
      if (departure_ == "part" && s == at) {
        const Tensor mask = Tensor::from_local(mesh_, {}, copies(departs_in("part", s) ? 1.5f : 1));
        first.bias.assign(first.bias * mask);
      }
      if (departure_ == "assign" && s == at) {
        std::vector<float> bias(4, 0.25f);
        if (departs_in("assign", s)) bias[2] = std::nextafter(0.25f, 1.0f);
        second.bias.assign(Tensor(bias, {4}).shard_like(second.bias));
        second.bias.realize();
      }
      if (departs_in("read", s)) forward(placed(values(s, kColumns)), values(s, 4)).item<float>();
      train(batch);
      if (departs_in("extra", s)) train(batch);
    }
    uint64_t hash = 0;
    for (const Tensor& p : parameters) {
      const std::vector<float> all = p.to_vector<float>();
      hash = hash_bytes(std::as_bytes(std::span(all)), hash);
    }
    print_line(std::to_string(world().rank) + " weights " + std::to_string(hash));
    if (program_.shuts_down) Runtime::shutdown();
  }

 private:
  // Returns whether this rank departs so in this step; says when it begins.
  bool departs_in(std::string_view departure, int step) {
    if (!departs_ || departure_ != departure) return false;
    // Which batch is next of a rank's own ones is its own affair.
    const bool own = program_.batch == Batch::FromLocal && program_.divided;
    if (own && (departure == "skip" || departure == "repeat")) return false;
    const bool at_once = departure == "seed" || departure == "sample";
    const bool goes_on = departure == "skip" || departure == "rate" || departure == "mode";
    if (!at_once && (goes_on ? step < program_.departs_at : step != program_.departs_at))
      return false;
    if (!told_)
      print_line(std::to_string(world().rank) + " departs " +
                 std::to_string(Clock::now().time_since_epoch().count()));
    told_ = true;
    return true;
  }

  std::vector<Tensor> copies(float value) const {
    std::vector<Tensor> parts;
    for (const DeviceRef& d : mesh_.devices()) {
      if (d.rank == world().rank || d.rank == DeviceRef::kHere)
        parts.push_back(Tensor::full({8}, value));
    }
    return parts;
  }

  Tensor placed(const Tensor& x) const {
    if (!program_.divided) return x.shard(mesh_);
    return x.shard(mesh_, {{"data", Shard(0)}});
  }

  // A batch of each rank's own, of as many rows on each device.
  Tensor from_local(int batch, int columns) const {
    std::vector<Tensor> parts;
    for (int64_t p = 0; p < mesh_.size(); ++p) {
      const DeviceRef& d = mesh_.devices()[static_cast<size_t>(p)];
      if (d.rank != world().rank && d.rank != DeviceRef::kHere) continue;
      const int64_t place = program_.divided ? mesh_.coordinates(p)[0] : 0;
      parts.push_back(values(batch + 77 * static_cast<int>(place), columns));
    }
    if (!program_.divided) return Tensor::from_local(mesh_, {}, parts);
    return Tensor::from_local(mesh_, {{"data", Shard(0)}}, parts);
  }

  Tensor given(int batch, int columns) const {
    Tensor x =
        program_.batch == Batch::FromLocal ? from_local(batch, columns) : values(batch, columns);
    if (program_.batch == Batch::InStep || program_.batch == Batch::FromLocal) return x;
    if (program_.batch == Batch::BeforeCall) return placed(x);
    if (program_.batch == Batch::Realized) return placed(x).realize();
    Tensor loaded;
    std::thread([&] {
      Tensor::rand({7}).to_vector<float>();  // which is nobody's business
      loaded = placed(x).realize();
    }).join();
    return loaded;
  }

  Program program_;
  std::string_view departure_;
  bool departs_, told_ = false;
  Mesh mesh_;
  Tensor noise_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int rank = world().rank, who = std::atoi(argv[3]);
  const std::string prefix = std::to_string(rank) + " ";
  print_line(prefix + "ready " + std::to_string(getpid()));
  try {
    Training(std::atoi(argv[1]), argv[2], rank == who).run();
    return 0;
  } catch (const Error& error) {
    print_line(prefix + "told " + std::to_string(Clock::now().time_since_epoch().count()) + " " +
               error.what());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // for the reports of the others
  return 3;
}
