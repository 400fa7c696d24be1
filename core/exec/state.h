// What all copies of one Tensor handle share, and the few things the engine does with it. Tensor is
// a thin layer of methods over this; everything below speaks of states and UOps.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/uop/uop.h"
#include "multi/mesh.h"

namespace tinyshard {

// A value, computed or not. `value` is a Buffer node once it is realized; before, the graph that
// computes it. An Assign(target, v) node means: v, to be written over target's storage.
struct TensorState : std::enable_shared_from_this<TensorState> {
  explicit TensorState(UOp value);
  ~TensorState();
  TensorState(const TensorState&) = delete;
  TensorState& operator=(const TensorState&) = delete;

  UOp value;
  std::shared_ptr<TensorState> gradient;
  bool is_param = false;  // backward() fills its gradient
  bool traced = false;    // made inside a captured step and not returned: it has no value
};
using StatePtr = std::shared_ptr<TensorState>;
inline StatePtr make_state(UOp value) { return std::make_shared<TensorState>(std::move(value)); }

// The graph of a state as an operand of a new op. Inside a capture, a state that was made before it
// is realized first, so that a captured step never contains the making of its own parameters.
const UOp& touch(TensorState& state);

// Computes the states and leaves Buffers in them. States elsewhere that still need the old value of
// a storage overwritten here are computed in the same run. Does nothing inside a capture, where the
// step as a whole is computed.
void realize(std::span<const StatePtr> states);

// Elements in row-major order of the global shape, on the host. Realizes first.
std::vector<std::byte> read(TensorState& state);
// Overwrites the storage of a realized state from the host (global shape, row-major).
void write(TensorState& state, std::span<const std::byte> data);

// A storage of this shape that nothing has written yet; memory comes when a run first needs it.
UOp empty_buffer(DimSpan shape, DType dtype, const Sharding& where);
// A storage filled from the host, on this process's default device.
UOp host_buffer(DimSpan shape, DType dtype, std::span<const std::byte> data);
// Whether a value lies in a storage, or waits to be written to one.
bool has_storage(const UOp& value);
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
