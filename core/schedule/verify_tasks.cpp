// Proof that tasks in any order that their dependencies allow compute what the graph asked for:
// every buffer that a task reads is written once, before, and not written over too early. The edges
// that this takes are found anew from loads and stores, and each has to be a way in the
// dependencies which the steps kept up to date:
//
//   b1 is a version of b0         t0 writes b0, t1 reads b0, t2 writes b1
//   t0 before t1, t0 before t2, t1 before t2
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/rewrite/pattern.h"
#include "core/schedule/schedule_state.h"
#include "core/schedule/verify.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

class TaskVerifier {
 public:
  TaskVerifier(const ScheduleState& state, std::string_view step, std::span<const int> order)
      : state_(state),
        buffers_(state.schedule.buffers),
        step_(step),
        order_(order),
        place_(order.empty() ? 0 : state.tasks.size(), -1),
        writer_(buffers_.size(), -1),
        readers_(buffers_.size()),
        names_(buffers_.size()) {}

  void run() {
    if (!state_.dependencies) return;  // no tasks yet
    for (int t = 0; t < int(state_.tasks.size()); ++t) add(t);
    if (!order_.empty()) check_order();
    for (int b = 0; b < int(buffers_.size()); ++b) {
      for (int in = b; in >= 0; in = buffers_[size_t(in)].container)
        names_[size_t(in)].push_back(b);
    }
    for (int b = 0; b < int(buffers_.size()); ++b) check_buffer(b);
    for (int root : state_.schedule.roots) need_value(root, "it is a root");
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InternalError(fmt::format("schedule verifier, after {}: {}", step_, what));
  }
  std::string text(int t) const {
    return fmt::format("task {} ({})", t, state_.tasks[size_t(t)].describe());
  }

  void add(int t) {
    const Task& task = state_.tasks[size_t(t)];
    if (task.gone) {
      if (task.draft || !task.reads.empty() || !task.writes.empty())
        fail(text(t) + " is gone and still does something");
      return;
    }
    if (task.draft) check_accesses(t);
    for (int b : task.reads) readers_[size_t(b)].push_back(t);
    for (int b : task.writes) {
      if (writer_[size_t(b)] >= 0)
        fail(fmt::format("{} and {} write buffer {}", text(writer_[size_t(b)]), text(t), b));
      writer_[size_t(b)] = t;
    }
  }

  void check_accesses(int t) const {
    const Task& task = state_.tasks[size_t(t)];
    std::set<int> loads, stores;
    std::vector<UOp> all;
    for (const KernelDraft::Output& out : task.draft->outputs) {
      stores.insert(out.buffer);
      all.insert(all.end(), {out.index, out.value});
      if (out.valid) all.push_back(out.valid);
    }
    for (const UOp& x : toposort(all)) {
      if (x.op() == Op::Load) loads.insert(task.draft->buffer_of(x));
      bool is_loop = x.op() == Op::Range && range_arg(*x).kind == RangeKind::Loop;
      if (is_loop && std::ranges::find(task.draft->loops, x) == task.draft->loops.end())
        fail(fmt::format("{} uses {}, which is none of its loops", text(t), describe(*x)));
    }
    if (loads != std::set<int>(task.reads.begin(), task.reads.end()) ||
        stores != std::set<int>(task.writes.begin(), task.writes.end()))
      fail(text(t) + " loads and stores other buffers");
  }

  // Something gives the buffer its value: a task, or the storage from before.
  void need_value(int b, std::string_view why) const {
    const VirtualBuffer& v = buffers_[size_t(b)];
    bool before = v.storage != nullptr && v.previous < 0;
    if (v.numel() > 0 && writer_[size_t(b)] < 0 && !before)
      fail(fmt::format("nothing writes buffer {}: {}", b, why));
  }

  void check_buffer(int b) const {
    const int writer = writer_[size_t(b)];
    for (int r : readers_[size_t(b)]) {
      need_value(b, text(r) + " reads it");
      if (writer >= 0) need_way(writer, r, b);
    }
    // Whoever reads the value by this name or by a further one is done before it is written over.
    const int old = buffers_[size_t(b)].previous;
    if (old < 0 || writer < 0) return;
    if (writer_[size_t(old)] >= 0) need_way(writer_[size_t(old)], writer, b);
    for (int name : names_[size_t(old)]) {
      for (int r : readers_[size_t(name)]) need_way(r, writer, b);
    }
  }

  void need_way(int from, int to, int b) const {
    const bool ordered = place_.empty() ? state_.dependencies->reaches(from, to)
                                        : place_[size_t(from)] < place_[size_t(to)];
    if (from == to || ordered) return;
    fail(fmt::format("{} does not wait for {}, because of buffer {}", text(to), text(from), b));
  }

  void check_order() {
    for (int i = 0; i < int(order_.size()); ++i) {
      int t = order_[size_t(i)];
      if (place_[size_t(t)] >= 0 || state_.tasks[size_t(t)].gone)
        fail(text(t) + " is not once in the order");
      place_[size_t(t)] = i;
    }
    for (int t = 0; t < int(state_.tasks.size()); ++t) {
      if (state_.tasks[size_t(t)].gone) continue;
      if (place_[size_t(t)] < 0) fail(text(t) + " is not in the order");
      for (int p : state_.dependencies->before(t)) {
        if (place_[size_t(p)] > place_[size_t(t)])
          fail(fmt::format("{} runs before {}, which it waits for", text(t), text(p)));
      }
    }
  }

  const ScheduleState& state_;
  const std::vector<VirtualBuffer>& buffers_;
  std::string_view step_;
  std::span<const int> order_;
  std::vector<int> place_;                 // of each task in the order; empty while there is none
  std::vector<int> writer_;                // of each buffer; -1: none
  std::vector<std::vector<int>> readers_;  // of each buffer
  std::vector<std::vector<int>> names_;    // each buffer and what lies inside of it
};

}  // namespace

void verify_tasks(const ScheduleState& state, std::string_view step, std::span<const int> order) {
  TaskVerifier(state, step, order).run();
}

}  // namespace tinyshard
