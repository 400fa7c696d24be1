// Storages are made free to be filled in three ways. A state that is not
// computed yet gets an empty storage of its own instead. A state that alone
// names its storage keeps it. If graphs or other states name it, too, they get
// what they need of its old value first (settle), and the state its own storage.
#include "core/exec/overwrite.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/exec/capture.h"
#include "core/exec/context.h"
#include "core/exec/kept_in_place.h"

namespace tinyshard {
namespace {

// Captured steps may know a storage that has memory, even where a write to it is still to come.
bool waits_to_be_written_to_memory(const TensorState& state) {
  return state.value.op() == Op::Assign && storage_node(state.value).op() == Op::Buffer &&
         Storage::of(*storage_node(state.value))->allocated();
}

}  // namespace

std::vector<Storage*> open_to_overwrite(std::span<const StatePtr> states) {
  check_internal(current_capture() == nullptr, "a captured step is not written over from outside");
  const Context::Turn turn;
  std::vector<StatePtr> waiting;
  for (const StatePtr& s : states) {
    if (waits_to_be_written_to_memory(*s)) waiting.push_back(s);
  }
  realize(waiting);

  std::vector<const Storage*> shared;  // with graphs, or with other states
  for (const StatePtr& s : states) {
    if (s->value.op() != Op::Buffer) {
      replace_value(*s, empty_buffer(s->value.shape(), s->value.dtype(), sharding_of(s->value)));
      continue;
    }
    Storage::of(*s->value)->check_usable();
    // The node has one reference where nobody but the state names the storage.
    if (s->value->references.load(std::memory_order_relaxed) == 1 && holds_storage(*s)) continue;
    separate(*s);
    shared.push_back(Storage::of(*s->value));
  }
  if (!shared.empty()) {
    std::ranges::sort(shared);
    settle({shared, shared}, 0);
  }
  std::vector<Storage*> storages;
  for (const StatePtr& s : states) storages.push_back(Storage::of(*s->value));
  KeptInPlace::overwritten(storages);
  return storages;
}

}  // namespace tinyshard
