// A read is a copy of a storage, or of the part of each device, that nobody waits for.
#include "core/exec/late_read.h"

#include <span>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/exec/host_read.h"
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
  std::vector<std::byte> all;
  wait_for([&](std::span<const std::byte> bytes) { all.assign(bytes.begin(), bytes.end()); });
  return all;
}

void LateRead::wait_for(const std::function<void(std::span<const std::byte>)>& use) const {
  const Context::Use keeps_the_epoch;
  check_usable();
  use(copy_->wait());
}

std::unique_ptr<LateRead> begin_read(TensorState& state) {
  const Context::Turn turn;
  return std::make_unique<LateRead>(begin_read_whole(*in_boxes(state)));
}

}  // namespace tinyshard
