// Puts the stages together: fusion, one draft per value, merging, order, memory.
#include "core/schedule/schedule.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/options.h"
#include "core/rewrite/affine.h"
#include "core/rewrite/pattern.h"
#include "core/schedule/buckets.h"
#include "core/schedule/dependencies.h"
#include "core/schedule/fusion.h"
#include "core/schedule/join.h"
#include "core/schedule/lower.h"
#include "core/schedule/memory.h"
#include "core/schedule/merge.h"
#include "core/schedule/meshes.h"
#include "core/schedule/order.h"
#include "core/schedule/parts.h"
#include "core/schedule/reuse.h"
#include "core/schedule/verify.h"

namespace tinyshard {
namespace {

class Scheduler {
 public:
  Scheduler(std::span<const UOp> roots, std::span<const Sharding> shardings,
            const ScheduleOptions& options)
      : roots_(roots),
        options_(options),
        order_(toposort(roots)),
        fusion_(order_, roots),
        lowering_(fusion_, [this](const UOp& x) { return buffer_of(x); }),
        meshes_(find_meshes(order_, roots, shardings)) {
    for (const UOp& x : order_) {
      if (is_library_op(x.op())) calls_of_[x.src(0)].push_back(x);
    }
  }

  // Values of storages that are needed after the next one was written over them, when there are
  // any: the graph must be given copies of them first. Otherwise empty, and `take` has the
  // schedule.
  std::vector<UOp> run() {
    name_results();
    name_again();
    for (const UOp& root : roots_) {
      int b = buffer_of(root);
      schedule_.roots.push_back(b);
      if (root.op() != Op::Buffer && root.op() != Op::Assign) schedule_.buffers[b].output = true;
    }
    make_tasks();
    if (std::vector<int> stuck = Dependencies(tasks_, schedule_.buffers).stuck(); !stuck.empty()) {
      return overwritten_by(stuck);
    }
    merge_kernels(tasks_, schedule_.buffers);
    if (options_.join_kernels) join_kernels(tasks_, schedule_.buffers);
    bucket_collectives(tasks_, schedule_.buffers, options_.bucket_bytes);
    emit();
    plan_memory(schedule_, options_.spare_bytes);
    return {};
  }
  Schedule take() { return std::move(schedule_); }

 private:
  // What a collective brings for a storage arrives there, a product that updates one is made there,
  // and a library writes its results into what consists of them: no copies of them.
  void name_results() {
    const NodeMap<int> uses = count_uses(order_, roots_);
    for (const UOp& x : order_) {
      if (x.op() != Op::Assign) continue;
      UOp result = x.src(1);
      while (result.op() == Op::Reshape && uses.at(result) == 1) result = result.src(0);
      bool arrives = result.op() == Op::Collective || updates(result, x.src(0));
      if (!arrives || uses.at(result) != 1) continue;
      buffer_[result] = buffer_of(x);
      made_along_[x] = true;
    }
    for (const UOp& x : order_) {
      if (fusion_.materialized(x) && !buffer_.contains(x)) write_parts(x, uses);
    }
  }

  // An After is a further name of its operand's memory. Kernels must know, as they may write there.
  void name_again() {
    for (const UOp& x : order_) {
      if (x.op() != Op::After || x->numel() == 0) continue;
      int operand = whole_operand(x.src(0)), name = buffer_of(x);
      schedule_.buffers[size_t(name)].container = operand;
    }
  }

  // Where a value has nothing but results of one library call, which nobody else reads, and the
  // library can write them where they lie in it: a projection's gradient has those of the queries,
  // keys and values.
  void write_parts(const UOp& whole, const NodeMap<int>& uses) {
    auto parts =
        parts_of(whole, [&](const UOp& x) { return fusion_.materialized(x) || uses.at(x) != 1; });
    if (!parts) return;
    const UOp& first = parts->front().value;
    if (!is_library_op(first.op())) return;
    LibraryCall call = row_major_call(first);
    call.also = siblings(first);
    NodeMap<StridedView> places = places_;
    for (const Part& part : *parts) {
      bool of_call = part.value == first || std::ranges::count(call.also, part.value) == 1;
      if (!of_call || uses.at(part.value) != 1) return;
      places[part.value] = part.view;
    }
    call.results = results_of(call, places);
    if (!call.results.empty() && !(is_strided_call(first.op()) && options_.library_supports(call)))
      return;
    for (const Part& part : *parts) buffer_[part.value] = buffer_of(whole);
    made_along_[whole] = true;
    places_ = std::move(places);
  }

  // The ops whose libraries may be asked for views of what they read and write.
  static bool is_strided_call(Op op) {
    return op == Op::Dot || op == Op::Attention || op == Op::AttentionBackward;
  }

  // Where the results of a call lie; empty when each is contiguous in a buffer of its own.
  static std::vector<StridedView> results_of(const LibraryCall& call,
                                             const NodeMap<StridedView>& places) {
    std::vector<StridedView> results;
    bool contiguous = true;
    auto add = [&](const UOp& x) {
      const StridedView* place = places.find(x);
      results.push_back(place ? *place : row_major(x.shape()));
      contiguous = contiguous && is_row_major(results.back());
    };
    add(call.node);
    for (const UOp& x : call.also) add(x);
    return contiguous ? std::vector<StridedView>() : results;
  }

  static bool updates(const UOp& product, const UOp& storage) {
    return product.op() == Op::Dot && epilogue_of(product) == Epilogue::Update &&
           under_views(product.src(2)) == storage && !(under_views(product.src(0)) == storage) &&
           !(under_views(product.src(1)) == storage);
  }

  // The values, Buffers or Assigns, that these tasks write over.
  std::vector<UOp> overwritten_by(const std::vector<int>& stuck) const {
    std::vector<bool> overwritten(schedule_.buffers.size());
    for (int t : stuck) {
      for (int written : tasks_[t].writes) {
        if (int old = schedule_.buffers[written].previous; old >= 0)
          overwritten[size_t(old)] = true;
      }
    }
    std::vector<UOp> values;
    for (const UOp& x : order_) {
      if (x.op() != Op::Buffer && x.op() != Op::Assign) continue;
      if (const int* b = buffer_.find(x); b && overwritten[size_t(*b)]) values.push_back(x);
    }
    check_internal(!values.empty(),
                   "only an overwritten storage makes items wait for each other in a circle");
    return values;
  }

  int buffer_of(const UOp& x) {
    if (int* found = buffer_.find(x)) return *found;
    VirtualBuffer b;
    b.dtype = x.dtype();
    b.shape.assign(x.shape().begin(), x.shape().end());
    b.mesh = *meshes_.at(x);
    if (x.op() == Op::Buffer) b.storage = x->payload;
    if (x.op() == Op::Assign) b.previous = buffer_of(x.src(0));
    schedule_.buffers.push_back(std::move(b));
    int number = int(schedule_.buffers.size()) - 1;
    buffer_[x] = number;
    return number;
  }

  void make_task(const UOp& x, int buffer, int position) {
    if (x.op() == Op::Buffer || x->numel() == 0) return;  // nothing to compute
    if (made_along_.contains(x)) return;
    Task task;
    task.position = position;
    switch (x.op()) {
      case Op::Dot:
      case Op::Attention:
      case Op::AttentionBackward:
        task.item = library_call(x);
        break;
      case Op::Conv:
      case Op::ConvBackwardData:
      case Op::ConvBackwardWeight:
        task.item = whole_buffers(x, Item::Kind::Library);
        break;
      case Op::ScatterAdd:
        task.item = scatter_add(x);
        break;
      case Op::Collective:
        task.item = collective(x);
        break;
      case Op::CopyIn:
        task.item = copy(x);
        break;
      case Op::After:
        task.item.buffers = {schedule_.buffers[size_t(buffer)].container,
                             buffer_of(base_of(x.src(1)))};
        task.nothing = true;
        break;
      default:
        task.draft = draft_task(x, buffer, int(tasks_.size()));
        value_of_[int(tasks_.size())] = x;
        break;
    }
    if (task.draft) {
      task.draft->mesh = schedule_.buffers[buffer].mesh;
      update_accesses(task);
    } else {
      task.item.mesh = schedule_.buffers[buffer].mesh;
      task.reads = task.item.buffers;
      auto write = [&](int b) {
        task.item.buffers.push_back(b);
        if (std::ranges::find(task.writes, b) == task.writes.end()) task.writes.push_back(b);
      };
      write(buffer);
      for (const UOp& other : task.item.call.also) {
        write(buffer_of(other));
        made_along_[other] = true;
      }
    }
    tasks_.push_back(std::move(task));
  }

  // Drafts task number `task` for x. No two kernels compute the same reduction of floats: summed in
  // another order, one value would have two sets of bits. What both want gets memory, and the other
  // kernel is made again.
  //
  //   y = x / x.sum(); m = y.max(); e = y == m
  //   The kernels of m and e both read the sum from its buffer, and divide by it themselves.
  KernelDraft draft_task(const UOp& x, int buffer, int task) {
    for (;;) {
      auto [draft, reductions] = fitting_draft(x, buffer);
      std::vector<int> others;
      for (const UOp& reduction : reductions) {
        int* other = reducer_.find(reduction);
        if (!other || *other == task || !computes(*other, reduction)) continue;
        fusion_.materialize(reduction);
        if (std::ranges::find(others, *other) == others.end()) others.push_back(*other);
      }
      if (others.empty()) {
        for (const UOp& reduction : reductions) reducer_[reduction] = task;
        reductions_of_[task] = std::move(reductions);
        return draft;
      }
      for (int other : others) {
        KernelDraft& old = *tasks_[other].draft;
        auto again = fitting_draft(value_of_.at(other), old.outputs.front().buffer);
        again.draft.mesh = old.mesh;
        old = std::move(again.draft);
        reductions_of_[other] = std::move(again.reductions);
        update_accesses(tasks_[other]);
      }
      drafted_again_ = true;
    }
  }

  bool computes(int task, const UOp& reduction) const {
    return std::ranges::find(reductions_of_.at(task), reduction) != reductions_of_.at(task).end();
  }

  struct Drafted {
    KernelDraft draft;
    std::vector<UOp> reductions;  // of floats, that it computes
  };
  // Builds the kernel again with a value taken out of it, as long as something in it does not fit.
  Drafted fitting_draft(const UOp& x, int buffer) {
    for (;;) {
      KernelDraft result = lowering_.kernel(x, buffer);
      if (UOp misfit = arrange_loops(result, free_ranges_)) {
        check_internal(misfit.op() == Op::Fold,
                       "only a fold keeps a single output from being ordered");
        const UOp reduction = lowering_.origin(misfit);
        // Results that are the same along a dim: there is no further value to take out.
        bool whole = reduction == x;
        if (!whole) fusion_.materialize(reduction);
        if (!whole || arrange_loops(result, free_ranges_, true)) continue;
      }
      const std::vector<UOp> folds = folds_among(toposort(expressions(result)));
      if (UOp reduction = lowering_.reduced_twice(folds, free_ranges_)) {
        fusion_.materialize(reduction);
      } else if (!in_place_is_safe(result, schedule_.buffers)) {
        check_internal(x.op() == Op::Assign && !fusion_.materialized(x.src(1)),
                       "a copy is always in place");
        fusion_.materialize(x.src(1));
      } else {
        return {std::move(result), lowering_.float_reductions(folds)};
      }
    }
  }

  // What has memory below an operand's movements.
  UOp base_of(const UOp& operand) const {
    UOp base = operand;
    while (!fusion_.materialized(base)) base = base.src(0);
    return base;
  }

  // The buffer that holds the operand as it is, row-major and whole.
  int whole_operand(const UOp& operand) {
    if (auto view = lowering_.view(operand)) {
      auto& [base, strided] = *view;
      if (is_row_major(strided) && base->numel() == operand->numel()) return buffer_of(base);
    }
    fusion_.materialize(operand);
    return buffer_of(operand);
  }

  Item whole_buffers(const UOp& x, Item::Kind kind) {
    Item item;
    item.kind = kind;
    item.call = row_major_call(x);
    for (const UOp& s : x->src()) item.buffers.push_back(whole_operand(s));
    return item;
  }

  // Users before sources: making a task may demand further buffers, all of them of earlier values,
  // but for a task that is made again, which may want one of any value before its own.
  void make_tasks() {
    std::vector<char> made(order_.size());
    for (size_t i = order_.size(); i-- > 0;) {
      const int* b = made[i] ? nullptr : buffer_.find(order_[i]);
      if (!b) continue;
      made[i] = true;
      make_task(order_[i], *b, int(i));
      if (std::exchange(drafted_again_, false)) i = order_.size();
    }
    std::ranges::stable_sort(tasks_, {}, &Task::position);
  }

  // Nodes that differ from x in their arguments only: one call may compute all of them.
  std::vector<UOp> siblings(const UOp& x) const {
    std::vector<UOp> found;
    for (const UOp& other : calls_of_.at(x.src(0))) {
      if (other.op() == x.op() && !(other == x) && std::ranges::equal(other->src(), x->src()))
        found.push_back(other);
    }
    return found;
  }

  Item library_call(const UOp& x) {
    std::vector<UOp> along = siblings(x);
    auto item = as_views(x, along);
    // One by one where not together; but one call writes all parts of a value.
    if (!item && results_of({x, {}, along}, places_).empty()) item = as_views(x, {});
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
      item.call.results = results_of(item.call, places_);
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
      if (!options_.library_supports(item.call)) continue;
      for (const UOp& base : bases) {
        fusion_.materialize(base);
        item.buffers.push_back(buffer_of(base));
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
    if (!lowering_.view(x.src(0))) fusion_.materialize(repeated);
    if (auto view = lowering_.view(x.src(0))) {
      Item item;
      item.kind = Item::Kind::Library;
      item.call = row_major_call(x);
      item.call.operands[0] = view->second;
      if (options_.library_supports(item.call)) {
        item.buffers = {buffer_of(view->first)};
        for (const UOp& s : x->src().subspan(1)) item.buffers.push_back(whole_operand(s));
        return item;
      }
    }
    return whole_buffers(x, Item::Kind::Library);
  }

  Item collective(const UOp& x) {
    Item item = whole_buffers(x, Item::Kind::Collective);
    item.mesh_axis = int(x.arg(2));
    const UOp& operand = x.src(0);
    int64_t parts = x.arg(3);
    item.collective.op = CollectiveOp(x.arg(0));
    item.collective.reduce = ReduceOp(x.arg(1));
    item.collective.dtype = x.dtype();
    item.collective.count =
        size_t(x.arg(4) ? operand->numel() / std::max<int64_t>(parts, 1) : operand->numel());
    return item;
  }

  Item copy(const UOp& x) {
    Item item = whole_buffers(x, Item::Kind::Copy);
    for (size_t i = 0; i + 2 < x->arg().size(); i += 3) {
      item.parts.push_back({int(x.arg(i)), int(x.arg(i + 1)), x.arg(i + 2)});
    }
    return item;
  }

  void emit() {
    Dependencies dependencies(tasks_, schedule_.buffers);
    std::vector<int> order = execution_order(tasks_, schedule_.buffers, dependencies);
    reuse_operands(tasks_, order, dependencies, schedule_.buffers, options_.spare_bytes);
    for (int t : order) {
      Task& task = tasks_[t];
      if (task.nothing) continue;
      Item item = task.draft ? kernel(*task.draft) : std::move(task.item);
      item.reads = task.reads;
      item.writes = task.writes;
      schedule_.items.push_back(std::move(item));
    }
    uint64_t sequence = 0;
    std::vector<std::vector<int>> pending(
        schedule_.buffers.size());  // collectives that use a memory
    for (int i = 0; i < int(schedule_.items.size()); ++i) {
      Item& item = schedule_.items[i];
      auto wait_for = [&](int b) {
        for (int other : pending[memory_holder(schedule_.buffers, b)]) {
          if (std::ranges::find(item.waits, other) == item.waits.end()) item.waits.push_back(other);
        }
      };
      for (int b : item.reads) wait_for(b);
      for (int b : item.writes) wait_for(b);
      for (int done : item.waits) {
        for (auto& list : pending) std::erase(list, done);
      }
      if (item.kind != Item::Kind::Collective) continue;
      item.sequence = ++sequence;
      for (int b : item.buffers) pending[memory_holder(schedule_.buffers, b)].push_back(i);
    }
  }

  // Slots in order of appearance, indices free of divisions where loops can be split or merged.
  Item kernel(const KernelDraft& draft) {
    Item item;
    item.kind = Item::Kind::Kernel;
    item.mesh = draft.mesh;
    NodeMap<UOp> slots;
    auto slot_of = [&](int buffer, bool written) {
      const VirtualBuffer& b = schedule_.buffers[buffer];
      item.buffers.push_back(buffer);
      ParamInfo param{.dtype = b.dtype, .numel = b.numel(), .written = written};
      for (size_t i = 0; i + 1 < item.buffers.size(); ++i) {
        if (first_version(schedule_.buffers, item.buffers[i]) ==
            first_version(schedule_.buffers, buffer))
          param.alias = int(i);
      }
      item.kernel.params.push_back(param);
      return UOp::make(Op::Param, b.dtype, {}, Dims{int64_t(item.buffers.size()) - 1});
    };
    // Outputs take the first slots; loads refer to buffers of the schedule until they are replaced.
    std::vector<UOp> params, values, stores;
    for (const auto& out : draft.outputs) {
      params.push_back(slot_of(out.buffer, true));
      values.push_back(out.value);
    }
    for (const UOp& x : toposort(values)) {
      if (x.op() == Op::Load && !slots.contains(x.src(0)))
        slots[x.src(0)] = slot_of(int(x.src(0).arg(0)), false);
    }
    values = substitute(values, slots);
    for (size_t i = 0; i < params.size(); ++i) {
      stores.push_back(
          UOp::make(Op::Store, params[i].dtype(), {params[i], draft.outputs[i].index, values[i]}));
    }
    UOp sink = UOp::make(Op::Sink, DType::Bool, stores);
    std::vector<UOp> ranges = draft.loops;
    for (const UOp& x : toposort(std::span(&sink, 1))) {
      if (x.op() == Op::Range && RangeKind(x.arg(2)) == RangeKind::Fold) ranges.push_back(x);
    }
    std::sort(ranges.begin() + long(draft.loops.size()), ranges.end(),
              [](const UOp& a, const UOp& b) { return a.arg(0) < b.arg(0); });
    LoopNest nest = split_ranges(std::span(&sink, 1), ranges);
    nest = merge_ranges(nest.roots, nest.ranges);
    item.kernel.sink = nest.roots[0];
    for (const UOp& r : nest.ranges) {
      if (RangeKind(r.arg(2)) == RangeKind::Loop) item.kernel.loops.push_back(r);
    }
    item.kernel.name = kernel_name(item.kernel);
    return item;
  }

  static std::string kernel_name(const KernelSource& kernel) {
    bool folds = false;
    for (const UOp& x : toposort(std::span(&kernel.sink, 1))) folds = folds || x.op() == Op::Fold;
    std::string name = folds ? "reduce" : "map";
    constexpr size_t kShown = 8;
    if (kernel.loops.size() > kShown) return fmt::format("{}_{}_loops", name, kernel.loops.size());
    for (const UOp& r : kernel.loops) name += fmt::format("_{}", r.arg(1));
    return name;
  }

  std::span<const UOp> roots_;
  const ScheduleOptions& options_;
  std::vector<UOp> order_;
  Fusion fusion_;
  Lowering lowering_;
  FreeRanges free_ranges_;
  NodeMap<std::vector<UOp>> calls_of_;  // library ops, by their first operand
  NodeMap<int> buffer_;
  NodeMap<bool> made_along_;     // what another node's task makes
  NodeMap<StridedView> places_;  // of results in values that consist of them
  MeshOf meshes_;
  std::vector<Task> tasks_;
  // While tasks are made, by number: what each drafts, and the reductions of floats in it.
  std::unordered_map<int, UOp> value_of_;
  std::unordered_map<int, std::vector<UOp>> reductions_of_;
  NodeMap<int> reducer_;  // the latest task that computes a reduction
  bool drafted_again_ = false;
  Schedule schedule_;
};

// All values of storages that another one is written over.
std::vector<UOp> overwritten_values(std::span<const UOp> roots) {
  std::vector<UOp> values;
  for (const UOp& x : toposort(roots)) {
    if (x.op() == Op::Assign) values.push_back(x.src(0));
  }
  return values;
}

// The graph in which every read of these values sees a copy made before they are overwritten:
//   %1 = assign %0 a    %2 = assign %1 (%1 + 1)    %3 = %2 + %1 * 2
// becomes, for %1,
//   %1 = assign %0 a    %4 = contiguous %1    %2 = assign %1 (%4 + 1)    %3 = %2 + %4 * 2
std::vector<UOp> read_copies(std::span<const UOp> roots, const std::vector<UOp>& values) {
  NodeMap<bool> listed(values.size());
  for (const UOp& x : values) listed[x] = true;
  NodeMap<UOp> stored,
      read;  // what stands for a node where it is written over, and where it is read
  for (const UOp& x : toposort(roots)) {
    std::vector<UOp> src;
    for (size_t i = 0; i < x->src().size(); ++i) {
      bool target = x.op() == Op::Assign && i == 0;
      src.push_back((target ? stored : read).at(x.src(i)));
    }
    UOp same = x.with_src(src);
    stored[x] = same;
    read[x] = listed.contains(x) ? UOp::make(Op::Contiguous, x.dtype(), {same}) : same;
  }
  std::vector<UOp> result;
  for (const UOp& root : roots) result.push_back(stored.at(root));
  return result;
}

}  // namespace

Schedule make_schedule(std::span<const UOp> roots, std::span<const Sharding> shardings,
                       const ScheduleOptions& options) {
  std::vector<UOp> graph = one_mesh_each(roots, shardings);
  constexpr int kAttempts = 4;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    // Copies of all leave no circle: a copy waits only for those who wrote what it reads.
    if (attempt + 1 == kAttempts) graph = read_copies(graph, overwritten_values(graph));
    Scheduler scheduler(graph, shardings, options);
    std::vector<UOp> needed_later = scheduler.run();
    if (needed_later.empty()) {
      Schedule schedule = scheduler.take();
      if (tinyshard::options().spec >= 2) verify_memory(schedule);
      return schedule;
    }
    graph = read_copies(graph, needed_later);
  }
  throw InternalError("copies of overwritten storages leave no circle");
}

std::string Item::describe() const {
  switch (kind) {
    case Kind::Kernel:
      return fmt::format("kernel {} ({} in, {} out)", kernel.name, reads.size(), writes.size());
    case Kind::Library:
      return fmt::format("library {}", tinyshard::describe(*call.node));
    case Kind::Collective:
      return fmt::format("#{} {}{} on axis {}", sequence, tinyshard::describe(collective),
                         pieces.empty() ? "" : fmt::format(" in {} pieces", pieces.size()),
                         mesh_axis);
    case Kind::Copy:
      return fmt::format("copy {}", tinyshard::describe(*call.node));
  }
  return {};
}

std::vector<std::string> Schedule::lines() const {
  std::vector<std::string> lines;
  for (const Item& item : items) {
    std::string line = item.describe() + " " + item.mesh.to_string();
    for (int b : item.buffers)
      line += fmt::format(" {}{}", name(buffers[b].dtype), to_string(buffers[b].shape));
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> Schedule::details() const {
  std::vector<std::string> texts = lines();
  for (size_t i = 0; i < items.size(); ++i) {
    texts[i] += "\nbuffers";
    for (int b : items[i].buffers) texts[i] += fmt::format(" {}", b);
    if (items[i].kind == Item::Kind::Kernel)
      texts[i] += "\n" + print(std::span(&items[i].kernel.sink, 1));
  }
  return texts;
}

uint64_t Schedule::hash() const {
  uint64_t h = items.size();
  for (const Item& item : items) {
    if (item.kind == Item::Kind::Kernel) {
      h = combine(h, structural_hash(std::span(&item.kernel.sink, 1)));
    }
    for (int b : item.buffers) h = combine(h, uint64_t(b));
  }
  for (const std::string& line : lines()) h = hash_text(line, h);
  return h;
}

}  // namespace tinyshard
