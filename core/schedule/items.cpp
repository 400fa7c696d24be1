// Tasks become items. The loads of a draft name its slots, and its stores buffers of the schedule;
// the item's name its parameters, outputs first:
//
//   store b7[i] = load p0[i] * load p1[i], slots 2 4
//   store p0[i] = load p1[i] * load p2[i], buffers 7 2 4
//
// so that kernels which do the same to other buffers are equal, and compiled once.
#include "core/schedule/items.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/rewrite/affine.h"
#include "core/rewrite/pattern.h"
#include "core/schedule/memory.h"
#include "core/schedule/schedule_state.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

std::string kernel_name(const UOp& sink, std::span<const UOp> loops) {
  bool folds = false;
  for (const UOp& x : toposort(std::span(&sink, 1))) folds = folds || x.op() == Op::Fold;
  std::string name = folds ? "reduce" : "map";
  constexpr size_t kShown = 8;
  if (loops.size() > kShown) return fmt::format("{}_{}_loops", name, loops.size());
  for (const UOp& r : loops) name += fmt::format("_{}", range_arg(*r).size);
  return name;
}

// The value of a store, and where it is stored at all; null for everywhere. A row that is written
// into a storage is where(place == n, row, load storage): elsewhere nothing is read or written.
class MaskedStores {
 public:
  MaskedStores(const KernelDraft& draft, const std::vector<VirtualBuffer>& buffers,
               FreeRanges& free_ranges)
      : draft_(draft), buffers_(buffers), free_ranges_(free_ranges) {}

  std::pair<UOp, UOp> operator()(const KernelDraft::Output& out) {
    auto own = [&](const UOp& x) {
      return x.op() == Op::Load && x.src(1) == out.index && x->sources == 2 &&
             first_version(buffers_, draft_.buffer_of(x)) == first_version(buffers_, out.buffer);
    };
    UOp value = out.value, valid = out.valid;
    while (value.op() == Op::Where && tells_places(value.src(0))) {
      const bool kept_below = own(value.src(2));
      if (!kept_below && !own(value.src(1))) break;
      UOp here = kept_below ? value.src(0) : unary(Op::Not, value.src(0));
      valid = valid ? binary(Op::And, valid, here) : here;
      value = value.src(kept_below ? 1 : 2);
    }
    return {value, valid};
  }

 private:
  // Tells whether a condition compares ranges with numbers that do not vary with any.
  bool tells_places(const UOp& condition) {
    for (const UOp& x : toposort(std::span(&condition, 1))) {
      if ((x.op() == Op::Load || x.op() == Op::Fold) && !free_ranges_(x).empty()) return false;
    }
    return !free_ranges_(condition).empty();
  }

  const KernelDraft& draft_;
  const std::vector<VirtualBuffer>& buffers_;
  FreeRanges& free_ranges_;
};

// Loops split and merged so that indices are free of divisions, where that can be. Kernels of equal
// layers differ in their buffers only: with slots in place of those they are one node, and it is
// worked on once.
class Nests {
 public:
  struct Nest {
    std::vector<UOp> loops;
    UOp sink;
    std::string name;
  };

  const Nest& operator()(const UOp& sink, const std::vector<UOp>& loops) {
    std::vector<const Node*> key{sink.get()};
    for (const UOp& r : loops) key.push_back(r.get());
    auto [known, is_new] = known_.try_emplace(std::move(key));
    if (!is_new) return known->second;
    alive_.push_back(sink);
    alive_.insert(alive_.end(), loops.begin(), loops.end());
    return known->second = make(sink, loops);
  }

 private:
  static Nest make(const UOp& sink, std::vector<UOp> ranges) {
    const auto loops = std::ptrdiff_t(ranges.size());
    for (const UOp& x : toposort(std::span(&sink, 1))) {
      if (x.op() == Op::Range && range_arg(*x).kind == RangeKind::Fold) ranges.push_back(x);
    }
    std::sort(ranges.begin() + loops, ranges.end(),
              [](const UOp& a, const UOp& b) { return range_arg(*a).id < range_arg(*b).id; });
    LoopNest nest = split_ranges(std::span(&sink, 1), ranges);
    nest = merge_ranges(nest.roots, nest.ranges);
    Nest result{{}, nest.roots[0], {}};
    for (const UOp& r : nest.ranges) {
      if (range_arg(*r).kind == RangeKind::Loop) result.loops.push_back(r);
    }
    result.name = kernel_name(result.sink, result.loops);
    return result;
  }

  std::map<std::vector<const Node*>, Nest> known_;
  std::vector<UOp> alive_;  // nodes that keys point to
};

// The items of drafts. What drafts of equal layers become differs in the buffers only: it is worked
// on once.
class Kernels {
 public:
  Kernels(const std::vector<VirtualBuffer>& buffers, FreeRanges& free_ranges)
      : buffers_(buffers), free_ranges_(free_ranges) {}

  // Parameters in order of appearance: outputs first, then what is loaded.
  Item item(const KernelDraft& draft) {
    const Kernel& kernel = kernel_of(draft);
    Item item;
    item.kind = Item::Kind::Kernel;
    item.mesh = draft.mesh;
    item.kernel.sink = kernel.nest->sink;
    item.kernel.loops = kernel.nest->loops;
    item.kernel.name = kernel.nest->name;
    std::vector<int> memories;
    auto add = [&](int buffer, bool written) {
      const VirtualBuffer& b = buffers_[size_t(buffer)];
      ParamInfo param{.dtype = b.dtype, .numel = b.numel(), .written = written};
      memories.push_back(first_version(buffers_, buffer));
      for (size_t i = 0; i + 1 < memories.size(); ++i) {
        if (memories[i] == memories.back()) param.alias = int(i);
      }
      item.buffers.push_back(buffer);
      item.kernel.params.push_back(param);
    };
    for (const auto& out : draft.outputs) add(out.buffer, true);
    for (int slot : kernel.loaded) add(draft.slots[size_t(slot)], false);
    return item;
  }

 private:
  struct Kernel {
    const Nests::Nest* nest = nullptr;
    std::vector<int> loaded;  // slots of the draft
  };
  // Nodes, and which slots are the memory of which output.
  using Key = std::pair<std::vector<const Node*>, std::vector<std::pair<size_t, size_t>>>;

  const Kernel& kernel_of(const KernelDraft& draft) {
    auto [known, is_new] = known_.try_emplace(key_of(draft));
    if (is_new) known->second = make(draft);
    return known->second;
  }

  Key key_of(const KernelDraft& draft) {
    Key key;
    for (const UOp& r : draft.loops) key.first.push_back(r.get());
    std::vector<int> memories;
    for (int buffer : draft.slots) memories.push_back(first_version(buffers_, buffer));
    for (size_t o = 0; o < draft.outputs.size(); ++o) {
      const KernelDraft::Output& out = draft.outputs[o];
      for (const UOp& x : out.expressions()) key.first.push_back(x.get());
      const int written = first_version(buffers_, out.buffer);
      for (size_t slot = 0; slot < memories.size(); ++slot) {
        if (memories[slot] == written) key.second.emplace_back(o, slot);
      }
    }
    return key;
  }

  Kernel make(const KernelDraft& draft) {
    alive_.insert(alive_.end(), draft.loops.begin(), draft.loops.end());
    Kernel kernel;
    MaskedStores masked_store(draft, buffers_, free_ranges_);
    std::vector<UOp> values, stores;
    for (const auto& out : draft.outputs) {
      for (const UOp& x : out.expressions()) alive_.push_back(x);
      auto [value, valid] = masked_store(out);
      values.push_back(value);
      values.push_back(valid ? valid : const_int(DType::Bool, 1));
    }
    auto param = [](DType type, size_t number) {
      return UOp::make(Op::Param, type, {}, Dims{int64_t(number)});
    };
    NodeMap<UOp> params;
    for (const UOp& x : toposort(values)) {
      if (x.op() != Op::Load || params.contains(x.src(0))) continue;
      params[x.src(0)] = param(x.dtype(), draft.outputs.size() + kernel.loaded.size());
      kernel.loaded.push_back(int(slot_of(*x)));
    }
    values = substitute(values, params);
    for (size_t i = 0; i < draft.outputs.size(); ++i) {
      const DType type = draft.outputs[i].value.dtype();
      std::vector<UOp> src{param(type, i), draft.outputs[i].index, values[2 * i]};
      if (!is_const(values[2 * i + 1], 1)) src.push_back(values[2 * i + 1]);
      stores.push_back(UOp::make(Op::Store, type, src));
    }
    kernel.nest = &nests_(UOp::make(Op::Sink, DType::Bool, stores), draft.loops);
    return kernel;
  }

  const std::vector<VirtualBuffer>& buffers_;
  FreeRanges& free_ranges_;
  Nests nests_;
  std::map<Key, Kernel> known_;
  std::vector<UOp> alive_;  // nodes that keys point to
};

// Numbers the collectives, and has the first item that touches memory which one uses wait for it,
// and for all that were started before over the same devices: these are done by then, and let go of
// what they sent, which may be a gradient whose sum is asked for much later.
void add_waits(Schedule& schedule) {
  uint64_t sequence = 0;
  std::map<std::pair<int64_t, int>, std::vector<int>>
      started;  // that nobody waited for, by mesh and axis
  // Collectives that use a memory, by its holder; those that somebody has waited for.
  std::vector<std::vector<int>> pending(schedule.buffers.size());
  std::vector<bool> done(schedule.items.size());
  for (int i = 0; i < int(schedule.items.size()); ++i) {
    Item& item = schedule.items[size_t(i)];
    auto wait_for = [&](int b) {
      std::vector<int>& users = pending[size_t(memory_holder(schedule.buffers, b))];
      for (int other : users) {
        if (done[size_t(other)]) continue;
        const Item& collective = schedule.items[size_t(other)];
        std::vector<int>& before = started[{collective.mesh.id(), collective.mesh_axis}];
        const auto behind = std::ranges::upper_bound(before, other);
        for (auto c = before.begin(); c != behind; ++c) {
          done[size_t(*c)] = true;
          item.waits.push_back(*c);
        }
        before.erase(before.begin(), behind);
      }
      users.clear();
    };
    for (int b : item.reads) wait_for(b);
    for (int b : item.writes) wait_for(b);
    if (item.kind != Item::Kind::Collective) continue;
    item.sequence = ++sequence;
    started[{item.mesh.id(), item.mesh_axis}].push_back(i);
    for (int b : item.buffers) pending[size_t(memory_holder(schedule.buffers, b))].push_back(i);
  }
}

}  // namespace

void make_items(ScheduleState& state) {
  Schedule& schedule = state.schedule;
  Kernels kernels(schedule.buffers, state.free_ranges);
  const std::vector<int> order = order_of_tasks(state);
  schedule.items.reserve(order.size());
  for (int t : order) {
    Task& task = state.tasks[size_t(t)];
    if (task.nothing) continue;
    Item item = task.draft ? kernels.item(*task.draft) : std::move(*task.item);
    item.reads = task.reads;
    item.writes = task.writes;
    schedule.items.push_back(std::move(item));
  }
  add_waits(schedule);
}

}  // namespace tinyshard
