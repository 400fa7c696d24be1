// A node is timed apart from its graph. What its operands are made of becomes zeros in memory; how they
// are seen stays, since a layout decides more than a size does:
//
//   dot(buffer a, permute(where(m, b, c)))     the graph
//   dot(zeros, permute(zeros))                 what is timed: planned once for the library, and
//                                              once, with BEAM's choice among kernels, for loops
//
// Loops may take a thousand times as long as a library. So the library is timed first, and loops go on
// only as long as they can win:
//
//   8192^3 of bf16, library 1.5 ms      not tried: 1.1e12 operations take no loops less than 16 ms
//   1024^3 of f32, library 60 us        over 240 us: the first work items took longer
//   [8, 512] x [512, 64], 9 us          loops 6 us: both by turns, loops by their fastest plans
#include "core/exec/providers.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/base/options.h"
#include "core/codegen/codegen.h"
#include "core/exec/kept_choices.h"
#include "core/exec/kernel_trial.h"
#include "core/exec/make_executable.h"
#include "core/exec/state.h"
#include "core/exec/tally.h"
#include "core/uop/node_map.h"
#include "multi/estimate.h"

namespace tinyshard {
namespace {

constexpr int kTurns = 3;              // of each provider, by turns, so that a slow phase hits both
constexpr double kTurnSeconds = 1e-3;  // of one provider, in repetitions
constexpr int kMostRuns = 200;
// Loops of the generator's own plan that take more than so many times as long as the library are no
// rival: other plans do not gain as much.
constexpr double kHopeless = 4;
// A library's seconds. Beside one that takes longer, loops are no rival unless the generator's own plan
// is faster from the outset: trials of all plans would take seconds for each op.
constexpr double kLongest = 5e-3;
constexpr double kLoopsGain = 0.97;  // loops must be this much faster

enum Provider : int { kLibrary, kLoops };
KeptChoices& kept_providers() {
  static auto& kept = *new KeptChoices(".provider", 2);  // outlives every static user
  return kept;
}

// x on operands of its own, and what tells it from other nodes.
class Apart {
 public:
  Apart(const UOp& x, const Mesh& mesh) : mesh_(mesh) {
    std::vector<UOp> src;
    for (const UOp& s : x->src()) src.push_back(seen(s));
    node = x.with_src(src);
    text += describe(*x);
  }

  UOp node;
  std::string text;

 private:
  UOp seen(const UOp& x) {
    if (is_movement(x.op())) {
      const UOp below = seen(x.src(0));
      text += describe(*x) + "; ";
      if (x.op() != Op::ShardSlice) return x.with_src(std::span(&below, 1));
      Dims first_part;  // the one device that times has no other
      for (int64_t size : x.shape()) first_part.insert(first_part.end(), {0, size});
      return shrink(below, first_part);
    }
    const auto [place, added] = numbers_.try_emplace(x.get(), leaves_.size());
    if (added) leaves_.push_back(empty_buffer(x.shape(), x.dtype(), replicated(mesh_)));
    text += fmt::format("{} {}{}; ", place->second, name(x.dtype()), to_string(x.shape()));
    return leaves_[place->second];
  }

  Mesh mesh_;
  std::unordered_map<const Node*, size_t> numbers_;
  std::vector<UOp> leaves_;
};

void fill_with_zeros(const UOp& node) {
  for (const UOp& x : toposort(std::span(&node, 1))) {
    if (x.op() != Op::Buffer) continue;
    Storage& storage = *Storage::of(*x);
    fill_with_zeros(*storage.devices()[0], storage.memory()[0], storage.local_bytes());
  }
}

class Candidate {
 public:
  Candidate(const UOp& node, Device& device, Providers providers)
      : device_(device), executable_(make_executable(std::span(&node, 1), false, {}, providers)) {
    executable_->run();  // what is set up by a first run does not count
  }

  // An executable of many items makes recordings of its own.
  double seconds_of_one(int repetitions) {
    if (!work_ || repetitions != repetitions_) {
      const Checks& check = options().check;  // these look at values while an executable runs
      const bool record = executable_->schedule().items.size() < Replay::kFewestItems &&
                          !check.values && !check.replicas;
      work_ =
          std::make_unique<Repeated>(device_, repetitions, [this] { executable_->run(); }, record);
      repetitions_ = repetitions;
    }
    return work_->seconds_of_one();
  }

 private:
  Device& device_;
  std::unique_ptr<Executable> executable_;
  std::unique_ptr<Repeated> work_;
  int repetitions_ = 0;
};

// In seconds. Loops that are no rival have no time, but may have one that they exceed.
struct Times {
  double library = std::numeric_limits<double>::infinity();
  std::optional<double> loops = std::nullopt, exceeded = std::nullopt;
  bool loops_win() const { return loops && *loops < kLoopsGain * library; }
  std::string text() const {
    const std::string of_loops = loops      ? fmt::format("{:.1f} us", *loops * 1e6)
                                 : exceeded ? fmt::format("over {:.1f} us", *exceeded * 1e6)
                                            : "not tried";
    return fmt::format("{} of  library: {:.1f} us  loops: {}", loops_win() ? "loops" : "library",
                       library * 1e6, of_loops);
  }
};

// The seconds that loops take by the generator's own plans; a time above `enough` where they take more.
double loops_up_to(double enough, const UOp& node, Device& device) {
  const Schedule plan = make_plan(std::span(&node, 1), Providers::Loops);
  std::vector<const KernelSource*> kernels;
  for (const Item& item : plan.items) {
    if (item.kind == Item::Kind::Kernel) kernels.push_back(&item.kernel);
  }
  const auto compiled = compile_kernels(kernels, device.target());
  double seconds = 0;
  for (size_t k = 0; k < kernels.size() && seconds <= enough; ++k) {
    const TrialBuffers buffers(device, *kernels[k]);
    seconds += seconds_up_to(enough - seconds, device, compiled[k]->code, buffers);
  }
  return seconds;
}

Times time_both(const UOp& node, Device& device) {
  const Unobserved silence;
  const Uncounted uncounted;
  fill_with_zeros(node);
  Times times;
  Candidate library(node, device, Providers::Libraries);
  times.library = library.seconds_of_one(1);
  const double rate = device.profile().most_loop_operations_per_s;
  if (rate > 0 && operations_of(node) / rate > times.library) return times;
  const double enough = (times.library > kLongest ? 1 : kHopeless) * times.library;
  if (loops_up_to(enough, node, device) > enough) {
    times.exceeded = enough;
    return times;
  }
  const auto repetitions = int(std::clamp(kTurnSeconds / times.library, 1.0, double{kMostRuns}));
  Candidate loops(node, device, Providers::Loops);
  times.loops = loops.seconds_of_one(1);
  for (int turn = 0; turn < kTurns; ++turn) {
    if (*times.loops > kHopeless * times.library) break;  // by far: more turns change nothing
    times.library = std::min(times.library, library.seconds_of_one(repetitions));
    times.loops = std::min(*times.loops, loops.seconds_of_one(repetitions));
  }
  return times;
}

// The ops whose loops come near a library. Attention, sorts and scatters stay with the device.
bool is_timed(Op op) {
  return op == Op::Dot || op == Op::Conv || op == Op::ConvBackwardData ||
         op == Op::ConvBackwardWeight;
}

}  // namespace

bool loops_are_faster(const UOp& x, Device& device) {
  if (!is_timed(x.op())) return false;
  const Apart apart(x, Mesh::of({device.name()}));
  const Target& target = device.target();
  const std::string key = fmt::format(
      "loops or a library: the best of {} plans, {} threads, tf32 {}, {} {}, {} multiprocessors: "
      "{}",
      options().beam, options().threads, options().tf32, target.cpu, target.features,
      target.multiprocessors, apart.text);
  if (const std::optional<int> known = kept_providers().find(key)) return *known == kLoops;
  ObservedScope event([&] {
    return ObservedEvent{.kind = EventKind::Tuning,
                         .name = fmt::format("{}: {}", device.name(), describe(*x))};
  });
  try {
    const Times times = time_both(apart.node, device);
    kept_providers().keep(key, times.loops_win() ? kLoops : kLibrary);
    event.finish([&] { return times.text(); });
    return times.loops_win();
  } catch (const DeviceError& error) {
    kept_providers().keep_here(key, kLibrary);
    event.finish([&] { return fmt::format("not timed: {}", error.what()); });
    return false;
  }
}

}  // namespace tinyshard
