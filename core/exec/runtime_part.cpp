// Parts are a doubly linked list through the parts themselves, so that joining and leaving cost no
// memory. The end takes one part at a time out of the list and calls it without the lock: a part
// may be the last owner of others, which leave the list in its destructor.
#include "core/exec/runtime_part.h"

#include "core/exec/context.h"

namespace tinyshard {

void RuntimePart::join_runtime() {
  if (joined_) return;
  RuntimeParts& parts = Context::parts();
  std::lock_guard lock(parts.mutex_);
  joined_ = true;
  before_ = nullptr;
  after_ = parts.first_;
  if (after_) after_->before_ = this;
  parts.first_ = this;
}

void RuntimePart::leave_runtime() noexcept {
  if (!joined_) return;
  RuntimeParts& parts = Context::parts();
  std::lock_guard lock(parts.mutex_);
  joined_ = false;
  if (after_) after_->before_ = before_;
  (before_ ? before_->after_ : parts.first_) = after_;
}

void RuntimeParts::end_all() noexcept {
  // Parts are lost one at a time and unlocked: a part may be the last owner of others, which leave
  // the table with it.
  for (;;) {
    RuntimePart* part = nullptr;
    {
      std::lock_guard lock(mutex_);
      part = first_;
    }
    if (!part) return;
    part->leave_runtime();
    part->lost_ = true;
    part->runtime_ends();
  }
}

}  // namespace tinyshard
