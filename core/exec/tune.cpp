// Candidates of one kernel run by turns, so that what else the machine does falls on all of them. A plan
// that takes four times as long as the best is timed once; one that gains less than 3 % is not taken:
//
//   choice 0: 10.0 us   1: 9.8 us   2: 45 us, timed once      0 stays: 9.8 is no gain of 3 %
#include "core/exec/tune.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/codegen/key.h"
#include "core/exec/kept_choices.h"
#include "core/exec/kernel_trial.h"

namespace tinyshard {
namespace {

constexpr int kRounds = 3;              // over all candidates, so that a slow phase hits all
constexpr double kRoundSeconds = 1e-3;  // of one candidate, in repetitions
constexpr int kMostRepetitions = 200;
constexpr double kGain = 0.97;   // a plan must be this much faster than the generator's own
constexpr double kHopeless = 4;  // times the best of the others: such a plan is timed no further

KeptChoices& kept_plans() {
  static auto& kept = *new KeptChoices(".choice", kKernelChoices);  // outlives every static user
  return kept;
}

bool has_folds(const KernelSource& source) {
  return std::ranges::any_of(toposort(std::span(&source.sink, 1)),
                             [](const UOp& x) { return x.op() == Op::Fold; });
}

using KernelPointer = std::shared_ptr<const CompiledKernel>;

int fastest(Device& device, const KernelSource& source, std::span<const KernelPointer> candidates) {
  if (candidates[0]->code.work_items == 0) return 0;
  ObservedScope event([&] {
    return ObservedEvent{.kind = EventKind::Tuning,
                         .name = fmt::format("{}: {}", device.name(), source.name)};
  });
  const TrialBuffers buffers(device, source);
  struct Timed {
    int choice;
    std::unique_ptr<Program> program;
    double seconds = 0;
    std::unique_ptr<Repeated> work = nullptr;
  };
  std::vector<Timed> timed;
  int repetitions = 0;
  double best_of_one = std::numeric_limits<double>::infinity();  // of what was launched once
  for (size_t c = 0; c < candidates.size(); ++c) {
    const ObjectCode& code = candidates[c]->code;
    if (std::ranges::any_of(candidates.first(c), [&](const KernelPointer& other) {
          return other->code.bytes == code.bytes && other->code.block == code.block &&
                 other->code.work_items == code.work_items &&
                 other->code.min_items == code.min_items;
        }))
      continue;
    Timed t{int(c), device.load(code)};
    auto launch = [program = t.program.get(), &buffers] { launch_trial(*program, buffers); };
    Repeated once(device, 1, launch, false);
    t.seconds = once.seconds_of_one();
    if (t.seconds < kHopeless * best_of_one) t.seconds = once.seconds_of_one();
    best_of_one = std::min(best_of_one, t.seconds);
    if (t.seconds > kHopeless * best_of_one) continue;
    if (repetitions == 0)
      repetitions = int(std::clamp(kRoundSeconds / t.seconds, 1.0, double{kMostRepetitions}));
    t.work = std::make_unique<Repeated>(device, repetitions, launch);
    timed.push_back(std::move(t));
  }
  if (timed.size() > 1) {
    for (Timed& t : timed) t.seconds = std::numeric_limits<double>::infinity();
  }
  for (int round = 0; round < kRounds && timed.size() > 1; ++round) {
    for (Timed& t : timed) t.seconds = std::min(t.seconds, t.work->seconds_of_one());
  }
  const Timed& best = *std::ranges::min_element(timed, {}, &Timed::seconds);
  int choice = best.seconds < kGain * timed[0].seconds ? best.choice : 0;
  event.finish([&] {
    if (timed.size() < 2) return std::string();
    std::string line = fmt::format("choice {} of", choice);
    for (const Timed& t : timed) line += fmt::format("  {}: {:.1f}", t.choice, t.seconds * 1e6);
    return line + " us";
  });
  return choice;
}

}  // namespace

void tune_kernels(std::span<KernelSource* const> sources, Device& device, int beam, bool folds,
                  const ParallelFor& parallel) {
  beam = std::min(beam, kKernelChoices);
  struct Open {
    std::string key;
    std::vector<KernelSource*> users;
  };
  std::vector<Open> open;
  std::unordered_map<std::string, size_t> places;
  for (KernelSource* source : sources) {
    if (!folds && !choices_keep_bits(device.target()) && has_folds(*source)) continue;
    std::string key =
        fmt::format("choice of {} plans: ", beam) + codegen::kernel_key(*source, device.target());
    auto [place, added] = places.try_emplace(key, open.size());
    if (added) open.push_back({std::move(key), {}});
    open[place->second].users.push_back(source);
  }
  auto decide = [](const Open& kernel, int choice) {
    for (KernelSource* source : kernel.users) source->choice = choice;
  };
  std::erase_if(open, [&](const Open& kernel) {
    const std::optional<int> known = kept_plans().find(kernel.key);
    if (known) decide(kernel, *known);
    return known.has_value();
  });
  std::vector<KernelSource> candidates;
  for (const Open& kernel : open) {
    for (int choice = 0; choice < beam; ++choice) {
      candidates.push_back(*kernel.users.front());
      candidates.back().choice = choice;
    }
  }
  std::vector<const KernelSource*> pointers;
  for (const KernelSource& candidate : candidates) pointers.push_back(&candidate);
  std::vector<KernelPointer> compiled = compile_kernels(pointers, device.target(), parallel);
  for (size_t k = 0; k < open.size(); ++k) {
    try {
      const int choice = fastest(device, *open[k].users.front(),
                                 std::span(compiled).subspan(k * size_t(beam), size_t(beam)));
      kept_plans().keep(open[k].key, choice);
      decide(open[k], choice);
    } catch (const DeviceError& error) {
      observe([&] {
        return ObservedEvent{.kind = EventKind::Tuning,
                             .name = open[k].users.front()->name,
                             .after = fmt::format("not timed: {}", error.what()),
                             .failed = true};
      });
      kept_plans().keep_here(open[k].key, 0);
      decide(open[k], 0);
    }
  }
}

}  // namespace tinyshard
