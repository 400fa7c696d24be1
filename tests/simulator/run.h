// A simulated job, drawn from a seed: its ranks, what they compute, which faults meet it, and which
// promises were broken.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulator/random.h"

namespace simulator {

struct Fault {
  enum Kind { Kill, Stop, Slow, Partition, OneWay, Reset, Diverge, Far } kind = Kill;
  Time at{};
  bool when_some_met = false;  // then, and not at this time: as soon as the first rank has met all
  Time lasts{};                // Stop, Slow, Partition, OneWay, Far
  // Stop: it ends so long before the first rank that re-forms is out of patience.
  Time back_in_time{};
  int process = 0;  // Kill to Slow, Diverge, Far; of the others the first of two
  // OneWay, Reset: the second; -1 is where the store runs. Far: the only one that stays near.
  int other = 0;
  Time longer{};               // Far: what packets to the process take more, from all but that one
  bool heartbeats_too = true;  // Far; else those of channels alone, which large messages hold up
  uint64_t side = 0;  // Partition: a bit for each process on the side that the store is not on
};

struct Scenario {
  uint64_t seed = 0;
  int ranks = 2;
  bool one_host = false;  // the process table shows all ranks
  bool verify = false;
  bool checkpoints = false;  // each committed step is saved, too
  // Steps also sum over pairs of ranks, and who diverges does so once more: it and its neighbour then
  // wait for each other, in the pair and in the world.
  bool pairs = false;
  int steps = 4, commit_every = 1;
  Time timeout{}, patience{}, step_time{};
  Time long_compute{};  // of one rank in the first step, while the others wait for it alone
  Time store_takes{};   // so much longer to answer, at most
  int last_words = 0;   // that one rank tells the others after the last step
  std::vector<Fault> faults = {};
};

Scenario draw(uint64_t seed);
std::string describe(const Scenario& scenario);  // of several lines

struct Outcome {
  std::vector<std::string> broken = {};  // promises; empty: all were kept
  std::string log = {};                  // what happened, where it was asked for
  int formations = 0, errors = 0, commits = 0, collectives = 0, finished = 0, checkpoints = 0;
};
// That packets take longer is no reason to fail.
inline bool is_harmful(const Fault& fault) { return fault.kind != Fault::Far; }

Outcome run(const Scenario& scenario, bool with_log);

}  // namespace simulator
