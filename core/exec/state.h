// What all copies of one Tensor handle share, and the few things the engine does with it. Tensor is
// a thin layer of methods over this; everything below speaks of states and UOps.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/exec/storage.h"
#include "core/uop/uop.h"
#include "multi/mesh.h"

namespace tinyshard {

// A value, computed or not. `value` is a Buffer node once it is realized; before, the graph that
// computes it, below a name. An Assign(target, v) node means: v, to be written over target's
// storage. A Buffer below names and Detach is the value of another state, too: this one needs no
// memory of its own until that storage is written over.
class TensorState : public std::enable_shared_from_this<TensorState> {
  UOp value_;
  TensorState *older_ = nullptr, *newer_ = nullptr;  // in the order of newest_value()
  uint64_t given_ = 0;
  friend class Registry;

 public:
  explicit TensorState(UOp value);
  ~TensorState();
  TensorState(const TensorState&) = delete;
  TensorState& operator=(const TensorState&) = delete;

  const UOp& value = value_;
  void set(UOp value);  // computed, or put where it will be: what the state is known by stays
  int64_t name;  // of what graphs built before it was computed know it by; 0: of the value alone
  std::shared_ptr<TensorState> gradient;
  bool is_param = false;  // backward() fills its gradient
  bool traced = false;    // made inside a captured step and not returned: it has no value
};
using StatePtr = std::shared_ptr<TensorState>;
StatePtr make_state(UOp value);
// The state takes another value, as another tensor would.
void replace_value(TensorState& state, UOp value);

// Of several states that are what a storage holds, or are to write to it, the one that it is for:
// the first. The others are equal to it and no more. What it assigns is written there; what others
// assign goes to storages of their own. Null where no state alive is for it.
const TensorState* holder(const Storage& storage);
// Whether the state is the holder of the storage that its value is in; it becomes it where there is
// none.
bool holds_storage(const TensorState& state);

// The graph of a state as an operand of a new op. Inside a capture, a state that was made before it
// is realized first, so that a captured step never contains the making of its own parameters.
const UOp& touch(TensorState& state);

// Computes the states and leaves Buffers in them, or what is below names and Detach in those that
// are not the first of their value. States elsewhere that still need the old value of
// a storage overwritten here are computed in the same run; one that is that old value gets a
// storage of its own. Does nothing inside a capture, where the step as a whole is computed.
void realize(std::span<const StatePtr> states);

// Computes every state that waits to write over a storage, in one run.
void realize_assignments();

// Grows with every value that a state is given, at its making or later.
uint64_t newest_value();

// Before storages are touched by what is no part of the graph, a replay or a write from the host:
// computes the states that need what the storages hold now, those that read or are what will be
// written, and those that are to write first what will be read. Only states whose value was given
// after `since`, and not the holders of what will be written.
void settle(const StorageUse& use, uint64_t since);
// Gives a realized state that is not the holder of its storage one of its own.
void separate(TensorState& state);

// Elements in row-major order of the global shape, on the host. Realizes first.
std::vector<std::byte> read(TensorState& state);
// Whether its value was in memory that went with the runtime.
bool is_lost(const TensorState& state);
// Overwrites the storage of a realized state from the host (global shape, row-major). States that
// need what it held are computed first.
void write(TensorState& state, std::span<const std::byte> data);

// A storage of this shape that nothing has written yet; memory comes when a run first needs it.
UOp empty_buffer(DimSpan shape, DType dtype, const Sharding& where);
// A storage filled from the host, on this process's default device.
UOp host_buffer(DimSpan shape, DType dtype, std::span<const std::byte> data);
// Whether a value lies in a storage, or waits to be written to one.
bool has_storage(const UOp& value);
// The Buffer below a chain of Assigns.
const UOp& storage_node(const UOp& value);
// The Buffer that holds a value, its own or another state's; null where it is not computed.
UOp stored_node(const UOp& value);
// The value of one more state that lies in a Buffer; it was computed, but not from that state.
inline UOp share_stored(const UOp& buffer) {
  return named(UOp::make(Op::Detach, buffer.dtype(), {buffer}));
}
// Gives a value a storage of its own: Assign(new buffer, value). Equal values become distinct.
UOp with_own_storage(const UOp& value);
// The value alone, where it waits to be the first one of its storage.
UOp without_first_storage(const UOp& value);

// Where the value of a graph will live; runs the sharding rules, computes nothing.
Sharding sharding_of(const UOp& value);

// Calls visit for every live state; used by backward() to find parameters.
void for_each_live_state(const std::function<void(const StatePtr&)>& visit);

// This process's default device as a mesh of one.
Mesh default_mesh();

}  // namespace tinyshard
