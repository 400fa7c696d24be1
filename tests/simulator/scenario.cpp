#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tests/simulator/run.h"

namespace simulator {
namespace {

using namespace std::chrono_literals;

constexpr std::array<const char*, 8> kNames = {"kill",    "stop",  "slow",    "partition",
                                               "one way", "reset", "diverge", "far"};

double ms(Time time) { return std::chrono::duration<double, std::milli>(time).count(); }

Fault draw_fault(Random& random, const Scenario& scenario) {
  // Kills are what happens most, and what everything else is mixed with.
  constexpr std::array<Fault::Kind, 12> kKinds = {
      Fault::Kill, Fault::Kill,      Fault::Kill,   Fault::Kill,   Fault::Stop,  Fault::Stop,
      Fault::Slow, Fault::Partition, Fault::OneWay, Fault::OneWay, Fault::Reset, Fault::Diverge};
  Fault fault;
  fault.kind = kKinds[static_cast<size_t>(random.below(int(kKinds.size())))];
  if (scenario.one_host && (fault.kind == Fault::Partition || fault.kind == Fault::OneWay))
    fault.kind = Fault::Kill;
  fault.at = 20ms + random.up_to(scenario.step_time * 4 * scenario.steps);
  fault.process = random.below(scenario.ranks);
  fault.lasts = random.chance(50) ? random.up_to(scenario.timeout / 2)
                                  : scenario.timeout / 2 + random.up_to(3 * scenario.timeout);
  fault.other = random.below(scenario.ranks);
  if (fault.other == fault.process) fault.other = (fault.process + 1) % scenario.ranks;
  if (fault.kind == Fault::OneWay && random.chance(25)) fault.other = -1;
  const uint64_t all = (uint64_t{1} << scenario.ranks) - 1;
  fault.side = 1 + random.next() % all;  // perhaps of all: nobody reaches the store
  return fault;
}

}  // namespace

Scenario draw(uint64_t seed) {
  Random random(seed * 2 + 1);
  Scenario scenario;
  scenario.seed = seed;
  scenario.ranks = std::array{2, 3, 3, 4, 4, 5, 6, 8}[static_cast<size_t>(random.below(8))];
  scenario.one_host = random.chance(40);
  scenario.verify = random.chance(30);
  scenario.steps = random.between(1, 6);
  scenario.commit_every = random.between(1, 2);
  scenario.timeout = 1500ms + random.up_to(1500ms);
  scenario.patience = 2 * scenario.timeout;
  scenario.step_time = random.chance(50) ? 1ms : 20ms;
  scenario.checkpoints = random.chance(8);
  const int faults = std::array{0, 1, 1, 1, 1, 2, 2, 3}[static_cast<size_t>(random.below(8))];
  for (int i = 0; i < faults; ++i) scenario.faults.push_back(draw_fault(random, scenario));
  // Around one of them some rank hears all others but one late. All of what it adds to a call is less
  // than the least timeout.
  if (faults > 0 && scenario.ranks > 2 && random.chance(15)) {
    // There, or where those who wait for what it befell give up.
    const Time at = scenario.faults.front().at + (random.chance(40) ? scenario.timeout : 0ns);
    Fault far{.kind = Fault::Far, .at = std::max<Time>(0ns, at - random.up_to(40ms))};
    far.heartbeats_too = random.chance(50);
    far.lasts = 200ms + random.up_to(500ms);
    far.longer = 30ms + random.up_to(120ms);
    far.process = random.below(scenario.ranks);
    far.other = (far.process + 1 + random.below(scenario.ranks - 1)) % scenario.ranks;
    scenario.faults.push_back(far);
  } else if (scenario.ranks > 2 && random.chance(10)) {
    // The others have less than the least timeout to spare.
    scenario.long_compute = 1100ms + random.up_to(150ms);
    if (faults > 0 && random.chance(80))
      scenario.faults.front().at = 20ms + random.up_to(scenario.long_compute);
  }
  // Each asks for all others in turn, there and back.
  if (random.chance(15)) scenario.store_takes = random.up_to(1s / (2 * scenario.ranks));
  // While ranks connect, of which some have succeeded.
  if (faults > 0 && random.chance(10)) {
    Fault& early = scenario.faults.front();
    early.when_some_met = true;
    if (!scenario.one_host && random.chance(75)) early.kind = Fault::Partition;
  } else if (faults > 0 && scenario.ranks > 2 && random.chance(6)) {
    // Some may see it come back, and others not.
    Fault& late = scenario.faults.front();
    late.kind = Fault::Stop;
    late.back_in_time = 100ms + random.up_to(300ms);
    scenario.store_takes = 1s / (2 * scenario.ranks);
  }
  if (random.chance(25)) scenario.last_words = random.between(1, 8);
  scenario.pairs = scenario.ranks >= 4 && random.chance(30);
  return scenario;
}

std::string describe(const Scenario& s) {
  std::string text = fmt::format(
      "seed {}: {} ranks on {}, {} steps, a commit every {}, timeout {:.0f} ms{}{}\n", s.seed,
      s.ranks, s.one_host ? "one host" : "several hosts", s.steps, s.commit_every, ms(s.timeout),
      s.verify ? ", verified" : "", s.checkpoints ? ", with checkpoints" : "");
  if (s.pairs) text += "  steps sum over pairs of ranks, too\n";
  if (s.long_compute > 0ns)
    text +=
        fmt::format("  one rank computes for {:.1f} ms in the first step\n", ms(s.long_compute));
  if (s.last_words > 0)
    text += fmt::format("  one rank tells {} results at the end\n", s.last_words);
  if (s.store_takes > 0ns)
    text += fmt::format("  the store takes up to {:.1f} ms more\n", ms(s.store_takes));
  for (const Fault& fault : s.faults) {
    text +=
        fault.when_some_met ? "  when one has met all" : fmt::format("  {:8.1f} ms", ms(fault.at));
    text += fmt::format(": {}", kNames[fault.kind]);
    switch (fault.kind) {
      case Fault::Kill:
        text += fmt::format(" rank {}", fault.process);
        break;
      case Fault::Diverge:
        text += fmt::format(" rank {}, from its next step on", fault.process);
        break;
      case Fault::Stop:
      case Fault::Slow:
        if (fault.back_in_time > 0ns) {
          text += fmt::format(" rank {} until {:.1f} ms before others re-form without it",
                              fault.process, ms(fault.back_in_time));
        } else {
          text += fmt::format(" rank {} for {:.1f} ms", fault.process, ms(fault.lasts));
        }
        break;
      case Fault::OneWay:
        text += fmt::format(" {} to {} for {:.1f} ms", fault.process, fault.other, ms(fault.lasts));
        break;
      case Fault::Far:
        text += fmt::format(" {} to rank {}, but from rank {}, take {:.1f} ms more for {:.1f} ms",
                            fault.heartbeats_too ? "packets" : "messages", fault.process,
                            fault.other, ms(fault.longer), ms(fault.lasts));
        break;
      case Fault::Reset:
        text += fmt::format(" connections of ranks {} and {}", fault.process, fault.other);
        break;
      case Fault::Partition:
        text += " of";
        for (int p = 0; p < s.ranks; ++p) {
          if ((fault.side >> p & 1) != 0) text += fmt::format(" {}", p);
        }
        text += fmt::format(" from the others and the store for {:.1f} ms", ms(fault.lasts));
        break;
    }
    text += '\n';
  }
  return text;
}

}  // namespace simulator
