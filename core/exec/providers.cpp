// A node is timed apart from its graph. What its operands are made of becomes zeros in memory; how they
// are seen stays, since a layout decides more than a size does:
//
//   dot(buffer a, permute(where(m, b, c)))     the graph
//   dot(zeros, permute(zeros))                 what is timed: planned once for the library, and
//                                              once, with BEAM's choice among kernels, for loops
#include "core/exec/providers.h"

#include <algorithm>
#include <cstring>
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
#include "core/base/stopwatch.h"
#include "core/exec/context.h"
#include "core/exec/kept_choices.h"
#include "core/exec/pipeline.h"
#include "core/exec/state.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

constexpr int kTurns = 3;              // of each provider, by turns, so that a slow phase hits both
constexpr double kTurnSeconds = 1e-3;  // of one provider, in repetitions
constexpr int kMostRuns = 200;
// Of a library, in seconds. One that takes longer keeps its op: loops that lose may take a hundred
// times as long, so that the trial alone would take seconds for each op.
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
      return x.with_src(std::span(&below, 1));
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
    Device& device = *storage.devices()[0];
    void* memory = storage.memory()[0];
    if (!device.fill_zero(memory, storage.local_bytes()))
      std::memset(device.host_pointer(memory), 0, storage.local_bytes());
  }
}

class Candidate {
 public:
  Candidate(const UOp& node, Device& device, Providers providers)
      : device_(device), executable_(make_executable(std::span(&node, 1), false, {}, providers)) {
    executable_->run();  // what is set up by a first run does not count
  }

  double seconds_of_one(int repetitions) {
    device_.synchronize();
    Stopwatch watch;
    for (int i = 0; i < repetitions; ++i) executable_->run();
    device_.synchronize();
    return watch.ms() / 1e3 / repetitions;
  }

 private:
  Device& device_;
  std::unique_ptr<Executable> executable_;
};

// In seconds. Loops that were not tried have no time.
struct Times {
  double library = std::numeric_limits<double>::infinity();
  std::optional<double> loops = std::nullopt;
  bool loops_win() const { return loops && *loops < kLoopsGain * library; }
  std::string text() const {
    return fmt::format("{} of  library: {:.1f} us  loops: {}", loops_win() ? "loops" : "library",
                       library * 1e6, loops ? fmt::format("{:.1f} us", *loops * 1e6) : "not tried");
  }
};

// Runs that a program did not ask for are not counted.
class Uncounted {
 public:
  Uncounted() : before_(counters()) {}
  ~Uncounted() { counters() = before_; }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  Counters before_;
};

Times time_both(const UOp& node, Device& device) {
  const Unobserved silence;
  const Uncounted uncounted;
  fill_with_zeros(node);
  Times times;
  Candidate library(node, device, Providers::Libraries);
  times.library = library.seconds_of_one(1);
  if (times.library > kLongest) return times;
  const auto repetitions = int(std::clamp(kTurnSeconds / times.library, 1.0, double{kMostRuns}));
  Candidate loops(node, device, Providers::Loops);
  times.loops = loops.seconds_of_one(1);
  for (int turn = 0; turn < kTurns; ++turn) {
    if (*times.loops > 4 * times.library) break;  // by far: more turns change nothing
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

Mesh mesh_of(const Device& device) {
  Context& context = Context::get();
  for (const DeviceRef& ref : context.devices()) {
    if (&context.device(ref) == &device) return Mesh::single(ref);
  }
  throw InternalError(fmt::format("{} is no device of this process", device.name()));
}

}  // namespace

bool loops_are_faster(const UOp& x, Device& device) {
  if (!is_timed(x.op())) return false;
  const Apart apart(x, mesh_of(device));
  const Target& target = device.target();
  const std::string key =
      fmt::format("loops or a library, the best of {} plans, {} threads, {} {}: {}", options().beam,
                  options().threads, target.cpu, target.features, apart.text);
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
