// States are a doubly linked list, the newest last, and a state that gets a value moves to its end.
// Each value has a number one higher than the one before, so what came since a number is found by
// walking back from the end until it is reached. A value that is replaced is dropped outside of the
// lock: it may be the last reference to a whole graph.
#include "core/exec/live_values.h"

#include "core/exec/capture.h"

namespace tinyshard {

uint32_t LiveValues::this_thread() {
  static std::atomic<uint32_t> threads{0};
  thread_local const uint32_t number = ++threads;
  return number;
}

void LiveValues::add(TensorState& state) {
  std::lock_guard lock(mutex_);
  state.trace_ = current_capture();
  link(state);
}

void LiveValues::remove(TensorState& state) {
  std::lock_guard lock(mutex_);
  if (state.given_ > 0) unlink(state);
}

void LiveValues::set(TensorState& state, UOp value) {
  Capture* trace = current_capture();
  if (trace && state.trace_ != trace) trace->note(state);
  std::lock_guard lock(mutex_);
  unlink(state);
  std::swap(state.value_, value);  // what goes is dropped outside of the lock
  state.trace_ = trace;
  link(state);
}

void LiveValues::replace(TensorState& state, UOp value, int64_t name) {
  Capture* trace = current_capture();
  if (trace && state.trace_ != trace) trace->note(state);
  {
    std::lock_guard lock(mutex_);
    state.name = name;
  }
  state.set(std::move(value));
}

void LiveValues::end_trace(const Capture& trace, uint64_t since) noexcept {
  std::lock_guard lock(mutex_);
  for (TensorState* s = last_; s && s->given_ > since; s = s->older_) {
    if (s->trace_ == &trace) s->trace_ = nullptr;
  }
}

void LiveValues::link(TensorState& state) {
  state.older_ = last_;
  state.newer_ = nullptr;
  (last_ ? last_->newer_ : first_) = &state;
  last_ = &state;
  state.given_ = newest_.load(std::memory_order_relaxed) + 1;
  state.thread_ = this_thread();
  newest_.store(state.given_, std::memory_order_relaxed);
}

void LiveValues::unlink(TensorState& state) {
  (state.older_ ? state.older_->newer_ : first_) = state.newer_;
  (state.newer_ ? state.newer_->older_ : last_) = state.older_;
}

}  // namespace tinyshard
