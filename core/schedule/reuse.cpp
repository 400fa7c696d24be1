// Kernels are gone through in the order in which they run; each output looks for an operand that ends
// there.
//
//   e = exp(x);  s = sum of rows of e;  y = e / s         one kernel reads e and s, writes y
//
// e is a temporary of y's type and size, read for the last time there, and loaded with the index that y
// is stored with: y becomes a further version of e. s is smaller, and stays. If a kernel that nothing
// orders before this one reads e as well, y takes memory of its own as long as spare bytes are left, so
// that the two can run side by side.
#include "core/schedule/reuse.h"

#include <algorithm>
#include <functional>

#include "core/rewrite/affine.h"
#include "core/schedule/loops.h"
#include "core/schedule/memory.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

bool loads(const UOp& x, int slot) { return x.op() == Op::Load && slot_of(*x) == slot; }

// A fold that depends on the ranges of a fold around it is computed within the loops of that one.
bool is_inner(const UOp& fold, FreeRanges& free_ranges) {
  return std::ranges::any_of(free_ranges(fold),
                             [](const UOp& r) { return range_arg(*r).kind == RangeKind::Fold; });
}

// The loads of `slot` that happen where x is computed: those of folds with loops of their own
// happen elsewhere.
std::vector<UOp> own_loads(const UOp& x, int slot, FreeRanges& free_ranges) {
  std::vector<UOp> found, todo{x};
  NodeMap<bool> seen;
  while (!todo.empty()) {
    UOp y = std::move(todo.back());
    todo.pop_back();
    if (seen.contains(y) || (y.op() == Op::Fold && !is_inner(y, free_ranges))) continue;
    seen[y] = true;
    if (loads(y, slot)) found.push_back(y);
    for (const UOp& s : y->src()) todo.push_back(s);
  }
  return found;
}

// Tells whether a fold that is computed in these loops reads, through `read`, exactly what the same
// values of these loops store through `stored`: the ranges of folds run over the others.
bool same_elements(const UOp& read, const UOp& stored, std::span<const UOp> loops) {
  auto a = as_affine(read), b = as_affine(stored);
  if (!a || !b || a->constant != b->constant || a->terms.size() != b->terms.size()) return false;
  std::vector<std::pair<int64_t, int64_t>> folded, left;
  for (const Affine::Term& t : a->terms) {
    if (!contains(loops, t.range))
      folded.emplace_back(t.coefficient, range_arg(*t.range).size);
    else if (b->coefficient(t.range) != t.coefficient)
      return false;
  }
  for (const Affine::Term& t : b->terms) {
    if (!contains(loops, t.range)) left.emplace_back(t.coefficient, range_arg(*t.range).size);
  }
  std::ranges::sort(folded);
  std::ranges::sort(left);
  return folded == left;
}

// Outputs over loops of which none contains the other are stored one after the other: a value that
// two of them read cannot be replaced between.
bool in_one_nest(const KernelDraft& draft, FreeRanges& free_ranges) {
  std::vector<std::vector<UOp>> loops;
  for (const auto& out : draft.outputs) loops.push_back(free_ranges(out.index));
  std::ranges::sort(loops, {}, &std::vector<UOp>::size);
  auto within = [](const std::vector<UOp>& a, const std::vector<UOp>& b) {
    return std::ranges::all_of(a, [&](const UOp& r) { return contains(b, r); });
  };
  return std::ranges::adjacent_find(loops, std::not_fn(within)) == loops.end();
}

}  // namespace

bool may_replace(const KernelDraft& draft, const KernelDraft::Output& output, int buffer,
                 FreeRanges& free_ranges) {
  if (!in_one_nest(draft, free_ranges)) return false;
  const int slot = int(std::ranges::find(draft.slots, buffer) - draft.slots.begin());
  const NodeOrder before = toposort(std::span(&output.value, 1));
  for (const auto& out : draft.outputs) {
    for (const UOp& load : own_loads(out.value, slot, free_ranges)) {
      if (!(load.src(1) == output.index)) return false;
    }
    // A fold is computed once for each value of the loops that it depends on. So are the folds
    // inside of it that depend on its ranges: they read their elements again each time.
    for (const UOp& x : toposort(std::span(&out.value, 1))) {
      if (x.op() != Op::Fold || is_inner(x, free_ranges)) continue;
      for (const UOp& load : own_loads(x.src(0), slot, free_ranges)) {
        if (!contains(before, x) || !same_elements(load.src(1), output.index, free_ranges(x)))
          return false;
      }
    }
  }
  return true;
}

namespace {

// A fold that reads what the kernel writes over is complete before anything is stored, so its loops are
// computed by one team of threads each, whatever else is inside of them:
//
//   for c of 64:  m[c] = fold of p[n, c] over n      then for n of 62:  p[n, c] = fold over 12544 of (x - m[c])^2
//
// In place, 64 teams read all of x. In memory of its own, which is small beside x, there are 64 * 62.
constexpr double kMuchWork = 16;  // iterations of the kernel for each element of the result

bool holds_teams_up(const KernelDraft& draft, const KernelDraft::Output& output, int buffer,
                    FreeRanges& free_ranges) {
  const int slot = int(std::ranges::find(draft.slots, buffer) - draft.slots.begin());
  auto iterations = [&](const UOp& fold) {
    double count = 1;
    for (const UOp& r : free_ranges(fold.src(0))) count *= double(range_arg(*r).size);
    return count;
  };
  double elements = 1, most = 0;
  for (const UOp& r : free_ranges(output.index)) elements *= double(range_arg(*r).size);
  bool reads = false;
  for (const auto& out : draft.outputs) {
    for (const UOp& x : toposort(std::span(&out.value, 1))) {
      if (x.op() != Op::Fold) continue;
      most = std::max(most, iterations(x));
      reads =
          reads || (!is_inner(x, free_ranges) && !own_loads(x.src(0), slot, free_ranges).empty());
    }
  }
  return reads && most > kMuchWork * elements;
}

class Reuse {
 public:
  Reuse(std::span<const Task> tasks, std::span<const int> order, const Dependencies& dependencies,
        std::vector<VirtualBuffer>& buffers, int64_t spare)
      : tasks_(tasks),
        order_(order),
        dependencies_(dependencies),
        buffers_(buffers),
        spare_(spare),
        last_(buffers.size(), -1) {
    for (int place = 0; place < int(order.size()); ++place) {
      for (int b : task_at(place).reads) last_[memory(b)] = place;
      for (int b : task_at(place).writes) last_[memory(b)] = place;
    }
  }

  void run() {
    for (int place = 0; place < int(order_.size()); ++place) {
      if (!task_at(place).draft) continue;
      for (const auto& out : task_at(place).draft->outputs) {
        VirtualBuffer& result = buffers_[size_t(out.buffer)];
        if (!is_temporary(out.buffer) || result.previous >= 0) continue;
        Replaced best = best_operand(place, out);
        if (best.operand < 0) continue;
        if (best.read_beside && result.bytes() <= spare_) {
          spare_ -= result.bytes();
          continue;
        }
        last_[memory(best.operand)] = last_[size_t(out.buffer)];
        result.previous = best.operand;
      }
    }
  }

 private:
  const Task& task_at(int place) const { return tasks_[size_t(order_[size_t(place)])]; }
  size_t memory(int b) const { return size_t(memory_holder(buffers_, b)); }
  bool is_temporary(int b) const {
    const VirtualBuffer& v = buffers_[size_t(b)];
    return !v.storage && !v.output && v.container < 0;
  }

  struct Replaced {
    int operand = -1;  // none
    bool read_beside = false;
  };
  // Prefers an operand that nobody reads beside the task.
  Replaced best_operand(int place, const KernelDraft::Output& out) {
    Replaced found;
    for (int operand : task_at(place).reads) {
      if (!may_take(place, out, operand)) continue;
      if (!is_read_beside(memory(operand), place)) return {operand, false};
      if (found.operand < 0) found = {operand, true};
    }
    return found;
  }

  bool may_take(int place, const KernelDraft::Output& out, int operand) {
    const Task& task = task_at(place);
    const size_t m = memory(operand);
    const VirtualBuffer& result = buffers_[size_t(out.buffer)];
    if (!is_temporary(int(m)) || last_[m] != place) return false;
    // A member of a bucket is smaller than the memory: the result would lie beyond its end.
    for (const VirtualBuffer* old : {&buffers_[m], &buffers_[size_t(operand)]}) {
      if (!(old->mesh == result.mesh) || old->dtype != result.dtype) return false;
      if (old->bytes() != result.bytes()) return false;
    }
    auto same_memory = [&](int b) { return memory(b) == m; };
    return std::ranges::count_if(task.reads, same_memory) == 1 &&
           std::ranges::none_of(task.writes, same_memory) &&
           may_replace(*task.draft, out, operand, free_ranges_) &&
           !holds_teams_up(*task.draft, out, operand, free_ranges_);
  }

  // Tells whether a task shortly before reads the memory and could run beside this one. The search
  // goes back to the task that wrote the memory last: readers of its older content, and tasks that
  // this one depends on anyhow, are waited for already.
  bool is_read_beside(size_t m, int place) const {
    auto in_memory = [&](int b) { return memory(b) == m; };
    for (int i = place - 1; i >= std::max(0, place - kBeside); --i) {
      const Task& other = task_at(i);
      if (std::ranges::any_of(other.writes, in_memory)) return false;
      bool waited_for = dependencies_.reaches(order_[size_t(i)], order_[size_t(place)]);
      if (!waited_for && std::ranges::any_of(other.reads, in_memory)) return true;
    }
    return false;
  }

  std::span<const Task> tasks_;
  std::span<const int> order_;
  const Dependencies& dependencies_;
  std::vector<VirtualBuffer>& buffers_;
  int64_t spare_;
  std::vector<int> last_;  // place in the order of the last use of a memory
  FreeRanges free_ranges_;
};

}  // namespace

void reuse_operands(std::span<const Task> tasks, std::span<const int> order,
                    const Dependencies& dependencies, std::vector<VirtualBuffer>& buffers,
                    int64_t spare) {
  Reuse(tasks, order, dependencies, buffers, spare).run();
}

}  // namespace tinyshard
