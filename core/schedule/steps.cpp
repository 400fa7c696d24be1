// The table is the order in which steps run; each takes the state on from where the last one left
// it. A state grows: buffers at first, then tasks, then items, and the watcher prints the furthest
// of these. Tasks are verified after each step by their dependencies, and from `order` on by their
// order, since results that reuse memory rely on it.
#include "core/schedule/steps.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "core/schedule/buckets.h"
#include "core/schedule/draft.h"
#include "core/schedule/execution_order.h"
#include "core/schedule/horizontal.h"
#include "core/schedule/items.h"
#include "core/schedule/memory.h"
#include "core/schedule/results.h"
#include "core/schedule/reuse.h"
#include "core/schedule/updates.h"
#include "core/schedule/verify.h"
#include "core/schedule/vertical.h"

namespace tinyshard {
namespace {

void choose_values(ScheduleState& s) { s.fusion.emplace(s.order, s.roots); }

void order_tasks(ScheduleState& s) {
  s.task_order = execution_order(s.tasks, s.schedule.buffers, *s.dependencies);
}

void reuse_memory(ScheduleState& s) {
  reuse_operands(s.tasks, order_of_tasks(s), *s.dependencies, s.schedule.buffers,
                 s.options.spare_bytes);
}

void place_buffers(ScheduleState& s) { plan_memory(s.schedule, s.options.spare_bytes); }

constexpr auto kSteps = std::to_array<ScheduleStep>({
    {"fusion", "which values get memory; all others are computed where they are used", true,
     choose_values},
    {"storages", "collectives and updates of storages write there", true, name_storages},
    {"results", "library results are written straight into the value that consists of them", false,
     place_results},
    {"lower", "a kernel, call, collective or copy for each value with memory", true, lower_tasks},
    {"vertical_fusion", "kernels are computed inside of those that read their results", false,
     fuse_vertically},
    {"sibling_fusion", "kernels over the same loops that read one large buffer read it once", false,
     fuse_siblings},
    {"unread", "stores that nobody reads are dropped", false, drop_unread},
    {"horizontal_fusion", "independent small kernels become one launch", false, fuse_horizontally},
    {"buckets", "small collectives become few large ones", false, bucket_collectives},
    {"late_updates",
     "storages are written to when all collectives are done, where that was asked for", false,
     update_at_once},
    {"order", "memory is freed early and collectives start early", false, order_tasks},
    {"reuse", "results take the memory of operands that end there", false, reuse_memory},
    {"items", "kernels name the slots of their parameters; items wait for collectives", true,
     make_items},
    {"memory", "every temporary gets its place in the arena", true, place_buffers},
});

struct Watcher {
  static std::string count(const ScheduleState& s) {
    if (!s.schedule.items.empty()) return fmt::format("{} items", s.schedule.items.size());
    if (s.tasks.empty()) return fmt::format("{} buffers", s.schedule.buffers.size());
    auto there = [](const Task& t) { return !t.gone; };
    return fmt::format("{} tasks", std::ranges::count_if(s.tasks, there));
  }

  static std::string text(const ScheduleState& s) {
    std::string text;
    auto add = [&](std::string_view line) { text += fmt::format("  {}\n", line); };
    if (!s.schedule.items.empty()) {
      for (const std::string& line : s.schedule.lines()) add(line);
    } else if (s.dependencies && !s.is_stuck()) {
      for (int t : order_of_tasks(s)) add(s.tasks[size_t(t)].describe());
    } else if (s.fusion) {
      for (const UOp& x : s.order) {
        if (s.fusion->materialized(x)) add(describe(*x));
      }
    }
    return text;
  }

  static void verify(const ScheduleState& s, const ScheduleStep& step) {
    if (s.is_stuck()) return;
    // Results that take an operand's memory wait for its readers by the order alone.
    const bool ordered = step.run == order_tasks || step.run == reuse_memory;
    if (step.run == place_buffers)
      verify_memory(s.schedule);
    else if (s.schedule.items.empty())
      verify_tasks(s, step.name, ordered ? order_of_tasks(s) : std::vector<int>());
  }

  static bool done(const ScheduleState& s) { return s.is_stuck(); }
};

}  // namespace

std::span<const ScheduleStep> schedule_steps() { return kSteps; }

void run_schedule_steps(ScheduleState& state) {
  run_steps<ScheduleState>("step", kSteps, state, Watcher());
}

}  // namespace tinyshard
