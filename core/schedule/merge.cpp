#include "core/schedule/merge.h"

#include <algorithm>
#include <map>

#include "core/rewrite/affine.h"
#include "core/rewrite/pattern.h"
#include "core/schedule/dependencies.h"
#include "core/schedule/memory.h"

namespace tinyshard {
namespace {

constexpr size_t kMaxNodes = 800, kMaxBuffers = 48, kMaxOutputs = 12;
constexpr int64_t kParallelWork = 8;      // rows that keep the threads of a device busy
constexpr int64_t kSerialWork = 1 << 14;  // elements that one thread may do alone

int64_t sizes(std::span<const UOp> ranges) {
  int64_t n = 1;
  for (const UOp& r : ranges) n *= r.arg(1);
  return n;
}

bool contains(std::span<const UOp> list, const UOp& x) {
  return std::ranges::find(list, x) != list.end();
}
bool contains_all(std::span<const UOp> list, std::span<const UOp> part) {
  return std::ranges::all_of(part, [&](const UOp& x) { return contains(list, x); });
}

// The producer's ranges as functions of the consumer's, when the consumer reads the stored value
// exactly once for each of its elements: `read` enumerates 0..n-1 over some of the consumer's
// loops.
std::optional<NodeMap<UOp>> match_ranges(const KernelDraft& producer, const UOp& store_index,
                                         const UOp& read, const KernelDraft& consumer) {
  auto dense = [](const Affine& affine) {  // row-major over its ranges, nothing left out
    if (affine.constant != 0) return false;
    int64_t stride = 1;
    for (size_t i = affine.terms.size(); i-- > 0;) {
      if (affine.terms[i].coefficient != stride) return false;
      stride *= affine.terms[i].range.arg(1);
    }
    return true;
  };
  auto written = as_affine(store_index), wanted = as_affine(read);
  if (!written || !wanted || !dense(*written) || !dense(*wanted)) return std::nullopt;
  if (written->terms.size() != producer.loops.size()) return std::nullopt;
  int64_t count = 1;
  for (const auto& term : wanted->terms) {
    if (!contains(consumer.loops, term.range)) return std::nullopt;
    count *= term.range.arg(1);
  }
  if (count != sizes(producer.loops)) return std::nullopt;
  NodeMap<UOp> map;
  Simplifier simplify;
  for (const auto& term : written->terms) {
    UOp part = binary(Op::IDiv, read, index_const(term.coefficient));
    map[term.range] = simplify(binary(Op::Mod, part, index_const(term.range.arg(1))));
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

class Merger {
 public:
  Merger(std::vector<Task>& tasks, const std::vector<VirtualBuffer>& buffers)
      : tasks_(tasks), buffers_(buffers), dependencies_(tasks, buffers) {}

  void run() {
    std::vector<int> order = dependencies_.order(tasks_);
    for (int producer : order) {
      if (!tasks_[producer].draft) continue;
      std::vector<int> next = dependencies_.after(producer);
      std::ranges::sort(next, {}, [&](int t) { return std::pair(tasks_[t].position, t); });
      for (int consumer : next) {
        if (tasks_[consumer].draft && into_consumer(producer, consumer)) break;
      }
    }
    siblings(order);
    drop_unread();
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
    Simplifier simplify;
    auto index_of = [&](const KernelDraft::Output& out) {  // in the consumer's loops
      return out.index == matched->index ? first_read : simplify(substitute(out.index, *map));
    };
    for (const UOp& x : toposort(expressions(consumer))) {
      if (x.op() != Op::Load) continue;
      auto found = outputs.find(int(x.src(0).arg(0)));
      if (found == outputs.end()) continue;
      if (x->src().size() != 2) return false;
      if (!map) {
        map = match_ranges(producer, found->second->index, x.src(1), consumer);
        if (!map) return false;
        matched = found->second;
        first_read = x.src(1);
      } else if (!(x.src(1) == index_of(*found->second))) {
        return false;
      }
      replaced[x] = UOp();
    }
    if (!map) return false;  // only an ordering edge: nothing to share
    KernelDraft merged = consumer;
    for (const auto& out : producer.outputs) {
      UOp value = simplify(substitute(out.value, *map));
      merged.outputs.push_back({out.buffer, index_of(out), value});
    }
    for (const UOp& x : toposort(expressions(consumer))) {
      if (auto* slot = replaced.find(x)) {
        for (size_t i = consumer.outputs.size(); i < merged.outputs.size(); ++i) {
          if (merged.outputs[i].buffer == x.src(0).arg(0)) *slot = merged.outputs[i].value;
        }
      }
    }
    for (size_t i = 0; i < consumer.outputs.size(); ++i) {
      merged.outputs[i].value = simplify(substitute(merged.outputs[i].value, replaced));
    }
    return adopt(p, c, std::move(merged), false);
  }

  bool beside(int a, int b) {
    KernelDraft& one = *tasks_[a].draft;
    KernelDraft& other = *tasks_[b].draft;
    if (!(one.mesh == other.mesh) || dependencies_.reaches(a, b) || dependencies_.reaches(b, a))
      return false;
    if (one.loops.size() != other.loops.size()) return false;
    NodeMap<UOp> map;
    for (size_t i = 0; i < one.loops.size(); ++i) {
      if (one.loops[i].arg(1) != other.loops[i].arg(1)) return false;
      map[one.loops[i]] = other.loops[i];
    }
    KernelDraft merged = other;
    for (const auto& out : one.outputs) {
      merged.outputs.push_back(
          {out.buffer, substitute(out.index, map), substitute(out.value, map)});
    }
    // One read less, but a copy in another order may be wanted long before the rest.
    return adopt(a, b, std::move(merged), true);
  }

  // Kernels over the same loops that read the same large buffer read it once.
  void siblings(std::span<const int> order) {
    std::map<int, std::vector<int>> readers;  // by buffer, in order
    for (int t : order) {
      if (tasks_[t].gone || !tasks_[t].draft) continue;
      const std::vector<int> reads = tasks_[t].reads;  // merging changes the task's own list
      for (int b : reads) {
        if (buffers_[b].numel() < kSerialWork / 4) continue;
        for (int other : readers[b]) {
          if (other != t && !tasks_[other].gone && tasks_[other].draft) beside(other, t);
        }
      }
      for (int b : tasks_[t].reads) readers[b].push_back(t);
    }
  }

  // `one_order`: all of its stores have to be in one order.
  bool adopt(int from, int into, KernelDraft merged, bool one_order) {
    if (merged.outputs.size() > kMaxOutputs) return false;
    if (!in_place_is_safe(merged, buffers_)) return false;
    std::vector<UOp> all = toposort(expressions(merged));
    if (all.size() > kMaxNodes) return false;
    // Maps turn tiles for a second order, which kernels with folds do not.
    one_order |= std::ranges::any_of(all, [](const UOp& x) { return x.op() == Op::Fold; });
    if (one_order && stores_in_two_orders(merged)) return false;
    if (arrange_loops(merged, free_ranges_) || reduced_inside_two(folds_among(all), free_ranges_))
      return false;
    Task trial = tasks_[into];
    trial.draft = std::move(merged);
    update_accesses(trial);
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

  // An output that nothing outside of its kernel reads needs no memory.
  void drop_unread() {
    std::vector<char> needed(buffers_.size());
    for (size_t b = 0; b < buffers_.size(); ++b) {
      needed[b] =
          buffers_[b].output || buffers_[b].storage || first_version(buffers_, int(b)) != int(b);
    }
    for (const Task& task : tasks_) {
      for (int b : task.reads) needed[b] = true;
    }
    for (Task& task : tasks_) {
      if (!task.draft || task.draft->outputs.size() < 2) continue;
      std::erase_if(task.draft->outputs, [&](const auto& out) { return !needed[out.buffer]; });
      update_accesses(task);
    }
  }

  std::vector<Task>& tasks_;
  const std::vector<VirtualBuffer>& buffers_;
  Dependencies dependencies_;
  FreeRanges free_ranges_;
};

}  // namespace

int first_version(const std::vector<VirtualBuffer>& buffers, int buffer) {
  for (;;) {
    buffer = earliest_version(buffers, buffer);
    const VirtualBuffer& b = buffers[size_t(buffer)];
    const bool is_name = b.container >= 0 && b.container_offset == 0 &&
                         b.bytes() == buffers[size_t(b.container)].bytes();
    if (!is_name) return buffer;
    buffer = b.container;
  }
}

void update_accesses(Task& task) {
  task.reads.clear();
  task.writes.clear();
  for (const auto& out : task.draft->outputs) task.writes.push_back(out.buffer);
  for (const UOp& x : toposort(expressions(*task.draft))) {
    if (x.op() != Op::Load) continue;
    int b = int(x.src(0).arg(0));
    if (std::ranges::find(task.reads, b) == task.reads.end()) task.reads.push_back(b);
  }
}

bool in_place_is_safe(const KernelDraft& draft, const std::vector<VirtualBuffer>& buffers) {
  for (const auto& out : draft.outputs) {
    int memory = first_version(buffers, out.buffer);
    for (const auto& other : draft.outputs) {
      if (&other != &out && first_version(buffers, other.buffer) == memory) return false;
    }
    for (const UOp& x : toposort(expressions(draft))) {
      if (x.op() != Op::Load || first_version(buffers, int(x.src(0).arg(0))) != memory) continue;
      if (!(x.src(1) == out.index)) return false;
    }
  }
  return true;
}

UOp arrange_loops(KernelDraft& draft, FreeRanges& free_ranges, bool serial) {
  std::vector<std::pair<UOp, std::vector<UOp>>>
      needs;  // (fold or null for a store, loops that must come first)
  std::vector<UOp> all = toposort(expressions(draft));
  for (const UOp& x : all) {
    if (x.op() != Op::Fold) continue;
    std::vector<UOp> loops, outer_folds;
    for (const UOp& r : free_ranges(x)) {
      (RangeKind(r.arg(2)) == RangeKind::Loop ? loops : outer_folds).push_back(r);
    }
    if (!outer_folds.empty()) {
      // Inside another fold: it is computed anew for every range the outer fold depends on.
      for (const UOp& outer : all) {
        if (outer.op() != Op::Fold || outer == x) continue;
        bool binds = std::ranges::any_of(outer->src().subspan(1),
                                         [&](const UOp& r) { return contains(outer_folds, r); });
        if (binds && !contains_all(free_ranges(x), free_ranges(outer)) &&
            sizes(x->src().subspan(1)) > 16)
          return x;
      }
      continue;
    }
    needs.push_back({x, std::move(loops)});
  }
  for (const auto& out : draft.outputs) needs.push_back({UOp(), free_ranges(out.index)});
  std::ranges::sort(needs, {}, [](const auto& need) {
    return std::pair(need.second.size(), need.first ? need.first->id : UINT64_MAX);
  });
  std::vector<UOp> order;
  for (const auto& [fold, loops] : needs) {
    if (!contains_all(loops, order)) return fold ? fold : draft.outputs.front().value;
    for (const UOp& r : draft.loops) {
      if (contains(loops, r) && !contains(order, r)) order.push_back(r);
    }
  }
  for (const auto& [fold, loops] : needs) {
    if (serial || !fold || loops.size() == draft.loops.size()) continue;
    int64_t rows = sizes(loops), work = rows * sizes(fold->src().subspan(1));
    if (rows < kParallelWork && std::max(work, sizes(draft.loops)) > kSerialWork) return fold;
  }
  for (const UOp& r : draft.loops) {
    if (!contains(order, r)) order.push_back(r);
  }
  draft.loops = std::move(order);
  return UOp();
}

void merge_kernels(std::vector<Task>& tasks, const std::vector<VirtualBuffer>& buffers) {
  Merger(tasks, buffers).run();
}

}  // namespace tinyshard
