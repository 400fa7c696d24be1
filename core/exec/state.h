// The engine computes the states of tensors, keeps apart those that share a storage, reads and
// writes them. Everything here speaks of states and UOps. A call that runs something waits for its
// turn among threads (context.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/exec/live_values.h"
#include "core/exec/storage.h"
#include "core/exec/tensor_state.h"
#include "core/schedule/schedule.h"
#include "core/uop/graph.h"
#include "core/uop/uop.h"
#include "multi/mesh.h"

namespace tinyshard {

// Returns the state that a storage is for: the first of those that are what it holds, or will write
// to it. The others are equal to it and no more. What it assigns is written there; what others
// assign goes to storages of their own. Null where no state alive is for it.
const TensorState* holder(const Storage& storage);
// Tells whether the state is the holder of the storage that its value is in; it becomes it where
// there is none.
bool holds_storage(const TensorState& state);

// The graph of a state as an operand of a new op. Inside a capture, a state that was made before it
// is realized first, so that a captured step never contains the making of its own parameters.
const UOp& touch(TensorState& state);

// Computes the states and leaves Buffers in them, or what is below names and Detach in those that
// are not the first of their value. States elsewhere that still need the old value of
// a storage overwritten here are computed in the same run; one that is that old value gets a
// storage of its own. Does nothing inside a capture, where the step as a whole is computed.
void realize(std::span<const StatePtr> states);

// Plans what realize() would run. Nothing runs, and no state or storage changes. UserError inside a
// capture, and where a state cannot be computed.
Schedule plan_of(std::span<const StatePtr> states);

// Computes every state that waits to write over a storage, in one run: of those that this thread
// gave their values.
void realize_assignments();

// Grows with every value that a state is given, at its making or later.
uint64_t newest_value();
// The states to which this thread gave values after `since` that are not computed yet.
std::vector<LiveValue> given_since(uint64_t since);

// Before storages are touched by what is no part of the graph, a replay or a write from the host:
// computes the states that need what the storages hold now, those that read or are what will be
// written, and those that are to write first what will be read. Only states whose value was given
// after `since`, and not the holders of what will be written, nor states that get new values by it.
void settle(const StorageUse& use, uint64_t since,
            std::span<const TensorState* const> renewed = {});
// Gives a realized state that is not the holder of its storage one of its own.
void separate(TensorState& state);

// Fails the running call: the state was made within a captured step, and has no value outside of it.
[[noreturn]] void fail_without_value(const TensorState& state);
// Marks a gradient that a step leaves without computing it: a use of it is an error that names the
// parameter.
void mark_lost_gradient(TensorState& gradient, const TensorState& parameter);

// Grows whenever a tensor becomes a parameter, or is none any more.
uint64_t parameter_changes();
void set_parameter(TensorState& state, bool is_param);

// Elements in row-major order of the global shape, on the host. Realizes first. Parts come together
// there (host_read.h): no device holds more than it did.
void read(TensorState& state, std::span<std::byte> to);
std::vector<std::byte> read(TensorState& state);
// Realizes the state; returns its storage, or that of the same value, where devices hold boxes of the
// whole: no terms of a sum, and no parts in an order of their own. UserError inside a capture.
std::shared_ptr<Storage> in_boxes(TensorState& state);
// Tells whether its value was in memory that went with the runtime.
bool is_lost(const TensorState& state);
// Overwrites the storage of a realized state from the host (global shape, row-major). States that
// need what it held are computed first.
void write(TensorState& state, std::span<const std::byte> data);

// A storage of this shape that nothing has written yet; memory comes when a run first needs it.
UOp empty_buffer(DimSpan shape, DType dtype, const Sharding& where);
// A storage filled from the host, on this process's default device.
UOp host_buffer(DimSpan shape, DType dtype, std::span<const std::byte> data);
// Tells whether a value lies in a storage, or waits to be written to one.
bool has_storage(const UOp& value);
// The Buffer that holds a value, its own or another state's; null where it is not computed.
const UOp* stored_node(const UOp& value);
// Returns a value for another state that lies in the same Buffer. It has a name of its own, so
// gradients tell the two states apart.
inline UOp share_stored(const UOp& buffer) {
  return named(UOp::make(Op::Detach, buffer.dtype(), {buffer}));
}
// Gives a value a storage of its own: Assign(new buffer, value). Equal values become distinct.
UOp with_own_storage(const UOp& value);
// Returns `value`, which takes the place of a state's value `old`, without the storage that `old`
// no longer needs: if `value` moves `old`, and `old` still waits to be written to its first
// storage, then Redistribute(Assign(a buffer without memory, v)) becomes Redistribute(v).
UOp without_storage_left(const UOp& value, const UOp& old);

// Where the value of a graph will live; runs the sharding rules, computes nothing.
Sharding sharding_of(const UOp& value);

// The parameters alive that these graphs lead to, in the order in which their values were created.
std::vector<StatePtr> parameters_of(const Graph& roots);

// This process's default device as a mesh of one.
Mesh default_mesh();

}  // namespace tinyshard
