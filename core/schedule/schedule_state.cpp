// All steps of scheduling start from these facts: the nodes in order, how often each is read, on which mesh it
// lies, and which library ops share a first operand. Values get their buffers when a step first asks. An
// assignment gets one that is a later version of what it replaces:
//
//   x = a buffer of a tensor          buffer 0, with the tensor's storage
//   Assign(x, y)                      buffer 1, previous 0: the same memory, afterwards
#include "core/schedule/schedule_state.h"

#include "core/rewrite/pattern.h"

namespace tinyshard {

ScheduleState::ScheduleState(const Graph& graph, std::span<const Sharding> shardings,
                             const ScheduleOptions& schedule_options)
    : roots(graph.roots()),
      options(schedule_options),
      order(graph.order()),
      uses(count_uses(order, roots)),
      meshes(find_meshes(order, roots, shardings)),
      buffer(order.size()) {
  for (const UOp& x : order) {
    if (is_library_op(x.op())) calls_of[x.src(0)].push_back(x);
  }
}

int ScheduleState::buffer_of(const UOp& x) {
  if (int* found = buffer.find(x)) return *found;
  VirtualBuffer b;
  b.dtype = x.dtype();
  b.shape.assign(x.shape().begin(), x.shape().end());
  b.mesh = *meshes.find(x);
  b.origin = origin_id(x);
  if (x.op() == Op::Buffer) b.storage = x->payload;
  if (x.op() == Op::Assign) b.previous = buffer_of(x.src(0));
  schedule.buffers.push_back(std::move(b));
  int number = int(schedule.buffers.size()) - 1;
  buffer[x] = number;
  return number;
}

std::vector<int> order_of_tasks(const ScheduleState& state) {
  return state.task_order.empty() ? state.dependencies->order(state.tasks) : state.task_order;
}

}  // namespace tinyshard
