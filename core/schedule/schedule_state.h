// The state of a schedule while it is being made. Each step of core/schedule/steps.h reads what
// those before it left here and adds its own. One thread, one schedule.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "core/runtime/strided_view.h"
#include "core/schedule/dependencies.h"
#include "core/schedule/fusion.h"
#include "core/schedule/meshes.h"
#include "core/schedule/schedule.h"
#include "core/schedule/task.h"
#include "core/uop/node_map.h"

namespace tinyshard {

struct ScheduleState {
  ScheduleState(const Graph& graph, std::span<const Sharding> shardings,
                const ScheduleOptions& options);
  ScheduleState(const ScheduleState&) = delete;
  ScheduleState& operator=(const ScheduleState&) = delete;

  // The buffer of a value, made when it is first asked for.
  int buffer_of(const UOp& x);
  // True if `lower` found tasks that wait for each other in a circle: nothing else can follow.
  bool is_stuck() const { return !needed_later.empty(); }

  std::vector<UOp> roots;
  const ScheduleOptions& options;
  NodeOrder order;  // of all nodes, sources first
  NodeMap<int> uses;
  MeshOf meshes;
  NodeMap<std::vector<UOp>> calls_of;  // library ops, by their first operand

  // From `fusion`: which values get memory. Lowering adds values to it.
  std::optional<Fusion> fusion;

  // From `storages` and `results`.
  NodeMap<int> buffer;          // of each value that has one
  NodeMap<bool> made_along;     // values that another node's task makes
  NodeMap<StridedView> places;  // of library results in values that consist of them

  // From `lower`.
  std::vector<Task> tasks;
  std::optional<Dependencies> dependencies;  // kept up to date while tasks are fused
  std::vector<int> drafted;                  // tasks in order, before any are fused
  std::vector<UOp> needed_later;             // values that tasks in a circle write over
  FreeRanges free_ranges;

  std::vector<int> task_order;  // from `order`: the order in which tasks run

  Schedule schedule;  // buffers from `storages`, items from `items`
};

// Tasks in the order in which they run; that of their values in the graph until `order` has run.
std::vector<int> order_of_tasks(const ScheduleState& state);

}  // namespace tinyshard
