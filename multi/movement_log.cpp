// The log that hears of a thread's movements is found by a pointer of the thread, as redistribution is
// called from many strategies that need not know of records.
#include "multi/movement_log.h"

#include "core/base/observer.h"

namespace tinyshard {

constinit thread_local MovementLog* MovementLog::innermost = nullptr;

MovementLog::MovementLog() : wanted_(records_are_read() != RecordForm::None) {
  if (!wanted_) return;
  outer_ = innermost;
  innermost = this;
}

MovementLog::~MovementLog() {
  if (wanted_) innermost = outer_;
}

void MovementLog::lies(const UOp& x, Sharding where, OriginId origin) {
  if (wanted_) values_.push_back({x, std::move(where), origin});
}

}  // namespace tinyshard
