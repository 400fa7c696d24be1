#include "core/exec/runtime_part.h"

#include <mutex>

namespace tinyshard {
namespace {

struct Parts {
  std::mutex mutex;
  RuntimePart* first = nullptr;
};

Parts& parts() {
  static auto& all = *new Parts;  // outlives every static tensor
  return all;
}

}  // namespace

void RuntimePart::join_runtime() {
  if (joined_) return;
  std::lock_guard lock(parts().mutex);
  joined_ = true;
  before_ = nullptr;
  after_ = parts().first;
  if (after_) after_->before_ = this;
  parts().first = this;
}

void RuntimePart::leave_runtime() noexcept {
  if (!joined_) return;
  std::lock_guard lock(parts().mutex);
  joined_ = false;
  if (after_) after_->before_ = before_;
  (before_ ? before_->after_ : parts().first) = after_;
}

void RuntimePart::end_all() noexcept {
  // Parts are lost one at a time and unlocked: a part may be the last owner of others, which leave
  // the list with it.
  for (;;) {
    RuntimePart* part = nullptr;
    {
      std::lock_guard lock(parts().mutex);
      part = parts().first;
    }
    if (!part) return;
    part->leave_runtime();
    part->lost_ = true;
    part->runtime_ends();
  }
}

}  // namespace tinyshard
