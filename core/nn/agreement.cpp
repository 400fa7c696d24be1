#include "core/nn/agreement.h"

#include <vector>

#include "core/exec/context.h"

namespace tinyshard::nn {

Message exchange(Message mine, ReduceOp op, int64_t nothing) {
  const Context::Turn turn;
  Communicator& world = Context::get().world();
  std::vector<Message> terms(world.local().size());
  std::vector<CommBuffer> buffers;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (i == 0) {
      terms[i] = mine;
    } else {
      terms[i].fill(nothing);
    }
    buffers.push_back({terms[i].data()});
  }
  const RunIdentity identity{.label = "of a checkpoint"};
  world
      .start({.op = CollectiveOp::AllReduce,
              .reduce = op,
              .dtype = DType::I64,
              .count = mine.size(),
              .identity = &identity},
             buffers, buffers)
      .wait();
  return terms[0];
}

bool agree(bool mine) { return exchange({mine, mine, mine}, ReduceOp::Min, 1)[0] != 0; }

}  // namespace tinyshard::nn
