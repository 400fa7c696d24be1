// A rank of a data-parallel training that goes on when ranks are killed:
//   elastic_rank <launched rank>:<microseconds>...
//   elastic_rank behind <victim>:<rank> <step>:0
//   elastic_rank both <victim>:<victim> <step>:0      both kill themselves before they commit that step
//   elastic_rank at <victim>:0 <step>:<microseconds>
//   elastic_rank meets <victim>:0 <world>:<microseconds>
//   elastic_rank schedule <ranks>:<steps>...
// The n-th victim kills itself so long after the first commit of the n-th world, or where the number
// is negative after that world has begun to form. With "behind" the victim kills itself before it commits that
// step, and the other rank finds itself without a peer before it has committed it, which the others
// have: they know one step more. "at" kills a rank so long after it has begun to
// commit that step. "meets" kills a rank so long after its detector has begun to meet those of the others, in the forming of
// that world. The other form trains in one process, with as many devices as there were ranks, through the same worlds, and nobody dies.
// With a first word "helped" each rank forks a helper in each world, which outlives it; with a next word
// "tells" each commit is told at once. With a next word "divided" each rank holds a part of the state only (nn::fully_shard); "patient" makes
// the steps of three ranks last, so that a fourth may come; "steps=300" behind these says how many
// there are, 100 where it is missing.
// Lines:
//   <launched rank> ready <process>
//   <launched rank> world <ranks> from <step> after <ms since the CommError>
//   <launched rank> next <step> at <ns of the steady clock> redone <steps>   after the first commit of a later world;
//                                             of the steps that the rank had done, so many are done again
//   <launched rank> commit <step> in <world's number> of <ranks>              where it tells
//   <launched rank> took <step> <first sample> <end>      once the step is committed
//   <launched rank> done <hash of weights and optimizer> <ranks>:<steps>...   the worlds it was in; of a rank that came
//                                             later behind "joined:<step>"
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "launch/environment.h"
#include "tests/fault/transport/rank.h"
#include "tinyshard/tinyshard.h"

using namespace tinyshard;
using namespace tinyshard::test;

namespace {

int64_t steps_of_training = 100;
constexpr int kPatientRanks = 3;
constexpr int64_t kEach = 2, kData = 97, kWidth = 24;
using Numbers = std::vector<std::pair<int, int64_t>>;

struct Net {
  nn::Linear up{kWidth, 32}, down{32, 1};
  TS_FIELDS(up, down)
  Tensor operator()(const Tensor& x) const { return down(up(x).tanh()); }
};

// Samples are numbers; an epoch takes them in an order of its own.
int64_t sample_at(int64_t position) {
  return (position % kData * 31 + position / kData * 7) % kData;
}
float input_of(int64_t sample, int64_t i) {
  return float((sample * 53 + i * 17 + sample * i) % 101) / 101 - 0.5f;
}

bool divided = false, patient = false, tells = false, helped = false;

// The same weights in each world, as ranks may die before the first commit.
Net seeded() {
  Tensor::manual_seed(1);
  return {};
}

struct Training {
  Mesh mesh = Mesh::world({{"data", -1}});
  Net net = seeded();
  std::optional<nn::optim::AdamW> optim;
  nn::StateDict state;
  Jit<std::function<Tensor(Tensor, Tensor)>> step{[this](const Tensor& x, const Tensor& y) {
    TrainingMode on;
    optim->zero_grad();
    const Tensor loss = (net(x) - y).square().mean().backward();
    optim->step();
    return loss;
  }};

  Training() {
    if (divided) {
      nn::fully_shard(net, mesh, "data");
    } else {
      nn::data_parallel(net, mesh, "data");
    }
    optim.emplace(nn::parameters(net), nn::optim::AdamWOptions{.lr = 0.01});
    state = nn::state_dict(net, "net");
    state.merge(nn::state_dict(*optim, "optim"));
  }

  float run(int64_t first, int64_t end) {
    std::vector<float> x, y;
    for (int64_t position = first; position < end; ++position) {
      const int64_t sample = sample_at(position);
      for (int64_t i = 0; i < kWidth; ++i) x.push_back(input_of(sample, i));
      y.push_back(float(sample) / kData);
    }
    const auto rows = [&](const std::vector<float>& values) {
      return Tensor(values, {end - first, int64_t(values.size()) / (end - first)})
          .shard(mesh, {{"data", Shard(0)}});
    };
    return step(rows(x), rows(y)).item<float>();
  }
};

uint64_t hash_of(const nn::StateDict& state) {
  uint64_t hash = 0;
  for (const auto& [name, tensor] : state) {
    for (float value : tensor.cast(DType::F32).to_vector<float>()) {
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      hash = combine(hash, bits);
    }
  }
  return hash;
}

class Rank {
 public:
  explicit Rank(int launched) : prefix_(std::to_string(launched) + " ") {}

  // Trains in the world that there is, up to the step `last`.
  void train(int64_t last, int64_t die_after_us) {
    Training training;
    nn::Progress at = elastic_.restore(training.state);
    const int ranks = int(training.mesh.size());
    print_line(prefix_ + "world " + std::to_string(ranks) + " from " + std::to_string(at.step) +
               " after " + std::to_string(milliseconds_since(begun_)));
    if (taken_.empty()) joined_at_ = at.step;
    told_ = at.step;
    ++number_;
    const int64_t redone = std::max<int64_t>(0, int64_t(taken_.size()) - at.step);
    bool is_next = again_;
    forget_from(at);
    if (helped) start_helper();
    while (at.step < last) {
      const int64_t end = at.samples + kEach * ranks;
      training.run(at.samples, end);
      const nn::Progress next{at.step + 1, end};
      taken_.push_back({at.step, at.samples, end});
      sizes_.push_back(ranks);
      if (at.step == behind_step_) fall_behind();
      if (at.step == dies_in_step_) die_after(dies_after_us_);
      elastic_.commit(training.state, next);
      if (tells && elastic_.agreed().step > told_) tell_agreed(ranks);
      at = next;
      if (patient && ranks == kPatientRanks)
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (std::exchange(is_next, false))
        print_line(prefix_ + "next " + std::to_string(at.step) + " at " +
                   std::to_string(Clock::now().time_since_epoch().count()) + " redone " +
                   std::to_string(redone));
      if (die_after_us > 0) die_after(std::exchange(die_after_us, 0));
    }
    if (last < steps_of_training) return;
    hash_ = hash_of(training.state);
  }

  // Steps that are done again were not done: each counts as its last run took it. A step that the others
  // have done and gave to this rank took what the world before took.
  void forget_from(const nn::Progress& at) {
    const auto step = int64_t(at.step);
    if (!sizes_.empty() && int64_t(taken_.size()) == step - 1) {
      taken_.push_back({step - 1, taken_.back().end, at.samples});
      sizes_.push_back(sizes_.back());
    }
    taken_.resize(size_t(step));
    sizes_.resize(size_t(step));
  }

  void run(const Numbers& victims, int launched) {
    for (size_t worlds = 0;; ++worlds) {
      const bool dies = worlds < victims.size() && victims[worlds].first == launched;
      const int64_t after_us = dies ? victims[worlds].second : 0;
      if (after_us < 0) die_after(-after_us);
      if (int64_t(worlds) == dies_in_world_) die_as_detectors_meet(dies_after_us_);
      if (worlds > 0) Runtime::reform();  // who cannot ends, as others that reach nobody
      try {
        train(steps_of_training, after_us);
        return tell();
      } catch (const CommError&) {
        begun_ = Clock::now();
        again_ = true;
      }
    }
  }

  void run_schedule(const Numbers& worlds) {
    int64_t last = 0;
    for (const auto& [ranks, steps] : worlds) {
      Runtime::shutdown();
      Runtime::configure({.devices = {}, .devices_per_rank = ranks});
      train(last += steps, 0);
    }
    tell();
  }

  void set_death(int launched, const Numbers& numbers) {
    if (numbers.at(0).first != launched) return;
    dies_in_step_ = numbers.at(1).first;
    dies_after_us_ = numbers.at(1).second;
  }

  void set_meeting(int launched, const Numbers& numbers) {
    if (numbers.at(0).first != launched) return;
    dies_in_world_ = numbers.at(1).first;
    dies_after_us_ = numbers.at(1).second;
  }

  void set_behind(int launched, const Numbers& numbers, bool both_die) {
    const bool second = numbers.at(0).second == launched;
    is_victim_ = numbers.at(0).first == launched || (both_die && second);
    is_behind_ = second && !both_die;
    behind_step_ = numbers.at(1).first;
  }

 private:
  void fall_behind() {
    behind_step_ = -1;
    if (is_victim_) kill(getpid(), SIGKILL);
    if (!is_behind_) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    throw CommError({.operation = "step", .detail = "as if its last message had not come"});
  }

  void tell_agreed(int ranks) {
    told_ = elastic_.agreed().step;
    print_line(prefix_ + "commit " + std::to_string(told_) + " in " + std::to_string(number_) +
               " of " + std::to_string(ranks));
  }

  // It has copies of all that the rank has open, and does nothing.
  static void start_helper() {
    if (fork() != 0) return;
    for (;;) pause();
  }

  static void die_after(int64_t us) {
    std::thread([us] {
      std::this_thread::sleep_for(std::chrono::microseconds(us));
      kill(getpid(), SIGKILL);
    }).detach();
  }

  // A gate listens while the channels meet, and a second one while the detectors do.
  static bool gate_listens() {
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(thread.path() / "comm") >> std::ws, name);
      if (name == "ts-gate") return true;
    }
    return false;
  }

  static void die_as_detectors_meet(int64_t us) {
    std::thread([us] {
      for (int gates = 0; gates < 2;) {
        while (!gate_listens()) {
        }
        if (++gates == 2) break;
        while (gate_listens()) {
        }
      }
      std::this_thread::sleep_for(std::chrono::microseconds(us));
      kill(getpid(), SIGKILL);
    }).detach();
  }

  struct Taken {
    int64_t step, first, end;
  };

  void tell() const {
    for (const Taken& t : std::span(taken_).subspan(size_t(joined_at_)))
      print_line(prefix_ + "took " + std::to_string(t.step) + " " + std::to_string(t.first) + " " +
                 std::to_string(t.end));
    std::string schedule;
    if (joined_at_ > 0) schedule = " joined:" + std::to_string(joined_at_);
    for (size_t i = size_t(joined_at_); i < sizes_.size();) {
      size_t end = i;
      while (end < sizes_.size() && sizes_[end] == sizes_[i]) ++end;
      schedule += " " + std::to_string(sizes_[i]) + ":" + std::to_string(end - i);
      i = end;
    }
    print_line(prefix_ + "done " + std::to_string(hash_) + schedule);
  }

  std::string prefix_;
  int number_ = -1;   // of the world that it trains in
  int64_t told_ = 0;  // the step that all were last told to have
  int64_t behind_step_ = -1;
  bool is_victim_ = false, is_behind_ = false;
  int64_t dies_in_step_ = -1, dies_in_world_ = -1, dies_after_us_ = 0;
  nn::Elastic elastic_;
  std::vector<Taken> taken_;
  std::vector<int> sizes_;  // of the world of each step
  uint64_t hash_ = 0;
  Clock::time_point begun_ = Clock::now();
  bool again_ = false;  // a world was lost
  int64_t joined_at_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    auto takes = [&](std::string_view word) {
      if (argc < 2 || argv[1] != word) return false;
      ++argv;
      --argc;
      return true;
    };
    helped = takes("helped");
    tells = takes("tells");
    divided = takes("divided");
    patient = takes("patient");
    constexpr std::string_view kStepsWord = "steps=";
    if (argc > 1 && std::string_view(argv[1]).starts_with(kStepsWord)) {
      steps_of_training = std::stoll(argv[1] + kStepsWord.size());
      ++argv;
      --argc;
    }
    const std::string form = argc > 1 ? argv[1] : "";
    const bool schedule = form == "schedule", both = form == "both",
               behind = form == "behind" || both, dies = form == "at", meets = form == "meets";
    Numbers numbers;
    for (int i = schedule || behind || dies || meets ? 2 : 1; i < argc; ++i) {
      const std::string text = argv[i];
      numbers.emplace_back(std::stoi(text), std::stoll(text.substr(text.find(':') + 1)));
    }
    const int launched = read_launch_environment().rank;
    if (!schedule) print_line(std::to_string(launched) + " ready " + std::to_string(getpid()));
    Rank rank(launched);
    if (schedule) {
      rank.run_schedule(numbers);
    } else {
      if (behind) rank.set_behind(launched, numbers, both);
      if (dies) rank.set_death(launched, numbers);
      if (meets) rank.set_meeting(launched, numbers);
      rank.run(behind || dies || meets ? Numbers() : numbers, launched);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "elastic_rank: %s\n", error.what());
    return 5;
  }
}
