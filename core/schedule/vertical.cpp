// Vertical fusion. The kernel of y = x * 2 and that of z = relu(y) + y are over the same loops and
// the second reads y where it itself stands, so they become one kernel:
//
//   y[i] = x[i] * 2                      z[i] = max(y[i], 0) + y[i]         i of 4096
//   y[i] = x[i] * 2,  z[i] = max(x[i] * 2, 0) + x[i] * 2                    one kernel, two outputs
//
// The ranges need not be equal: where the consumer reads y[i * 64 + j] over i and j of 64, the
// producer's i becomes i * 64 + j there. If nothing else reads y, its output is dropped at the end.
// Fusion must leave each fold computed once (loops.h), each in-place store safe (task.h), and no
// dependency through a third task.
#include "core/schedule/vertical.h"

#include <algorithm>
#include <map>

#include "core/rewrite/affine.h"
#include "core/rewrite/pattern.h"
#include "core/schedule/loops.h"
#include "core/schedule/state.h"
#include "core/schedule/turns.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

constexpr size_t kMaxNodes = 800, kMaxBuffers = 48, kMaxOutputs = 12;
constexpr int64_t kLargeBuffer = 1 << 12;  // elements that are worth reading once instead of twice

// The producer's ranges as functions of the consumer's, when the consumer reads the stored value
// exactly once for each of its elements: `read` enumerates 0..n-1 over some of the consumer's
// loops.
std::optional<NodeMap<UOp>> match_ranges(const KernelDraft& producer, const UOp& store_index,
                                         const UOp& read, const KernelDraft& consumer,
                                         Simplifier& simplify) {
  auto dense = [](const Affine& affine) {  // row-major over its ranges, nothing left out
    if (affine.constant != 0) return false;
    int64_t stride = 1;
    for (size_t i = affine.terms.size(); i-- > 0;) {
      if (affine.terms[i].coefficient != stride) return false;
      stride *= range_arg(*affine.terms[i].range).size;
    }
    return true;
  };
  auto written = as_affine(store_index), wanted = as_affine(read);
  if (!written || !wanted || !dense(*written) || !dense(*wanted)) return std::nullopt;
  if (written->terms.size() != producer.loops.size()) return std::nullopt;
  int64_t count = 1;
  for (const auto& term : wanted->terms) {
    if (!contains(consumer.loops, term.range)) return std::nullopt;
    count *= range_arg(*term.range).size;
  }
  if (count != size_of(producer.loops)) return std::nullopt;
  NodeMap<UOp> map;
  for (const auto& term : written->terms) {
    UOp part = binary(Op::IDiv, read, index_const(term.coefficient));
    map[term.range] = simplify(binary(Op::Mod, part, index_const(range_arg(*term.range).size)));
  }
  return map;
}

// Whether values are stored side by side along different loops.
bool stores_in_two_orders(const KernelDraft& draft) {
  UOp fast;
  for (const auto& out : draft.outputs) {
    auto affine = as_affine(out.index);
    if (!affine || affine->terms.size() != draft.loops.size()) continue;
    for (const auto& term : affine->terms) {
      if (term.coefficient != 1) continue;
      if (fast && !(fast == term.range)) return true;
      fast = term.range;
    }
  }
  return false;
}

class Fuser {
 public:
  explicit Fuser(ScheduleState& state)
      : tasks_(state.tasks),
        buffers_(state.schedule.buffers),
        dependencies_(*state.dependencies),
        free_ranges_(state.free_ranges) {}

  // `order`: of the tasks before any fusion.
  void vertically(std::span<const int> order) {
    for (int producer : order) {
      if (!tasks_[producer].draft) continue;
      std::vector<int> next = dependencies_.after(producer);
      std::ranges::sort(next, {}, [&](int t) { return std::pair(tasks_[t].position, t); });
      for (int consumer : next) {
        if (tasks_[consumer].draft && into_consumer(producer, consumer)) break;
      }
    }
  }

  // Kernels over the same loops that read the same large buffer read it once.
  void siblings(std::span<const int> order) {
    prepared_ = prepared_turns(tasks_);
    std::map<int, std::vector<int>> readers;  // by buffer, in order
    for (int t : order) {
      if (tasks_[t].gone || !tasks_[t].draft) continue;
      const std::vector<int> reads = tasks_[t].reads;  // fusion changes the task's own list
      for (int b : reads) {
        if (buffers_[b].numel() < kLargeBuffer) continue;
        for (int other : readers[b]) {
          if (other != t && !tasks_[other].gone && tasks_[other].draft) beside(other, t);
        }
      }
      for (int b : tasks_[t].reads) readers[b].push_back(t);
    }
  }

 private:
  bool into_consumer(int p, int c) {
    KernelDraft& producer = *tasks_[p].draft;
    KernelDraft& consumer = *tasks_[c].draft;
    if (!(producer.mesh == consumer.mesh) || dependencies_.detour(p, c)) return false;
    for (const auto& out : producer.outputs) {
      auto affine = as_affine(out.index);
      if (!affine || affine->terms.size() != producer.loops.size())
        return false;  // stores at several depths
    }
    // Every read of the producer's outputs in the consumer must be the same enumeration.
    std::map<int, const KernelDraft::Output*> outputs;
    for (const auto& out : producer.outputs) outputs[out.buffer] = &out;
    std::optional<NodeMap<UOp>> map;
    const KernelDraft::Output* matched = nullptr;
    UOp first_read;
    NodeMap<UOp> replaced;
    std::vector<UOp> reads;                                // loads of what the producer stores
    auto index_of = [&](const KernelDraft::Output& out) {  // in the consumer's loops
      return out.index == matched->index ? first_read : simplify_(substitute(out.index, *map));
    };
    if (producer.outputs.size() + consumer.outputs.size() > kMaxOutputs) return false;
    for (const UOp& x : all_nodes(consumer)) {
      if (x.op() != Op::Load) continue;
      auto found = outputs.find(consumer.buffer_of(x));
      if (found == outputs.end()) continue;
      if (x->src().size() != 2) return false;
      if (!map) {
        map = match_ranges(producer, found->second->index, x.src(1), consumer, simplify_);
        if (!map) return false;
        matched = found->second;
        first_read = x.src(1);
      } else if (!(x.src(1) == index_of(*found->second))) {
        return false;
      }
      reads.push_back(x);
    }
    if (!map) return false;  // only an ordering edge: nothing to share
    KernelDraft merged = consumer;
    rename_slots(producer, all_nodes(producer), merged, *map);
    std::vector<UOp> made;
    for (const auto& out : producer.outputs) made.push_back(out.value);
    made = simplify_(substitute(made, *map));
    for (size_t i = 0; i < made.size(); ++i) {
      const KernelDraft::Output& out = producer.outputs[i];
      UOp valid = out.valid ? simplify_(substitute(out.valid, *map)) : UOp();
      merged.outputs.push_back({out.buffer, index_of(out), made[i], valid});
    }
    for (const UOp& x : reads) {
      for (size_t i = 0; i < made.size(); ++i) {
        if (producer.outputs[i].buffer == consumer.buffer_of(x)) replaced[x] = made[i];
      }
    }
    std::vector<UOp> values;
    for (const auto& out : consumer.outputs) values.push_back(out.value);
    values = simplify_(substitute(values, replaced));
    for (size_t i = 0; i < values.size(); ++i) merged.outputs[i].value = values[i];
    return adopt(p, c, std::move(merged), false);
  }

  bool beside(int a, int b) {
    KernelDraft& one = *tasks_[a].draft;
    KernelDraft& other = *tasks_[b].draft;
    auto size = [](const UOp& r) { return range_arg(*r).size; };
    if (prepared_[size_t(a)] != prepared_[size_t(b)]) return false;
    if (!(one.mesh == other.mesh) || !std::ranges::equal(one.loops, other.loops, {}, size, size) ||
        one.outputs.size() + other.outputs.size() > kMaxOutputs)
      return false;
    // Last, as it takes the longest: readers of one value may be far apart, in both ways through a
    // model.
    if (dependencies_.reaches(a, b) || dependencies_.reaches(b, a)) return false;
    NodeMap<UOp> map;
    for (size_t i = 0; i < one.loops.size(); ++i) map[one.loops[i]] = other.loops[i];
    KernelDraft merged = other;
    rename_slots(one, all_nodes(one), merged, map);
    for (const auto& out : one.outputs) {
      merged.outputs.push_back({out.buffer, substitute(out.index, map), substitute(out.value, map),
                                out.valid ? substitute(out.valid, map) : UOp()});
    }
    // One read less, but a copy in another order may be wanted long before the rest.
    return adopt(a, b, std::move(merged), true);
  }

  // `one_order`: all of its stores have to be in one order.
  bool adopt(int from, int into, KernelDraft merged, bool one_order) {
    if (merged.outputs.size() > kMaxOutputs) return false;
    const std::vector<UOp> all = all_nodes(merged);
    if (all.size() > kMaxNodes || !in_place_is_safe(merged, all, buffers_)) return false;
    // Maps turn tiles for a second order, which kernels with folds do not.
    one_order |= std::ranges::any_of(all, [](const UOp& x) { return x.op() == Op::Fold; });
    if (one_order && stores_in_two_orders(merged)) return false;
    if (arrange_loops(merged, all, free_ranges_) ||
        reduced_inside_two(folds_among(all), free_ranges_))
      return false;
    Task trial = tasks_[into];
    trial.draft = std::move(merged);
    update_accesses(trial, all);
    if (trial.reads.size() + trial.writes.size() > kMaxBuffers) return false;
    trial.position = std::max(tasks_[from].position, tasks_[into].position);
    tasks_[into] = std::move(trial);
    tasks_[from].gone = true;
    tasks_[from].draft.reset();
    tasks_[from].reads.clear();
    tasks_[from].writes.clear();
    dependencies_.merge(from, into);
    return true;
  }

  std::vector<Task>& tasks_;
  const std::vector<VirtualBuffer>& buffers_;
  Dependencies& dependencies_;
  FreeRanges& free_ranges_;
  std::vector<int64_t> prepared_;  // of siblings: what is sent for one turn is made for that turn
  Simplifier simplify_;  // of all kernels: what most of them have in common is simplified once
};

}  // namespace

void fuse_vertically(ScheduleState& state) { Fuser(state).vertically(state.drafted); }
void fuse_siblings(ScheduleState& state) { Fuser(state).siblings(state.drafted); }

void drop_unread(ScheduleState& state) {
  const std::vector<VirtualBuffer>& buffers = state.schedule.buffers;
  std::vector<char> needed(buffers.size());
  for (size_t b = 0; b < buffers.size(); ++b) {
    needed[b] = buffers[b].output || buffers[b].storage || first_version(buffers, int(b)) != int(b);
  }
  for (const Task& task : state.tasks) {
    for (int b : task.reads) needed[b] = true;
  }
  for (Task& task : state.tasks) {
    if (!task.draft || task.draft->outputs.size() < 2) continue;
    size_t dropped =
        std::erase_if(task.draft->outputs, [&](const auto& out) { return !needed[out.buffer]; });
    if (dropped > 0) update_accesses(task);
  }
}

}  // namespace tinyshard
