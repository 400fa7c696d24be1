#include "core/schedule/reuse.h"

#include <algorithm>

#include "core/rewrite/affine.h"
#include "core/schedule/memory.h"

namespace tinyshard {
namespace {

bool loads(const UOp& x, int buffer) { return x.op() == Op::Load && x.src(0).arg(0) == buffer; }

bool contains(std::span<const UOp> list, const UOp& x) {
  return std::ranges::find(list, x) != list.end();
}

// The loads of `buffer` that x needs, without those inside of further folds.
std::vector<UOp> own_loads(const UOp& x, int buffer) {
  std::vector<UOp> found, todo{x};
  NodeMap<bool> seen;
  while (!todo.empty()) {
    UOp y = std::move(todo.back());
    todo.pop_back();
    if (y.op() == Op::Fold || seen.contains(y)) continue;
    seen[y] = true;
    if (loads(y, buffer)) found.push_back(y);
    for (const UOp& s : y->src()) todo.push_back(s);
  }
  return found;
}

// Whether a fold with these loops around it reads, through `read`, exactly what the same values of
// these loops store through `stored`: its own ranges run over the others.
bool same_elements(const UOp& read, const UOp& stored, std::span<const UOp> loops) {
  auto a = as_affine(read), b = as_affine(stored);
  if (!a || !b || a->constant != b->constant || a->terms.size() != b->terms.size()) return false;
  std::vector<std::pair<int64_t, int64_t>> folded, left;
  for (const Affine::Term& t : a->terms) {
    if (!contains(loops, t.range))
      folded.emplace_back(t.coefficient, t.range.arg(1));
    else if (b->coefficient(t.range) != t.coefficient)
      return false;
  }
  for (const Affine::Term& t : b->terms) {
    if (!contains(loops, t.range)) left.emplace_back(t.coefficient, t.range.arg(1));
  }
  std::ranges::sort(folded);
  std::ranges::sort(left);
  return folded == left;
}

}  // namespace

bool may_replace(const KernelDraft& draft, const KernelDraft::Output& output, int buffer,
                 FreeRanges& free_ranges) {
  const std::vector<UOp> stored_over = free_ranges(output.index);
  std::vector<UOp> before = toposort(std::span(&output.value, 1));
  for (const auto& out : draft.outputs) {
    // Outputs over loops of which none contains the other may be stored one after the other.
    const std::vector<UOp> loops = free_ranges(out.index);
    auto within = [](const std::vector<UOp>& a, const std::vector<UOp>& b) {
      return std::ranges::all_of(a, [&](const UOp& r) { return contains(b, r); });
    };
    if (!within(loops, stored_over) && !within(stored_over, loops)) return false;
    for (const UOp& load : own_loads(out.value, buffer)) {
      if (!(load.src(1) == output.index)) return false;
    }
    for (const UOp& x : toposort(std::span(&out.value, 1))) {
      if (x.op() != Op::Fold) continue;
      for (const UOp& load : own_loads(x.src(0), buffer)) {
        if (!contains(before, x) || !same_elements(load.src(1), output.index, free_ranges(x)))
          return false;
      }
    }
  }
  return true;
}

void reuse_operands(std::span<const Task> tasks, std::span<const int> order,
                    const Dependencies& dependencies, std::vector<VirtualBuffer>& buffers,
                    int64_t spare) {
  std::vector<int> last(buffers.size(), -1);  // place in the order of the last use of a memory
  auto memory = [&](int b) { return memory_holder(buffers, b); };
  for (int i = 0; i < int(order.size()); ++i) {
    for (int b : tasks[size_t(order[size_t(i)])].reads) last[size_t(memory(b))] = i;
    for (int b : tasks[size_t(order[size_t(i)])].writes) last[size_t(memory(b))] = i;
  }
  auto temporary = [&](int b) {
    const VirtualBuffer& v = buffers[size_t(b)];
    return !v.storage && !v.output && v.container < 0;
  };
  // Back to who wrote the memory last: readers of what it held before are waited for already, as
  // are those that the task needs something else from.
  auto read_beside = [&](int m, int place) {
    auto in_memory = [&](int b) { return memory(b) == m; };
    for (int i = place - 1; i >= std::max(0, place - kBeside); --i) {
      int t = order[size_t(i)];
      const Task& other = tasks[size_t(t)];
      if (std::ranges::any_of(other.writes, in_memory)) return false;
      if (std::ranges::any_of(other.reads, in_memory) &&
          !dependencies.reaches(t, order[size_t(place)]))
        return true;
    }
    return false;
  };
  FreeRanges free_ranges;
  for (int i = 0; i < int(order.size()); ++i) {
    const Task& task = tasks[size_t(order[size_t(i)])];
    if (!task.draft) continue;
    for (const auto& out : task.draft->outputs) {
      VirtualBuffer& result = buffers[size_t(out.buffer)];
      if (!temporary(out.buffer) || result.previous >= 0) continue;
      int replaced = -1;
      for (int operand : task.reads) {
        int m = memory(operand);
        const VirtualBuffer& old = buffers[size_t(m)];
        if (!temporary(m) || last[size_t(m)] != i || !(old.mesh == result.mesh)) continue;
        if (old.dtype != result.dtype || old.bytes() != result.bytes()) continue;
        auto same_memory = [&](int b) { return memory(b) == m; };
        if (std::ranges::count_if(task.reads, same_memory) != 1) continue;
        if (std::ranges::any_of(task.writes, same_memory)) continue;
        if (!may_replace(*task.draft, out, operand, free_ranges)) continue;
        bool alone = !read_beside(m, i);
        if (alone || replaced < 0) replaced = operand;
        if (alone) break;
      }
      if (replaced < 0) continue;
      if (result.bytes() <= spare && read_beside(memory(replaced), i)) {
        spare -= result.bytes();
        continue;
      }
      last[size_t(memory(replaced))] = last[size_t(out.buffer)];
      result.previous = replaced;
    }
  }
}

}  // namespace tinyshard
