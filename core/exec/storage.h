// The memory behind a Buffer node: one allocation on each device of its mesh that this process
// holds. Memory comes with the first run that touches it and goes with the last node that names it,
// or with the runtime: to touch it afterwards is a UserError.
#pragma once
#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/exec/ledger.h"
#include "core/exec/runtime_part.h"
#include "core/runtime/device.h"
#include "multi/mesh.h"

namespace tinyshard {

class TensorState;

class Storage : public Placed, public RuntimePart {
 public:
  Storage(Dims shape, DType dtype, Sharding sharding);
  ~Storage() override;

  const Dims& shape() const { return shape_; }  // global
  const Dims& local_shape() const { return local_shape_; }
  DType dtype() const { return dtype_; }
  size_t local_bytes() const;

  // Returns memory by local device, as in Context::local_positions. Allocates at the first call.
  std::span<void* const> memory();
  // Returns memory at an address that may suit only copies, as where a file was mapped. The next
  // call of memory() may end it.
  std::span<void* const> memory_to_copy();
  std::span<Device* const> devices();
  static constexpr size_t kAlignment = 64;  // of memory that kernels work on
  // Memory of a single local device that `owner` keeps, instead of an allocation. Of what is not
  // aligned as the kernels of the device want it memory() makes a copy that is.
  void adopt(void* memory, std::shared_ptr<void> owner) {
    join_runtime();
    memory_ = {memory};
    owner_ = std::move(owner);
    aligned_ = reinterpret_cast<uintptr_t>(memory) % kAlignment == 0;
  }
  // Adopts memory that `make` returns when it is first asked for.
  void adopt_later(std::function<std::shared_ptr<void>()> make) { make_ = std::move(make); }
  bool allocated() const { return !memory_.empty(); }
  void check_usable() const;  // UserError where its memory went with the runtime, or is refused
  // Why nobody can use the value, where that is so: a tensor of a file in a type that is not known.
  std::string refusal;

  // The state that the storage is for: others may be what it holds, but only this one writes to it.
  // Empty, or gone, until a state is given it. See holder() in state.h.
  std::weak_ptr<const TensorState> owner;

  // Stands for an input of a captured step: only that step may refer to it, and it has no memory.
  void set_placeholder() { placeholder_ = true; }
  bool is_placeholder() const { return placeholder_; }

  // newest_value() when the state that this was for took another value by replace(): a step that was
  // captured before reads and writes what that state has no more. 0: never.
  uint64_t replaced_at = 0;

  // Set if the value was computed because a storage that it reads was written over, and not because
  // somebody asked for it: the names and values from which its graph computed it. Gradients do not
  // reach these any more, and gradient() has to say so. Null otherwise.
  struct Ended {
    std::vector<int64_t> names;  // of its own graph, however many ended before it
    // The values, by their storages. Weak, as another storage may lie at the address of one that is
    // gone.
    std::vector<std::weak_ptr<const void>> storages;
    std::vector<int64_t> parameters;  // sorted; those of what had ended below it, too
  };
  std::shared_ptr<const Ended> ended;

  // A hash of what the host wrote here; 0 when a run wrote since, or this process is the whole job.
  void wrote(std::span<const std::byte> data);
  uint64_t written() const { return written_; }
  // A hash of what it holds, of a sample where it is large; 0 where only its device can read it.
  uint64_t content_hash();
  // A run wrote here: values that came from what is `given` to all ranks and is in no ledger yet.
  void run_wrote(std::vector<Given> given = {}) {
    written_ = 0;
    given_ = std::move(given);
  }
  std::span<const Given> given() const { return given_; }
  void give(std::vector<Given> more);
  void clear_given() { given_.clear(); }

  // The value is how many numbers were drawn, and the seed (random.cpp).
  void set_draw() { draw_ = true; }
  bool is_draw() const { return draw_; }

  static Storage* of(const Node& buffer) {
    return static_cast<Storage*>(static_cast<Placed*>(const_cast<void*>(buffer.payload.get())));
  }

 private:
  void release() noexcept;
  void runtime_ends() noexcept override { release(); }

  Dims shape_, local_shape_;
  DType dtype_;
  bool placeholder_ = false;
  bool aligned_ = true;  // what memory_ holds
  bool draw_ = false;
  uint64_t written_ = 0;
  std::vector<Given> given_;
  std::vector<Device*> devices_;
  std::vector<void*> memory_;
  std::function<std::shared_ptr<void>()> make_;
  std::shared_ptr<void> owner_;  // of memory that is not the device's to free
};

// Fails the running call (UserError) where this process holds no device of the mesh: nothing of a
// value that lives there can be read or copied here.
void need_device_of(const Mesh& mesh);

// Storages that a run reads, and those that it writes over, each list sorted.
struct StorageUse {
  std::vector<const Storage*> read, written;
  bool reads(const Storage* s) const { return std::ranges::binary_search(read, s); }
  bool writes(const Storage* s) const { return std::ranges::binary_search(written, s); }
};

// The storage of a Buffer node, kept alive by the result.
inline std::shared_ptr<Storage> shared_storage(const UOp& buffer) {
  return {std::const_pointer_cast<void>(std::shared_ptr<const void>(buffer->payload)),
          Storage::of(*buffer)};
}

// A Buffer node over a new storage.
UOp buffer_node(std::shared_ptr<Storage> storage);

}  // namespace tinyshard
