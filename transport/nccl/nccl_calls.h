// A participant's part in a call, as calls of NCCL.
#pragma once
#include "core/runtime/communicator.h"
#include "transport/nccl/nccl.h"

namespace tinyshard::nccl {

// Returns whether NCCL offers it. Moves of types that it does not know are moves of bytes. Its Max
// and Min pass over NaN, which ours must not, and it reduces no 16-bit integers: graphs ask for
// neither (multi/wire.h).
bool offers(CollectiveOp op, DType dtype, ReduceOp reduce);

struct Participant {
  Comm comm;
  Stream stream;
  size_t number, of;  // its place among the participants
};

// Queues what `participant` does of a call; `send` and `recv` as far as it has them. To be called
// inside a group. The first result that is not a success or "in progress" is returned at once.
Result issue(const Nccl& nccl, const Collective& call, const Participant& participant,
             const void* send, void* recv);

// Two participants connect when they first exchange something, and both must then connect the same
// ways: a byte goes each way before anything else. `two_bytes` are of the participant's memory.
Result meet(const Nccl& nccl, const Participant& participant, int peer, void* two_bytes);

}  // namespace tinyshard::nccl
