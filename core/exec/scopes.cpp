// The mode of training belongs to a thread, the default type of floats to the process. A trace sets the
// former for itself: what it set is no look at its caller's.
#include "core/exec/scopes.h"

#include <atomic>
#include <utility>

#include "core/base/thread_local.h"
#include "core/exec/capture.h"

namespace tinyshard::scopes {
namespace {

TS_HOT_THREAD_LOCAL Training mode;
std::atomic<DType> float_type{DType::F32};

}  // namespace

bool training() {
  Capture* trace = mode.within_trace ? nullptr : current_capture();
  if (trace) trace->scopes().training = mode.on;
  return mode.on;
}

Training set_training(bool on) { return std::exchange(mode, {on, current_capture() != nullptr}); }

void restore_training(Training before) { mode = before; }

DType default_float() {
  const DType now = float_type.load(std::memory_order_relaxed);
  if (Capture* trace = current_capture()) trace->scopes().default_float = now;
  return now;
}

void set_default_float(DType dtype) { float_type.store(dtype, std::memory_order_relaxed); }

bool Seen::hold() const {
  return (!training || *training == mode.on) &&
         (!default_float || *default_float == float_type.load(std::memory_order_relaxed));
}

}  // namespace tinyshard::scopes
