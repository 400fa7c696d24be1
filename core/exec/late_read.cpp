// A read is one copy of a storage that each device has whole. Parts come together first, in the same
// queue, so that nobody waits for that either.
#include "core/exec/late_read.h"

#include <span>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/exec/state.h"

namespace tinyshard {

LateRead::~LateRead() {
  const Context::Use use;
  leave_runtime();
  copy_.reset();
}

void LateRead::check_usable() const {
  if (is_lost())
    throw UserError(
        "a value that was on its way to the host is lost: it was not read before "
        "Runtime::shutdown()");
  Context::check_is_ours();
}

bool LateRead::arrived() const {
  const Context::Use use;
  check_usable();
  return copy_->arrived();
}

std::vector<std::byte> LateRead::wait() const {
  const Context::Use use;
  check_usable();
  const std::span<const std::byte> bytes = copy_->wait();
  return {bytes.begin(), bytes.end()};
}

std::unique_ptr<LateRead> begin_read(TensorState& state) {
  const Context::Turn turn;
  const StatePtr whole = whole_on_devices(state);
  Storage* storage = Storage::of(**stored_node(whole->value));
  return std::make_unique<LateRead>(
      storage->devices()[0]->begin_copy_out(storage->memory_to_copy()[0], storage->local_bytes()));
}

}  // namespace tinyshard
