// Lowering: one task for each value with memory. Values are visited from the roots down, so that a
// kernel says which values it reads before their own turn comes:
//
//   y = relu(x.matmul(w)) / 2        memory: x, w, the product p (a library makes it), y (a root)
//   y   kernel  y[i] = max(p[i], 0) * 0.5      wants p
//   p   call    matmul(x, w)                   wants x and w, which have storages
//
// A kernel in which something does not fit is made again with that value taken out of it, which
// then has a turn of its own.
#include "core/schedule/draft.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/rewrite/pattern.h"
#include "core/schedule/limits.h"
#include "core/schedule/loops.h"
#include "core/schedule/results.h"
#include "core/schedule/schedule_state.h"
#include "core/uop/args.h"
#include "core/uop/own_kernel.h"
#include "multi/collective.h"
#include "multi/relocation.h"

namespace tinyshard {
namespace {

class Drafter {
 public:
  explicit Drafter(ScheduleState& state)
      : state_(state),
        demand_(state.order, state.roots),
        lowering_(*state.fusion, demand_, [this](const UOp& x) {
          copy_demanded_ |= x.op() == Op::CopyIn && !state_.buffer.contains(x);
          return state_.buffer_of(x);
        }) {}

  void run() {
    state_.schedule.buffers.reserve(state_.fusion->values());
    name_again();
    for (const UOp& root : state_.roots) {
      int b = state_.buffer_of(root);
      state_.schedule.roots.push_back(b);
      if (root.op() != Op::Buffer && root.op() != Op::Assign)
        state_.schedule.buffers[size_t(b)].output = true;
    }
    make_tasks();
    state_.dependencies.emplace(state_.tasks, state_.schedule.buffers);
    if (const std::vector<int>& stuck = state_.dependencies->stuck(); !stuck.empty())
      state_.needed_later = overwritten_by(stuck);
    else
      state_.drafted = state_.dependencies->order(state_.tasks);
  }

 private:
  // An After is a further name of its operand's memory. Kernels must know, as they may write there.
  void name_again() {
    for (const UOp& x : state_.order) {
      if (x.op() != Op::After || x->numel() == 0) continue;
      int operand = whole_operand(x.src(0)), name = state_.buffer_of(x);
      state_.schedule.buffers[size_t(name)].container = operand;
    }
  }

  // The values, Buffers or Assigns, that these tasks write over.
  std::vector<UOp> overwritten_by(const std::vector<int>& stuck) const {
    std::vector<bool> overwritten(state_.schedule.buffers.size());
    for (int t : stuck) {
      for (int written : state_.tasks[t].writes) {
        if (int old = state_.schedule.buffers[written].previous; old >= 0)
          overwritten[size_t(old)] = true;
      }
    }
    std::vector<UOp> values;
    for (const UOp& x : state_.order) {
      if (x.op() != Op::Buffer && x.op() != Op::Assign) continue;
      if (const int* b = state_.buffer.find(x); b && overwritten[size_t(*b)]) values.push_back(x);
    }
    check_internal(!values.empty(),
                   "only an overwritten storage makes items wait for each other in a circle");
    return values;
  }

  void make_task(const UOp& x, int buffer, int position) {
    if (x.op() == Op::Buffer || x->numel() == 0) return;  // nothing to compute
    if (state_.made_along.contains(x)) return;
    Task task;
    task.position = position;
    task.item = item_of(x, buffer);
    if (task.item) {
      write_results(task, x, buffer);
      task.nothing = x.op() == Op::After;
      if (x.op() == Op::Collective) {
        task.turn = gather_time(x).turn;
        task.prefetch = gather_time(x).prefetch;
      }
    } else {
      kernels_.resize(state_.tasks.size() + 1);
      kernels_.back().value = x;
      take(task, draft_task(x, buffer, int(state_.tasks.size())));
      task.draft->mesh = state_.schedule.buffers[buffer].mesh;
    }
    state_.tasks.push_back(std::move(task));
  }

  // Null for what a kernel computes.
  std::unique_ptr<Item> item_of(const UOp& x, int buffer) {
    auto made = [](Item item) { return std::make_unique<Item>(std::move(item)); };
    switch (x.op()) {
      case Op::Dot:
      case Op::Attention:
      case Op::AttentionBackward:
        return made(library_call(x));
      case Op::Conv:
      case Op::ConvBackwardData:
      case Op::ConvBackwardWeight:
      case Op::Sort:
      case Op::Scan:
        return made(whole_buffers(x, Item::Kind::Library));
      case Op::Decompose: {
        Item item = whole_buffers(x, Item::Kind::Library);
        item.call.also = siblings(state_, x);
        return made(std::move(item));
      }
      case Op::ScatterAdd:
        return made(scatter_add(x));
      case Op::Collective:
        return made(collective(x));
      case Op::CopyIn:
        return made(is_relocation(*x) ? relocation_item(x) : copy(x));
      case Op::Sink:
        return made(own_kernel_item(x));
      case Op::After: {
        Item item;
        item.buffers = {state_.schedule.buffers[size_t(buffer)].container,
                        state_.buffer_of(base_of(x.src(1)))};
        return made(std::move(item));
      }
      default:
        return nullptr;
    }
  }

  // The task of an item reads the operands that this has so far, and writes what it makes.
  void write_results(Task& task, const UOp& x, int buffer) {
    Item& item = *task.item;
    if (!is_relocation(*x)) item.mesh = state_.schedule.buffers[buffer].mesh;
    task.reads = item.buffers;
    auto write = [&](int b) {
      item.buffers.push_back(b);
      if (std::ranges::find(task.writes, b) == task.writes.end()) task.writes.push_back(b);
    };
    write(buffer);
    for (const UOp& other : item.call.also) {
      write(state_.buffer_of(other));
      state_.made_along[other] = true;
    }
  }

  struct Drafted {
    KernelDraft draft;
    Accesses accesses;
    std::vector<UOp> reductions;  // of floats, that it computes
  };
  static void take(Task& task, Drafted drafted) {
    task.draft = std::move(drafted.draft);
    task.reads = std::move(drafted.accesses.reads);
    task.writes = std::move(drafted.accesses.writes);
  }

  // Drafts task number `task` for x. No two kernels compute the same reduction of floats: summed in
  // another order, one value would have two sets of bits. What both want gets memory, and the other
  // kernel is made again.
  //
  //   y = x / x.sum(); m = y.max(); e = y == m
  //   The kernels of m and e both read the sum from its buffer, and divide by it themselves.
  Drafted draft_task(const UOp& x, int buffer, int task) {
    for (;;) {
      Drafted drafted = fitting_draft(x, buffer);
      std::vector<int> others;
      for (const UOp& reduction : drafted.reductions) {
        int* other = reducer_.find(reduction);
        if (!other || *other == task || !computes(*other, reduction)) continue;
        state_.fusion->materialize(reduction);
        if (std::ranges::find(others, *other) == others.end()) others.push_back(*other);
      }
      if (others.empty()) {
        for (const UOp& reduction : drafted.reductions) reducer_[reduction] = task;
        kernels_[size_t(task)].reductions = std::move(drafted.reductions);
        return drafted;
      }
      for (int other : others) {
        Task& old = state_.tasks[other];
        const Mesh mesh = old.draft->mesh;
        Drafted again =
            fitting_draft(kernels_[size_t(other)].value, old.draft->outputs.front().buffer);
        kernels_[size_t(other)].reductions = std::move(again.reductions);
        take(old, std::move(again));
        old.draft->mesh = mesh;
      }
      drafted_again_ = true;
    }
  }

  bool computes(int task, const UOp& reduction) const {
    const std::vector<UOp>& all = kernels_[size_t(task)].reductions;
    return std::ranges::find(all, reduction) != all.end();
  }

  // Builds the kernel again with a value taken out of it, as long as something in it does not fit.
  Drafted fitting_draft(const UOp& x, int buffer) {
    for (;;) {
      KernelDraft result = lowering_.kernel(x, buffer);
      const NodeOrder nodes = all_nodes(result);
      if (!fits_a_kernel(result, nodes) && take_out_folds(x, nodes)) continue;
      if (UOp misfit = arrange_loops(result, nodes, state_.free_ranges)) {
        check_internal(misfit.op() == Op::Fold,
                       "only a fold keeps a single output from being ordered");
        const UOp reduction = lowering_.origin(misfit);
        // Results that are the same along a dim: there is no further value to take out.
        bool whole = reduction == x;
        if (!whole) state_.fusion->materialize(reduction);
        if (!whole || arrange_loops(result, nodes, state_.free_ranges, true)) continue;
      }
      const std::vector<UOp> folds = folds_among(nodes);
      if (UOp reduction = lowering_.reduced_twice(folds, state_.free_ranges)) {
        state_.fusion->materialize(reduction);
      } else if (!in_place_is_safe(result, nodes, state_.schedule.buffers)) {
        check_internal(x.op() == Op::Assign && !state_.fusion->materialized(x.src(1)),
                       "a copy is always in place");
        state_.fusion->materialize(x.src(1));
      } else {
        Accesses accesses = accesses_of(result, nodes);
        return {std::move(result), std::move(accesses), lowering_.float_reductions(folds)};
      }
    }
  }

  // Gives memory to reductions in the kernel of x, as many as there are ranges too many; false where
  // there is none.
  bool take_out_folds(const UOp& x, std::span<const UOp> nodes) {
    const size_t ranges = ranges_of(nodes);
    size_t too_many = ranges > kMostRanges ? ranges - kMostRanges : 1;
    bool any = false;
    for (const UOp& fold : folds_among(nodes)) {
      const UOp reduction = lowering_.origin(fold);
      if (too_many == 0) break;
      if (reduction == x || state_.fusion->materialized(reduction)) continue;
      state_.fusion->materialize(reduction);
      any = true;
      --too_many;
    }
    return any;
  }

  // Returns the value with memory that is below an operand's movements.
  UOp base_of(const UOp& operand) const {
    UOp base = operand;
    while (!state_.fusion->materialized(base)) base = base.src(0);
    return base;
  }

  // The buffer that holds the operand as it is, row-major and whole.
  int whole_operand(const UOp& operand) {
    if (auto view = lowering_.view(operand)) {
      auto& [base, strided] = *view;
      if (is_row_major(strided) && base->numel() == operand->numel()) return state_.buffer_of(base);
    }
    state_.fusion->materialize(operand);
    return state_.buffer_of(operand);
  }

  Item whole_buffers(const UOp& x, Item::Kind kind) {
    Item item;
    item.kind = kind;
    item.call = row_major_call(x);
    for (const UOp& s : x->src()) item.buffers.push_back(whole_operand(s));
    return item;
  }

  // A kernel of the program's own (core/uop/own_kernel.h): its parameters are these buffers.
  Item own_kernel_item(const UOp& x) {
    const OwnKernel& own = *own_kernel(x);
    Item item = whole_buffers(x, Item::Kind::Kernel);
    item.call = {};
    item.kernel.name = own.name;
    item.kernel.sink = own.sink;
    item.kernel.loops = own.loops;
    for (const UOp& s : x->src())
      item.kernel.params.push_back({.dtype = s.dtype(), .numel = s->numel()});
    item.kernel.params.push_back({.dtype = x.dtype(), .numel = x->numel(), .written = true});
    return item;
  }

  // Users before sources: making a task may demand further buffers, all of them of earlier values,
  // but for a task that is made again, which may want one of any value before its own, and for the
  // number at which a value ends to be demanded, which may come later.
  void make_tasks() {
    std::vector<char> made(state_.order.size());
    state_.tasks.reserve(state_.fusion->values());
    do {
      copy_demanded_ = false;
      for (size_t i = state_.order.size(); i-- > 0;) {
        const int* b = made[i] ? nullptr : state_.buffer.find(state_.order[i]);
        if (!b) continue;
        made[i] = true;
        make_task(state_.order[i], *b, int(i));
        if (std::exchange(drafted_again_, false)) i = state_.order.size();
      }
    } while (copy_demanded_);
    // Most are in reverse order, and a task is large.
    std::ranges::reverse(state_.tasks);
    if (!std::ranges::is_sorted(state_.tasks, {}, &Task::position))
      std::ranges::stable_sort(state_.tasks, {}, &Task::position);
  }

  Item library_call(const UOp& x) {
    std::vector<UOp> along = siblings(state_, x);
    auto item = as_views(x, along);
    // Siblings go one by one where not together; but one call writes all parts of a value.
    if (!item && results_of({x, {}, along}, place_of_).empty()) item = as_views(x, {});
    if (!item)
      throw InternalError("an op without a library reached the schedule: " +
                          tinyshard::describe(*x));
    return *item;
  }

  // Operands as views first, so that transposes and heads cost nothing; copies where the library
  // refuses.
  std::optional<Item> as_views(const UOp& x, std::vector<UOp> along) {
    unsigned operands = unsigned(x->src().size());
    for (unsigned copied = 0; copied < 1u << operands; ++copied) {
      Item item;
      item.kind = Item::Kind::Library;
      item.call = {x, {}, along};
      item.call.results = results_of(item.call, place_of_);
      std::vector<UOp> bases;
      for (unsigned i = 0; i < operands; ++i) {
        const UOp& s = x.src(i);
        auto view = (copied >> i & 1) ? std::nullopt : lowering_.view(s);
        if (view) {
          bases.push_back(view->first);
          item.call.operands.push_back(view->second);
        } else {
          bases.push_back(s);
          item.call.operands.push_back(row_major(s.shape()));
        }
      }
      if (!state_.options.library_supports(item.call)) continue;
      for (const UOp& base : bases) {
        state_.fusion->materialize(base);
        item.buffers.push_back(state_.buffer_of(base));
      }
      return item;
    }
    return std::nullopt;
  }

  // An index repeated along rows stays a view, of memory made for what is repeated where need be:
  // it is as large as the source otherwise.
  Item scatter_add(const UOp& x) {
    UOp repeated = x.src(0);
    while (repeated.op() == Op::Expand) repeated = repeated.src(0);
    if (!lowering_.view(x.src(0))) state_.fusion->materialize(repeated);
    if (auto view = lowering_.view(x.src(0))) {
      Item item;
      item.kind = Item::Kind::Library;
      item.call = row_major_call(x);
      item.call.operands[0] = view->second;
      if (state_.options.library_supports(item.call)) {
        item.buffers = {state_.buffer_of(view->first)};
        for (const UOp& s : x->src().subspan(1)) item.buffers.push_back(whole_operand(s));
        return item;
      }
    }
    return whole_buffers(x, Item::Kind::Library);
  }

  Item collective(const UOp& x) {
    Item item = whole_buffers(x, Item::Kind::Collective);
    const CollectiveArg arg = collective_arg(*x);
    item.mesh_axis = arg.mesh_axis;
    const UOp& operand = x.src(0);
    item.collective.op = arg.op;
    item.collective.reduce = arg.reduce;
    item.collective.dtype = x.dtype();
    item.collective.count =
        size_t(arg.before ? operand->numel() / std::max<int64_t>(arg.parts, 1) : operand->numel());
    if (arg.op == CollectiveOp::Broadcast) item.collective.from = int(broadcast_root(*x));
    if (const std::vector<Transfer> transfers = transfers_of(*x); !transfers.empty()) {
      const int64_t row = product(operand.shape().subspan(1));
      item.collective.count = 0;
      for (const Transfer& t : transfers)
        item.transfers.push_back({int(t.from), int(t.to), t.rows * row});
    }
    return item;
  }

  Item copy(const UOp& x) {
    Item item = whole_buffers(x, Item::Kind::Copy);
    item.source_shape = Dims(x.src(0).shape().begin(), x.src(0).shape().end());
    item.place_by_place = copies_place_by_place(*x);
    if (copies_from_places(*x)) {
      for (const int64_t place : x->arg().subspan(1)) item.places.push_back(int(place));
      item.buffers.assign(item.places.size(), item.buffers[0]);
    }
    for (const ShardSliceArg& part : copied_parts(*x))
      item.parts.push_back({int(part.dim), int(part.mesh_axis), part.parts});
    return item;
  }

  // An exchange among the devices of both meshes, which may be one. Each buffer is on one of them.
  Item relocation_item(const UOp& x) {
    Item item = whole_buffers(x, Item::Kind::Collective);
    const Relocation moves = relocation(*x, state_.schedule.buffers[size_t(item.buffers[0])].mesh);
    item.mesh = moves.among;
    item.collective.op = CollectiveOp::AllToAll;
    item.collective.dtype = x.dtype();
    for (const auto& [from, to] : moves.pairs) item.transfers.push_back({from, to, x->numel()});
    return item;
  }

  ScheduleState& state_;
  PlaceOf place_of_ = [this](const UOp& x) { return state_.places.find(x); };
  const Demand demand_;
  Lowering lowering_;
  struct Kernel {
    UOp value;
    std::vector<UOp> reductions;  // of floats
  };
  std::vector<Kernel> kernels_;  // while tasks are made, by their numbers
  NodeMap<int> reducer_;         // the latest task that computes a reduction
  bool drafted_again_ = false;
  bool copy_demanded_ = false;  // for the first time, in this round
};

}  // namespace

void lower_tasks(ScheduleState& state) { Drafter(state).run(); }

}  // namespace tinyshard
