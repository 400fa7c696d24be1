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
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/base/options.h"
#include "core/base/stopwatch.h"
#include "core/exec/context.h"
#include "core/exec/pipeline.h"
#include "core/exec/state.h"
#include "core/runtime/file_cache.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

constexpr int kTurns = 3;              // of each provider, by turns, so that a slow phase hits both
constexpr double kTurnSeconds = 1e-3;  // of one provider, in repetitions
constexpr int kMostRuns = 200;
constexpr double kLongest = 5e-3;    // in seconds: what takes longer stays with the library
constexpr double kLoopsGain = 0.97;  // loops must be this much faster
constexpr std::string_view kProviderFile = ".provider";

struct FoundBefore {
  std::mutex mutex;
  std::unordered_map<std::string, bool> loops;
};
FoundBefore& found_before() {
  static FoundBefore* found = new FoundBefore;  // outlives every static user
  return *found;
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

// The seconds of both.
struct Times {
  double library = std::numeric_limits<double>::infinity(), loops = library;
  bool loops_win() const { return loops < kLoopsGain * library; }
};

Times time_both(const UOp& node, Device& device) {
  const Counters before = counters();
  fill_with_zeros(node);
  Times times;
  Candidate library(node, device, Providers::Libraries);
  times.library = library.seconds_of_one(1);
  if (times.library <= kLongest) {
    const auto repetitions = int(std::clamp(kTurnSeconds / times.library, 1.0, double{kMostRuns}));
    Candidate loops(node, device, Providers::Loops);
    for (int round = 0; round < kTurns; ++round) {
      times.library = std::min(times.library, library.seconds_of_one(repetitions));
      times.loops = std::min(times.loops, loops.seconds_of_one(repetitions));
      if (times.loops > 4 * times.library) break;  // by far: not a matter of rounds
    }
  }
  counters() = before;
  return times;
}

Mesh mesh_of(const Device& device) {
  Context& context = Context::get();
  for (const DeviceRef& ref : context.devices()) {
    if (&context.device(ref) == &device) return Mesh::single(ref);
  }
  throw InternalError(fmt::format("{} is no device of this process", device.name()));
}

}  // namespace

bool is_timed(Op op) {
  return op == Op::Dot || op == Op::Conv || op == Op::ConvBackwardData ||
         op == Op::ConvBackwardWeight;
}

bool loops_are_faster(const UOp& x, Device& device) {
  const Apart apart(x, mesh_of(device));
  const Target& target = device.target();
  const std::string key = fmt::format(
      "loops or a library, the best of {} plans, {} threads, {} {}, {} multiprocessors: {}",
      options().beam, options().threads, target.cpu, target.features, target.multiprocessors,
      apart.text);
  {
    std::lock_guard lock(found_before().mutex);
    if (auto found = found_before().loops.find(key); found != found_before().loops.end())
      return found->second;
  }
  bool loops = false;
  if (auto bytes = file_cache::load(key, kProviderFile); bytes && bytes->size() == 1) {
    loops = (*bytes)[0] == 'l';
  } else {
    ObservedScope event([&] {
      return ObservedEvent{.kind = EventKind::Tuning,
                           .name = fmt::format("{}: {}", device.name(), describe(*x))};
    });
    try {
      Times times;
      {
        const Unobserved silence;
        times = time_both(apart.node, device);
      }
      loops = times.loops_win();
      file_cache::store(key, kProviderFile, loops ? "l" : "v");
      event.finish([&] {
        return fmt::format("{} of  library: {:.1f}  loops: {:.1f} us", loops ? "loops" : "library",
                           times.library * 1e6, times.loops * 1e6);
      });
    } catch (const DeviceError& error) {
      event.finish([&] { return fmt::format("not timed: {}", error.what()); });
    }
  }
  std::lock_guard lock(found_before().mutex);
  found_before().loops[key] = loops;
  return loops;
}

}  // namespace tinyshard
